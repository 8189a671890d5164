// A client with bottleneck, as its README uses it: ADDRESS CALLERS [REDIS]. With Redis it is a cluster.
import http from "node:http";
import readline from "node:readline";
import { createRequire } from "node:module";

const Bottleneck = createRequire(process.env.BENCH_MODULES + "/")("bottleneck");
const [address, callers, redis] = process.argv.slice(2);
const options = { minTime: 5 };
if (redis) {
  const { hostname, port } = new URL(redis);
  const clientOptions = { host: hostname, port: Number(port) };
  Object.assign(options, { id: "bench", datastore: "redis", clearDatastore: false, clientOptions });
}
const limiter = new Bottleneck(options);
if (redis) await limiter.ready();
const agent = new http.Agent({ keepAlive: true });
const call = () =>
  new Promise((resolve) => {
    const request = http.get(`http://${address}/call`, { agent }, (response) => {
      response.resume();
      response.on("end", resolve);
    });
    request.on("error", resolve);
  });
console.log("ready");
for await (const _ of readline.createInterface({ input: process.stdin })) break;
await Promise.all(
  Array.from({ length: Number(callers) }, async () => {
    for (;;) await limiter.schedule(call);
  }),
);
