/** @template {Provider} P */
export class SharedDocument<P extends Provider> {
    /**
     * @template {Provider} P
     * @param {import('./transport.js').Transport} transport @param {string} space @param {string} name @param {DocumentOptions<P>} options
     * @returns {Promise<SharedDocument<P>>}
     */
    static open<P_1 extends Provider>(transport: import("./transport.js").Transport, space: string, name: string, { doc, WebsocketProvider, WebSocket, awareness }: DocumentOptions<P_1>): Promise<SharedDocument<P_1>>;
    /**
     * Use `space.document`.
     * @param {import('./transport.js').Transport} transport @param {string} space @param {string} name @param {P} provider @param {any} doc
     */
    constructor(transport: import("./transport.js").Transport, space: string, name: string, provider: P, doc: any);
    _transport: import("./transport.js").Transport;
    _space: string;
    _document: string;
    doc: any;
    provider: P;
    /** Who is here, and what they say of themselves. */
    awareness: any;
    /** Why the connection ended for good. @type {ShoalError | null} */
    failure: ShoalError | null;
    /** @type {Set<{ ready: () => boolean, resolve: () => void, reject: (error: ShoalError) => void }>} */
    _waiting: Set<{
        ready: () => boolean;
        resolve: () => void;
        reject: (error: ShoalError) => void;
    }>;
    _connection: number;
    _sent: number;
    _durable: number;
    _answered: boolean;
    _isOpen: boolean;
    /** Resolves when this copy has all that the node had. @type {Promise<void>} */
    synced: Promise<void>;
    /**
     * Resolves when all that was edited here until now is durable on a node.
     * @returns {Promise<void>}
     */
    saved(): Promise<void>;
    /** Leave the document. The `Y.Doc` stays as it is. */
    destroy(): void;
    _reset(): void;
    _opened(): void;
    /** @param {{ arr: Uint8Array, pos: number }} decoder Of lib0; the rest of its message is one variable-length integer. */
    _acknowledged(decoder: {
        arr: Uint8Array;
        pos: number;
    }): void;
    /** @param {CloseEvent | null} event Null if this side closed. */
    _closed(event: CloseEvent | null): Promise<void>;
    /** @param {() => boolean} ready @returns {Promise<void>} */
    _until(ready: () => boolean): Promise<void>;
    _look(): void;
    /** @param {ShoalError} error */
    _end(error: ShoalError): void;
}
/**
 * y-websocket's provider (3.1 or later), as far as it is used here.
 */
export type Provider = {
    serverUrl: string;
    protocols: string[];
    synced: boolean;
    ws: WebSocket | null;
    messageHandlers: any[];
    awareness: any;
    on: (name: any, listener: (...told: any[]) => void) => unknown;
    connect: () => void;
    disconnect: () => void;
    destroy: () => void;
};
export type DocumentOptions<P extends Provider> = {
    /**
     * A `Y.Doc`.
     */
    doc: any;
    /**
     * The class of the package `y-websocket`.
     */
    WebsocketProvider: new (url: string, room: string, doc: any, options?: any) => P;
    /**
     * In Node.js before version 22: the class of the package `ws`.
     */
    WebSocket?: any;
    awareness?: any;
};
import { ShoalError } from './errors.js';
