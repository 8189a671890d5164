/** A client of Tollgate's decision service: ask whether a request may pass. It needs `fetch` and nothing else. */
/** What is known about a request: text and whole numbers by name. */
export type Attributes = Readonly<Record<string, string | number>>;
/** The server never says `unavailable`: it made no decision, and the client's option decided. */
export type Verdict = "allow" | "wait" | "deny" | "never" | "unavailable";
/** One question of a batch. */
export type CheckRequest = {
    readonly attributes: Attributes;
    readonly cost?: number;
};
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
export type Settled = {
    readonly refunded: number;
    readonly charged: number;
    readonly unpaid: number;
};
/** Problem details (RFC 9457). */
export interface Problem {
    readonly status: number;
    readonly type: string;
    readonly title: string;
    readonly detail?: string;
}
/** How a request ended, for limits that count only failures. */
export type Outcome = {
    readonly status: number;
} | {
    readonly failed: boolean;
};
/** Every error of this package. That `check` denies a request is an answer, not an error. */
export declare class TollgateError extends Error {
    get name(): string;
}
/** The server refused the question itself: a field, a token or an id is wrong. No option hides it. */
export declare class ProblemError extends TollgateError {
    readonly problem: Problem;
    constructor(problem: Problem);
}
/** The server cannot be reached, is too slow, or fails. `problem` is what it said, if anything. */
export declare class Unavailable extends TollgateError {
    readonly problem?: Problem | undefined;
    constructor(message: string, problem?: Problem | undefined, options?: ErrorOptions);
}
/** `reserve` or `hold` was refused. */
export declare class Denied extends TollgateError {
    readonly decision: Decision;
    constructor(decision: Decision);
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
export type ReserveOptions = {
    readonly ttlMs?: number;
};
type Run<T> = (reservation: Reservation) => Promise<T>;
type Commit = (cost: number) => Promise<Settled | undefined>;
/** The client. One serves a whole program. */
export declare class Tollgate {
    #private;
    constructor(url?: string, options?: Options);
    /** Asks whether a request may pass, and charges it if it may. */
    check(attributes: Attributes, cost?: number): Promise<Decision>;
    /** Asks about up to 1,000 requests at once. Each is decided alone, in their order. */
    checkBatch(requests: readonly CheckRequest[]): Promise<Decision[]>;
    /**
     * Reserves an estimate, and waits for its turn. Throws `Denied` if nothing was reserved. What is not committed when
     * `run`, or the block of `await using`, ends is cancelled.
     */
    reserve(attributes: Attributes, cost: number, options?: ReserveOptions): Promise<Reservation>;
    reserve<T>(attributes: Attributes, cost: number, run: Run<T>, options?: ReserveOptions): Promise<T>;
    /** Checks, waits for the turn, runs `run`, and finishes: see `finish`. Throws `Denied` if the request may not pass. */
    hold<T>(attributes: Attributes, run: (decision: Decision) => Promise<T>, cost?: number): Promise<T>;
    /**
     * Ends an admitted request: releases its permit, and reports how it ended to limits that count only failures. It
     * never throws: what is not given back returns when its time is over.
     */
    finish(decision: Decision, outcome?: Outcome): Promise<void>;
}
/** Reserved units. `decision` says what was reserved. */
export declare class Reservation {
    #private;
    readonly decision: Decision;
    /** @internal */
    constructor(decision: Decision, commit: Commit, cancel: () => Promise<void>);
    /** Settles at the real cost; undefined where the server is unavailable, or was. An error leaves the reservation open. */
    commit(cost: number): Promise<Settled | undefined>;
    /** Gives everything back, unless it was committed. */
    cancel(): Promise<void>;
    [Symbol.asyncDispose](): Promise<void>;
}
/** Whether the server made the decision; false where the client's option chose `allowed`. */
export declare function isMadeByServer(decision: Decision): boolean;
/** The HTTP status to answer the caller with. */
export declare function statusOf({ allowed, verdict, reason }: Decision): 200 | 400 | 403 | 429 | 503;
/** Resolves after so many milliseconds. */
export declare function sleep(millis: number): Promise<void>;
export {};
