/** Shared state: everything that agents and people hold in common, by kind and name; what is in conflict stands first. */

import { html } from '../vendor/preact.js'
import { client, live } from '../data.js'
import { address, go, refine } from '../router.js'
import { shell } from '../kit/shell.js'
import { Empty, Later, Mark, NoneFits, Panes, Sentence, Shown, SpacesLeft } from '../kit/states.js'
import { Table } from '../kit/table.js'
import { BudgetView } from './shared/budget.js'
import { ItemsView } from './shared/items.js'
import { HOLDS, KINDS, listed } from './shared/listing.js'
import { ListView } from './shared/list.js'
import { RegisterView } from './shared/register.js'
import { CounterView, MapView, SetView } from './shared/values.js'

export const title = 'Shared'
export const keys = Object.entries({ d: 'document', r: 'register', m: 'map', l: 'list', b: 'budget', i: 'items', a: '' }).map(([key, kind]) => ({
  key: `v ${key}`, says: kind === '' ? 'show all kinds' : `show ${KINDS[kind].many} alone`, does: () => refine({ kind })
}))

const ORDER = Object.keys(KINDS)

/** @param {{ space: string, path: string[], query: Record<string, string> }} props */
export function View ({ space, path, query }) {
  const found = live(`shared ${space}`, (signal) => listed(space, signal), { space, kinds: ['document', 'register', 'counter', 'set', 'map', 'list', 'budget', 'items'], every: space === '*' ? 5000 : 0 })
  const [where, kind, name, ...rest] = space === '*' ? path : [space, ...path]
  const list = html`<${Shown} of=${found.value} rows=${12}>${(/** @type {any} */ value) => html`<${List} space=${space} value=${value} query=${query} chosen=${name === undefined ? '' : JSON.stringify([where, kind, name])} />`}</${Shown}>`
  return html`<${Panes} list=${list} chosen=${name !== undefined && html`<${Chosen} key=${`${where}/${kind}/${name}`} space=${where} kind=${kind} name=${name} rest=${rest} query=${query} />`} />`
}

/** The path of a shared thing below a view. @param {string} space @param {any} row */
const pathOf = (space, row) => space === '*' ? [row.space, row.kind, row.name] : [row.kind, row.name]

/** What a row holds, read when it is seen. @param {{ row: any, scope: string }} props `scope`: the space of the view. */
function Held ({ row: { space, kind, name, note }, scope }) {
  const read = HOLDS[kind]
  const found = note === undefined && read ? live(`held ${kind} ${space}\n${name}`, (signal) => read(client().space(space), name, signal), { space: scope, kinds: [kind], share: 0.1 }).value : undefined
  return html`<bdi>${note ?? found?.value ?? ''}</bdi>`
}

/** @param {{ space: string, value: any, query: Record<string, string>, chosen: string }} props */
function List ({ space, value, query, chosen }) {
  const { all, more, left, unread } = value
  const text = (query.find ?? '').toLowerCase()
  const rows = all.filter((/** @type {any} */ row) => (!query.kind || row.kind === query.kind) && (!text || row.name.toLowerCase().includes(text)))
  rows.sort((/** @type {any} */ a, /** @type {any} */ b) => Number(b.mark === 'waits') - Number(a.mark === 'waits') || ORDER.indexOf(a.kind) - ORDER.indexOf(b.kind))
  const counts = ORDER.map((kind) => [kind, all.filter((/** @type {any} */ row) => row.kind === kind).length]).filter(([, count]) => count !== 0)
  const conflicts = all.filter((/** @type {any} */ row) => row.mark === 'waits').length
  const columns = [
    { name: 'kind', width: '96px', cell: (/** @type {any} */ row) => html`<span class="quiet">${KINDS[row.kind].one}</span>` },
    { name: 'name', cell: (/** @type {any} */ row) => html`${row.mark === 'waits' && html`<${Mark} kind="waits" /> `}<bdi>${row.name}</bdi>` },
    ...(space === '*' ? [{ name: 'space', width: '120px', cell: (/** @type {any} */ row) => html`<bdi class="quiet">${row.space}</bdi>` }] : []),
    { name: 'holds', when: 'wide', width: 'minmax(80px, 2fr)', cell: (/** @type {any} */ row) => html`<span class="quiet mono clip"><${Held} row=${row} scope=${space} /></span>` }
  ]
  if (all.length === 0) return html`<${Empty} says="Nothing is shared here yet." why="Documents, registers, counters, sets, maps, lists, budgets and memories stand here. At a terminal:" command=${shell`shoal register set goal '"ship it"' --url ${location.origin} --space ${space === '*' ? 'crew' : space}`} /><${SpacesLeft} more=${left} />`
  return html`
    <${Sentence}>
      <a href=${address(space, 'shared')}>${all.length} ${all.length === 1 ? 'thing is' : 'things are'} shared</a>${conflicts === 0 ? '; none waits for a choice' : html`; <a href=${address(space, 'shared', [], { kind: 'register' })}>${conflicts} ${conflicts === 1 ? 'register waits' : 'registers wait'}</a> for somebody to choose a value`}.
    </${Sentence}>
    <div class="filters" role="group" aria-label="Filters">${counts.map(([kind, count]) => html`<button type="button" aria-pressed=${query.kind === kind} onClick=${() => refine({ kind: query.kind === kind ? '' : String(kind) })}>${count} ${count === 1 ? KINDS[kind].one : KINDS[kind].many}</button>`)}
      <label><span class="sr">Find a name</span><input type="search" data-search value=${query.find ?? ''} placeholder="Find a name"
        onInput=${(/** @type {any} */ event) => refine({ find: event.target.value })} /></label></div>
    ${rows.length === 0 ? html`<${NoneFits} filters=${['kind', 'find']} />` : html`<${Table} columns=${columns} rows=${rows} rowKey=${(/** @type {any} */ row) => JSON.stringify([row.space, row.kind, row.name])} chosen=${chosen}
      onChoose=${(/** @type {any} */ row) => go(address(space, 'shared', pathOf(space, row), query))} label="Shared state" />`}
    ${unread > 0 && html`<p class="quiet note">${unread} more ${unread === 1 ? 'register was' : 'registers were'} not looked at for values that were set at once; their rows tell when they are seen.</p>`}
    ${more.length > 0 && html`<p class="quiet note">Not all are listed: there are more ${more.join(', ')}.</p>`}<${SpacesLeft} more=${left} />`
}

const editing = () => import('./shared/document.js')

/** @type {Record<string, any>} */
const VIEWS = { register: RegisterView, counter: CounterView, set: SetView, map: MapView, list: ListView, budget: BudgetView }

/** @param {{ space: string, kind: string, name: string, rest: string[], query: Record<string, string> }} props */
function Chosen ({ space, kind, name, rest, query }) {
  const View = VIEWS[kind]
  return html`<article class="shared" aria-label=${`${KINDS[kind]?.one ?? kind} ${name}`}>
    <div class="head-line"><span class="quiet">${KINDS[kind]?.one ?? kind}</span><h2><bdi>${name}</bdi></h2></div>
    ${kind === 'document'
      ? html`<${Later} load=${editing} part="DocumentView" space=${space} name=${name} root=${query.root} onRoot=${(/** @type {string} */ root) => refine({ root })} />`
      : kind === 'items' ? html`<${ItemsView} space=${space} name=${name} rest=${rest} query=${query} />`
        : View ? html`<${View} space=${space} name=${name} />` : html`<${Empty} why="There is no such kind of shared state." command="" />`}
  </article>`
}
