/** The way in: a store, and its spaces. */

import { SharedDocument } from './document.js'
import { Files } from './files.js'
import { Items } from './items.js'
import { Thread } from './thread.js'
import { path, Transport } from './transport.js'
import { Budget, Counter, Register, SharedList, SharedMap, SharedSet } from './values.js'
import { watch, watchSpaces } from './watch.js'

/** @typedef {import('../types/api.js').components['schemas']} Schemas */
/** @typedef {import('./transport.js').ReadOptions} ReadOptions */

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

  /**
   * Each durable change in several spaces, over one connection: hints to read again. Use `for await`; after a reconnect comes a `reset`.
   * @param {readonly string[]} spaces At most 64.
   * @param {Omit<import('./watch.js').WatchOptions, 'prefix' | 'after'>} [options]
   */
  watch (spaces, options) {
    return watchSpaces(this._transport, spaces, options)
  }

  /** Who this client is, and what its token grants. @param {{ signal?: AbortSignal }} [options] @returns {Promise<Schemas['AccessView']>} */
  access (options) {
    return this._transport.read('/v1/access', {}, options)
  }

  /** What the node says of itself: its id and version, and the other members' addresses. @param {{ signal?: AbortSignal }} [options] @returns {Promise<Schemas['Welcome']>} */
  about (options) {
    return this._transport.read('/', {}, options)
  }

  /** Have the node keep a token in a cookie of its own page, which no script can read. @param {string} token @returns {Promise<Schemas['AccessView']>} */
  signIn (token) {
    return this._transport._retried({ method: 'POST', path: '/v1/access/cookie', headers: { Authorization: `Bearer ${token}` } })
  }

  /** Have the node's page forget the token. @returns {Promise<Schemas['AccessView']>} */
  signOut () {
    return this._transport.write('DELETE', '/v1/access/cookie', undefined)
  }

  /** The members, their lag, and the node that answers, as that node sees them. @param {{ signal?: AbortSignal }} [options] @returns {Promise<Schemas['ClusterDocument']>} */
  cluster (options) {
    return this._transport.read('/v1/cluster', {}, options)
  }

  /** What is wrong with the node that answers and its cluster, the worst first, and how to mend it. @param {{ signal?: AbortSignal }} [options] @returns {Promise<Schemas['ConditionsView']>} */
  conditions (options) {
    return this._transport.read('/v1/cluster/conditions', {}, options)
  }

  /** How long requests took at the node that answers, and how they ended. @param {{ signal?: AbortSignal }} [options] @returns {Promise<Schemas['Figures']>} */
  figures (options) {
    return this._transport.read('/v1/cluster/figures', {}, options)
  }

  /**
   * What the disk of the node that answers holds: the largest spaces, what keeps the log, and how both grew.
   * @param {{ sinceMs?: number, limit?: number, signal?: AbortSignal }} [options] `sinceMs`: the history from then on; `limit`: spaces, at most 100.
   * @returns {Promise<Schemas['UsageView']>}
   */
  usage ({ sinceMs, limit, ...read } = {}) {
    return this._transport.read('/v1/usage', { since_ms: sinceMs, limit }, read)
  }

  /** Where the cluster is backed up, and how far the node that answers knows that to be. @param {{ signal?: AbortSignal }} [options] @returns {Promise<Schemas['BackupView']>} */
  backup (options) {
    return this._transport.read('/v1/cluster/backup', {}, options)
  }

  /** The list of the members, and how far a change of it is. @param {{ signal?: AbortSignal }} [options] @returns {Promise<Schemas['MembersView']>} */
  members (options) {
    return this._transport.read('/v1/cluster/members', {}, options)
  }
}

/**
 * @typedef {object} SummaryOptionsOwn
 * @property {'stuck' | 'waits' | 'unknown' | 'well'} [state] Any if left out.
 * @property {string} [text] Part of a name, a reason, a label, an author, a tag, a driver or an open step.
 * @property {string} [author] Of the newest checkpoint, or of the status.
 * @property {string} [tag] A text in the list `tags` of the newest checkpoint's metadata.
 * @property {string} [prefix] Of names.
 * @property {number} [stuckAfterS] A step that is open for so many seconds makes its thread stuck; 600 if left out.
 * @property {string} [after] The `cursor` of the page before.
 * @property {number} [limit] At most so many; 100 if left out.
 */
/** @typedef {SummaryOptionsOwn & import('./transport.js').ReadOptions} SummaryOptions */

/**
 * @typedef {object} AuditOptionsOwn
 * @property {'checkpoint' | 'event' | 'step'} [kind] All if left out.
 * @property {string} [by] Only of this author.
 * @property {string} [text] Only with this text, in any case of letters.
 * @property {number} [sinceMs] Nothing older.
 * @property {string} [after] The `cursor` of the page before.
 * @property {number} [limit] At most so many; 100 if left out.
 */
/** @typedef {AuditOptionsOwn & import('./transport.js').ReadOptions} AuditOptions */

const NEWEST_PAGE = 200
const NEWEST_SPARE = 20 // Pages that have nothing that is wanted, and are passed over.

/** @typedef {'threads' | 'documents' | 'counters' | 'registers' | 'maps' | 'sets' | 'lists' | 'budgets' | 'items' | 'schemas'} Family */

export class Space {
  /** @param {Transport} transport @param {string} name */
  constructor (transport, name) {
    path(name)
    this._transport = transport
    this.name = name
    this.files = new Files(transport, `/v1/spaces${path(name)}/files`)
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

  /** @param {string} name @returns {SharedList} */
  list (name) {
    return new SharedList(this._transport, this.name, 'lists', name)
  }

  /** @param {string} name */
  budget (name) {
    return new Budget(this._transport, this.name, 'budgets', name)
  }

  /** The leases that are held, also those of threads. @param {import('./transport.js').ReadOptions} [options] @returns {Promise<Schemas['LeaseStateView'][]>} */
  async leases (options) {
    return (await this._transport.read(`/v1/spaces${path(this.name)}/leases`, {}, options)).items
  }

  /**
   * End a lease that somebody else holds, as an operator. Resolves to false if it has another fencing number by now: then it is kept.
   * @param {string} lease @param {{ fence: number, thread?: boolean, to?: string, by?: string, reason?: string } & import('./transport.js').WriteOptions} options
   *   `fence`: as `leases` shows it; `thread`: it is the lease of the thread of this name; `to`: the holder that gets it, which waits.
   * @returns {Promise<boolean>}
   */
  async endLease (lease, { fence, thread = false, to = '', by = '', reason = '', ...write }) {
    return (await this._transport.write('POST', `/v1/spaces${path(this.name)}/leases${path(lease)}/end`, { fence, thread, to, by, reason }, write)).released
  }

  /** The clients that are present, with what they say of themselves. @param {import('./transport.js').ReadOptions} [options] @returns {Promise<Schemas['PresentView'][]>} */
  async presence (options) {
    return (await this._transport.read(`/v1/spaces${path(this.name)}/presence`, {}, options)).members
  }

  /** The limits of the space, and what it uses of them at the node that answers. @param {import('./transport.js').ReadOptions} [options] @returns {Promise<Schemas['QuotaView']>} */
  quota (options) {
    return this._transport.read(`/v1/spaces${path(this.name)}/quota`, {}, options)
  }

  /** The rules of retention of the space, and what the node that answers did by them. @param {import('./transport.js').ReadOptions} [options] @returns {Promise<Schemas['RetentionRulesView']>} */
  retention (options) {
    return this._transport.read(`/v1/spaces${path(this.name)}/retention`, {}, options)
  }

  /**
   * What the space holds at the node that answers: by kind, by beginnings of names, its largest objects, and how it grew.
   * @param {{ sinceMs?: number, limit?: number } & import('./transport.js').ReadOptions} [options] `sinceMs`: the history from then on; `limit`: prefixes, and objects, at most 50.
   * @returns {Promise<Schemas['SpaceUsageView']>}
   */
  usage ({ sinceMs, limit, ...read } = {}) {
    return this._transport.read(`/v1/spaces${path(this.name)}/usage`, { since_ms: sinceMs, limit }, read)
  }

  /** A document as JSON: root → content. @param {string} name @param {import('./transport.js').ReadOptions} [options] @returns {Promise<Record<string, any>>} */
  content (name, options) {
    return this._transport.read(`/v1/spaces${path(this.name)}/documents${path(name)}`, {}, options)
  }

  /**
   * Change a document by the steps of a JSON Patch (RFC 6902), each of which is an edit that merges with others.
   * @param {string} name @param {object[]} steps @param {{ author?: string } & import('./transport.js').WriteOptions} [options]
   * @returns {Promise<Record<string, any>>} The document after it.
   */
  patch (name, steps, { author, ...write } = {}) {
    return this._transport.write('PATCH', `/v1/spaces${path(this.name)}/documents${path(name)}`, steps, write, { author })
  }

  /** Values of a document that others overwrote at the same time. @param {string} name @param {import('./transport.js').ReadOptions} [options] @returns {Promise<Schemas['ConflictsView']>} */
  conflicts (name, options) {
    return this._transport.read(`/v1/spaces${path(this.name)}/documents${path(name)}/conflicts`, {}, options)
  }

  /** The authors of a document's passages, also those who have left, by the ids of their Yjs clients. @param {string} name @param {import('./transport.js').ReadOptions} [options] @returns {Promise<Schemas['DocumentAuthorsView']>} */
  authors (name, options) {
    return this._transport.read(`/v1/spaces${path(this.name)}/documents${path(name)}/authors`, {}, options)
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
   * A page of the threads at a glance: each with its state, and why, in a sentence. While `more` is true, ask again with its `cursor` as `after`.
   * @param {SummaryOptions} [options]
   * @returns {Promise<Schemas['SummariesView']>}
   */
  summaries ({ state, text, author, tag, prefix, stuckAfterS, after, limit, ...read } = {}) {
    return this._transport.read(`/v1/spaces${path(this.name)}/summaries`, { state, text, author, tag, prefix, stuck_after_s: stuckAfterS, after, limit }, read)
  }

  /**
   * A page of the worklists and inboxes of the space's threads; the first one also has the leases. While `more` is true, ask again with its `cursor` as `after`.
   * @param {{ prefix?: string, after?: string, limit?: number } & import('./transport.js').ReadOptions} [options]
   * @returns {Promise<Schemas['WorkView']>}
   */
  work ({ prefix, after, limit, ...read } = {}) {
    return this._transport.read(`/v1/spaces${path(this.name)}/work`, { prefix, after, limit }, read)
  }

  /**
   * A page of what was done in the space's threads, the newest first. While `more` is true, ask again with its `cursor` as `after`.
   * @param {{ prefix?: string } & AuditOptions} [options]
   * @returns {Promise<Schemas['TimelineView']>}
   */
  audit ({ prefix, kind, by, text, sinceMs, after, limit, ...read } = {}) {
    return this._transport.read(`/v1/spaces${path(this.name)}/audit`, { prefix, kind, by, text, since_ms: sinceMs, after, limit }, read)
  }

  /**
   * The newest things that were done, in one order of time of all the space's threads. It asks once for each 500 threads, and again only for what is newer than what it has.
   * `more`: older ones were left out; `threads`: so many were looked through; `beyond`: there are others, after these by name, that were not.
   * @param {number} count
   * @param {{ prefix?: string, groups?: number } & Omit<AuditOptions, 'after' | 'limit'>} [options] `groups` of 500 threads, at most; 20 if left out.
   * @returns {Promise<{ entries: Schemas['TimelineEntryView'][], more: boolean, threads: number, beyond: boolean }>}
   */
  async newest (count, { groups = 20, sinceMs = 0, ...options } = {}) {
    const found = /** @type {{ entries: Schemas['TimelineEntryView'][], more: boolean, threads: number, beyond: boolean }} */ ({ entries: [], more: false, threads: 0, beyond: false })
    let [floor, whole, spare] = [sinceMs, 0, Math.ceil(count / NEWEST_PAGE) + NEWEST_SPARE]
    const ask = (/** @type {string | undefined} */ after, limit = NEWEST_PAGE) => this.audit({ ...options, sinceMs: floor || undefined, after, limit: Math.min(count, limit) })
    const take = async (/** @type {Schemas['TimelineView']} */ page) => {
      const mine = page.entries
      while (page.more && page.cursor !== page.others && mine.length < count && spare-- > 0) {
        page = await ask(page.cursor)
        mine.push(...page.entries)
      }
      // Of a group that was left in the middle nothing is known that is older: none of that time is told of the others.
      if (page.more && page.cursor !== page.others) whole = Math.max(whole, page.reached_ms)
      found.entries = [...found.entries, ...mine].sort((one, other) => other.wall_ms - one.wall_ms)
      found.more ||= found.entries.length > count || whole > 0
      if (found.entries.length >= count) {
        found.entries.length = count
        floor = Math.max(floor, found.entries[count - 1].wall_ms)
      }
    }
    const first = await ask(undefined)
    Object.assign(found, { threads: first.threads, beyond: first.beyond })
    await take(first)
    // Of the other groups it is asked first how new they are: those with the newest fill the list, so that little is read of the rest.
    const others = []
    for (let after = first.others; found.beyond && others.length + 1 < groups;) {
      const page = await ask(after, 1)
      others.push({ after, newest: page.entries[0]?.wall_ms ?? page.reached_ms })
      found.threads += page.threads
      found.beyond = page.beyond
      after = page.others
    }
    for (const { after, newest } of others.sort((one, other) => other.newest - one.newest)) {
      if (newest === 0) break
      if (newest >= floor) await take(await ask(after))
      else found.more = true
    }
    found.more ||= floor > sinceMs
    found.entries = found.entries.filter(({ wall_ms: ms }) => ms >= whole)
    return found
  }

  /**
   * A page of the places that have a text, in any case of letters. While `more` is true, ask again with its `cursor` as `after`; it says how many threads were `looked` at.
   * @param {string} text
   * @param {{ prefix?: string, place?: 'name' | 'label' | 'tag' | 'metadata' | 'state', after?: string, limit?: number } & import('./transport.js').ReadOptions} [options]
   * @returns {Promise<Schemas['HitsView']>}
   */
  search (text, { prefix, place, after, limit, ...read } = {}) {
    return this._transport.read(`/v1/spaces${path(this.name)}/search`, { text, prefix, place, after, limit }, read)
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
