/**
 * The audit: who did what and when in the threads, and who read what under which token.
 *
 * Law: what is told is what the store's own records say; what they do not say, such as an author that nobody named, is "unnamed", never guessed.
 */

import { html, useState } from '../vendor/preact.js'
import { live } from '../data.js'
import { address, go, refine } from '../router.js'
import { shell } from '../kit/shell.js'
import { Empty, Filter, NoneFits, Panes, Sentence, Shown, SpacesLeft, useKept } from '../kit/states.js'
import { brief } from '../kit/messages.js'
import { Table } from '../kit/table.js'
import { exact, Id, Time } from '../kit/time.js'
import { Tree } from '../kit/tree.js'
import { deeds, PAGES_MAX, reads } from './audit/records.js'

export const title = 'Audit'
export const keys = [{ key: 'v r', says: 'show reads', does: () => refine({ what: 'reads' }) }, { key: 'v w', says: 'show writes', does: () => refine({ what: '' }) }]

const EVERY_MS = 5000
const NAMED = 3 // Authors in the sentence.
const SHARE = 1 / 20 // Of the time; of 10,000 threads, loading takes a node some seconds.

/** @param {{ space: string, path: string[], query: Record<string, string> }} props */
export function View ({ space, path, query }) {
  const isReads = query.what === 'reads'
  const [{ of, pages }, setPages] = useState({ of: '', pages: 1 })
  const what = JSON.stringify([space, query.by, query.find, query.since, query.kind, query.from])
  const shown = of === what ? pages : 1
  const found = live(isReads ? `reads ${space}` : `audit ${shown} ${what}`, (signal) => isReads ? reads(space, signal) : deeds(space, query, shown), { space: isReads || shown > 1 ? undefined : space, kinds: ['thread'], every: isReads || shown > 1 || space === '*' ? EVERY_MS : 0, share: SHARE })
  const kept = useKept(found.value, `${isReads} ${space}`)
  const all = kept.value?.rows ?? []
  const chosen = path[0] === undefined ? undefined : all.find((/** @type {any} */ row) => row.id === path[0])
  return html`<${Panes} list=${html`<${List} space=${space} found=${kept} query=${query} chosen=${path[0] ?? ''} isReads=${isReads} onEnd=${() => { if (!isReads && found.peek().value?.more && shown < PAGES_MAX) setPages({ of: what, pages: shown + 1 }) }} />`}
    chosen=${path[0] !== undefined && (chosen ? html`<${Deed} row=${chosen} />` : kept.value !== undefined && html`<${Empty} why="This record is not among those that are looked through." command="" />`)} />`
}

/** @param {{ space: string, found: any, query: Record<string, string>, chosen: string, isReads: boolean, onEnd: () => void }} props */
function List ({ space, found, query, chosen, isReads, onEnd }) {
  const columns = [
    { name: 'when', width: '72px', cell: (/** @type {any} */ row) => html`<${Time} ms=${row.ms} />` },
    { name: 'by', width: 'minmax(64px, 120px)', cell: (/** @type {any} */ row) => row.by ? html`<bdi>${row.by}</bdi>` : html`<span class="quiet">unnamed</span>` },
    { name: 'token', width: '80px', when: 'wide', cell: (/** @type {any} */ row) => html`<span class="mono quiet">${row.token ? row.token.slice(0, 8) : '–'}</span>` },
    { name: 'what', cell: (/** @type {any} */ row) => html`<bdi>${row.text}</bdi>` },
    { name: 'where', width: 'minmax(72px, 160px)', when: 'wide', cell: (/** @type {any} */ row) => html`<bdi class="quiet">${space === '*' ? `${row.space} / ` : ''}${row.thread}</bdi>` }
  ]
  const tabs = html`<div class="tabs" role="tablist" aria-label="What is looked through"><button type="button" role="tab" aria-selected=${!isReads} onClick=${() => refine({ what: '' })}>Done</button>
      <button type="button" role="tab" aria-selected=${isReads} onClick=${() => refine({ what: 'reads' })}>Read</button></div>`
  return html`
    <${Shown} of=${found} rows=${12}>${(/** @type {any} */ { rows: all, more, off, left, beyond = [] }) => {
      const rows = isReads ? all.filter((/** @type {any} */ row) => meets(row, query)) : all
      const isFiltered = Boolean(query.by || query.find || query.since || query.kind || query.from)
      const people = [...new Set(all.map((/** @type {any} */ row) => row.by).filter(Boolean))]
      if (off) return html`<${Sentence}>No reads are logged.</${Sentence}>${tabs}<${Empty} why="A node logs reads, each with its token, if its settings name the spaces; or you may not see the log." command="shoal serve --set audit_reads='crew*'" />`
      if (all.length === 0 && !(isFiltered && !isReads)) return html`<${Sentence}>${isReads ? 'Nothing was read yet.' : 'Nothing was done here yet.'}</${Sentence}>${tabs}<${Empty} why=${isReads ? 'Each read of a space with a log stands here, with its token.' : 'Each save, step and event of a thread stands here, with its author.'} command=${shell`shoal save writer '{"draft": 1}' --by ana --space ${space === '*' ? 'crew' : space}`} /><${SpacesLeft} more=${left} />`
      return html`<${Sentence}><a href=${address(space, 'audit', [], isReads ? { what: 'reads' } : {})}>${rows.length}${more && !isReads ? ' or more' : ''} ${isReads ? (rows.length === 1 ? 'read' : 'reads') : rows.length === 1 ? 'thing was done' : 'things were done'}</a>${rows.length < all.length ? ` of ${all.length}` : ''}${people.length === 0 ? '' : ' by '}${people.slice(0, NAMED).map((/** @type {string} */ each, /** @type {number} */ nth) => html`${nth === 0 ? '' : nth === people.length - 1 ? ' and ' : ', '}<a href=${address(space, 'audit', [], { ...query, by: each })}><bdi>${brief(each)}</bdi></a>`)}${people.length > NAMED && ` and ${people.length - NAMED} ${people.length === NAMED + 1 ? 'other' : 'others'}`}${more && isReads ? ', the newest ones' : ''}.</${Sentence}>${tabs}
        <div class="filters"><${Filter} name="find" label="Find a word" value=${query.find} isMain /><${Filter} name="by" label="By whom" value=${query.by} />
          ${!isReads && (beyond.length > 0 || query.from) && html`<${Filter} name="from" label="Threads that begin with" value=${query.from} />`}
          ${!isReads && html`<select aria-label="Which records" value=${query.kind ?? ''} onChange=${(/** @type {any} */ event) => refine({ kind: event.target.value })}><option value="">everything</option><option value="checkpoint">checkpoints</option><option value="step">steps</option><option value="event">events</option></select>`}<label class="quiet">since <input type="date" value=${query.since ?? ''} onInput=${(/** @type {any} */ event) => refine({ since: event.target.value })} /></label>
          ${people.slice(0, 6).map((/** @type {any} */ each) => html`<button type="button" aria-pressed=${query.by === each} onClick=${() => refine({ by: query.by === each ? '' : each })}><bdi>${each}</bdi></button>`)}</div>
        ${beyond.map((/** @type {any} */ { name, threads }) => html`<p class="quiet">Of <bdi>${name}</bdi> the first ${threads.toLocaleString('en')} threads by name were looked through. Say how the others begin, to see what was done in them.</p>`)}
        ${rows.length === 0 ? html`<${NoneFits} filters=${['find', 'by', 'since', 'kind', 'from']} />` : html`<${Table} columns=${columns} rows=${rows} rowKey=${(/** @type {any} */ row) => row.id} onEnd=${onEnd} chosen=${chosen} label=${isReads ? 'Reads' : 'Deeds'} anew=${JSON.stringify(query)}
          onChoose=${(/** @type {any} */ row) => go(address(space, 'audit', [row.id], query))} />`}<${SpacesLeft} more=${left} />`
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
      </dl>
    ${row.erased && html`<p>Its value was erased.</p>`}${row.part && html`<p class="quiet">It is too long for a list; its thread has it whole.</p>`}
    ${row.data !== null && row.data !== undefined && html`<h3>With it</h3><${Tree} value=${row.data} />`}
    ${row.kind !== 'read' && html`<p class="quiet">That nothing was altered afterwards is proved with <code>shoal audit verify STATEMENT --url ${location.origin}</code>.</p>`}</article>`
}
