/** @typedef {import('../types/api.js').components['schemas']} Schemas */
/** @typedef {{ type: 'began', bookmark: string }} Began The watch has begun; it comes first, and not with `after`. */
/** @typedef {Schemas['ChangeView'] & { type: 'change', bookmark: string }} Change */
/** @typedef {{ type: 'reset', reason: string, bookmark: string }} Reset Changes were left out. */
/** @typedef {Began | Change | Reset} WatchEvent */
/**
 * @typedef {object} WatchOptions
 * @property {Schemas['ChangeView']['kind'][]} [kinds] Only these kinds of objects.
 * @property {string} [prefix] Only objects whose names begin so.
 * @property {string} [after] The bookmark of an event, to continue after it. Without it the watch begins now.
 * @property {AbortSignal} [signal] Ends the loop.
 * @property {number} [reconnectMs] How long to look for a node after the stream broke; `Infinity` for ever (`requestTimeoutMs`).
 */
/**
 * @param {import('./transport.js').Transport} transport
 * @param {string} space
 * @param {WatchOptions} [options]
 * @returns {AsyncGenerator<WatchEvent, void, void>}
 */
export function watch(transport: import("./transport.js").Transport, space: string, { prefix, ...options }?: WatchOptions): AsyncGenerator<WatchEvent, void, void>;
/**
 * Several spaces over one connection. Nothing is resumed: after a reconnect comes a `reset`, and events have no bookmark.
 * @param {import('./transport.js').Transport} transport
 * @param {readonly string[]} spaces At most 64.
 * @param {Omit<WatchOptions, 'prefix' | 'after'>} [options]
 * @returns {AsyncGenerator<WatchEvent, void, void>}
 */
export function watchSpaces(transport: import("./transport.js").Transport, spaces: readonly string[], options?: Omit<WatchOptions, "prefix" | "after">): AsyncGenerator<WatchEvent, void, void>;
export type Schemas = import("../types/api.js").components["schemas"];
/**
 * The watch has begun; it comes first, and not with `after`.
 */
export type Began = {
    type: "began";
    bookmark: string;
};
export type Change = Schemas["ChangeView"] & {
    type: "change";
    bookmark: string;
};
/**
 * Changes were left out.
 */
export type Reset = {
    type: "reset";
    reason: string;
    bookmark: string;
};
export type WatchEvent = Began | Change | Reset;
export type WatchOptions = {
    /**
     * Only these kinds of objects.
     */
    kinds?: ("map" | "set" | "document" | "budget" | "counter" | "items" | "list" | "register" | "schema" | "thread")[] | undefined;
    /**
     * Only objects whose names begin so.
     */
    prefix?: string | undefined;
    /**
     * The bookmark of an event, to continue after it. Without it the watch begins now.
     */
    after?: string | undefined;
    /**
     * Ends the loop.
     */
    signal?: AbortSignal | undefined;
    /**
     * How long to look for a node after the stream broke; `Infinity` for ever (`requestTimeoutMs`).
     */
    reconnectMs?: number | undefined;
};
