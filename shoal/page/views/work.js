/** Work: worklists, inboxes, leases with holder and time left, and crews with their machines as columns. */

import { html } from '../vendor/preact.js'
import { live } from '../data.js'
import { address, go, refine } from '../router.js'
import { shell } from '../kit/shell.js'
import { Empty, Mark, NoneFits, Panes, Sentence, Shown, SpacesLeft } from '../kit/states.js'
import { Table } from '../kit/table.js'
import { Crew } from './work/crew.js'
import { LeaseView, Left } from './work/leases.js'
import { worked } from './work/listing.js'
import { QueueView } from './work/queues.js'

export const title = 'Work'
export const keys = [{ key: 'v l', says: 'show leases alone', does: () => refine({ kind: 'lease' }) }, { key: 'v w', says: 'show worklists alone', does: () => refine({ kind: 'worklist' }) },
  { key: 'v a', says: 'show all kinds', does: () => refine({ kind: '' }) }]

const EVERY_MS = 5000
const WORK = [['crew', 'crew', 'crews'], ['worklist', 'worklist', 'worklists'], ['inbox', 'inbox', 'inboxes'], ['lease', 'lease', 'leases']]

/** @param {{ space: string, path: string[], query: Record<string, string> }} props */
export function View ({ space, path, query }) {
  // Leases are no objects of a space that a watch tells of, so they are read again now and then.
  const found = live(`work ${space}`, (signal) => worked(space, signal), { every: EVERY_MS })
  const [where, kind, ...names] = space === '*' ? path : [space, ...path]
  const list = html`<${Shown} of=${found.value} rows=${12}>${(/** @type {any} */ value) => html`<${List} space=${space} value=${value} query=${query}
    chosen=${kind === undefined ? '' : JSON.stringify([where, kind, ...names])} />`}</${Shown}>`
  const chosen = kind === undefined ? undefined
    : kind === 'crew' ? html`<${Crew} space=${where} />`
      : kind === 'lease' ? html`<${LeaseView} space=${where} name=${names[0]} />`
        : html`<${QueueView} key=${path.join('/')} space=${where} kind=${kind} thread=${names[0]} name=${names[1]} query=${query} />`
  return html`<${Panes} list=${list} chosen=${chosen} />`
}

/** @param {{ space: string, value: any, query: Record<string, string>, chosen: string }} props */
function List ({ space, value, query, chosen }) {
  const { rows: all, looked, more, left } = value
  const text = (query.find ?? '').toLowerCase()
  const rows = all.filter((/** @type {any} */ row) => (!query.kind || row.kind === query.kind) && (!text || row.names.join(' ').toLowerCase().includes(text)))
  const total = (/** @type {string} */ kind, /** @type {string} */ what) => all.filter((/** @type {any} */ row) => row.kind === kind).reduce((/** @type {number} */ sum, /** @type {any} */ row) => sum + row[what], 0)
  const count = (/** @type {string} */ kind) => all.filter((/** @type {any} */ row) => row.kind === kind).length
  const dead = total('worklist', 'dead') + total('inbox', 'dead')
  const link = (/** @type {string} */ kind, /** @type {string} */ says) => html`<a href=${address(space, 'work', [], { kind })}>${says}</a>`
  const columns = [
    { name: 'kind', width: '88px', cell: (/** @type {any} */ row) => html`<span class="quiet">${row.kind}</span>` },
    { name: 'name', cell: (/** @type {any} */ row) => html`${row.dead > 0 && html`<${Mark} kind="stuck" /> `}<bdi>${row.title}</bdi>` },
    ...(space === '*' ? [{ name: 'space', width: '112px', cell: (/** @type {any} */ row) => html`<bdi class="quiet">${row.space}</bdi>` }] : []),
    { name: 'now', cell: (/** @type {any} */ row) => html`<${Now} row=${row} />` }
  ]
  if (all.length === 0) return html`<${Empty} says="No work is under way here." why="Worklists, waiting messages, leases and crews stand here. At a terminal:" command=${shell`shoal worklist add jobs jobs '{"page": 1}' --url ${location.origin} --space ${space === '*' ? 'crew' : space}`} /><${SpacesLeft} more=${left} />`
  return html`
    <${Sentence}>
      ${[
        dead > 0 && link('worklist', `${dead} ${dead === 1 ? 'item was' : 'items were'} given up`),
        count('worklist') > 0 && link('worklist', `${total('worklist', 'pending')} ${total('worklist', 'pending') === 1 ? 'item is' : 'items are'} to do`),
        count('inbox') > 0 && link('inbox', `${total('inbox', 'pending')} ${total('inbox', 'pending') === 1 ? 'message waits' : 'messages wait'}`),
        count('lease') > 0 && link('lease', `${count('lease')} ${count('lease') === 1 ? 'lease is' : 'leases are'} held`),
        count('crew') > 0 && link('crew', `${count('crew')} ${count('crew') === 1 ? 'crew runs' : 'crews run'}`)
      ].filter(Boolean).map((part, index) => html`${index > 0 ? ', ' : ''}${part}`)}.
    </${Sentence}>
    <div class="filters" role="group" aria-label="Filters">${WORK.filter(([kind]) => count(kind) > 0).map(([kind, one, many]) => html`<button type="button" aria-pressed=${query.kind === kind} onClick=${() => refine({ kind: query.kind === kind ? '' : kind })}>${count(kind)} ${count(kind) === 1 ? one : many}</button>`)}
      <label><span class="sr">Find a name</span><input type="search" data-search value=${query.find ?? ''} placeholder="Find a name"
        onInput=${(/** @type {any} */ event) => refine({ find: event.target.value })} /></label></div>
    ${rows.length === 0 ? html`<${NoneFits} filters=${['kind', 'find']} />` : html`<${Table} columns=${columns} rows=${rows} rowKey=${(/** @type {any} */ row) => JSON.stringify([row.space, row.kind, ...row.names])} chosen=${chosen} label="Work"
      onChoose=${(/** @type {any} */ row) => go(address(space, 'work', [...(space === '*' ? [row.space] : []), row.kind, ...row.names], query))} />`}
    ${more && html`<p class="quiet note">Queues of the first ${looked} threads are listed; there are more threads.</p>`}<${SpacesLeft} more=${left} />`
}

/** @param {{ row: any }} props */
function Now ({ row }) {
  if (row.kind === 'lease') return html`<bdi>${row.holder || 'offered to the next'}</bdi> <span class="quiet"><${Left} lease=${row.lease} /></span>`
  if (row.kind === 'crew') return html`<span class="quiet">${row.agents} agents on ${row.machines} machines</span>`
  return html`<span class="mono">${row.pending}</span> <span class="quiet">to do${row.finished > 0 ? `, ${row.finished} done` : ''}${row.dead > 0 ? `, ${row.dead} given up` : ''}</span>`
}
