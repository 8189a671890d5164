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
        this.#headers = token === undefined ? {} : { Authorization: `Bearer ${token}` };
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
        const otherwise = (error) => requests.map(() => this.#instead(error));
        return this.#ask("POST", "/v1/check/batch", body, read).catch(whereUnavailable(otherwise));
    }
    async reserve(attributes, cost, run, options = {}) {
        const { ttlMs = 60_000 } = typeof run === "object" ? run : options;
        const decision = await this.#decide("/v1/reservations", { attributes, cost, ttl_ms: ttlMs });
        const wait = waitOf(decision);
        const { reservation: id } = decision;
        const reservation = new Reservation(decision, async (cost) => {
            if (id === undefined)
                return undefined;
            const settled = this.#ask("POST", `/v1/reservations/${id}/commit`, { cost }, readSettled);
            return settled.catch(whereUnavailable((error) => this.#unsettled(error)));
        }, () => this.#giveBack(id && ["DELETE", `/v1/reservations/${id}`]));
        await sleep(wait);
        return typeof run === "function" ? running(reservation, () => run(reservation)) : reservation;
    }
    /**
     * Checks, waits for the turn, runs `run`, and finishes: see `finish`. Throws `Denied` if the request may not pass.
     */
    async hold(attributes, run, cost = 1) {
        const decision = await this.check(attributes, cost);
        const wait = waitOf(decision);
        let failed = true;
        try {
            await sleep(wait);
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
        const { permit, report } = decision;
        await this.#giveBack(permit && ["DELETE", `/v1/permits/${permit}`]);
        await this.#giveBack(report && ["POST", `/v1/reports/${report}`, outcome]);
    }
    async #decide(path, body) {
        return this.#ask("POST", path, body, readDecision).catch(whereUnavailable((error) => this.#instead(error)));
    }
    /** Stands for a decision that was not made: without headers and limits, since none was asked. */
    #instead(error) {
        const { onUnavailable, warn } = this.#options;
        if (onUnavailable === "throw")
            throw error;
        warn(`no decision was made; onUnavailable decides ${onUnavailable}: ${error.message}`);
        const allowed = onUnavailable === "allow";
        return { allowed, verdict: "unavailable", limits: [], headers: {}, reason: error.message };
    }
    #unsettled(error) {
        if (this.#options.onUnavailable === "throw")
            throw error;
        this.#options.warn(`not settled; it ends at its estimate when its time is over: ${error.message}`);
    }
    async #giveBack(call) {
        if (!call)
            return;
        const [method, path, body] = call;
        try {
            await this.#ask(method, path, body, () => undefined);
        }
        catch (error) {
            if (!(error instanceof TollgateError))
                throw error;
            this.#options.warn(`not given back; it returns when its time is over: ${error.message}`);
        }
    }
    async #ask(method, path, body, read) {
        const url = this.#url + path;
        const { fetch: send, timeoutMs } = this.#options;
        const init = { method, headers: { ...this.#headers }, signal: AbortSignal.timeout(timeoutMs) };
        if (body !== undefined) {
            init.body = JSON.stringify(body);
            init.headers = { ...this.#headers, "Content-Type": "application/json" };
        }
        let status, text;
        try {
            const response = await send(url, init);
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
    #commit;
    #cancel;
    /** @internal */
    constructor(decision, commit, cancel) {
        this.decision = decision;
        [this.#commit, this.#cancel] = [commit, cancel];
    }
    /** Settles at the real cost. Undefined where nothing is settled, because the server is unavailable, or was. */
    commit(cost) {
        this.#isOpen = false;
        return this.#commit(cost);
    }
    /** Gives everything back, unless it was committed. */
    async cancel() {
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
async function running(reservation, run) {
    try {
        return await run();
    }
    finally {
        await reservation.cancel();
    }
}
/** How long an admitted request waits for its turn. */
function waitOf(decision) {
    if (!decision.allowed)
        throw new Denied(decision);
    return decision.wait_ms ?? 0;
}
/** Resolves after so many milliseconds. */
export function sleep(millis) {
    return millis === 0 ? Promise.resolve() : new Promise((resolve) => setTimeout(resolve, millis));
}
function whereUnavailable(otherwise) {
    return (error) => {
        if (error instanceof Unavailable)
            return otherwise(error);
        throw error;
    };
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
