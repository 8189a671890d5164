/** The TypeScript client against the real server, whose address is the first argument, and against servers that fail. */

import { EventEmitter } from "node:events";
import { type AddressInfo, createServer, type Socket } from "node:net";
import {
  Denied, isMadeByServer, ProblemError, sleep, statusOf, Tollgate, type TollgateError, Unavailable,
} from "tollgate-client";
import { tollgate } from "tollgate-client/express";

const url = process.argv[2] ?? "";

function equal(actual: unknown, expected: unknown): void {
  const [one, other] = [JSON.stringify(actual), JSON.stringify(expected)];
  if (one !== other) throw new Error(`${one} is not ${other}`);
}

async function thrown<E extends TollgateError>(kind: new (...given: never[]) => E, call: () => Promise<unknown>): Promise<E> {
  let answer: unknown;
  try {
    answer = await call();
  } catch (error) {
    if (error instanceof kind) return error;
    throw error;
  }
  throw new Error(`${kind.name} was not thrown; the answer is ${JSON.stringify(answer)}`);
}

const client = new Tollgate(url);
const left = async (attributes: Record<string, string>) => (await client.check(attributes, 0)).limits[0]?.remaining;

async function decisions(): Promise<void> {
  const first = await client.check({ api_key: "ts" }, 2);
  equal([first.allowed, first.verdict, statusOf(first), isMadeByServer(first)], [true, "allow", 200, true]);
  equal([first.limits[0]?.name, first.limits[0]?.remaining], ["per-key", 1]);
  equal(first.headers["X-RateLimit-Remaining"], "1");
  const denied = await client.check({ api_key: "ts" }, 2);
  equal([denied.verdict, denied.cause, statusOf(denied)], ["deny", "per-key", 429]);
  equal([typeof denied.retry_after_ms, typeof denied.headers["Retry-After"]], ["number", "string"]);
  equal(statusOf(await client.check({ api_key: "ts" }, 4)), 400);
  equal(statusOf(await client.check({ customer: "ts", plan: "suspended" })), 403);
  const batch = await client.checkBatch([{ attributes: { api_key: "tb" }, cost: 3 }, { attributes: { api_key: "tb" } }]);
  equal(batch.map(({ verdict }) => verdict), ["allow", "deny"]);
}

async function questionsThatAreWrong(): Promise<void> {
  for (const asked of [client, new Tollgate(url, { onUnavailable: "allow" })]) {
    const wrong = await thrown(ProblemError, () => asked.check({ api_key: "ts" }, -1));
    equal([wrong.name, wrong.problem.status, wrong.problem.type], ["ProblemError", 400, "urn:tollgate:problem:invalid-request"]);
    equal(wrong.message.includes("cost: -1 is not accepted"), true);
  }
  const twice = await thrown(ProblemError, () =>
    client.reserve({ tenant: "twice" }, 5, async (reservation) => {
      equal(await reservation.commit(3), { refunded: 2, charged: 0, unpaid: 0 });
      await reservation.commit(3);
    }),
  );
  equal(twice.problem.status, 409);
}

async function reservations(): Promise<void> {
  const result = await client.reserve({ tenant: "ts" }, 400, async (reservation) => {
    equal(await left({ tenant: "ts" }), 600);
    await reservation.commit(150);
    return "result";
  }, { ttlMs: 30_000 });
  equal([result, await left({ tenant: "ts" })], ["result", 850]);
  {
    await using reservation = await client.reserve({ tenant: "ts" }, 100);
    await reservation.commit(50);
  }
  equal(await left({ tenant: "ts" }), 800);
  {
    // What is not committed is given back.
    await using reservation = await client.reserve({ tenant: "ts" }, 100, { ttlMs: 5_000 });
    equal([await left({ tenant: "ts" }), reservation.decision.expires_after_ms], [700, 5_000]);
  }
  const own = new Error("its own error");
  const failed = await client.reserve({ tenant: "ts" }, 400, () => Promise.reject(own)).catch((error: unknown) => error);
  equal([failed === own, await left({ tenant: "ts" })], [true, 800]);
  // So is what a failed commit leaves open; until then the commit may be repeated.
  await thrown(ProblemError, () => client.reserve({ tenant: "ts" }, 400, (reservation) => reservation.commit(-1)));
  equal(await left({ tenant: "ts" }), 800);
  {
    await using reservation = await client.reserve({ tenant: "ts" }, 400);
    await thrown(ProblemError, () => reservation.commit(-1));
    equal(await reservation.commit(0), { refunded: 400, charged: 0, unpaid: 0 });
  }
  {
    // A commit that is still under way when the block ends is not cancelled.
    await using reservation = await client.reserve({ tenant: "committing" }, 400);
    void reservation.commit(150);
  }
  equal(await left({ tenant: "committing" }), 850);
  const denied = await thrown(Denied, () => client.reserve({ tenant: "ts" }, 900, async () => undefined));
  equal(denied.decision.cause, "tokens");
}

async function permits(): Promise<void> {
  await client.hold({ worker: "ts" }, async (decision) => {
    equal([typeof decision.permit, await left({ worker: "ts" })], ["string", 0]);
    const denied = await thrown(Denied, () => client.hold({ worker: "ts" }, async () => undefined));
    equal(denied.decision.cause, "in-flight");
  });
  equal(await left({ worker: "ts" }), 1);
  // Only failures count.
  await client.hold({ account: "ts" }, async () => undefined);
  equal(await left({ account: "ts" }), 2);
  await client.hold({ account: "ts" }, () => Promise.reject(new Error("fails"))).catch(() => undefined);
  equal(await left({ account: "ts" }), 1);
  await client.finish(await client.check({ account: "ts" }), { status: 200 });
  equal(await left({ account: "ts" }), 1);
}

/** A shaping limit gives a turn, and what is held runs at its turn: two a second. */
async function waits(): Promise<void> {
  const started = performance.now();
  for (let turn = 0; turn < 3; turn += 1) await client.hold({ queue: "ts" }, async () => undefined);
  equal(performance.now() - started >= 750, true);
}

/** A server that answers every request with this, or never. */
async function failing(answer: string | undefined): Promise<{ url: string; close(): Promise<void> }> {
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on("error", () => undefined);
    if (answer !== undefined) socket.once("data", () => socket.end(answer));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const close = () =>
    new Promise<void>((resolve) => {
      server.close(() => resolve());
      for (const socket of sockets) socket.destroy();
    });
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, close };
}

/** What fails is never reported as a decision of the server. */
async function unavailable(): Promise<void> {
  const answer = (status: string, body: string) =>
    `HTTP/1.1 ${status}\r\nContent-Length: ${body.length}\r\nConnection: close\r\n\r\n${body}`;
  const failures: Record<string, string | undefined> = {
    hangs: undefined,
    "breaks off": "",
    fails: answer("503 Service Unavailable", '{"title": "The store did not answer", "status": 503}'),
    "is another": answer("200 OK", "<html>welcome</html>"),
    "is a stub": answer("200 OK", "{}"),
    "is a proxy's": answer("429 Too Many Requests", ""),
  };
  for (const [name, bytes] of Object.entries(failures)) {
    const server = await failing(bytes);
    await unavailableAt(server.url, name);
    await server.close();
  }
  const gone = await failing("");
  await gone.close();
  await unavailableAt(gone.url, "is gone");
}

async function unavailableAt(url: string, name: string): Promise<void> {
  // One that answers may be slow, because the machine is.
  const timeoutMs = name === "hangs" ? 200 : 10_000;
  const strict = new Tollgate(url, { timeoutMs });
  const error = await thrown(Unavailable, () => strict.check({ api_key: "k" }));
  equal([name, error.problem !== undefined], [name, ["fails", "is a proxy's"].includes(name)]);
  for (const onUnavailable of ["allow", "deny"] as const) {
    const warnings: string[] = [];
    const client = new Tollgate(url, { timeoutMs, onUnavailable, warn: (warning) => warnings.push(warning) });
    const decision = await client.check({ api_key: "k" });
    equal([name, decision.allowed, isMadeByServer(decision)], [name, onUnavailable === "allow", false]);
    equal([decision.verdict, decision.headers, decision.limits], ["unavailable", {}, []]);
    equal(statusOf(decision), onUnavailable === "allow" ? 200 : 503);
    equal((await client.checkBatch([{ attributes: {} }, { attributes: {} }])).length, 2);
    const reserving = client.reserve({ tenant: "t" }, 5, (reservation) => reservation.commit(3));
    const settled = await reserving.catch((error: unknown) => (error instanceof Denied ? "denied" : error));
    equal(settled, onUnavailable === "allow" ? undefined : "denied");
    equal(warnings.length, 4);
  }
}

/** A caller that leaves while its request waits for its turn gives its permit back, once. */
async function leaves(): Promise<void> {
  const asked: string[] = [];
  const admitted = { allowed: true, verdict: "wait", wait_ms: 10, permit: "00", limits: [], headers: {} };
  const counting = new Tollgate(url, {
    fetch: async (asking, init) => {
      asked.push(`${init?.method} ${new URL(String(asking)).pathname}`);
      return { status: 200, text: async () => JSON.stringify(admitted) } as Response;
    },
  });
  class Left extends EventEmitter {
    headersSent = false;
    statusCode = 200;
    setHeader(): void {}
    end(): void {}
  }
  const response = new Left();
  let served = false;
  tollgate(counting, () => ({ worker: "w" }))({}, response, () => (served = true));
  // The check is answered by now: it waits for nothing but its turn.
  await sleep(1);
  equal(asked, ["POST /v1/check"]);
  response.emit("close");
  // This timer is later than the middleware's.
  await sleep(20);
  equal([served, asked], [false, ["POST /v1/check", "DELETE /v1/permits/00"]]);
}

await decisions();
await questionsThatAreWrong();
await reservations();
await permits();
await waits();
await unavailable();
await leaves();
console.log("fine");
