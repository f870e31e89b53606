export class Worklist extends Queue {
    /**
     * Finish an entry without a claim.
     * @param {string} id @param {unknown} [result] @param {{ by?: string } & WriteOptions} [options]
     * @returns {Promise<Schemas['DequeuedView']>}
     */
    done(id: string, result?: unknown, { by, ...write }?: {
        by?: string;
    } & WriteOptions): Promise<Schemas["DequeuedView"]>;
    /** Put a dead letter back; its attempts are counted anew. @param {string} id @param {{ by?: string } & WriteOptions} [options] @returns {Promise<Schemas['ItemRevivedView']>} */
    revive(id: string, { by, ...write }?: {
        by?: string;
    } & WriteOptions): Promise<Schemas["ItemRevivedView"]>;
}
export class Inbox extends Queue {
    /** Take a message out. @param {string} id @param {{ by?: string } & WriteOptions} [options] @returns {Promise<Schemas['DequeuedView']>} */
    take(id: string, { by, ...write }?: {
        by?: string;
    } & WriteOptions): Promise<Schemas["DequeuedView"]>;
}
export type Schemas = import("../types/api.js").components["schemas"];
export type ReadOptions = import("./transport.js").ReadOptions;
export type WriteOptions = import("./transport.js").WriteOptions;
/**
 * Of a queue: what waits, what was taken or done, dead letters.
 */
export type Part = "pending" | "finished" | "dead";
/** @typedef {import('../types/api.js').components['schemas']} Schemas */
/** @typedef {import('./transport.js').ReadOptions} ReadOptions */
/** @typedef {import('./transport.js').WriteOptions} WriteOptions */
/** @typedef {'pending' | 'finished' | 'dead'} Part Of a queue: what waits, what was taken or done, dead letters. */
declare class Queue {
    /** @param {import('./transport.js').Transport} transport @param {string} path */
    constructor(transport: import("./transport.js").Transport, path: string);
    _transport: import("./transport.js").Transport;
    _path: string;
    /**
     * A page of entries in their order, with the totals of the whole queue.
     * @param {{ part?: Part, after?: string, limit?: number } & ReadOptions} [options] `after`: the `place` of the last entry of the page before it.
     * @returns {Promise<Schemas['QueueEntriesView']>}
     */
    page({ part, after, limit, ...read }?: {
        part?: Part;
        after?: string;
        limit?: number;
    } & ReadOptions): Promise<Schemas["QueueEntriesView"]>;
    /**
     * Put values in. Those with a key are one entry, however often they are put.
     * @param {{ key?: string, value: unknown }[]} items @param {{ by?: string } & WriteOptions} [options]
     * @returns {Promise<Schemas['EnqueuedView']>}
     */
    add(items: {
        key?: string;
        value: unknown;
    }[], { by, ...write }?: {
        by?: string;
    } & WriteOptions): Promise<Schemas["EnqueuedView"]>;
}
export {};
