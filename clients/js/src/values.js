/** Counters, registers, maps, sets and budgets, which many agents and pages change at once. */

import { path } from './transport.js'

/** @typedef {import('../types/api.js').components['schemas']} Schemas */
/** @typedef {import('./transport.js').ReadOptions} ReadOptions */
/** @typedef {import('./transport.js').WriteOptions} WriteOptions */

const PAGE = 500

/** What all of them have: a name, a path, and an end. */
class Value {
  /** @param {import('./transport.js').Transport} transport @param {string} space @param {string} family @param {string} name */
  constructor (transport, space, family, name) {
    this._transport = transport
    this._path = `/v1/spaces${path(space)}/${family}${path(name)}`
    this.name = name
  }

  /** Delete it on every node. @param {WriteOptions} [options] @returns {Promise<boolean>} Whether there was one. */
  async delete (options) {
    return (await this._transport.write('DELETE', this._path, undefined, options)).existed
  }
}

export class Counter extends Value {
  /** @param {ReadOptions} [options] @returns {Promise<number>} 0 if nothing was added. */
  async value (options) {
    return (await this._transport.read(this._path, {}, options)).value
  }

  /** @param {number | bigint} [amount] @param {WriteOptions} [options] @returns {Promise<number>} The value after it. */
  async add (amount = 1, options) {
    return (await this._transport.write('POST', this._path, { add: typeof amount === 'bigint' ? Number(amount) : amount }, options)).value
  }
}

export class Register extends Value {
  /** The value, with those that were assigned at the same time. @param {ReadOptions} [options] @returns {Promise<Schemas['SiblingsView'] & { value: any }>} */
  get (options) {
    return this._transport.read(this._path, {}, options)
  }

  /**
   * @param {unknown} value
   * @param {{ expect?: string, by?: string } & WriteOptions} [options] `expect`: the `version` that it must have; "" if it must have no value. `by`: the author, for the history.
   * @returns {Promise<Schemas['AssignedView']>}
   */
  set (value, { expect, by, ...write } = {}) {
    return this._transport.write('PUT', this._path, { value, expect, by }, write)
  }

  /** The last values that it was set to, the latest first, with their authors and times. @param {ReadOptions} [options] @returns {Promise<Schemas['NotedValueView'][]>} */
  async history (options) {
    return (await this._transport.read(`${this._path}/history`, {}, options)).values
  }
}

export class SharedMap extends Value {
  /** All that a key holds. @param {string} key @param {ReadOptions} [options] @returns {Promise<Schemas['MapEntryView']>} */
  get (key, options) {
    return this._transport.read(this._path + path(key), {}, options)
  }

  /**
   * The entries in the order of their keys.
   * @param {{ prefix?: string, limit?: number } & ReadOptions} [options] `limit`: how many are asked for at once.
   * @returns {AsyncGenerator<Schemas['MapEntryView'], void, void>}
   */
  async * entries ({ prefix, limit = PAGE, ...read } = {}) {
    let after
    for (;;) {
      const page = await this._transport.read(this._path, { prefix, after, limit }, read)
      yield * page.entries
      if (!page.more) return
      after = page.entries.at(-1).key
    }
  }

  /** Set the register of a key. @param {string} key @param {unknown} value @param {{ expect?: string } & WriteOptions} [options] @returns {Promise<Schemas['EntryPutView']>} */
  set (key, value, { expect, ...write } = {}) {
    return this._transport.write('PUT', this._path + path(key), { value, expect }, write)
  }

  /** Add to the counter of a key. @param {string} key @param {number} [amount] @param {WriteOptions} [options] @returns {Promise<void>} */
  async add (key, amount = 1, options) {
    await this._transport.write('POST', `${this._path}${path(key)}/counter`, { add: amount }, options)
  }

  /** Add elements to the set of a key, and remove others. @param {string} key @param {{ add?: unknown[], remove?: unknown[] }} changes @param {WriteOptions} [options] @returns {Promise<void>} */
  async alter (key, { add = [], remove = [] }, options) {
    await this._transport.write('POST', `${this._path}${path(key)}/set`, { add, remove }, options)
  }

  /** @param {string} key @param {WriteOptions} [options] @returns {Promise<boolean>} Whether there was something. */
  async remove (key, options) {
    return (await this._transport.write('DELETE', this._path + path(key), undefined, options)).removed
  }
}

export class SharedSet extends Value {
  /** @param {ReadOptions & { limit?: number }} [options] `limit`: how many are asked for at once. @returns {AsyncGenerator<any, void, void>} */
  async * members ({ limit = PAGE, ...options } = {}) {
    let after
    for (;;) {
      const page = await this._transport.read(this._path, { after, limit }, options)
      yield * page.members
      if (!page.more) return
      after = page.cursor
    }
  }

  /** @param {unknown} element @param {ReadOptions} [options] @returns {Promise<boolean>} */
  async has (element, options) {
    return (await this._transport.ask(`${this._path}/contains`, { elements: [element] }, options)).contained[0]
  }

  /** Add and remove elements in one operation. @param {{ add?: unknown[], remove?: unknown[] }} changes @param {WriteOptions} [options] @returns {Promise<Schemas['SetAlteredView']>} */
  alter ({ add = [], remove = [] }, options) {
    return this._transport.write('POST', this._path, { add, remove }, options)
  }

  /** @param {...unknown} elements @returns {Promise<number>} How many were new. */
  async add (...elements) {
    return (await this.alter({ add: elements })).added
  }

  /** @param {...unknown} elements @returns {Promise<number>} How many were members. */
  async remove (...elements) {
    return (await this.alter({ remove: elements })).removed
  }

  /** Remove members and return them; another node may return the same. @param {number} [count] @param {WriteOptions} [options] @returns {Promise<any[]>} */
  async pop (count = 1, options) {
    return (await this._transport.write('POST', `${this._path}/pop`, { count }, options)).members
  }
}

export class Budget extends Value {
  /** What was granted and spent, and which node may spend how much of the rest alone. @param {ReadOptions} [options] @returns {Promise<Schemas['BudgetStateView']>} */
  get (options) {
    return this._transport.read(this._path, {}, options)
  }

  /** What was granted and spent over time, as the node that answers saw it: the oldest first, the last of now. @param {ReadOptions} [options] @returns {Promise<Schemas['BudgetPointView'][]>} */
  async course (options) {
    return (await this._transport.read(`${this._path}/course`, {}, options)).points
  }

  /** Add to what may be spent. @param {number} amount @param {WriteOptions} [options] @returns {Promise<Schemas['GrantedView']>} */
  grant (amount, options) {
    return this._transport.write('POST', `${this._path}/grants`, { amount }, options)
  }

  /** Spend, if the node that is asked has rights to so much or can get them. @param {number} amount @param {WriteOptions} [options] @returns {Promise<Schemas['SpentView']>} */
  spend (amount, options) {
    return this._transport.write('POST', `${this._path}/spends`, { amount }, options)
  }
}

export class SharedList extends Value {
  /** The elements from an index on. @param {ReadOptions & { start?: number, limit?: number }} [options] `limit`: how many are asked for at once. @returns {AsyncGenerator<{ id: string, value: any }, void, void>} */
  async * items ({ start = 0, limit = PAGE, ...options } = {}) {
    let after
    for (;;) {
      const page = await this._transport.read(this._path, { index: after === undefined ? start : 0, after, limit }, options)
      yield * page.elements
      if (!page.more) return
      after = page.cursor
    }
  }

  /** @param {ReadOptions} [options] @returns {Promise<number>} */
  async size (options) {
    return (await this._transport.read(this._path, { limit: 1 }, options)).size
  }

  /** Add values at the end. @param {...unknown} values @returns {Promise<string[]>} The ids of their elements. */
  async push (...values) {
    return this.insert(values)
  }

  /** Insert values at an index, before or after an element, or at the end. @param {unknown[]} values @param {Place} [place] @param {WriteOptions} [options] @returns {Promise<string[]>} */
  async insert (values, place = {}, options) {
    return (await this._transport.write('POST', this._path, { values, ...placed(place) }, options)).elements
  }

  /** Move an element; false if there is none. @param {string} element @param {Place} [place] @param {WriteOptions} [options] @returns {Promise<boolean>} */
  async move (element, place = {}, options) {
    return (await this._transport.write('POST', `${this._path}/move`, { element, ...placed(place) }, options)).moved
  }

  /** Remove elements by their ids. @param {...string} elements @returns {Promise<any[]>} Their values. */
  async remove (...elements) {
    return this.removeAll(elements)
  }

  /** Remove elements by their ids, with a key or a time. @param {string[]} elements @param {WriteOptions} [options] @returns {Promise<any[]>} Their values. */
  async removeAll (elements, options) {
    return (await this._transport.write('POST', `${this._path}/remove`, { elements }, options)).values
  }
}

/** @typedef {{ index?: number, before?: string, after?: string }} Place */

/** @param {Place} place */
function placed ({ index, before = '', after = '' }) {
  return { index, before_id: before, after_id: after }
}
