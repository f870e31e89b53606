/**
 * A thread: its checkpoints, and its journal.
 *
 * Law: a handle remembers, for each branch, the checkpoint that it last loaded or saved, and a save builds on that one. So nobody overwrites a state
 * that they have not seen: such a save is rejected with `head-moved`, and nothing is written.
 */

import { invalid } from './errors.js'
import { Files } from './files.js'
import { Inbox, Worklist } from './queues.js'
import { path } from './transport.js'

/** @typedef {import('../types/api.js').components['schemas']} Schemas */
/** @typedef {import('./transport.js').ReadOptions} ReadOptions */
/** @typedef {import('./transport.js').WriteOptions} WriteOptions */
/** @typedef {Schemas['CheckpointView'] & { state: Record<string, any>, metadata: Record<string, any> }} Checkpoint */

/** As `expectHead`: the branch must not exist yet. */
export const NO_HEAD = ''

/**
 * @typedef {object} SaveParts
 * @property {string} [branch] `main` if left out.
 * @property {string} [expectHead] The only head that the branch may have; in place of the checkpoint that this handle knows.
 * @property {'refuse' | 'fork'} [onConflict] With `fork`, a save that is not based on a head makes a second one.
 * @property {Record<string, unknown>} [metadata]
 * @property {string} [label] A name for the checkpoint, unique within its thread.
 * @property {string} [author]
 */

/** @typedef {SaveParts & WriteOptions} SaveOptions */
/** @typedef {{ set?: Record<string, unknown>, append?: Record<string, unknown[]>, remove?: string[] }} Changes */

export class Thread {
  /** @param {import('./transport.js').Transport} transport @param {string} space @param {string} name */
  constructor (transport, space, name) {
    this._transport = transport
    this._path = `/v1/spaces${path(space)}/threads${path(name)}`
    this.name = name
    this.journal = new Journal(transport, this._path)
    this.inbox = new Inbox(transport, `${this._path}/inbox`)
    this.files = new Files(transport, `${this._path}/files`)
    /** @type {Map<string, string>} Branch → the checkpoint that this handle last loaded or saved there. */
    this._seen = new Map()
  }

  /**
   * The newest checkpoint of a branch, or the one with an id or a label.
   * @param {{ checkpoint?: string, branch?: string, label?: string, channels?: string[], asOf?: Date } & ReadOptions} [options]
   * @returns {Promise<Checkpoint>}
   */
  async load ({ checkpoint = 'latest', branch = 'main', label, channels, asOf, ...read } = {}) {
    const query = { branch, label, channels: channels?.map(encodeURIComponent).join(','), as_of: asOf?.toISOString() }
    const found = await this._transport.read(`${this._path}/checkpoints${path(checkpoint)}`, query, read)
    this._seen.set(found.branch, found.id)
    return found
  }

  /**
   * Save a whole state. Channels that are not named are gone.
   * @param {Record<string, unknown>} state
   * @param {SaveOptions} [options]
   * @returns {Promise<Schemas['SavedView']>}
   */
  save (state, options = {}) {
    if (state === null || typeof state !== 'object' || Array.isArray(state)) throw invalid('a state is an object: channel → value.')
    return this._save({ state }, options, NO_HEAD)
  }

  /**
   * Change parts of the newest state; the other channels stay as they are. Elements that several writers append at once are all kept.
   * @param {Changes} changes
   * @param {SaveOptions} [options]
   * @returns {Promise<Schemas['SavedView']>}
   */
  update ({ set = {}, append = {}, remove = [] }, options = {}) {
    return this._save({ update: set, append, remove }, options, undefined)
  }

  /**
   * Add elements to the end of a channel.
   * @param {string} channel
   * @param {unknown[]} elements
   * @param {SaveOptions} [options]
   */
  append (channel, elements, options = {}) {
    return this.update({ append: { [channel]: elements } }, options)
  }

  /**
   * @param {object} content
   * @param {SaveOptions} options
   * @param {string | undefined} unseen What a save builds on if this handle has seen nothing; undefined for the newest.
   * @returns {Promise<Schemas['SavedView']>}
   */
  async _save (content, { branch = 'main', expectHead, onConflict = 'refuse', metadata, label = '', author = '', ...write }, unseen) {
    const parent = expectHead !== undefined || unseen === undefined ? undefined : this._seen.get(branch) ?? unseen
    const body = { ...content, branch, expect_head: expectHead, parent, on_conflict: onConflict, metadata, label, author }
    const saved = await this._transport.write('POST', `${this._path}/checkpoints`, body, write)
    this._seen.set(branch, saved.id)
    return saved
  }

  /**
   * The checkpoints of a branch, newest first.
   * @param {{ branch?: string, states?: boolean, filter?: Record<string, unknown>, author?: string, limit?: number } & ReadOptions} [options]
   * @returns {AsyncGenerator<Checkpoint, void, void>}
   */
  async * history ({ branch = 'main', states = false, filter, author, limit = Infinity, ...read } = {}) {
    let before
    for (let left = limit; left > 0;) {
      const query = { branch, states, author, before, filter: filter && JSON.stringify(filter), limit: Math.min(left, PAGE) }
      const page = await this._transport.read(`${this._path}/checkpoints`, query, read)
      yield * page.checkpoints
      if (!page.more) return
      left -= page.checkpoints.length
      before = page.next
    }
  }

  /**
   * Branch → the ids of its heads, the winner first; in byte order of the names.
   * @param {{ names?: string[], after?: string, limit?: number } & ReadOptions} [options] `names`: only these; `after`: only above this name; `limit`: at most so many.
   * @returns {Promise<Record<string, string[]>>}
   */
  async heads ({ names, after, limit, ...read } = {}) {
    return (await this._transport.read(`${this._path}/branches`, { names: names?.map(encodeURIComponent).join(','), after, limit }, read)).branches
  }

  /** @param {ReadOptions} [options] @returns {Promise<Schemas['StandingView']>} */
  status (options) {
    return this._transport.read(`${this._path}/status`, {}, options)
  }

  /**
   * Approve a thread that waits for a person, so that its agent goes on.
   * @param {{ by?: string, reason?: string, expectMs?: number } & WriteOptions} [options] `expectMs`: the `wall_ms` of the status that was seen; if it was set since, nothing is written.
   * @returns {Promise<Schemas['StandingView']>}
   */
  approve ({ by = '', reason = '', expectMs, ...write } = {}) {
    return this._transport.write('PUT', `${this._path}/status`, { status: 'running', by, reason, expect_ms: expectMs }, write)
  }

  /**
   * Pause a thread: its agent stops before its next step.
   * @param {{ by?: string, reason?: string, expectMs?: number } & WriteOptions} [options] `expectMs`: the `wall_ms` of the status that was seen; if it was set since, nothing is written.
   * @returns {Promise<Schemas['StandingView']>}
   */
  pause ({ by = '', reason = '', expectMs, ...write } = {}) {
    return this._transport.write('PUT', `${this._path}/status`, { status: 'paused', by, reason, expect_ms: expectMs }, write)
  }

  /**
   * End a thread as failed, such as by refusing what it asks. `approve` lets it go on nevertheless.
   * @param {{ by?: string, reason?: string, expectMs?: number } & WriteOptions} [options] `expectMs`: the `wall_ms` of the status that was seen; if it was set since, nothing is written.
   * @returns {Promise<Schemas['StandingView']>}
   */
  fail ({ by = '', reason = '', expectMs, ...write } = {}) {
    return this._transport.write('PUT', `${this._path}/status`, { status: 'failed', by, reason, expect_ms: expectMs }, write)
  }

  /**
   * Change the newest state of a branch as a person, by a JSON Patch (RFC 6902).
   * @param {object[]} patch
   * @param {{ branch?: string, by?: string } & WriteOptions} [options]
   * @returns {Promise<Schemas['SavedView']>}
   */
  edit (patch, { branch = 'main', by = '', ...write } = {}) {
    return this._transport.write('POST', `${this._path}/edit`, { patch, branch, by }, write)
  }

  /**
   * Begin a branch at a checkpoint.
   * @param {string} branch
   * @param {{ at: string, reason?: string, by?: string } & WriteOptions} options
   * @returns {Promise<Schemas['MovedView']>}
   */
  fork (branch, { at, reason = '', by = '', ...write }) {
    return this._transport.write('POST', `${this._path}/branches`, { branch, to: at, reason, by }, write)
  }

  /**
   * Put a branch back on a checkpoint. No checkpoint is deleted.
   * @param {string} checkpoint
   * @param {{ branch?: string, reason?: string, by?: string } & WriteOptions} [options]
   * @returns {Promise<Schemas['MovedView']>}
   */
  rollback (checkpoint, { branch = 'main', reason = '', by = '', ...write } = {}) {
    return this._transport.write('PUT', `${this._path}/branches${path(branch)}`, { to: checkpoint, reason, by }, write)
  }

  /** Delete a branch; its checkpoints stay until a prune. @param {string} branch @param {WriteOptions} [options] @returns {Promise<Schemas['BranchDeletedView']>} */
  deleteBranch (branch, options) {
    return this._transport.write('DELETE', `${this._path}/branches${path(branch)}`, undefined, options)
  }

  /**
   * Prune old checkpoints, or with `dryRun` only say which.
   * @param {{ keepLast?: number, olderThanS?: number, branch?: string, dryRun?: boolean } & WriteOptions} options
   * @returns {Promise<Schemas['PruneReportView']>}
   */
  prune ({ keepLast, olderThanS, branch, dryRun = false, ...write }) {
    const body = { keep_last: keepLast, older_than_s: olderThanS, branch, dry_run: dryRun }
    return this._transport.write('POST', `${this._path}/prune`, body, write)
  }

  /** The labels, with their checkpoints. @param {ReadOptions} [options] @returns {AsyncGenerator<Schemas['LabelledView'], void, void>} */
  async * labels (options) {
    let after
    for (;;) {
      const page = await this._transport.read(`${this._path}/labels`, { after, limit: PAGE }, options)
      yield * page.labels
      if (!page.more) return
      after = page.labels.at(-1).label
    }
  }

  /** Remove a label; its checkpoint stays until it is pruned. @param {string} label @param {WriteOptions} [options] @returns {Promise<boolean>} Whether there was one. */
  async unlabel (label, options) {
    return (await this._transport.write('DELETE', `${this._path}/labels${path(label)}`, undefined, options)).count > 0
  }

  /**
   * The steps in the order in which they began.
   * @param {{ open?: boolean, limit?: number } & ReadOptions} [options] `open`: only those without an outcome.
   * @returns {AsyncGenerator<Schemas['StepView'], void, void>}
   */
  async * steps ({ open = false, limit = Infinity, ...read } = {}) {
    let after
    for (let left = limit; left > 0;) {
      const page = await this._transport.read(`${this._path}/steps`, { open: open || undefined, after, limit: Math.min(left, PAGE) }, read)
      yield * page.steps
      if (!page.more) return
      left -= page.steps.length
      after = page.steps.at(-1).position
    }
  }

  /**
   * Settle a step that has no outcome, by a person's decision.
   * @param {string} step Its key.
   * @param {{ how: 'result' | 'retry' | 'abandon', value?: unknown, by?: string, reason?: string } & WriteOptions} decision
   * @returns {Promise<Schemas['StepView']>}
   */
  resolve (step, { how, value, by = '', reason = '', ...write }) {
    return this._transport.write('POST', `${this._path}/steps${path(step)}/resolve`, { how, value, by, reason }, write)
  }

  /** Who drives the thread: the holder of its lease. @param {ReadOptions} [options] @returns {Promise<Schemas['LeaseStateView']>} */
  lease (options) {
    return this._transport.read(this._path.replace(/\/threads\/([^/]*)$/, '/leases/$1'), { thread: true }, options)
  }

  /**
   * A page of what was done in the thread, the newest first. While `more` is true, ask again with its `cursor` as `after`.
   * @param {import('./store.js').AuditOptions} [options]
   * @returns {Promise<Schemas['TimelineView']>}
   */
  timeline ({ kind, by, text, sinceMs, after, limit, ...read } = {}) {
    return this._transport.read(`${this._path}/timeline`, { kind, by, text, since_ms: sinceMs, after, limit }, read)
  }

  /** Checkpoints, steps and events in one order of time. @param {ReadOptions} [options] @returns {Promise<Schemas['AuditEntryView'][]>} */
  async audit (options) {
    return (await this._transport.read(`${this._path}/audit`, {}, options)).entries
  }

  /**
   * Send a message to the thread's inbox. Of all messages with one `messageKey`, it has one.
   * @param {unknown} message
   * @param {{ messageKey?: string, by?: string } & WriteOptions} [options]
   * @returns {Promise<{ id: string, sent: boolean }>} `sent` is false if there was one with its key.
   */
  async send (message, { messageKey, by = '', ...write } = {}) {
    const items = [{ key: messageKey ?? null, value: message }]
    const { ids, added } = await this._transport.write('POST', `${this._path}/inbox`, { items, by }, write)
    return { id: ids[0], sent: added[0] }
  }

  /** How far each of its worklists is. @param {ReadOptions} [options] @returns {Promise<Schemas['WorklistView'][]>} */
  async worklists (options) {
    return (await this._transport.read(`${this._path}/worklists`, {}, options)).worklists
  }

  /** @param {string} name @returns {Worklist} */
  worklist (name) {
    return new Worklist(this._transport, `${this._path}/worklists${path(name)}`)
  }

  /** Delete the thread on every node. @param {WriteOptions} [options] @returns {Promise<boolean>} Whether there was one. */
  async delete (options) {
    const { existed } = await this._transport.write('DELETE', this._path, undefined, options)
    this._seen.clear()
    return existed
  }
}

const PAGE = 100
const FOLLOW_S = 20

export class Journal {
  /** @param {import('./transport.js').Transport} transport @param {string} thread The path of its thread. */
  constructor (transport, thread) {
    this._transport = transport
    this._path = `${thread}/events`
  }

  /**
   * Append an event. Of all events with one `eventKey`, the journal has one, for ever.
   * @param {unknown} event
   * @param {{ eventKey?: string } & WriteOptions} [options]
   * @returns {Promise<Schemas['AppendedView']>}
   */
  append (event, { eventKey, ...write } = {}) {
    return this._transport.write('POST', this._path, { event, key: eventKey }, write)
  }

  /**
   * The events in order, after a cursor or from the first; with `follow` also those to come, until the signal.
   * @param {{ after?: string, sinceMs?: number, limit?: number, follow?: boolean, skipTrimmed?: boolean } & ReadOptions} [options]
   * @returns {AsyncGenerator<Schemas['EventView'] & { event: any }, void, void>}
   */
  async * read ({ after = '', sinceMs, limit = Infinity, follow = false, skipTrimmed = false, stale, signal } = {}) {
    const wait = follow ? FOLLOW_S : undefined
    for (let left = limit; left > 0;) {
      const query = { after, since_ms: sinceMs, wait, limit: Math.min(left, PAGE), skip_trimmed: skipTrimmed || undefined }
      let page
      try {
        page = await this._transport.read(this._path, query, { stale, signal, waitMs: follow ? FOLLOW_S * 1000 : 0 })
      } catch (error) {
        if (follow && signal?.aborted) return
        throw error
      }
      yield * page.events
      if (!page.more && !follow) return
      left -= page.events.length
      after = page.cursor
    }
  }
}
