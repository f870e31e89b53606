/** The queues of a thread: its worklists, and its inbox. */

import { path } from './transport.js'

/** @typedef {import('../types/api.js').components['schemas']} Schemas */
/** @typedef {import('./transport.js').ReadOptions} ReadOptions */
/** @typedef {import('./transport.js').WriteOptions} WriteOptions */
/** @typedef {'pending' | 'finished' | 'dead'} Part Of a queue: what waits, what was taken or done, dead letters. */

class Queue {
  /** @param {import('./transport.js').Transport} transport @param {string} path */
  constructor (transport, path) {
    this._transport = transport
    this._path = path
  }

  /**
   * A page of entries in their order, with the totals of the whole queue.
   * @param {{ part?: Part, after?: string, limit?: number } & ReadOptions} [options] `after`: the `place` of the last entry of the page before it.
   * @returns {Promise<Schemas['QueueEntriesView']>}
   */
  page ({ part = 'pending', after, limit, ...read } = {}) {
    return this._transport.read(this._path, { after, limit, finished: part === 'finished' || undefined, dead: part === 'dead' || undefined }, read)
  }

  /**
   * Put values in. Those with a key are one entry, however often they are put.
   * @param {{ key?: string, value: unknown }[]} items @param {{ by?: string } & WriteOptions} [options]
   * @returns {Promise<Schemas['EnqueuedView']>}
   */
  add (items, { by = '', ...write } = {}) {
    return this._transport.write('POST', this._path, { items: items.map(({ key, value }) => ({ key: key ?? null, value })), by }, write)
  }
}

export class Worklist extends Queue {
  /**
   * Finish an entry without a claim.
   * @param {string} id @param {unknown} [result] @param {{ by?: string } & WriteOptions} [options]
   * @returns {Promise<Schemas['DequeuedView']>}
   */
  done (id, result = null, { by = '', ...write } = {}) {
    return this._transport.write('POST', `${this._path}/entries${path(id)}/done`, { result, by }, write)
  }

  /** Put a dead letter back; its attempts are counted anew. @param {string} id @param {{ by?: string } & WriteOptions} [options] @returns {Promise<Schemas['ItemRevivedView']>} */
  revive (id, { by = '', ...write } = {}) {
    return this._transport.write('POST', `${this._path}/revive`, { id, by }, write)
  }
}

export class Inbox extends Queue {
  /** Take a message out. @param {string} id @param {{ by?: string } & WriteOptions} [options] @returns {Promise<Schemas['DequeuedView']>} */
  take (id, { by = '', ...write } = {}) {
    return this._transport.write('POST', `${this._path}${path(id)}/take`, { result: null, by }, write)
  }
}
