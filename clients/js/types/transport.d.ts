/**
 * The error of an attempt: the caller's own reason, a node's answer, or no answer.
 * @param {unknown} error @param {string} url @param {Pick<Call, 'key' | 'signal'>} call @param {Pick<Limit, 'passed'>} limit
 */
export function failed(error: unknown, url: string, call: Pick<Call, "key" | "signal">, limit: Pick<Limit, "passed">): any;
/** A path of names, each percent-encoded. @param {...string} names */
export function path(...names: string[]): string;
/** @param {number} ms @param {AbortSignal} [signal] @returns {Promise<void>} */
export function paused(ms: number, signal?: AbortSignal): Promise<void>;
export class Transport {
    /**
     * @param {string | readonly string[]} urls
     * @param {import('./options.js').Options} options
     */
    constructor(urls: string | readonly string[], options: import("./options.js").Options);
    _urls: string[];
    settings: import("./options.js").Settings;
    _at: number;
    _bookmarks: Bookmarks;
    /** The address of the node that is asked next. */
    get url(): string;
    /** Leave a node for the next one, unless another call has left it already. @param {string} url */
    leave(url: string): void;
    /** The token to show now. @returns {Promise<string | undefined>} */
    token(): Promise<string | undefined>;
    /** The headers of the trace under way. @returns {Record<string, string>} */
    trace(): Record<string, string>;
    /**
     * Read, with retries.
     * @param {string} path
     * @param {Call['query']} [query]
     * @param {{ stale?: boolean, signal?: AbortSignal, waitMs?: number }} [options]
     * @returns {Promise<any>}
     */
    read(path: string, query?: Call["query"], { stale, signal, waitMs }?: {
        stale?: boolean;
        signal?: AbortSignal;
        waitMs?: number;
    }): Promise<any>;
    /**
     * Ask for something that changes nothing, but needs a body.
     * @param {string} path
     * @param {unknown} body
     * @param {ReadOptions} [options]
     * @returns {Promise<any>}
     */
    ask(path: string, body: unknown, { stale, signal }?: ReadOptions): Promise<any>;
    /**
     * Write, with retries under one idempotency key.
     * @param {'POST' | 'PUT' | 'PATCH' | 'DELETE'} method
     * @param {string} path
     * @param {unknown} body
     * @param {WriteOptions} [options]
     * @param {Call['query']} [query]
     * @returns {Promise<any>}
     */
    write(method: "POST" | "PUT" | "PATCH" | "DELETE", path: string, body: unknown, { key, durability, signal }?: WriteOptions, query?: Call["query"]): Promise<any>;
    /**
     * Ask once whether this client may read something.
     * @param {string} path
     * @returns {Promise<void>} Rejected with the node's reason.
     */
    probe(path: string): Promise<void>;
    /** @param {Call} given */
    _retried(given: Call): Promise<any>;
    /**
     * The pauses between attempts, within `requestTimeoutMs` and what the node itself may wait.
     * @param {number} [waitMs]
     */
    tries(waitMs?: number, forMs?: number): {
        leftMs: () => number;
        /** Wait; false if the time is over. @param {ShoalError} error @param {AbortSignal} [signal] */
        again: (error: ShoalError, signal?: AbortSignal) => Promise<boolean>;
    };
    /**
     * @param {string} url @param {Call} call @param {string | undefined} text @param {number} leftMs
     */
    _attempt(url: string, call: Call, text: string | undefined, leftMs: number): Promise<any>;
    /**
     * Send one request, and return its answer if that is a success.
     * @param {string} url @param {Call} call @param {AbortSignal} signal @param {any} [text] JSON, or the bytes of a file.
     * @returns {Promise<Response>}
     */
    open(url: string, call: Call, signal: AbortSignal, text?: any): Promise<Response>;
    /**
     * @param {Call} call @param {unknown} text @param {string[]} sent @param {string | undefined} token
     * @returns {Record<string, string>}
     */
    _headers(call: Call, text: unknown, sent: string[], token: string | undefined): Record<string, string>;
}
/** A time limit together with a caller's signal. */
export class Limit {
    /** @param {number} ms @param {AbortSignal} [outer] */
    constructor(ms: number, outer?: AbortSignal);
    passed: boolean;
    _controller: AbortController;
    signal: AbortSignal;
    _outer: AbortSignal | undefined;
    _forward: () => void;
    /** Begin the time anew. @param {number} ms */
    renew(ms: number): void;
    _timer: number | undefined;
    /** Let no time pass until `renew`. */
    rest(): void;
    /** Abort what has the signal. */
    abort(): void;
    end(): void;
}
export type Call = {
    method: "GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE";
    path: string;
    query?: Record<string, string | number | boolean | undefined> | undefined;
    body?: unknown;
    /**
     * The idempotency key of a write.
     */
    key?: string | undefined;
    headers?: Record<string, string> | undefined;
    /**
     * The headers of its trace; by default those of the trace under way when it is sent.
     */
    trace?: Record<string, string> | undefined;
    signal?: AbortSignal | undefined;
    /**
     * How long the node may wait before it answers.
     */
    waitMs?: number | undefined;
};
export type WriteOptions = {
    key?: string;
    durability?: "memory" | "local" | "quorum" | "all";
    signal?: AbortSignal;
};
export type ReadOptions = {
    stale?: boolean;
    signal?: AbortSignal;
};
import { Bookmarks } from './bookmarks.js';
import { ShoalError } from './errors.js';
