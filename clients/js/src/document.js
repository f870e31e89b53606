/**
 * A document as a standard Yjs client: the caller's own `Y.Doc` and y-websocket's provider, with this client's nodes and token.
 *
 * Laws:
 * - The caller passes the classes in: two copies of Yjs in one program break documents, and a page chooses where its modules come from.
 * - If a connection ends, the next one goes to the next node, with a new token. What was edited meanwhile is sent then, and counts once.
 * - If the node says that coming back cannot help, the provider stops, and `synced` and `saved()` are rejected with the reason.
 * - A connection belongs to the trace in which the document was opened.
 * - Tabs of one browser meet at the node, not in the browser, so that no tab shows what is not durable.
 */

import { ShoalError } from './errors.js'
import { path } from './transport.js'

/**
 * y-websocket's provider (3.1 or later), as far as it is used here.
 * @typedef {object} Provider
 * @property {string} serverUrl
 * @property {string[]} protocols
 * @property {boolean} synced
 * @property {WebSocket | null} ws
 * @property {any[]} messageHandlers
 * @property {any} awareness
 * @property {(name: any, listener: (...told: any[]) => void) => unknown} on
 * @property {() => void} connect
 * @property {() => void} disconnect
 * @property {() => void} destroy
 */

/**
 * @template {Provider} P
 * @typedef {object} DocumentOptions
 * @property {any} doc A `Y.Doc`.
 * @property {new (url: string, room: string, doc: any, options?: any) => P} WebsocketProvider The class of the package `y-websocket`.
 * @property {any} [WebSocket] In Node.js before version 22: the class of the package `ws`.
 * @property {any} [awareness]
 */

// docs/YJS.md: with these, coming back cannot help.
const FINAL = new Map([[1003, 'unsupported'], [1009, 'too-large'], [4400, 'invalid-value'], [4403, 'forbidden'], [4413, 'too-large']])
const isFinal = (/** @type {CloseEvent} */ { code }) => FINAL.has(code) || (code >= 4400 && code < 4500 && code !== 4401)
const ACKNOWLEDGE = 100
const [SYNC, STEP_2, UPDATE] = [0, 1, 2]
const OPEN = 1 // Of a WebSocket.

/** @template {Provider} P */
export class SharedDocument {
  /**
   * @template {Provider} P
   * @param {import('./transport.js').Transport} transport @param {string} space @param {string} name @param {DocumentOptions<P>} options
   * @returns {Promise<SharedDocument<P>>}
   */
  static async open (transport, space, name, { doc, WebsocketProvider, WebSocket = globalThis.WebSocket, awareness }) {
    if (typeof WebsocketProvider !== 'function' || doc === undefined) {
      throw new ShoalError('invalid-input', 'a document needs `doc` (a Y.Doc) and `WebsocketProvider` (of the package y-websocket). Nothing was sent.')
    }
    if (WebSocket === undefined) throw new ShoalError('invalid-input', 'this program has no WebSocket: pass the class of the package ws as `WebSocket`. Nothing was sent.')
    const params = transport.trace()
    const provider = new WebsocketProvider(transport.url.replace(/^http/, 'ws') + '/v1/yjs' + path(space), path(name).slice(1), doc, {
      connect: false,
      disableBc: true,
      params, // A page cannot set headers of a WebSocket.
      protocols: protocols(await transport.token()),
      WebSocketPolyfill: WebSocket,
      shouldReconnect: (/** @type {CloseEvent} */ event) => !isFinal(event),
      ...(awareness === undefined ? {} : { awareness })
    })
    return new SharedDocument(transport, space, name, provider, doc)
  }

  /**
   * Use `space.document`.
   * @param {import('./transport.js').Transport} transport @param {string} space @param {string} name @param {P} provider @param {any} doc
   */
  constructor (transport, space, name, provider, doc) {
    this._transport = transport
    this._space = space
    this._document = `/v1/spaces${path(space)}/documents${path(name)}`
    this.doc = doc
    this.provider = provider
    /** Who is here, and what they say of themselves. */
    this.awareness = provider.awareness
    /** Why the connection ended for good. @type {ShoalError | null} */
    this.failure = null
    /** @type {Set<{ ready: () => boolean, resolve: () => void, reject: (error: ShoalError) => void }>} */
    this._waiting = new Set()
    this._connection = 0
    this._sent = 0 // Updates on this connection,
    this._durable = 0 // those of them that the node has on its disk,
    this._answered = false // and whether they include what was edited before it.
    this._isOpen = false
    /** Resolves when this copy has all that the node had. @type {Promise<void>} */
    this.synced = this._until(() => this.provider.synced)
    this.synced.catch(() => {}) // A page that never looks at it is no unhandled rejection.
    provider.messageHandlers[ACKNOWLEDGE] = (/** @type {any} */ _encoder, /** @type {any} */ decoder) => this._acknowledged(decoder)
    provider.on('status', ({ status }) => { if (status === 'connected') this._opened() })
    provider.on('sync', () => this._look())
    provider.on('connection-close', (event) => this._closed(event))
    provider.on('closed', ({ code, reason }) => this._end(new ShoalError(FINAL.get(code) ?? 'conflict', reason || `the node closed the connection (${code}).`, { detail: { close: code } })))
    provider.connect()
  }

  /**
   * Resolves when all that was edited here until now is durable on a node.
   * @returns {Promise<void>}
   */
  async saved () {
    // An edit is sent at once if there is a connection; else the answer to the node's first question has it.
    let [connection, count] = [0, 0]
    await this._until(() => {
      // A socket that is closing takes no edit, and says so only later.
      if (!this._answered || !this.provider.synced || this.provider.ws?.readyState !== OPEN) return false
      if (connection !== this._connection) [connection, count] = [this._connection, this._sent]
      return this._durable >= count
    })
  }

  /** Leave the document. The `Y.Doc` stays as it is. */
  destroy () {
    this._end(new ShoalError('disconnected', 'the document was left. What was not saved is only in this copy.', { written: 'unknown' }))
    this.provider.destroy()
  }

  _reset () {
    this._connection += 1
    this._sent = this._durable = 0
    this._answered = this._isOpen = false
  }

  _opened () {
    const socket = /** @type {WebSocket} */ (this.provider.ws)
    this._reset()
    this._isOpen = true
    socket.send(new Uint8Array([ACKNOWLEDGE]))
    const send = socket.send.bind(socket)
    socket.send = (message) => {
      const [kind, step] = /** @type {Uint8Array} */ (message)
      if (kind === SYNC && (step === STEP_2 || step === UPDATE)) this._sent += 1
      this._answered ||= kind === SYNC && step === STEP_2
      send(message)
      this._look()
    }
  }

  /** @param {{ arr: Uint8Array, pos: number }} decoder Of lib0; the rest of its message is one variable-length integer. */
  _acknowledged (decoder) {
    let [count, factor] = [0, 1]
    for (let more = true; more; factor *= 128) {
      const octet = decoder.arr[decoder.pos++] ?? 0
      count += (octet & 127) * factor
      more = octet > 127
    }
    this._durable = count
    this._look()
  }

  /** @param {CloseEvent | null} event Null if this side closed. */
  async _closed (event) {
    const refused = !this._isOpen && event !== null
    this._reset()
    const url = this._transport.url
    try {
      // A browser does not say why a node refused a connection.
      if (refused) await this._transport.probe(this._document)
    } catch (error) {
      if (error instanceof ShoalError && (error.status === 401 || error.status === 403)) {
        this.provider.disconnect()
        return this._end(error)
      }
    }
    if (this.failure !== null) return // It was left, or its end is told: that is no fault of the node.
    this._transport.leave(url)
    this.provider.serverUrl = this._transport.url.replace(/^http/, 'ws') + '/v1/yjs' + path(this._space)
    // Without a new token the next attempt shows the former one, and fails, or does not.
    this.provider.protocols = await this._transport.token().then(protocols, () => this.provider.protocols)
  }

  /** @param {() => boolean} ready @returns {Promise<void>} */
  _until (ready) {
    return new Promise((resolve, reject) => {
      if (this.failure !== null) return reject(this.failure)
      this._waiting.add({ ready, resolve, reject })
      this._look()
    })
  }

  _look () {
    for (const waiter of this._waiting) {
      if (waiter.ready() && this._waiting.delete(waiter)) waiter.resolve()
    }
  }

  /** @param {ShoalError} error */
  _end (error) {
    this.failure ??= error
    for (const { reject } of this._waiting) reject(this.failure)
    this._waiting.clear()
  }
}

/** @param {string | undefined} token */
const protocols = (token) => token === undefined ? [] : ['shoal', `shoal.token.${token}`]
