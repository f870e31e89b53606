/** Items of a space: values under a namespace and a key, which are found by filters and vectors. */

import { invalid } from './errors.js'
import { path } from './transport.js'

/** @typedef {import('../types/api.js').components['schemas']} Schemas */
/** @typedef {import('./transport.js').ReadOptions} ReadOptions */
/** @typedef {import('./transport.js').WriteOptions} WriteOptions */
/** @typedef {readonly string[]} Namespace Labels, the widest first. */

const PAGE = 100

export class Items {
  /** @param {import('./transport.js').Transport} transport @param {string} space */
  constructor (transport, space) {
    this._transport = transport
    this._path = `/v1/spaces${path(space)}/items`
  }

  /**
   * An item; `not-found` if there is none.
   * @param {Namespace} namespace @param {string} key @param {ReadOptions} [options]
   * @returns {Promise<Schemas['ItemView'] & { value: any }>}
   */
  get (namespace, key, options) {
    return this._transport.read(this._at(namespace) + path(key), {}, options)
  }

  /**
   * @param {Namespace} namespace @param {string} key @param {unknown} value
   * @param {{ ttlS?: number, vectors?: number[][], expect?: string } & WriteOptions} [options] `expect`: the `version` that it must have; "" if there must be none.
   * @returns {Promise<Schemas['ItemPutView']>}
   */
  put (namespace, key, value, { ttlS, vectors, expect, ...write } = {}) {
    return this._transport.write('PUT', this._at(namespace) + path(key), { value, ttl_s: ttlS, vectors, expect }, write)
  }

  /** @param {Namespace} namespace @param {string} key @param {WriteOptions} [options] @returns {Promise<boolean>} Whether there was one. */
  async delete (namespace, key, options) {
    return (await this._transport.write('DELETE', this._at(namespace) + path(key), undefined, options)).deleted
  }

  /**
   * Items of a namespace and of those below it, in the order of namespaces and keys; with a vector, the nearest first.
   * @param {Namespace} namespace
   * @param {{ filter?: Record<string, unknown>, vector?: number[], limit?: number } & ReadOptions} [options] `limit`: so many at most; with a vector 10 if it is not given.
   * @returns {AsyncGenerator<Schemas['ItemView'] & { value: any, score?: number }, void, void>}
   */
  async * search (namespace, { filter, vector, limit = vector === undefined ? Infinity : 10, ...read } = {}) {
    const labels = checked(namespace)
    let after
    for (let count = 0; count < limit;) {
      const wanted = { namespace: labels, filter, limit: Math.min(PAGE, limit - count) }
      /** @type {any} */
      const page = vector === undefined
        ? await this._transport.ask(`${this._path}:search`, { ...wanted, after }, read)
        : await this._transport.ask(`${this._path}:rank`, { ...wanted, vector, offset: count }, read)
      yield * vector === undefined ? page.items : page.items.map(ranked)
      if (!page.more) return
      count += page.items.length
      after = page.cursor
    }
  }

  /** The namespaces that hold items, in order. @param {string} label Their first one; `space.names('items')` has all. @param {ReadOptions} [options] @returns {AsyncGenerator<string[], void, void>} */
  async * namespaces (label, options) {
    let after
    for (;;) {
      const page = await this._transport.ask(`${this._path}:namespaces`, { label, after, limit: PAGE }, options)
      yield * page.namespaces
      if (!page.more) return
      after = page.cursor
    }
  }

  /** @param {Namespace} namespace */
  _at (namespace) {
    return this._path + path(checked(namespace).join('.'))
  }
}

/** @param {Schemas['RankedView']} found @returns {Schemas['ItemView'] & { value: any, score: number }} */
function ranked ({ item, score }) {
  return { ...item, score }
}

/** @param {Namespace} namespace */
function checked (namespace) {
  const isLabel = (/** @type {unknown} */ label) => typeof label === 'string' && label !== '' && !label.includes('.')
  if (!Array.isArray(namespace) || namespace.length === 0 || !namespace.every(isLabel)) {
    throw invalid("a namespace is an array of labels, such as ['memory', 'ana'], of which none is empty or has a period.")
  }
  return namespace
}
