/** A client of Tollgate's decision service: ask whether a request may pass. It needs `fetch` and nothing else. */

/** What is known about a request: text and whole numbers by name. */
export type Attributes = Readonly<Record<string, string | number>>;
/** The server never says `unavailable`: it made no decision, and the client's option decided. */
export type Verdict = "allow" | "wait" | "deny" | "never" | "unavailable";

/** One question of a batch. */
export type CheckRequest = { readonly attributes: Attributes; readonly cost?: number };

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
export type Settled = { readonly refunded: number; readonly charged: number; readonly unpaid: number };

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

/** After `ttlMs`, 60,000 by default, an open reservation ends at its estimate. */
export type ReserveOptions = { readonly ttlMs?: number };
type Run<T> = (reservation: Reservation) => Promise<T>;
type Commit = (cost: number) => Promise<Settled | undefined>;

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
    const authorization = token === undefined ? {} : { Authorization: `Bearer ${token}` };
    this.#headers = { "Content-Type": "application/json", ...authorization };
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
    return this.#ask("POST", "/v1/check/batch", body, read, (error) => requests.map(() => this.#instead(error)));
  }

  /**
   * Reserves an estimate, and waits for its turn. Throws `Denied` if nothing was reserved. What is not committed when
   * `run`, or the block of `await using`, ends is cancelled.
   */
  reserve(attributes: Attributes, cost: number, options?: ReserveOptions): Promise<Reservation>;
  reserve<T>(attributes: Attributes, cost: number, run: Run<T>, options?: ReserveOptions): Promise<T>;
  async reserve<T>(attributes: Attributes, cost: number, run?: Run<T> | ReserveOptions, options: ReserveOptions = {}) {
    const { ttlMs = 60_000 } = typeof run === "object" ? run : options;
    const decision = await this.#decide("/v1/reservations", { attributes, cost, ttl_ms: ttlMs });
    await turnOf(decision);
    const path = decision.reservation && `/v1/reservations/${decision.reservation}`;
    const reservation = new Reservation(
      decision,
      async (cost) => {
        const unsettled = (error: TollgateError) =>
          this.#throwOrWarn(error, "not settled; it ends at its estimate when its time is over");
        return path ? this.#ask("POST", `${path}/commit`, { cost }, readSettled, unsettled) : undefined;
      },
      () => this.#giveBack("DELETE", path),
    );
    if (typeof run !== "function") return reservation;
    try {
      return await run(reservation);
    } finally {
      await reservation.cancel();
    }
  }

  /** Checks, waits for the turn, runs `run`, and finishes: see `finish`. Throws `Denied` if the request may not pass. */
  async hold<T>(attributes: Attributes, run: (decision: Decision) => Promise<T>, cost = 1): Promise<T> {
    const decision = await this.check(attributes, cost);
    await turnOf(decision);
    let failed = true;
    try {
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
    await this.#giveBack("DELETE", decision.permit && `/v1/permits/${decision.permit}`);
    await this.#giveBack("POST", decision.report && `/v1/reports/${decision.report}`, outcome);
  }

  #decide(path: string, body: unknown): Promise<Decision> {
    return this.#ask("POST", path, body, readDecision, (error) => this.#instead(error));
  }

  /** Stands for a decision that was not made: without headers and limits, since none was asked. */
  #instead(error: TollgateError): Decision {
    const { onUnavailable } = this.#options;
    this.#throwOrWarn(error, `no decision was made; onUnavailable decides ${onUnavailable}`);
    return { allowed: onUnavailable === "allow", verdict: "unavailable", limits: [], headers: {}, reason: error.message };
  }

  #throwOrWarn(error: TollgateError, what: string): undefined {
    if (this.#options.onUnavailable === "throw" || !(error instanceof Unavailable)) throw error;
    this.#options.warn(`${what}: ${error.message}`);
  }

  async #giveBack(method: string, path: string | undefined, body?: unknown): Promise<void> {
    const kept = ({ message }: TollgateError) =>
      this.#options.warn(`not given back; it returns when its time is over: ${message}`);
    if (path) await this.#ask(method, path, body, () => undefined, kept);
  }

  /** Asks the server. An error of this package becomes what `otherwise` returns. */
  async #ask<T, U>(
    method: string, path: string, body: unknown, read: (answer: unknown) => T, otherwise: (error: TollgateError) => U,
  ): Promise<T | U> {
    try {
      return await this.#send(method, path, body, read);
    } catch (error) {
      if (error instanceof TollgateError) return otherwise(error);
      throw error;
    }
  }

  async #send<T>(method: string, path: string, body: unknown, read: (answer: unknown) => T): Promise<T> {
    const url = this.#url + path;
    const { fetch: send, timeoutMs } = this.#options;
    const init = { method, headers: this.#headers, body: body === undefined ? null : JSON.stringify(body) };
    let status: number, text: string;
    try {
      const response = await send(url, { ...init, signal: AbortSignal.timeout(timeoutMs) });
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
  #committed: Promise<Settled | undefined> | undefined;
  readonly #commit: Commit;
  readonly #cancel: () => Promise<void>;

  /** @internal */
  constructor(readonly decision: Decision, commit: Commit, cancel: () => Promise<void>) {
    [this.#commit, this.#cancel] = [commit, cancel];
  }

  /** Settles at the real cost; undefined where the server is unavailable, or was. An error leaves the reservation open. */
  commit(cost: number): Promise<Settled | undefined> {
    this.#committed = this.#commit(cost).then((settled) => {
      this.#isOpen = false;
      return settled;
    });
    return this.#committed;
  }

  /** Gives everything back, unless it was committed. */
  async cancel(): Promise<void> {
    await this.#committed?.catch(() => undefined);
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

/** Waits for the turn of an admitted request. */
async function turnOf(decision: Decision): Promise<void> {
  if (!decision.allowed) throw new Denied(decision);
  return sleep(decision.wait_ms ?? 0);
}

/** Resolves after so many milliseconds. */
export function sleep(millis: number): Promise<void> {
  return millis === 0 ? Promise.resolve() : new Promise((resolve) => setTimeout(resolve, millis));
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
