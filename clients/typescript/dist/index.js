/** A client of Tollgate's decision service: ask whether a request may pass. It needs `fetch` and nothing else. */
/** Every error of this package. That `check` denies a request is an answer, not an error. */
export class TollgateError extends Error {
    get name() {
        return this.constructor.name;
    }
}
/** The server refused the question itself: a field, a token or an id is wrong. No option hides it. */
export class ProblemError extends TollgateError {
    problem;
    constructor(problem) {
        super(problemText(problem));
        this.problem = problem;
    }
}
/** The server cannot be reached, is too slow, or fails. `problem` is what it said, if anything. */
export class Unavailable extends TollgateError {
    problem;
    constructor(message, problem, options) {
        super(message, options);
        this.problem = problem;
    }
}
/** `reserve` or `hold` was refused. */
export class Denied extends TollgateError {
    decision;
    constructor(decision) {
        super(decision.detail ?? decision.fault ?? decision.reason ?? decision.verdict);
        this.decision = decision;
    }
}
/** The client. One serves a whole program. */
export class Tollgate {
    #url;
    #options;
    #headers;
    constructor(url = "http://127.0.0.1:8080", options = {}) {
        this.#url = url.replace(/\/+$/, "");
        const { token, timeoutMs = 1000, onUnavailable = "throw" } = options;
        const { warn = (message) => console.warn(message), fetch: send = fetch } = options;
        this.#options = { timeoutMs, onUnavailable, warn, fetch: send };
        const authorization = token === undefined ? {} : { Authorization: `Bearer ${token}` };
        this.#headers = { "Content-Type": "application/json", ...authorization };
    }
    /** Asks whether a request may pass, and charges it if it may. */
    check(attributes, cost = 1) {
        return this.#decide("/v1/check", { attributes, cost });
    }
    /** Asks about up to 1,000 requests at once. Each is decided alone, in their order. */
    async checkBatch(requests) {
        const read = (answer) => {
            if (!Array.isArray(answer) || answer.length !== requests.length)
                throw new TypeError("not as many answers");
            return answer.map(readDecision);
        };
        const body = requests.map(({ attributes, cost = 1 }) => ({ attributes, cost }));
        return this.#ask("POST", "/v1/check/batch", body, read, (error) => requests.map(() => this.#instead(error)));
    }
    async reserve(attributes, cost, run, options = {}) {
        const { ttlMs = 60_000 } = typeof run === "object" ? run : options;
        const decision = await this.#decide("/v1/reservations", { attributes, cost, ttl_ms: ttlMs });
        await turnOf(decision);
        const path = decision.reservation && `/v1/reservations/${decision.reservation}`;
        const reservation = new Reservation(decision, async (cost) => {
            const unsettled = (error) => this.#throwOrWarn(error, "not settled; it ends at its estimate when its time is over");
            return path ? this.#ask("POST", `${path}/commit`, { cost }, readSettled, unsettled) : undefined;
        }, () => this.#giveBack("DELETE", path));
        if (typeof run !== "function")
            return reservation;
        try {
            return await run(reservation);
        }
        finally {
            await reservation.cancel();
        }
    }
    /** Checks, waits for the turn, runs `run`, and finishes: see `finish`. Throws `Denied` if the request may not pass. */
    async hold(attributes, run, cost = 1) {
        const decision = await this.check(attributes, cost);
        await turnOf(decision);
        let failed = true;
        try {
            const result = await run(decision);
            failed = false;
            return result;
        }
        finally {
            await this.finish(decision, { failed });
        }
    }
    /**
     * Ends an admitted request: releases its permit, and reports how it ended to limits that count only failures. It
     * never throws: what is not given back returns when its time is over.
     */
    async finish(decision, outcome = { failed: false }) {
        await this.#giveBack("DELETE", decision.permit && `/v1/permits/${decision.permit}`);
        await this.#giveBack("POST", decision.report && `/v1/reports/${decision.report}`, outcome);
    }
    #decide(path, body) {
        return this.#ask("POST", path, body, readDecision, (error) => this.#instead(error));
    }
    /** Stands for a decision that was not made: without headers and limits, since none was asked. */
    #instead(error) {
        const { onUnavailable } = this.#options;
        this.#throwOrWarn(error, `no decision was made; onUnavailable decides ${onUnavailable}`);
        return { allowed: onUnavailable === "allow", verdict: "unavailable", limits: [], headers: {}, reason: error.message };
    }
    #throwOrWarn(error, what) {
        if (this.#options.onUnavailable === "throw" || !(error instanceof Unavailable))
            throw error;
        this.#options.warn(`${what}: ${error.message}`);
    }
    async #giveBack(method, path, body) {
        const kept = ({ message }) => this.#options.warn(`not given back; it returns when its time is over: ${message}`);
        if (path)
            await this.#ask(method, path, body, () => undefined, kept);
    }
    /** Asks the server. An error of this package becomes what `otherwise` returns. */
    async #ask(method, path, body, read, otherwise) {
        try {
            return await this.#send(method, path, body, read);
        }
        catch (error) {
            if (error instanceof TollgateError)
                return otherwise(error);
            throw error;
        }
    }
    async #send(method, path, body, read) {
        const url = this.#url + path;
        const { fetch: send, timeoutMs } = this.#options;
        const init = { method, headers: this.#headers, body: body === undefined ? null : JSON.stringify(body) };
        let status, text;
        try {
            const response = await send(url, { ...init, signal: AbortSignal.timeout(timeoutMs) });
            [status, text] = [response.status, await response.text()];
        }
        catch (cause) {
            throw new Unavailable(`${url} cannot be asked: ${why(cause)}`, undefined, { cause });
        }
        let answer;
        try {
            answer = text === "" ? undefined : JSON.parse(text);
            if (status === 200 || status === 204)
                return read(answer);
        }
        catch (cause) {
            if (status < 300)
                throw new Unavailable(`${url} answered, but not as Tollgate does`, undefined, { cause });
        }
        const problem = readProblem(status, answer);
        // 408 and 429 are a proxy's, or a server's that gave up: it did not judge the question.
        if (status >= 500 || status === 408 || status === 429)
            throw new Unavailable(problemText(problem), problem);
        throw new ProblemError(problem);
    }
}
/** Reserved units. `decision` says what was reserved. */
export class Reservation {
    decision;
    #isOpen = true;
    #committed;
    #commit;
    #cancel;
    /** @internal */
    constructor(decision, commit, cancel) {
        this.decision = decision;
        [this.#commit, this.#cancel] = [commit, cancel];
    }
    /** Settles at the real cost; undefined where the server is unavailable, or was. An error leaves the reservation open. */
    commit(cost) {
        this.#committed = this.#commit(cost).then((settled) => {
            this.#isOpen = false;
            return settled;
        });
        return this.#committed;
    }
    /** Gives everything back, unless it was committed. */
    async cancel() {
        await this.#committed?.catch(() => undefined);
        if (!this.#isOpen)
            return;
        this.#isOpen = false;
        await this.#cancel();
    }
    [Symbol.asyncDispose]() {
        return this.cancel();
    }
}
/** Whether the server made the decision; false where the client's option chose `allowed`. */
export function isMadeByServer(decision) {
    return decision.verdict !== "unavailable";
}
/** The HTTP status to answer the caller with. */
export function statusOf({ allowed, verdict, reason }) {
    if (allowed)
        return 200;
    if (verdict === "never")
        return 400;
    if (verdict === "unavailable" || reason === "limiter-unavailable")
        return 503;
    return reason === "denied-by-policy" ? 403 : 429;
}
/** Waits for the turn of an admitted request. */
async function turnOf(decision) {
    if (!decision.allowed)
        throw new Denied(decision);
    return sleep(decision.wait_ms ?? 0);
}
/** Resolves after so many milliseconds. */
export function sleep(millis) {
    return millis === 0 ? Promise.resolve() : new Promise((resolve) => setTimeout(resolve, millis));
}
function members(answer) {
    if (typeof answer !== "object" || answer === null)
        throw new TypeError("the answer is not an object");
    return answer;
}
function readDecision(answer) {
    const { allowed, verdict, limits, headers } = members(answer);
    if (typeof allowed !== "boolean" || typeof verdict !== "string" || !Array.isArray(limits) || !members(headers)) {
        throw new TypeError("the answer is not a decision");
    }
    return answer;
}
function readSettled(answer) {
    if (typeof members(answer)["refunded"] !== "number")
        throw new TypeError("the answer is no settlement");
    return answer;
}
function readProblem(status, answer) {
    const { type, title, detail } = typeof answer === "object" && answer !== null ? members(answer) : {};
    const text = (value, otherwise) => (typeof value === "string" ? value : otherwise);
    const problem = { status, type: text(type, "about:blank"), title: text(title, `the server answered ${status}`) };
    return typeof detail === "string" ? { ...problem, detail } : problem;
}
function problemText({ title, detail }) {
    return detail === undefined ? title : `${title}: ${detail}`;
}
/** `fetch` puts what happened into the cause. */
function why(error) {
    const inner = error instanceof Error && error.cause instanceof Error ? error.cause : error;
    return inner instanceof Error ? inner.message || inner.name : String(inner);
}
