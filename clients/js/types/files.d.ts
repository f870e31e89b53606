/** @typedef {import('../types/api.js').components['schemas']} Schemas */
/** @typedef {import('./transport.js').ReadOptions} ReadOptions */
/** @typedef {import('./transport.js').WriteOptions} WriteOptions */
/** @typedef {Schemas['FileDetail']} FileDetail */
/** @typedef {{ type?: string, durability?: WriteOptions['durability'], signal?: AbortSignal }} PutOptions */
export class Files {
    /** @param {import('./transport.js').Transport} transport @param {string} at The path of the files. */
    constructor(transport: import("./transport.js").Transport, at: string);
    _transport: import("./transport.js").Transport;
    _path: string;
    /**
     * Store bytes under a name. A `Blob`, such as a `File` that a user has chosen, is read as it is sent.
     * @param {string} name
     * @param {Blob | ArrayBuffer | Uint8Array<ArrayBuffer> | string} body
     * @param {PutOptions} [options] The media type is the Blob's if none is given.
     * @returns {Promise<FileDetail>}
     */
    put(name: string, body: Blob | ArrayBuffer | Uint8Array<ArrayBuffer> | string, { type, durability, signal }?: PutOptions): Promise<FileDetail>;
    /**
     * A file, or the bytes of it from `start` to before `stop`, as the `Response` of `fetch`: its `body` is a stream.
     * @param {string} name
     * @param {{ start?: number, stop?: number, signal?: AbortSignal }} [options]
     * @returns {Promise<Response>}
     */
    open(name: string, { start, stop, signal }?: {
        start?: number;
        stop?: number;
        signal?: AbortSignal;
    }): Promise<Response>;
    /** The address of a file at the node that answers now, as for a link to save it. It asks for the caller's token as all addresses do. @param {string} name */
    url(name: string): string;
    /** The files by name. @param {ReadOptions} [options] @returns {AsyncGenerator<Schemas['FileInfoView'], void, void>} */
    list(options?: ReadOptions): AsyncGenerator<Schemas["FileInfoView"], void, void>;
    /** Delete a file; false if there is none. @param {string} name @param {WriteOptions} [options] @returns {Promise<boolean>} */
    delete(name: string, options?: WriteOptions): Promise<boolean>;
    /**
     * One request, which the next node gets if this one cannot take it: what has arrived of a file is not stored twice.
     * @param {import('./transport.js').Call} given @param {AbortSignal} [signal] @param {any} [body]
     */
    _open(given: import("./transport.js").Call, signal?: AbortSignal, body?: any): Promise<Response>;
}
export type Schemas = import("../types/api.js").components["schemas"];
export type ReadOptions = import("./transport.js").ReadOptions;
export type WriteOptions = import("./transport.js").WriteOptions;
export type FileDetail = Schemas["FileDetail"];
export type PutOptions = {
    type?: string;
    durability?: WriteOptions["durability"];
    signal?: AbortSignal;
};
