// Octokit behind the outbound proxy. Only its base URL differs: the pages that follow the first one go through it, too.
import assert from "node:assert";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, proxy, provider] = process.argv.slice(2);
const entry = createRequire(`${folder}/`).resolve("octokit");
const { Octokit } = await import(pathToFileURL(entry).href);
const octokit = new Octokit({ baseUrl: `${proxy}/github`, auth: "ghp_test", retry: { enabled: false }, throttle: { enabled: false } });

// Eight pages at five in a window: it waits within, and GitHub never refuses.
const issues = await octokit.paginate("GET /repos/{owner}/{repo}/issues", { owner: "o", repo: "r" });
assert.deepEqual(issues.map(({ number }) => number), [1, 2, 3, 4, 5, 6, 7, 8]);
const refused = await (await fetch(`${provider}/refused`)).json();
assert.equal(refused.github ?? 0, 0);

// A call that may not wait is refused, in words that the SDK shows. On a slow machine a window may pass meanwhile.
let failed = [];
while (failed.length === 0) {
  const calls = Array.from({ length: 12 }, () =>
    octokit.request("GET /repos/{owner}/{repo}/issues", { owner: "o", repo: "r", headers: { "tollgate-max-wait": "0s" } }),
  );
  const results = await Promise.allSettled(calls);
  failed = results.filter(({ status }) => status === "rejected").map(({ reason }) => reason);
}
for (const error of failed) {
  assert.equal(error.status, 429);
  const { type, bucket, until, retry_after_ms } = error.response.data;
  assert.equal(type, "urn:tollgate:problem:call-too-late");
  assert(bucket && until && Number.isInteger(retry_after_ms) && error.message.includes("at the earliest"), error.message);
}
console.log("fine");
