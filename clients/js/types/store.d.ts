export function connect(urls: string | readonly string[], options?: import("./options.js").Options): Store;
export class Store {
    /** @param {Transport} transport Use `connect`. */
    constructor(transport: Transport);
    _transport: Transport;
    /** @param {string} name @returns {Space} */
    space(name: string): Space;
    /** The names of the spaces. @returns {AsyncGenerator<string, void, void>} */
    spaces(): AsyncGenerator<string, void, void>;
    /** Who this client is, and what its token grants. @param {{ signal?: AbortSignal }} [options] @returns {Promise<Schemas['AccessView']>} */
    access(options?: {
        signal?: AbortSignal;
    }): Promise<Schemas["AccessView"]>;
}
/** @typedef {'threads' | 'documents' | 'counters' | 'registers' | 'maps' | 'sets'} Family */
export class Space {
    /** @param {Transport} transport @param {string} name */
    constructor(transport: Transport, name: string);
    _transport: Transport;
    name: string;
    /** @param {string} name */
    thread(name: string): Thread;
    /** @param {string} name */
    counter(name: string): Counter;
    /** @param {string} name */
    register(name: string): Register;
    /** @param {string} name */
    map(name: string): SharedMap;
    /** @param {string} name */
    set(name: string): SharedSet;
    get items(): Items;
    /**
     * Join a document with its editors and agents, as a Yjs client.
     * @template {import('./document.js').Provider} P
     * @param {string} name
     * @param {import('./document.js').DocumentOptions<P>} options
     * @returns {Promise<SharedDocument<P>>}
     */
    document<P extends import("./document.js").Provider>(name: string, options: import("./document.js").DocumentOptions<P>): Promise<SharedDocument<P>>;
    /**
     * Each durable change in the space, once, also if the node goes away. Use `for await`.
     * @param {import('./watch.js').WatchOptions} [options]
     */
    watch(options?: import("./watch.js").WatchOptions): AsyncGenerator<import("./watch.js").WatchEvent, void, void>;
    /**
     * The names of the objects of a family, in byte order.
     * @param {Family} family
     * @param {{ prefix?: string, signal?: AbortSignal }} [options]
     * @returns {AsyncGenerator<string, void, void>}
     */
    names(family: Family, { prefix, ...read }?: {
        prefix?: string;
        signal?: AbortSignal;
    }): AsyncGenerator<string, void, void>;
}
export type Schemas = import("../types/api.js").components["schemas"];
export type Family = "threads" | "documents" | "counters" | "registers" | "maps" | "sets";
import { Transport } from './transport.js';
import { Thread } from './thread.js';
import { Counter } from './values.js';
import { Register } from './values.js';
import { SharedMap } from './values.js';
import { SharedSet } from './values.js';
import { Items } from './items.js';
import { SharedDocument } from './document.js';
