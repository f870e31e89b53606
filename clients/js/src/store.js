/** The way in: a store, and its spaces. */

import { SharedDocument } from './document.js'
import { Items } from './items.js'
import { Thread } from './thread.js'
import { path, Transport } from './transport.js'
import { Counter, Register, SharedMap, SharedSet } from './values.js'
import { watch } from './watch.js'

/** @typedef {import('../types/api.js').components['schemas']} Schemas */

const PAGE = 500

/**
 * A store at one node or several. Nothing is sent yet.
 * @param {string | readonly string[]} urls The addresses, in an array or with commas between them: if a node fails, the next one is asked.
 * @param {import('./options.js').Options} [options]
 * @returns {Store}
 */
export const connect = (urls, options = {}) => new Store(new Transport(urls, options))

export class Store {
  /** @param {Transport} transport Use `connect`. */
  constructor (transport) {
    this._transport = transport
  }

  /** @param {string} name @returns {Space} */
  space (name) {
    return new Space(this._transport, name)
  }

  /** The names of the spaces. @returns {AsyncGenerator<string, void, void>} */
  async * spaces () {
    let after
    for (;;) {
      const page = await this._transport.read('/v1/spaces', { after, limit: PAGE })
      yield * page.names
      if (!page.more) return
      after = page.names.at(-1)
    }
  }

  /** Who this client is, and what its token grants. @param {{ signal?: AbortSignal }} [options] @returns {Promise<Schemas['AccessView']>} */
  access (options) {
    return this._transport.read('/v1/access', {}, options)
  }
}

/** @typedef {'threads' | 'documents' | 'counters' | 'registers' | 'maps' | 'sets'} Family */

export class Space {
  /** @param {Transport} transport @param {string} name */
  constructor (transport, name) {
    path(name)
    this._transport = transport
    this.name = name
  }

  /** @param {string} name */
  thread (name) {
    return new Thread(this._transport, this.name, name)
  }

  /** @param {string} name */
  counter (name) {
    return new Counter(this._transport, this.name, 'counters', name)
  }

  /** @param {string} name */
  register (name) {
    return new Register(this._transport, this.name, 'registers', name)
  }

  /** @param {string} name */
  map (name) {
    return new SharedMap(this._transport, this.name, 'maps', name)
  }

  /** @param {string} name */
  set (name) {
    return new SharedSet(this._transport, this.name, 'sets', name)
  }

  get items () {
    return new Items(this._transport, this.name)
  }

  /**
   * Join a document with its editors and agents, as a Yjs client.
   * @template {import('./document.js').Provider} P
   * @param {string} name
   * @param {import('./document.js').DocumentOptions<P>} options
   * @returns {Promise<SharedDocument<P>>}
   */
  document (name, options) {
    return SharedDocument.open(this._transport, this.name, name, options)
  }

  /**
   * Each durable change in the space, once, also if the node goes away. Use `for await`.
   * @param {import('./watch.js').WatchOptions} [options]
   */
  watch (options) {
    return watch(this._transport, this.name, options)
  }

  /**
   * The names of the objects of a family, in byte order.
   * @param {Family} family
   * @param {{ prefix?: string, signal?: AbortSignal }} [options]
   * @returns {AsyncGenerator<string, void, void>}
   */
  async * names (family, { prefix, ...read } = {}) {
    let after
    for (;;) {
      const page = await this._transport.read(`/v1/spaces${path(this.name)}${path(family)}`, { prefix, after, limit: PAGE }, read)
      yield * page.names
      if (!page.more) return
      after = page.after ?? page.names.at(-1)
    }
  }
}
