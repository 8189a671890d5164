/** Middleware for Express, and for everything that passes requests and responses of Node to it in the same way. */
import { sleep, statusOf } from "./index.js";
/**
 * Asks about each request with what `attributes` knows of it; undefined lets it pass unasked. A refused request is
 * answered with the decision's status and headers. The headers are added to the responses of the others.
 */
export function tollgate(client, attributes) {
    const pass = async (request, response, next) => {
        const known = attributes(request);
        if (known === undefined)
            return next();
        let isClosed = false;
        response.once("close", () => (isClosed = true));
        const decision = await client.check(known);
        if (!decision.allowed)
            return isClosed ? undefined : refuse(response, decision);
        const finish = () => {
            const outcome = response.headersSent ? { status: response.statusCode } : { failed: true };
            void client.finish(decision, outcome);
        };
        // A caller that left while the server was asked: what it holds is given back at once.
        if (isClosed)
            return finish();
        response.once("close", finish);
        await sleep(decision.wait_ms ?? 0);
        if (isClosed)
            return;
        setHeaders(response, decision);
        next();
    };
    return (request, response, next) => void pass(request, response, next).catch(next);
}
function setHeaders(response, decision) {
    for (const [name, value] of Object.entries(decision.headers))
        response.setHeader(name, value);
}
/**
 * The body (RFC 9457) names the limit, and the wait, if the headers name it: they name those of the caller, and the
 * others are not shown to callers.
 */
function refuse(response, decision) {
    const status = statusOf(decision);
    const [type, title] = PROBLEMS[status] ?? [];
    response.statusCode = status;
    setHeaders(response, decision);
    response.setHeader("Content-Type", "application/problem+json");
    const { cause, reason, detail, retry_after_ms, headers } = decision;
    // In `RateLimit` the longest wait is the first.
    const named = [headers["RateLimit"]?.split('"')[1], headers["X-RateLimit-Resource"]];
    const isNamed = cause !== undefined && named.includes(cause);
    const said = isNamed ? { cause, reason, detail, "retry-after-ms": retry_after_ms } : {};
    response.end(JSON.stringify({ type, title, status, retryable: status === 429 || status === 503, ...said }));
}
const IANA = "https://iana.org/assignments/http-problem-types#";
const BUSY = "Request cannot be satisfied due to temporary server capacity constraints";
const PROBLEMS = {
    400: ["urn:tollgate:problem:cost-exceeds-capacity", "Request costs more than can ever be admitted at once"],
    403: ["urn:tollgate:problem:denied-by-policy", "Request is denied by policy"],
    429: [`${IANA}quota-exceeded`, "Request cannot be satisfied as assigned quota has been exceeded"],
    503: [`${IANA}temporary-reduced-capacity`, BUSY],
};
