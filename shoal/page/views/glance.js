/** Threads at a glance: their summaries, the row of one in a table, and the sentence that sums them up. */

import { Fragment, html } from '../vendor/preact.js'
import { client, live, spacesOf } from '../data.js'
import { address, EVERY_SPACE } from '../router.js'
import { isId } from '../kit/graphs.js'
import { Mark } from '../kit/states.js'
import { span, Time, now } from '../kit/time.js'

const ROWS = 100
const TIME_MS = 60_000 // What only time changes, such as the age of an open step; all else is told.

/** @typedef {any} Glance A summary, with its `space`. */
/** @typedef {{ threads: Glance[], totals: Record<string, number>, more: boolean, cursors: Record<string, string>, left: number }} Page `left`: spaces that are not among them; -1: not known how many. */

/**
 * A page of summaries, of one space or of each.
 * @param {string} space @param {Record<string, any>} filters @param {Record<string, string>} [cursors] Where the former page ended.
 * @returns {Promise<Page>}
 */
export async function page (space, filters, cursors) {
  const { names: spaces, more: left } = cursors ? { names: Object.keys(cursors), more: 0 } : await spacesOf(space)
  // Of all spaces, those that the token does not allow are left out.
  const pages = await Promise.all(spaces.map((name) => client().space(name).summaries({ limit: ROWS, ...filters, after: cursors?.[name] }).catch((error) => {
    if (space === EVERY_SPACE && error.status === 403) return { threads: [], totals: {}, cursor: '' }
    throw error
  })))
  const threads = pages.flatMap((each, index) => each.threads.map((/** @type {any} */ thread) => ({ ...thread, space: spaces[index], key: `${spaces[index]}\n${thread.name}` })))
  /** @type {Record<string, number>} */
  const totals = {}
  for (const each of pages) for (const [status, count] of Object.entries(each.totals)) totals[status] = (totals[status] ?? 0) + Number(count)
  const next = Object.fromEntries(pages.map((each, index) => [spaces[index], each.cursor]).filter(([, cursor]) => cursor))
  return { threads, totals, more: Object.keys(next).length > 0, cursors: next, left }
}

/** @param {string} space @param {Record<string, any>} filters */
export const glances = (space, filters) => live(`glances ${space} ${JSON.stringify(filters)}`, () => page(space, filters), { space, kinds: ['thread', 'lease'], every: TIME_MS })

/** Whether somebody works in it: a thread may hold a worklist or files alone. @param {Glance} row */
export const isAgent = (row) => row.checkpoint_ms > 0 || row.status !== 'running' || row.open_steps > 0 || row.driven

export const STUCK_MAX = 50

/** Totals are counted up to a bound. @param {number} count */
const counted = (count) => count >= 1000 ? `${count} or more` : String(count)

/** The answer, in a sentence whose numbers are links. @param {{ space: string, waits: Page, stuck: Page, all: Page }} props */
export function Sum ({ space, waits, stuck, all }) {
  const asks = waits.threads.length
  const [no, total] = [stuck.threads.length, all.totals.all ?? 0]
  const well = Math.max(0, total - asks - no - all.threads.filter((row) => !isAgent(row)).length)
  const link = (/** @type {string} */ state, /** @type {any} */ text) => html`<a href=${address(space, 'threads', [], { state })}>${text}</a>`
  if (total === 0) return html`<${Fragment}>No agent has written anything here.</${Fragment}>`
  // The first number says of what it is one.
  const said = (/** @type {string} */ state, /** @type {string} */ count, /** @type {boolean} */ isOne, /** @type {string} */ one, /** @type {string} */ many) => ({ state, count, isOne, says: isOne ? one : many })
  const parts = [
    asks > 0 && said('waits', `${asks}${waits.more ? ' or more' : ''}`, asks === 1, 'waits for a person', 'wait for a person'),
    no > 0 && said('stuck', `${no}${stuck.more ? ' or more' : ''}`, no === 1, 'is stuck', 'are stuck'),
    (well > 0 || asks + no === 0) && said('well', counted(well), well === 1, 'is well', 'are well')
  ].filter(Boolean).map((part, nth) => link(part.state, `${part.count} ${nth > 0 ? '' : part.isOne ? 'agent ' : 'agents '}${part.says}`))
  // Of very many that run, not all are looked at for open steps at once.
  const isPartial = stuck.more && no < STUCK_MAX
  return html`<${Fragment}>${parts.map((part, index) => html`${index > 0 ? ', ' : ''}${part}`)}${isPartial && html`, as far as was looked: ${link('stuck', 'look further')}`}.</${Fragment}>`
}

/** Who drives it. @param {Glance} row */
const driver = (row) => row.driver ? html`<bdi>${row.driver}</bdi>` : (row.driven ? html`<span class="quiet">somebody</span>` : html`<span class="quiet">–</span>`)

/** @param {Glance} row */
function what (row) {
  if (row.state === 'waits') return row.asks || row.says
  if (row.state === 'stuck') return row.says
  return row.open_steps > 0 ? html`${row.open_steps === 1 ? html`step <bdi>${row.steps[0]?.name}</bdi>` : `${row.open_steps} steps`} <span class="quiet">open ${row.steps[0] ? span(Math.max(0, now.value - row.steps[0].begun_ms)) : ''}</span>`
    : html`<span class="quiet">${row.status === 'running' ? '' : `${row.status} `}</span>${[isId(row.label) ? '' : row.label, ...row.tags].filter(Boolean).slice(0, 6).map((/** @type {string} */ tag) => html`<span class="tag"><bdi>${tag}</bdi></span> `)}${row.last && html`<bdi class="quiet">${row.last}</bdi>`}`
}

const ORDER = /** @type {Record<string, number>} */ ({ stuck: 0, unknown: 1, waits: 2, well: 3 })
/** @param {(row: Glance) => any} value @returns {(a: Glance, b: Glance) => number} */
const by = (value) => (a, b) => value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0

/** The columns of a table of threads. @param {{ spaces: boolean, isNarrow: boolean }} options */
export const columns = ({ spaces, isNarrow }) => [
  { name: '', width: '10px', cell: (/** @type {Glance} */ row) => html`<${Mark} kind=${row.state} />` },
  { name: 'thread', width: 'minmax(90px, 3fr)', cell: (/** @type {Glance} */ row) => html`${spaces && html`<span class="quiet"><bdi>${row.space}</bdi> / </span>`}<bdi>${row.name}</bdi>`, by: by((row) => row.name) },
  { name: 'what', width: 'minmax(80px, 4fr)', cell: what, by: by((row) => ORDER[row.state]) },
  { name: 'last', width: '54px', cell: (/** @type {Glance} */ row) => html`<${Time} ms=${row.checkpoint_ms || row.since_ms} />`, by: by((row) => -(row.checkpoint_ms || row.since_ms)) },
  ...(isNarrow ? [] : [
    { name: 'driven by', when: /** @type {const} */ ('wide'), width: 'minmax(60px, 2fr)', cell: driver, by: by((row) => row.driver) },
    { name: 'author', when: /** @type {const} */ ('wide'), width: 'minmax(60px, 1.5fr)', cell: (/** @type {Glance} */ row) => html`<span class="quiet">${row.author}</span>`, by: by((row) => row.author) },
    { name: 'branches', when: /** @type {const} */ ('wide'), width: '64px', cell: (/** @type {Glance} */ row) => row.branches.length, by: by((row) => row.branches.length) }
  ])
]

/** @param {Glance} row */
export const keyOf = (row) => row.key
