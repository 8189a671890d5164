/** A client of Tollgate's decision service: ask whether a request may pass. It needs `fetch` and nothing else. */

/** What is known about a request: text and whole numbers by name. */
export type Attributes = Readonly<Record<string, string | number>>;
/** The server never says `unavailable`: it made no decision, and the client's option decided. */
export type Verdict = "allow" | "wait" | "deny" | "never" | "unavailable";

/** One question of a batch. */
export interface CheckRequest {
  readonly attributes: Attributes;
  readonly cost?: number;
}

/** What one limit said. The numbers are absent where nothing was counted. */
export interface Limit {
  readonly name: string;
  readonly allowed: boolean;
  readonly source: string;
  readonly mode: string;
  readonly limit?: number;
  readonly remaining?: number;
  readonly unlimited?: true;
  readonly retry_after_ms?: number;
  readonly reset_after_ms?: number;
}

/** The server's answer, with the names of its JSON. With the verdict `wait` a request passes after `wait_ms`. */
export interface Decision {
  readonly allowed: boolean;
  readonly verdict: Verdict;
  readonly limits: readonly Limit[];
  /** For the response to the caller that made the request. */
  readonly headers: Readonly<Record<string, string>>;
  readonly cause?: string;
  readonly reason?: string;
  readonly detail?: string;
  readonly fault?: string;
  readonly no_limit_applies?: true;
  readonly retry_after_ms?: number;
  readonly wait_ms?: number;
  readonly permit?: string;
  readonly reservation?: string;
  readonly expires_after_ms?: number;
  readonly report?: string;
}

/** What a commit changed. */
export interface Settled {
  readonly refunded: number;
  readonly charged: number;
  readonly unpaid: number;
}

/** Problem details (RFC 9457). */
export interface Problem {
  readonly status: number;
  readonly type: string;
  readonly title: string;
  readonly detail?: string;
}

/** How a request ended, for limits that count only failures. */
export type Outcome = { readonly status: number } | { readonly failed: boolean };

/** Every error of this package. That `check` denies a request is an answer, not an error. */
export class TollgateError extends Error {
  override get name(): string {
    return this.constructor.name;
  }
}

/** The server refused the question itself: a field, a token or an id is wrong. No option hides it. */
export class ProblemError extends TollgateError {
  constructor(readonly problem: Problem) {
    super(problemText(problem));
  }
}

/** The server cannot be reached, is too slow, or fails. `problem` is what it said, if anything. */
export class Unavailable extends TollgateError {
  constructor(message: string, readonly problem?: Problem, options?: ErrorOptions) {
    super(message, options);
  }
}

/** `reserve` or `hold` was refused. */
export class Denied extends TollgateError {
  constructor(readonly decision: Decision) {
    super(decision.detail ?? decision.fault ?? decision.reason ?? decision.verdict);
  }
}

export interface Options {
  /** The bearer token, where the server asks for one. */
  readonly token?: string;
  /** How long an answer may take, from connecting to its last byte; 1,000 by default. */
  readonly timeoutMs?: number;
  /** What happens where the server makes no decision; `throw` by default. */
  readonly onUnavailable?: "throw" | "allow" | "deny";
  /** Hears of each answer that the server did not give; `console.warn` by default. */
  readonly warn?: (message: string) => void;
  /** Instead of the global `fetch`. */
  readonly fetch?: typeof fetch;
}

/** The client. One serves a whole program. */
export class Tollgate {
  readonly #url: string;
  readonly #options: Required<Omit<Options, "token">>;
  readonly #headers: Record<string, string>;

  constructor(url = "http://127.0.0.1:8080", options: Options = {}) {
    this.#url = url.replace(/\/+$/, "");
    const { token, timeoutMs = 1000, onUnavailable = "throw" } = options;
    const { warn = (message: string) => console.warn(message), fetch: send = fetch } = options;
    this.#options = { timeoutMs, onUnavailable, warn, fetch: send };
    this.#headers = token === undefined ? {} : { Authorization: `Bearer ${token}` };
  }

  /** Asks whether a request may pass, and charges it if it may. */
  check(attributes: Attributes, cost = 1): Promise<Decision> {
    return this.#decide("/v1/check", { attributes, cost });
  }

  /** Asks about up to 1,000 requests at once. Each is decided alone, in their order. */
  async checkBatch(requests: readonly CheckRequest[]): Promise<Decision[]> {
    const read = (answer: unknown) => {
      if (!Array.isArray(answer) || answer.length !== requests.length) throw new TypeError("not as many answers");
      return answer.map(readDecision);
    };
    const body = requests.map(({ attributes, cost = 1 }) => ({ attributes, cost }));
    const otherwise = (error: Unavailable) => requests.map(() => this.#instead(error));
    return this.#ask("POST", "/v1/check/batch", body, read).catch(whereUnavailable(otherwise));
  }

  /**
   * Reserves an estimate, and waits for its turn. Throws `Denied` if nothing was reserved. What is not committed when
   * `run`, or the block of `await using`, ends is cancelled.
   */
  reserve(attributes: Attributes, cost: number, options?: { ttlMs?: number }): Promise<Reservation>;
  reserve<T>(
    attributes: Attributes, cost: number, run: (reservation: Reservation) => Promise<T>, options?: { ttlMs?: number },
  ): Promise<T>;
  async reserve<T>(
    attributes: Attributes, cost: number,
    run?: ((reservation: Reservation) => Promise<T>) | { ttlMs?: number }, options: { ttlMs?: number } = {},
  ): Promise<T | Reservation> {
    const { ttlMs = 60_000 } = typeof run === "object" ? run : options;
    const decision = await this.#decide("/v1/reservations", { attributes, cost, ttl_ms: ttlMs });
    const wait = waitOf(decision);
    const { reservation: id } = decision;
    const reservation = new Reservation(
      decision,
      async (cost) => {
        if (id === undefined) return undefined;
        const settled = this.#ask("POST", `/v1/reservations/${id}/commit`, { cost }, readSettled);
        return settled.catch(whereUnavailable((error) => this.#unsettled(error)));
      },
      () => this.#giveBack(id && ["DELETE", `/v1/reservations/${id}`]),
    );
    await sleep(wait);
    return typeof run === "function" ? running(reservation, () => run(reservation)) : reservation;
  }

  /**
   * Checks, waits for the turn, runs `run`, and finishes: see `finish`. Throws `Denied` if the request may not pass.
   */
  async hold<T>(attributes: Attributes, run: (decision: Decision) => Promise<T>, cost = 1): Promise<T> {
    const decision = await this.check(attributes, cost);
    const wait = waitOf(decision);
    let failed = true;
    try {
      await sleep(wait);
      const result = await run(decision);
      failed = false;
      return result;
    } finally {
      await this.finish(decision, { failed });
    }
  }

  /**
   * Ends an admitted request: releases its permit, and reports how it ended to limits that count only failures. It
   * never throws: what is not given back returns when its time is over.
   */
  async finish(decision: Decision, outcome: Outcome = { failed: false }): Promise<void> {
    const { permit, report } = decision;
    await this.#giveBack(permit && ["DELETE", `/v1/permits/${permit}`]);
    await this.#giveBack(report && ["POST", `/v1/reports/${report}`, outcome]);
  }

  async #decide(path: string, body: unknown): Promise<Decision> {
    return this.#ask("POST", path, body, readDecision).catch(whereUnavailable((error) => this.#instead(error)));
  }

  /** Stands for a decision that was not made: without headers and limits, since none was asked. */
  #instead(error: Unavailable): Decision {
    const { onUnavailable, warn } = this.#options;
    if (onUnavailable === "throw") throw error;
    warn(`no decision was made; onUnavailable decides ${onUnavailable}: ${error.message}`);
    const allowed = onUnavailable === "allow";
    return { allowed, verdict: "unavailable", limits: [], headers: {}, reason: error.message };
  }

  #unsettled(error: Unavailable): undefined {
    if (this.#options.onUnavailable === "throw") throw error;
    this.#options.warn(`not settled; it ends at its estimate when its time is over: ${error.message}`);
  }

  async #giveBack(call: readonly [string, string, unknown?] | "" | undefined): Promise<void> {
    if (!call) return;
    const [method, path, body] = call;
    try {
      await this.#ask(method, path, body, () => undefined);
    } catch (error) {
      if (!(error instanceof TollgateError)) throw error;
      this.#options.warn(`not given back; it returns when its time is over: ${error.message}`);
    }
  }

  async #ask<T>(method: string, path: string, body: unknown, read: (answer: unknown) => T): Promise<T> {
    const url = this.#url + path;
    const { fetch: send, timeoutMs } = this.#options;
    const init: RequestInit = { method, headers: { ...this.#headers }, signal: AbortSignal.timeout(timeoutMs) };
    if (body !== undefined) {
      init.body = JSON.stringify(body);
      init.headers = { ...this.#headers, "Content-Type": "application/json" };
    }
    let status: number, text: string;
    try {
      const response = await send(url, init);
      [status, text] = [response.status, await response.text()];
    } catch (cause) {
      throw new Unavailable(`${url} cannot be asked: ${why(cause)}`, undefined, { cause });
    }
    let answer: unknown;
    try {
      answer = text === "" ? undefined : JSON.parse(text);
      if (status === 200 || status === 204) return read(answer);
    } catch (cause) {
      if (status < 300) throw new Unavailable(`${url} answered, but not as Tollgate does`, undefined, { cause });
    }
    const problem = readProblem(status, answer);
    // 408 and 429 are a proxy's, or a server's that gave up: it did not judge the question.
    if (status >= 500 || status === 408 || status === 429) throw new Unavailable(problemText(problem), problem);
    throw new ProblemError(problem);
  }
}

/** Reserved units. `decision` says what was reserved. */
export class Reservation {
  #isOpen = true;
  readonly #commit: (cost: number) => Promise<Settled | undefined>;
  readonly #cancel: () => Promise<void>;

  /** @internal */
  constructor(readonly decision: Decision, commit: (cost: number) => Promise<Settled | undefined>, cancel: () => Promise<void>) {
    [this.#commit, this.#cancel] = [commit, cancel];
  }

  /** Settles at the real cost. Undefined where nothing is settled, because the server is unavailable, or was. */
  commit(cost: number): Promise<Settled | undefined> {
    this.#isOpen = false;
    return this.#commit(cost);
  }

  /** Gives everything back, unless it was committed. */
  async cancel(): Promise<void> {
    if (!this.#isOpen) return;
    this.#isOpen = false;
    await this.#cancel();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.cancel();
  }
}

/** Whether the server made the decision; false where the client's option chose `allowed`. */
export function isMadeByServer(decision: Decision): boolean {
  return decision.verdict !== "unavailable";
}

/** The HTTP status to answer the caller with. */
export function statusOf({ allowed, verdict, reason }: Decision): 200 | 400 | 403 | 429 | 503 {
  if (allowed) return 200;
  if (verdict === "never") return 400;
  if (verdict === "unavailable" || reason === "limiter-unavailable") return 503;
  return reason === "denied-by-policy" ? 403 : 429;
}

async function running<T>(reservation: Reservation, run: () => Promise<T>): Promise<T> {
  try {
    return await run();
  } finally {
    await reservation.cancel();
  }
}

/** How long an admitted request waits for its turn. */
function waitOf(decision: Decision): number {
  if (!decision.allowed) throw new Denied(decision);
  return decision.wait_ms ?? 0;
}

/** Resolves after so many milliseconds. */
export function sleep(millis: number): Promise<void> {
  return millis === 0 ? Promise.resolve() : new Promise((resolve) => setTimeout(resolve, millis));
}

function whereUnavailable<T>(otherwise: (error: Unavailable) => T): (error: unknown) => T {
  return (error) => {
    if (error instanceof Unavailable) return otherwise(error);
    throw error;
  };
}

function members(answer: unknown): Record<string, unknown> {
  if (typeof answer !== "object" || answer === null) throw new TypeError("the answer is not an object");
  return answer as Record<string, unknown>;
}

function readDecision(answer: unknown): Decision {
  const { allowed, verdict, limits, headers } = members(answer);
  if (typeof allowed !== "boolean" || typeof verdict !== "string" || !Array.isArray(limits) || !members(headers)) {
    throw new TypeError("the answer is not a decision");
  }
  return answer as Decision;
}

function readSettled(answer: unknown): Settled {
  if (typeof members(answer)["refunded"] !== "number") throw new TypeError("the answer is no settlement");
  return answer as Settled;
}

function readProblem(status: number, answer: unknown): Problem {
  const { type, title, detail } = typeof answer === "object" && answer !== null ? members(answer) : {};
  const text = (value: unknown, otherwise: string) => (typeof value === "string" ? value : otherwise);
  const problem = { status, type: text(type, "about:blank"), title: text(title, `the server answered ${status}`) };
  return typeof detail === "string" ? { ...problem, detail } : problem;
}

function problemText({ title, detail }: Problem): string {
  return detail === undefined ? title : `${title}: ${detail}`;
}

/** `fetch` puts what happened into the cause. */
function why(error: unknown): string {
  const inner = error instanceof Error && error.cause instanceof Error ? error.cause : error;
  return inner instanceof Error ? inner.message || inner.name : String(inner);
}
