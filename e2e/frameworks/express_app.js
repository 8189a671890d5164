// Express as it comes, told that a proxy is before it, with the middleware that its documentation gives for other methods.
const express = require(process.argv[2]);
const app = express();
app.set("trust proxy", true);
app.set("query parser", "extended");
app.use((request, _response, next) => {
  const override = request.get("X-HTTP-Method-Override") || request.query._method;
  if (request.method === "POST" && override) request.method = String(override).toUpperCase();
  next();
});
app.all("/login", (request, response) => {
  const { v } = request.query;
  response.json({
    handler: "login",
    method: request.method,
    v: v === undefined ? [] : [].concat(typeof v === "object" ? Object.values(v) : v),
    address: request.ip,
    host: request.host,
    scheme: request.protocol,
    said: request.headers,
  });
});
const server = app.listen(Number(process.argv[3]), "127.0.0.1");
// A connection stays open however slow the machine is.
server.keepAliveTimeout = 0;
