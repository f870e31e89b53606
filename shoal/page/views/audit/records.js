/** The records that the audit shows: what was done in threads, and the log of reads; each with a bound that is told. */

import { client, spacesOf } from '../../data.js'
import { some } from '../shared/listing.js'

const THREADS_MAX = 40
const RECORDS_MAX = 5000
const READS_MAX = 2000

/** @typedef {{ id: string, own: string, kind: string, space: string, thread: string, by: string, token: string, ms: number, text: string, data: any, known: string }} Deed */
/** @typedef {{ rows: Deed[], more: boolean, off: boolean, isCut: boolean }} Found */

/** @param {string} space @param {AbortSignal} signal @returns {Promise<Found>} */
export async function deeds (space, signal) {
  const spaces = await spacesOf(space)
  const parts = await Promise.all(spaces.names.map(async (name) => {
    const threads = await some(client().space(name).names('threads', { signal }), THREADS_MAX)
    const entries = await Promise.all(threads.items.map(async (thread) => (await client().space(name).thread(thread).audit({ signal })).map((entry) => deed(name, thread, entry))))
    return { rows: entries.flat(), more: threads.more }
  }))
  const rows = parts.flatMap((part) => part.rows).sort((a, b) => b.ms - a.ms)
  return { rows: rows.slice(0, RECORDS_MAX), more: rows.length > RECORDS_MAX || parts.some(({ more }) => more), off: false, isCut: spaces.more }
}

/** @param {string} space @param {string} thread @param {any} entry @returns {Deed} */
const deed = (space, thread, { kind, id, by, time, text, data, known }) => ({
  id: `${space}/${thread}/${kind}/${id}`, own: id, kind, space, thread, by, token: '', ms: Date.parse(time), text, data, known
})

/** The log of reads, which nodes keep if they are told to. @param {string} space @param {AbortSignal} signal @returns {Promise<Found>} */
export async function reads (space, signal) {
  const found = await some(client().space('.shoal').thread('reads').journal.read({ limit: READS_MAX, skipTrimmed: true, signal }), READS_MAX).catch((error) => {
    if (error.status === 404 || error.status === 403) return undefined
    throw error
  })
  if (found === undefined || found.items.length === 0) return { rows: [], more: false, off: true, isCut: false }
  const rows = found.items.flatMap(({ id, event, wall_ms: ms }) => event.reads.map((/** @type {string[]} */ [what, where, ...names], /** @type {number} */ index) => ({
    id: `${id}/${index}`, own: id, kind: 'read', space: where ?? '', thread: names.join(' / '), by: event.by ?? '', token: event.token ?? '', ms, text: `${what} ${names.join(' / ')}`.trim(), data: null, known: ''
  })))
  return { rows: rows.filter((row) => space === '*' || row.space === space).reverse(), more: found.more, off: false, isCut: false }
}
