/** Compare runs: any branches and threads side by side, with their tags, scores, durations and tokens, a plot, and where they part. */

import { html, useState } from '../vendor/preact.js'
import { client, live, spacesOf } from '../data.js'
import { address, go, refine } from '../router.js'
import { shell } from '../kit/shell.js'
import { Diff } from '../kit/diff.js'
import { Empty, NoneFits, Panes, Refusal, Sentence, Shown, SpacesLeft } from '../kit/states.js'
import { Table } from '../kit/table.js'
import { Duration, Id, span, Time } from '../kit/time.js'
import { csv, idOf, kept, lines, named, numbers, parting, read, table } from './compare/runs.js'
import { Plot, short } from './plot.js'
import { some } from './shared/listing.js'

export const title = 'Compare'
export const keys = [{ key: 'v n', says: 'compare nothing', does: () => refine({ of: '', with: '' }) }]

const THREADS_MAX = 500

/** @param {{ space: string, query: Record<string, string> }} props */
export function View ({ space, query }) {
  const runs = named(query.of ?? '', space)
  return html`<${Panes} list=${html`<${Picker} space=${space} query=${query} runs=${runs} />`}
    chosen=${runs.length > 0 && html`<${Runs} space=${space} runs=${runs} query=${query} />`} />`
}

/** Choose threads, and their branches. @param {{ space: string, query: Record<string, string>, runs: any[] }} props */
function Picker ({ space, query, runs }) {
  const found = live(`comparable ${space}`, async (signal) => {
    const spaces = await spacesOf(space)
    const pages = await Promise.all(spaces.names.map(async (each) => ({ each, ...await some(client().space(each).names('threads', { signal }), THREADS_MAX) })))
    return { threads: pages.flatMap(({ each, items }) => items.filter((name) => !name.startsWith('.')).map((name) => ({ space: each, name }))), more: pages.some(({ more }) => more), left: spaces.more }
  }, { space, kinds: ['thread'] })
  const chosen = new Set(runs.map(({ id }) => id))
  const set = (/** @type {Set<string>} */ ids) => refine({ of: [...ids].join(',') })
  const toggle = (/** @type {string} */ id) => { const next = new Set(chosen); if (!next.delete(id)) next.add(id); set(next) }
  return html`<${Shown} of=${found.value} rows=${12}>${(/** @type {any} */ { threads, more, left }) => {
    if (threads.length === 0) return html`<${Empty} says="There are no threads to compare yet." why="Branches and threads are compared by their checkpoints. At a terminal:" command=${shell`shoal save writer '{"draft": 1}' --url ${location.origin} --space ${space === '*' ? 'crew' : space}`} /><${SpacesLeft} more=${left} />`
    const text = (query.find ?? '').toLowerCase()
    const rows = threads.filter((/** @type {any} */ { name }) => !text || name.toLowerCase().includes(text))
    const on = (/** @type {any} */ row) => [...chosen].filter((id) => id.startsWith(idOf(row.space, row.name, '', space))).length
    const columns = [
      { name: 'thread', cell: (/** @type {any} */ row) => html`<label class="pick"><input type="checkbox" checked=${on(row) > 0} aria-label=${`compare ${row.name}`} onChange=${() => {
          if (on(row) === 0) toggle(idOf(row.space, row.name, 'main', space))
          else set(new Set([...chosen].filter((id) => !id.startsWith(idOf(row.space, row.name, '', space)))))
        }} /> <bdi>${row.name}</bdi></label>` },
      ...(space === '*' ? [{ name: 'space', width: '112px', cell: (/** @type {any} */ row) => html`<bdi class="quiet">${row.space}</bdi>` }] : []),
      { name: 'runs', width: '56px', cell: (/** @type {any} */ row) => html`<span class="mono quiet">${on(row) || ''}</span>` }
    ]
    return html`<${Sentence}>${runs.length === 0 ? 'Choose what to compare' : html`<strong>${runs.length}</strong> ${runs.length === 1 ? 'run is' : 'runs are'} compared`}, of ${threads.length} ${threads.length === 1 ? 'thread' : 'threads'}.</${Sentence}>
      <div class="filters"><label><span class="sr">Find a thread</span><input type="search" data-search value=${query.find ?? ''} placeholder="Find a thread" onInput=${(/** @type {any} */ event) => refine({ find: event.target.value })} /></label>
        ${runs.length > 0 && html`<button type="button" onClick=${() => refine({ of: '', with: '' })}>Clear</button>`}</div>
      ${rows.length === 0 ? html`<${NoneFits} filters=${['find']} />` : html`<${Table} columns=${columns} rows=${rows} rowKey=${(/** @type {any} */ row) => JSON.stringify([row.space, row.name])} label="Threads to compare" onChoose=${(/** @type {any} */ row) => toggle(idOf(row.space, row.name, 'main', space))} />`}
      ${more && html`<p class="quiet note">Only the first ${THREADS_MAX} threads of a space are listed.</p>`}<${SpacesLeft} more=${left} />`
  }}</${Shown}>`
}

/** @param {{ space: string, runs: any[], query: Record<string, string> }} props */
function Runs ({ space, runs, query }) {
  const found = live(`compared ${JSON.stringify(runs)}`, (signal) => Promise.all(runs.map((run) => read(run, signal))), { space: space === '*' ? undefined : space, kinds: ['thread'], every: space === '*' ? 5000 : 0 })
  return html`<article aria-label="Comparison"><${Shown} of=${found.value}>${(/** @type {any[]} */ all) => html`<${Compared} space=${space} all=${all} query=${query} />`}</${Shown}></article>`
}

/** @param {{ space: string, all: any[], query: Record<string, string> }} props */
function Compared ({ space, all, query }) {
  const [sort, setSort] = useState('')
  const runs = all.filter(({ error }) => error === undefined)
  const scores = [...new Set(runs.flatMap((run) => Object.keys(run.scores)))].filter((name) => name !== 'tokens').sort().slice(0, 12)
  const rows = table(runs, scores)
  const name = (/** @type {any} */ run) => (run.branch === 'main' ? run.thread : `${run.thread} · ${run.branch}`)
  const by = (/** @type {(run: any) => any} */ of) => (/** @type {any} */ a, /** @type {any} */ b) => { const [x, y] = [of(a), of(b)]; return x === y ? 0 : x === null || x === undefined ? 1 : y === null || y === undefined || x < y ? -1 : 1 }
  const columns = [
    { name: 'run', of: name, cell: (/** @type {any} */ run, /** @type {number} */ at) => html`<span class=${`swatch hue-${at % 8}`}></span><a href=${address(run.space, 'threads', [run.thread])}><bdi>${name(run)}</bdi></a>` },
    { name: 'checkpoints', number: true, of: (/** @type {any} */ run) => run.checkpoints.length, cell: (/** @type {any} */ run) => `${run.checkpoints.length}${run.more ? '+' : ''}` },
    { name: 'took', number: true, of: (/** @type {any} */ run) => run.durationMs, cell: (/** @type {any} */ run) => html`<${Duration} ms=${run.durationMs} />` },
    { name: 'tokens', number: true, of: (/** @type {any} */ run) => run.tokens, cell: (/** @type {any} */ run) => run.tokens === null ? html`<span class="quiet">unknown</span>` : short(run.tokens) },
    ...scores.map((score) => ({ name: score, number: true, of: (/** @type {any} */ run) => run.scores[score], cell: (/** @type {any} */ run) => run.scores[score] === undefined ? html`<span class="quiet">–</span>` : short(run.scores[score]) })),
    { name: 'tags', of: (/** @type {any} */ run) => run.tags.join(' '), cell: (/** @type {any} */ run) => run.tags.map((/** @type {string} */ tag) => html`<bdi class="tag">${tag}</bdi> `) },
    { name: 'last', of: (/** @type {any} */ run) => run.checkpoints.at(-1)?.wall_ms, cell: (/** @type {any} */ run) => html`<${Time} ms=${run.checkpoints.at(-1)?.wall_ms} />` }
  ]
  const key = columns.find((column) => column.name === sort.replace(/^-/, ''))
  const ordered = runs.map((run, at) => ({ run, at }))
  if (key) ordered.sort((a, b) => by(key.of)(a.run, b.run) * (sort.startsWith('-') ? -1 : 1))
  return html`<div class="head-line"><h2>Runs</h2><span class="row"><button type="button" onClick=${() => kept('runs.csv', 'text/csv', csv(rows))}>CSV</button>
      <button type="button" onClick=${() => kept('runs.jsonl', 'application/x-ndjson', lines(rows))}>JSON Lines</button></span></div>
    ${all.filter(({ error }) => error).map((run) => html`<section><h3><bdi>${name(run)}</bdi></h3><${Refusal} error=${run.error} /></section>`)}
    <div class="scroll" tabindex="0" role="region" aria-label="Table of runs"><table class="plain runs"><thead><tr>${columns.map((column) => html`<th scope="col" class=${column.number ? 'number' : ''}
        aria-sort=${key === column ? (sort.startsWith('-') ? 'descending' : 'ascending') : undefined}><button type="button" class="link" onClick=${() => setSort(sort === column.name ? `-${column.name}` : column.name)}>${column.name}${key === column ? (sort.startsWith('-') ? ' ↓' : ' ↑') : ''}</button></th>`)}</tr></thead>
      <tbody>${ordered.map(({ run, at }) => html`<tr key=${run.id}>${columns.map((column) => html`<td class=${column.number ? 'number mono' : ''}>${column.cell(run, at)}</td>`)}</tr>`)}</tbody></table></div>
    <${Drawn} runs=${runs} scores=${scores} name=${name} query=${query} />
    ${runs.length > 0 && html`<${Parts} space=${space} runs=${runs} name=${name} query=${query} />`}`
}

/** A figure over the checkpoints of each run. @param {{ runs: any[], scores: string[], name: (run: any) => string, query: Record<string, string> }} props */
function Drawn ({ runs, scores, name, query }) {
  const ways = ['time', ...scores]
  const what = ways.includes(query.plot) ? query.plot : scores[0] ?? 'time'
  const length = Math.max(0, ...runs.map((run) => run.checkpoints.length))
  if (length < 2) return null
  const x = Array.from({ length }, (_, index) => index + 1)
  const value = (/** @type {any} */ run, /** @type {number} */ index) => {
    const checkpoint = run.checkpoints[index]
    if (checkpoint === undefined) return null
    return what === 'time' ? checkpoint.wall_ms - run.checkpoints[0].wall_ms : numbers(checkpoint.metadata)[what] ?? null
  }
  return html`<section><h3>By checkpoint</h3><div class="tabs" role="tablist" aria-label="What is plotted">${ways.map((way) => html`<button type="button" role="tab" aria-selected=${way === what} onClick=${() => refine({ plot: way })}>${way === 'time' ? 'time since the first' : way}</button>`)}</div>
    <${Plot} key=${what} time=${false} x=${x} unit=${what === 'time' ? (/** @type {number} */ ms) => ms > 0 ? span(ms) : '0' : short} says=${`${what === 'time' ? 'Time since the first checkpoint' : what} at each checkpoint, from the first on; the table has the last values.`}
      series=${runs.map((run, at) => ({ label: name(run), lane: at, values: x.map((_, index) => value(run, index)) }))} /></section>`
}

/** Where each run parts from the first, and what differs at their ends. @param {{ space: string, runs: any[], name: (run: any) => string, query: Record<string, string> }} props */
function Parts ({ space, runs, name, query }) {
  const [base, ...others] = runs
  if (others.length === 0) return html`<${Branches} space=${space} run=${base} query=${query} />`
  const shown = others.find(({ id }) => id === query.with) ?? others[0]
  return html`<section><h3>Where they part from <bdi>${name(base)}</bdi></h3>
    <ul class="rows">${others.map((run) => {
      const { shared, at } = parting(base, run)
      return html`<li key=${run.id}><button type="button" class="row-button" aria-pressed=${run === shown} onClick=${() => refine({ with: run.id })}><bdi>${name(run)}</bdi>
        <span class="quiet">${shared === 0 ? 'shares no checkpoint with it' : html`after ${shared} ${shared === 1 ? 'checkpoint' : 'checkpoints'}`}</span></button>
        ${at && html`<${Id} value=${at.id} /> <${Time} ms=${at.wall_ms} />`}</li>`
    })}</ul>
    <h3>What differs at the ends: <bdi>${name(base)}</bdi> → <bdi>${name(shown)}</bdi></h3><${Diff} before=${base.state} after=${shown.state} />
    <${Branches} space=${space} run=${base} query=${query} /></section>`
}

const BRANCHES_ASKED = 60

/** Other branches of a run's thread, to add. @param {{ space: string, run: any, query: Record<string, string> }} props */
function Branches ({ space, run, query }) {
  const found = live(`branches ${run.space}/${run.thread}`, (signal) => client().space(run.space).thread(run.thread).heads({ limit: BRANCHES_ASKED, signal }), { space: run.space, kinds: ['thread'] })
  const ids = new Set((query.of ?? '').split(','))
  const more = Object.keys(found.value.value ?? {}).filter((branch) => !ids.has(idOf(run.space, run.thread, branch, space)))
  if (more.length === 0) return null
  return html`<p>Other branches of <bdi>${run.thread}</bdi>: ${more.slice(0, 20).map((branch) => html`<button type="button" onClick=${() => go(address(space, 'compare', [], { ...query, of: [...ids, idOf(run.space, run.thread, branch, space)].join(',') }))}><bdi>${branch}</bdi></button> `)}${more.length > 20 && html`<span class="quiet">and more: name one in the address</span>`}</p>`
}
