/** The records that the audit shows: what was done in threads, and the log of reads; each with a bound that is told. */

import { client, spacesOf } from '../../data.js'
import { isId, isLoops } from '../../kit/graphs.js'
import { brief } from '../../kit/messages.js'
import { some } from '../shared/listing.js'

const PAGE = 64 // A refresh reads three pages at most, and a look at twenty groups: less than 100 KB, of 100,000 threads too.
export const PAGES_MAX = 80
const READS_MAX = 2000

/** @typedef {{ id: string, own: string, kind: string, space: string, thread: string, by: string, token: string, ms: number, text: string, data: any, erased: boolean, part: boolean }} Deed `part`: the record has more than is here. */
/** @typedef {{ rows: Deed[], more: boolean, off: boolean, left: number, beyond?: { name: string, threads: number }[] }} Found `beyond`: spaces of which only so many threads were looked through. */

/** The newest deeds of all threads in one order of time, so many pages of them. @param {string} space @param {{ by?: string, find?: string, since?: string, kind?: string, from?: string }} filters @param {number} pages @returns {Promise<Found>} */
export async function deeds (space, { by, find, since, kind, from }, pages) {
  const spaces = await spacesOf(space)
  const asked = { by: by || undefined, text: find || undefined, kind: /** @type {any} */ (kind || undefined), prefix: from || undefined, sinceMs: Date.parse(since ?? '') || undefined }
  const parts = await Promise.all(spaces.names.map(async (name) => ({ name, ...await client().space(name).newest(pages * PAGE, asked).catch((error) => {
    if (space === '*' && error.status === 403) return { entries: [], more: false, threads: 0, beyond: false }
    throw error
  }) })))
  const count = pages * PAGE
  const rows = parts.flatMap(({ name, entries }) => entries.map((entry) => deed(name, entry))).sort((a, b) => b.ms - a.ms)
  return { rows: rows.slice(0, count), more: rows.length > count || parts.some(({ more }) => more), off: false, left: spaces.more, beyond: parts.filter(({ beyond }) => beyond).map(({ name, threads }) => ({ name, threads })) }
}

/** @param {string} space @param {any} entry @returns {Deed} */
const deed = (space, entry) => ({
  id: `${space}/${entry.thread}/${entry.kind}/${entry.id}`, own: entry.id, kind: entry.kind, space, thread: entry.thread, by: entry.by, token: entry.token, ms: entry.wall_ms,
  text: said(entry), data: entry.data, erased: entry.erased, part: !entry.whole && !entry.erased
})

/** What was done, in a line. @param {any} entry @returns {string} */
function said ({ kind, text, state, label, changed, data, erased }) {
  const seen = (changed ?? []).filter((/** @type {string} */ name) => !isLoops(name))
  if (kind === 'checkpoint') return `saved on ${text}${label && !isId(label) ? ` as ${label}` : ''}${seen.length > 0 ? `: ${brief(seen.join(', '))}` : ''}`
  if (kind === 'step') return `step ${text} ${state}`
  if (erased) return 'an event that was erased'
  if (text === 'status') return `${data?.status ?? 'status'}${data?.reason ? `: ${brief(data.reason)}` : ''}`
  if (text === 'event') return `event ${brief(data)}`
  // Its kind and its author stand beside it.
  const { kind: _kind, by: _by, ...rest } = data !== null && typeof data === 'object' ? data : { value: data }
  return `${text.replaceAll('-', ' ')} ${Object.keys(rest).length > 0 ? brief(rest) : ''}`.trim()
}

/** The log of reads, which nodes keep if they are told to. @param {string} space @param {AbortSignal} signal @returns {Promise<Found>} */
export async function reads (space, signal) {
  const found = await some(client().space('.shoal').thread('reads').journal.read({ limit: READS_MAX, skipTrimmed: true, signal }), READS_MAX).catch((error) => {
    if (error.status === 404 || error.status === 403) return undefined
    throw error
  })
  if (found === undefined || found.items.length === 0) return { rows: [], more: false, off: true, left: 0 }
  const rows = found.items.flatMap(({ id, event, wall_ms: ms }) => event.reads.map((/** @type {string[]} */ [what, where, ...names], /** @type {number} */ index) => ({
    id: `${id}/${index}`, own: id, kind: 'read', space: where ?? '', thread: names.join(' / '), by: event.by ?? '', token: event.token ?? '', ms, text: `${what} ${names.join(' / ')}`.trim(), data: null, erased: false, part: false
  })))
  return { rows: rows.filter((row) => space === '*' || row.space === space).reverse(), more: found.more, off: false, left: 0 }
}
