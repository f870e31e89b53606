/**
 * The audit: who did what and when in the threads, and who read what under which token.
 *
 * Law: what is told is what the store's own records say; what they do not say, such as an author that nobody named, is "unnamed", never guessed.
 */

import { html } from '../vendor/preact.js'
import { live } from '../data.js'
import { address, go, refine } from '../router.js'
import { Empty, Panes, Sentence, Shown, SpacesLeft } from '../kit/states.js'
import { Table } from '../kit/table.js'
import { exact, Id, Time } from '../kit/time.js'
import { Tree } from '../kit/tree.js'
import { deeds, reads } from './audit/records.js'

export const title = 'Audit'
export const keys = [{ key: 'v r', says: 'show reads', does: () => refine({ what: 'reads' }) }, { key: 'v w', says: 'show writes', does: () => refine({ what: '' }) }]

const EVERY_MS = 5000

/** @param {{ space: string, path: string[], query: Record<string, string> }} props */
export function View ({ space, path, query }) {
  const isReads = query.what === 'reads'
  const found = live(`audit ${isReads} ${space}`, (signal) => isReads ? reads(space, signal) : deeds(space, signal), { space: isReads || space === '*' ? undefined : space, kinds: ['thread'], every: isReads || space === '*' ? EVERY_MS : 0 })
  const all = found.value.value?.rows ?? []
  const chosen = path[0] === undefined ? undefined : all.find((/** @type {any} */ row) => row.id === path[0])
  return html`<${Panes} list=${html`<${List} space=${space} found=${found.value} query=${query} chosen=${path[0] ?? ''} isReads=${isReads} />`}
    chosen=${path[0] !== undefined && (chosen ? html`<${Deed} row=${chosen} />` : found.value.state !== 'loading' && html`<${Empty} why="This record is not among those that are looked through." command="" />`)} />`
}

/** @param {{ space: string, found: any, query: Record<string, string>, chosen: string, isReads: boolean }} props */
function List ({ space, found, query, chosen, isReads }) {
  const field = (/** @type {string} */ name, /** @type {string} */ says) => html`<label><span class="sr">${says}</span><input type="search" data-search=${name === 'find' ? '' : undefined} value=${query[name] ?? ''} placeholder=${says} size=${name === 'find' ? 20 : 12}
    onInput=${(/** @type {any} */ event) => refine({ [name]: event.target.value })} /></label>`
  const columns = [
    { name: 'when', width: '72px', cell: (/** @type {any} */ row) => html`<${Time} ms=${row.ms} />` },
    { name: 'by', width: 'minmax(64px, 120px)', cell: (/** @type {any} */ row) => row.by ? html`<bdi>${row.by}</bdi>` : html`<span class="quiet">unnamed</span>` },
    ...(isReads ? [{ name: 'token', width: '88px', when: 'wide', cell: (/** @type {any} */ row) => html`<span class="mono quiet">${row.token.slice(0, 8)}</span>` }] : []),
    { name: 'what', cell: (/** @type {any} */ row) => html`<bdi>${row.text}</bdi>` },
    { name: 'where', width: 'minmax(72px, 160px)', when: 'wide', cell: (/** @type {any} */ row) => html`<bdi class="quiet">${space === '*' ? `${row.space} / ` : ''}${row.thread}</bdi>` }
  ]
  const tabs = html`<div class="tabs" role="tablist" aria-label="What is looked through"><button type="button" role="tab" aria-selected=${!isReads} onClick=${() => refine({ what: '' })}>Done</button>
      <button type="button" role="tab" aria-selected=${isReads} onClick=${() => refine({ what: 'reads' })}>Read</button></div>`
  return html`
    <${Shown} of=${found} rows=${12}>${(/** @type {any} */ { rows: all, more, off, isCut }) => {
      const rows = all.filter((/** @type {any} */ row) => meets(row, query))
      const people = [...new Set(all.map((/** @type {any} */ row) => row.by).filter(Boolean))]
      if (off) return html`<${Sentence}>No reads are logged.</${Sentence}>${tabs}<${Empty} why="A node logs reads, each with its token, if its settings name the spaces; or you may not see the log." command="shoal serve --set audit_reads='crew*'" />`
      if (all.length === 0) return html`<${Sentence}>${isReads ? 'Nothing was read yet.' : 'Nothing was done here yet.'}</${Sentence}>${tabs}<${Empty} why=${isReads ? 'Each read of a space with a log stands here, with its token.' : 'Each save, step and event of a thread stands here, with its author.'} command=${`shoal save writer '{"draft": 1}' --by ana --space ${space === '*' ? 'crew' : space}`} /><${SpacesLeft} more=${isCut} />`
      return html`<${Sentence}><strong>${rows.length}</strong> ${isReads ? (rows.length === 1 ? 'read' : 'reads') : rows.length === 1 ? 'thing was done' : 'things were done'}${rows.length < all.length ? ` of ${all.length}` : ''} ${people.length === 0 ? '' : people.length === 1 ? 'by 1 author' : `by ${people.length} authors`}${more ? ', the newest ones' : ''}.</${Sentence}>${tabs}
        <div class="filters">${field('find', 'Find a word')}${field('by', 'By whom')}<label class="quiet">since <input type="date" value=${query.since ?? ''} onInput=${(/** @type {any} */ event) => refine({ since: event.target.value })} /></label>
          ${people.slice(0, 6).map((/** @type {any} */ each) => html`<button type="button" aria-pressed=${query.by === each} onClick=${() => refine({ by: query.by === each ? '' : each })}><bdi>${each}</bdi></button>`)}</div>
        <${Table} columns=${columns} rows=${rows} rowKey=${(/** @type {any} */ row) => row.id} chosen=${chosen} label=${isReads ? 'Reads' : 'Deeds'} anew=${JSON.stringify(query)}
          onChoose=${(/** @type {any} */ row) => go(address(space, 'audit', [row.id], query))} /><${SpacesLeft} more=${isCut} />`
    }}</${Shown}>`
}

/** @param {any} row @param {Record<string, string>} query */
function meets (row, { find = '', by = '', since = '' }) {
  const from = Date.parse(since)
  return (!by || row.by === by || row.by.toLowerCase().includes(by.toLowerCase())) && !(row.ms < from) &&
    (!find || `${row.text} ${row.thread} ${row.space} ${row.by} ${row.token} ${row.id} ${JSON.stringify(row.data)}`.toLowerCase().includes(find.toLowerCase()))
}

/** @param {{ row: any }} props */
function Deed ({ row }) {
  return html`<article aria-label="Record"><div class="head-line"><span class="quiet">${row.kind}</span><h2><bdi>${row.text}</bdi></h2></div>
    <dl class="facts"><dt>by</dt><dd>${row.by ? html`<bdi>${row.by}</bdi>` : 'unnamed'}</dd><dt>when</dt><dd class="mono">${exact(row.ms)}</dd>
      ${row.token && html`<dt>token</dt><dd><${Id} value=${row.token} /></dd>`}
      ${row.thread && html`<dt>thread</dt><dd><a href=${address(row.space, 'threads', [row.thread, ...(row.kind === 'checkpoint' ? ['at', row.own] : [])])}><bdi>${row.thread}</bdi></a> in <bdi>${row.space}</bdi></dd>`}
      <dt>record</dt><dd><${Id} value=${row.own} /></dd>
      ${row.known && html`<dt>knew</dt><dd><${Id} value=${row.known} /></dd>`}</dl>
    ${row.data !== null && row.data !== undefined && html`<h3>With it</h3><${Tree} value=${row.data} />`}
    ${row.kind !== 'read' && html`<p class="quiet">That nothing was altered afterwards is proved with <code>shoal audit verify STATEMENT --url ${location.origin}</code>.</p>`}</article>`
}
