export class Items {
    /** @param {import('./transport.js').Transport} transport @param {string} space */
    constructor(transport: import("./transport.js").Transport, space: string);
    _transport: import("./transport.js").Transport;
    _path: string;
    /**
     * An item; `not-found` if there is none.
     * @param {Namespace} namespace @param {string} key @param {ReadOptions} [options]
     * @returns {Promise<Schemas['ItemView'] & { value: any }>}
     */
    get(namespace: Namespace, key: string, options?: ReadOptions): Promise<Schemas["ItemView"] & {
        value: any;
    }>;
    /**
     * @param {Namespace} namespace @param {string} key @param {unknown} value
     * @param {{ ttlS?: number, vectors?: number[][], expect?: string } & WriteOptions} [options] `expect`: the `version` that it must have; "" if there must be none.
     * @returns {Promise<Schemas['ItemPutView']>}
     */
    put(namespace: Namespace, key: string, value: unknown, { ttlS, vectors, expect, ...write }?: {
        ttlS?: number;
        vectors?: number[][];
        expect?: string;
    } & WriteOptions): Promise<Schemas["ItemPutView"]>;
    /** @param {Namespace} namespace @param {string} key @param {WriteOptions} [options] @returns {Promise<boolean>} Whether there was one. */
    delete(namespace: Namespace, key: string, options?: WriteOptions): Promise<boolean>;
    /**
     * Items of a namespace and of those below it, in the order of namespaces and keys; with a vector, the nearest first.
     * @param {Namespace} namespace
     * @param {{ filter?: Record<string, unknown>, vector?: number[], limit?: number } & ReadOptions} [options] `limit`: so many at most; with a vector 10 if it is not given.
     * @returns {AsyncGenerator<Schemas['ItemView'] & { value: any, score?: number }, void, void>}
     */
    search(namespace: Namespace, { filter, vector, limit, ...read }?: {
        filter?: Record<string, unknown>;
        vector?: number[];
        limit?: number;
    } & ReadOptions): AsyncGenerator<Schemas["ItemView"] & {
        value: any;
        score?: number;
    }, void, void>;
    /** The namespaces that hold items, in order. @param {string} label Their first one; `space.names('items')` has all. @param {ReadOptions} [options] @returns {AsyncGenerator<string[], void, void>} */
    namespaces(label: string, options?: ReadOptions): AsyncGenerator<string[], void, void>;
    /** @param {Namespace} namespace */
    _at(namespace: Namespace): string;
}
export type Schemas = import("../types/api.js").components["schemas"];
export type ReadOptions = import("./transport.js").ReadOptions;
export type WriteOptions = import("./transport.js").WriteOptions;
/**
 * Labels, the widest first.
 */
export type Namespace = readonly string[];
