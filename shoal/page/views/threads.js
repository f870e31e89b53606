/** Threads: all of them, filtered, in a table of any length; beside it the chosen one. */

import { html, useEffect, useMemo, useRef, useState } from '../vendor/preact.js'
import { address, EVERY_SPACE, go, refine } from '../router.js'
import { shell } from '../kit/shell.js'
import { Empty, Filter, Panes, Sentence, Shown, SpacesLeft } from '../kit/states.js'
import { Table } from '../kit/table.js'
import { columns, glances, keyOf, page } from './glance.js'
import { Found } from './search.js'
import { ThreadPane, ThreadPlace } from './thread.js'

export const title = 'Threads'
export const keys = []

const STATES = /** @type {[string, string][]} */ ([['', 'All'], ['stuck', 'Stuck'], ['waits', 'Waiting'], ['unknown', 'Unknown'], ['well', 'Well']])
const SAYS = /** @type {Record<string, [string, string]>} */ ({ stuck: ['is stuck', 'are stuck'], waits: ['waits for a person', 'wait for a person'], unknown: ['is unknown', 'are unknown'], well: ['is well', 'are well'] })
const PAGES_MAX = 1000

/** @param {{ space: string, path: string[], query: Record<string, string> }} props */
export function View ({ space, path, query }) {
  if (space === EVERY_SPACE) return html`<${Listed} space=${space} of=${path[1] === undefined ? '' : path[0]} chosen=${path[1]} query=${query} />`
  const [name, part, ...rest] = path
  if (name !== undefined && part !== undefined) return html`<${ThreadPlace} space=${space} name=${name} part=${part} rest=${rest} query=${query} />`
  return html`<${Listed} space=${space} of=${space} chosen=${name} query=${query} />`
}

/** @param {{ space: string, of: string, chosen: string | undefined, query: Record<string, string> }} props `of`: the space of the chosen thread. */
function Listed ({ space, of, chosen, query }) {
  const { state, text, author, tag, sort } = query
  const filters = Object.fromEntries(Object.entries({ state, text, author, tag }).filter(([, value]) => value))
  const first = glances(space, filters).value
  const more = useMore(space, filters, first.value)
  // Those that need somebody come first, wherever their names are in the order.
  const urgentOf = state ? [undefined, undefined] : [glances(space, { ...filters, state: 'stuck' }).value.value, glances(space, { ...filters, state: 'waits' }).value.value]
  const urgent = urgentOf.flatMap((value) => value?.threads ?? [])
  const rows = useMemo(() => {
    const fresh = new Map([...urgent, ...(first.value?.threads ?? [])].map((row) => [row.key, row]))
    const older = more.rows.filter((/** @type {any} */ { key }) => !fresh.has(key))
    return [...fresh.values(), ...older]
  }, [...urgentOf, first.value, more.rows])
  const to = (/** @type {any} */ row) => space === EVERY_SPACE ? address(space, 'threads', [row.space, row.name], query) : address(space, 'threads', [row.name], query)
  const shown = useMemo(() => columns({ spaces: space === EVERY_SPACE, isNarrow: chosen !== undefined }), [space === EVERY_SPACE, chosen !== undefined])
  const isFiltered = Object.keys(filters).length > 0
  const count = `${rows.length}${more.hasMore ? ' or more' : ''} ${rows.length === 1 ? 'thread' : 'threads'}`
  const among = urgent.length > 0 ? ['stuck', 'waits'].map((each) => ({ each, no: rows.filter((row) => row.state === each).length })).filter(({ no }) => no > 0) : []
  const list = html`<${Sentence}>${first.value ? html`<a href=${address(space, 'threads')}>${count}</a>${state ? ` that ${SAYS[state]?.[rows.length === 1 ? 0 : 1] ?? ''}` : among.map(({ each, no }) => html`, <a href=${address(space, 'threads', [], { ...query, state: each })}>${no} ${SAYS[each][no === 1 ? 0 : 1]}</a>`)}${text ? html`, with “<bdi>${text}</bdi>”` : ''}${author ? html`, by <bdi>${author}</bdi>` : ''}${tag ? html`, tagged <bdi>${tag}</bdi>` : ''}.` : ' '}</${Sentence}>
    <div class="filters" role="group" aria-label="Filters">${STATES.map(([each, says]) => html`<button aria-pressed=${(state ?? '') === each} onClick=${() => refine({ state: each })}>${says}</button>`)}
      <${Filter} name="text" label="Text" value=${text} /><${Filter} name="author" label="Author" value=${author} /><${Filter} name="tag" label="Tag" value=${tag} /></div>
    <${Shown} of=${first} rows=${12}>${() => rows.length === 0
      ? isFiltered ? html`<div class="empty"><p>No thread fits. ${more.hasMore ? 'There may be some further on.' : ''}</p><p><a href=${address(space, 'threads')}>Show all</a></p></div>`
        : html`<${Empty} why="There are no threads yet. An agent makes one with its first checkpoint; at a terminal:" command=${shell`shoal save researcher-1 '{"found": 3}' --url ${location.origin} --space ${space === EVERY_SPACE ? 'crew' : space}`} />`
      : html`<${Table} label="Threads" fit=${text ? 12 : undefined} columns=${shown} rows=${rows} rowKey=${keyOf} href=${to} anew=${JSON.stringify(filters)}
        chosen=${chosen === undefined ? undefined : `${of}\n${chosen}`} onChoose=${(/** @type {any} */ row) => go(to(row))} sort=${sort} onSort=${(/** @type {string} */ by) => refine({ sort: by })} onEnd=${more.next} />`}</${Shown}><${SpacesLeft} more=${first.value?.left} />${text && html`<${Found} key=${`${space} ${text}`} space=${space} text=${text} />`}`
  return html`<${Panes} list=${list} chosen=${chosen !== undefined && html`<${ThreadPane} key=${`${of}\n${chosen}`} space=${of} name=${chosen} query=${query} />`} />`
}

/** The pages after the first, which are read when one scrolls there. @param {string} space @param {Record<string, any>} filters @param {any} first */
function useMore (space, filters, first) {
  const what = space + JSON.stringify(filters)
  const state = useRef(/** @type {any} */ ({ what: '', rows: [], cursors: undefined, pages: 0, underWay: false }))
  const [, again] = useState(0)
  if (state.current.what !== what) state.current = { what, rows: [], cursors: undefined, pages: 0, underWay: false }
  const { current } = state
  const next = async () => {
    const cursors = current.cursors ?? first?.cursors
    if (current.underWay || !cursors || Object.keys(cursors).length === 0 || current.pages >= PAGES_MAX) return
    current.underWay = true
    try {
      const got = await page(space, filters, cursors)
      Object.assign(current, { rows: current.rows.concat(current.rows.length ? [] : first.threads, got.threads), cursors: got.cursors, pages: current.pages + 1 })
    } catch { /* The first page says what is wrong. */ } finally { current.underWay = false }
    again((n) => n + 1)
  }
  const cursors = current.cursors ?? first?.cursors ?? {}
  const hasMore = Object.keys(cursors).length > 0
  // A page may be empty although there are more.
  useEffect(() => { if (hasMore && (current.rows.length || first?.threads.length || 0) < 50) next() }, [first, current.pages])
  return { rows: current.rows, hasMore, next }
}
