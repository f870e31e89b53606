/**
 * Runs to compare: a run is a branch of a thread, with the figures that its checkpoints hold.
 *
 * Laws:
 * - Scores are the numbers of the metadata, under their own names; nothing is guessed but tokens, which frameworks keep in known places.
 * - Bounded: so many checkpoints of each run are read, and it is told if there are more.
 */

import { client } from '../../data.js'
import { fieldsOf } from '../../kit/graphs.js'
import { masked } from '../../kit/secret.js'
import { some } from '../shared/listing.js'

const CHECKPOINTS_MAX = 500
const RUNS_MAX = 24

/**
 * @typedef {object} Run
 * @property {string} id `thread:branch`, both percent-encoded, with the space before it if it is of another one.
 * @property {string} space @property {string} thread @property {string} branch
 * @property {any[]} checkpoints Oldest first.
 * @property {boolean} more Whether older ones were left out.
 * @property {string[]} tags @property {Record<string, number>} scores Of the newest checkpoint.
 * @property {number} durationMs @property {number | null} tokens
 * @property {any} state Of the newest checkpoint. @property {Error | undefined} error
 */

/** The runs that an address names. @param {string} text @param {string} space @returns {{ id: string, space: string, thread: string, branch: string }[]} */
export function named (text, space) {
  return text.split(',').filter(Boolean).slice(0, RUNS_MAX).map((id) => {
    const [where, rest] = id.includes('/') ? [decodeURIComponent(id.slice(0, id.indexOf('/'))), id.slice(id.indexOf('/') + 1)] : [space, id]
    const [thread, branch = 'main'] = rest.split(':').map(decodeURIComponent)
    return { id, space: where, thread, branch }
  })
}

/** @param {string} space @param {string} thread @param {string} branch @param {string} shown The space of the address. */
export const idOf = (space, thread, branch, shown) => `${space === shown ? '' : `${encodeURIComponent(space)}/`}${encodeURIComponent(thread)}:${encodeURIComponent(branch)}`

/** @param {{ id: string, space: string, thread: string, branch: string }} run @param {AbortSignal} signal @returns {Promise<Run>} */
export async function read (run, signal) {
  const thread = client().space(run.space).thread(run.thread)
  try {
    const [history, head] = await Promise.all([some(thread.history({ branch: run.branch, signal }), CHECKPOINTS_MAX), client().space(run.space).thread(run.thread).load({ branch: run.branch, signal })])
    const checkpoints = history.items.reverse()
    const [first, last] = [checkpoints[0], checkpoints[checkpoints.length - 1]]
    return {
      ...run, checkpoints, more: history.more, tags: tagsOf(head.metadata), scores: numbers(head.metadata), durationMs: last.wall_ms - first.wall_ms,
      tokens: tokensOf(checkpoints, head.state), state: masked(head.state, head.secret), error: undefined
    }
  } catch (error) {
    return { ...run, checkpoints: [], more: false, tags: [], scores: {}, durationMs: 0, tokens: null, state: undefined, error: /** @type {Error} */ (error) }
  }
}

/** @param {any} metadata @returns {string[]} */
function tagsOf (metadata) {
  const tags = metadata?.tags
  return Array.isArray(tags) ? tags.map(String) : typeof tags === 'string' ? [tags] : []
}

/** The numbers of metadata by their paths, two levels deep. @param {any} metadata @param {string} [before] @returns {Record<string, number>} */
export function numbers (metadata, before = '') {
  /** @type {Record<string, number>} */
  const found = {}
  for (const [name, value] of Object.entries(metadata ?? {})) {
    if (typeof value === 'number' && Number.isFinite(value)) found[before + name] = value
    else if (before === '' && value !== null && typeof value === 'object' && !Array.isArray(value)) Object.assign(found, numbers(value, `${name}.`))
  }
  return found
}

/** All tokens that the run used, as its metadata or its messages tell; null if neither does. @param {any[]} checkpoints @param {any} state */
function tokensOf (checkpoints, state) {
  const told = checkpoints.map(({ metadata }) => Object.entries(numbers(metadata)).find(([name]) => /(^|\.|_)(total_)?tokens$/i.test(name))?.[1]).filter((count) => count !== undefined)
  if (told.length > 0) return Math.max(...told)
  let sum = 0
  let any = false
  for (const channel of Object.values(state ?? {})) {
    if (!Array.isArray(channel)) continue
    for (const each of channel) {
      const message = fieldsOf(each)
      const usage = message?.usage_metadata ?? message?.kwargs?.usage_metadata ?? message?.usage
      const count = usage?.total_tokens ?? (usage && (usage.input_tokens ?? usage.prompt_tokens ?? 0) + (usage.output_tokens ?? usage.completion_tokens ?? 0))
      if (typeof count === 'number') { sum += count; any = true }
    }
  }
  return any ? sum : null
}

/**
 * Where two runs part: the last checkpoint that both have, or that has the same content; -1 if they share none.
 * @param {Run} one @param {Run} other @returns {{ shared: number, at: any }} `shared`: how many checkpoints from the first on.
 */
export function parting (one, other) {
  const same = (/** @type {any} */ a, /** @type {any} */ b) => a.id === b.id || (Object.keys(a.hashes).length > 0 && JSON.stringify(sorted(a.hashes)) === JSON.stringify(sorted(b.hashes)))
  let shared = 0
  while (shared < one.checkpoints.length && shared < other.checkpoints.length && same(one.checkpoints[shared], other.checkpoints[shared])) shared++
  return { shared, at: one.checkpoints[shared - 1] }
}

/** @param {Record<string, string>} hashes */
const sorted = (hashes) => Object.entries(hashes).sort(([a], [b]) => a < b ? -1 : 1)

/** Rows for a spreadsheet or a program: one for each run. @param {Run[]} runs @param {string[]} scores */
export const table = (runs, scores) => runs.map((run) => ({
  space: run.space, thread: run.thread, branch: run.branch, checkpoints: run.checkpoints.length, duration_s: run.durationMs / 1000, tokens: run.tokens, tags: run.tags,
  ...Object.fromEntries(scores.map((name) => [name, run.scores[name] ?? null]))
}))

/** As CSV (RFC 4180); cells that a spreadsheet would take for formulas begin with an apostrophe. @param {Record<string, any>[]} rows */
export function csv (rows) {
  const cell = (/** @type {any} */ value) => {
    const text = value === null || value === undefined ? '' : Array.isArray(value) ? value.join(' ') : String(value)
    const safe = typeof value === 'string' || Array.isArray(value) ? text.replace(/^[=+\-@\t\r]/, "'$&") : text
    return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe
  }
  const names = Object.keys(rows[0] ?? {})
  return [names, ...rows.map((row) => names.map((name) => row[name]))].map((cells) => cells.map(cell).join(',')).join('\r\n') + '\r\n'
}

/** @param {Record<string, any>[]} rows */
export const lines = (rows) => rows.map((row) => JSON.stringify(row) + '\n').join('')

/** Have the browser keep a file. @param {string} name @param {string} type @param {string} text */
export function kept (name, type, text) {
  const link = document.createElement('a')
  link.href = URL.createObjectURL(new Blob([text], { type }))
  link.download = name
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000)
}
