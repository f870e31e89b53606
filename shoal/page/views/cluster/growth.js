/** What the disk of a node holds, and how it grew: by space, and of one space by kind, by the beginnings of names and by object. */

import { html } from '../../vendor/preact.js'
import { client, live } from '../../data.js'
import { address } from '../../router.js'
import { shell } from '../../kit/shell.js'
import { Empty, Mark, Shown } from '../../kit/states.js'
import { bytes, span, Time } from '../../kit/time.js'
import { Plot } from '../plot.js'

const EVERY_MS = 60_000
const COUNTING_MS = 1_000
const SPACES = 12
const WITHIN = 20
const DAY_MS = 86_400_000
const LEAST_MS = 60_000

/** @param {() => Promise<any>} ask */
const counted = (ask) => async () => {
  for (let look = 0; ; look++) {
    const found = await ask()
    if (found.counted_ms !== 0 || !found.is_counting || look > 10) return found
    await new Promise((resolve) => setTimeout(resolve, COUNTING_MS))
  }
}

const usage = () => live('usage', counted(() => client().usage({ limit: SPACES })), { every: EVERY_MS })

/** The growth of the last day, or of as much of it as is known. @param {number[]} times @param {number[]} sizes @param {number} now @returns {{ grown: number, ms: number } | undefined} */
export function growth (times, sizes, now) {
  const known = times.map((at, nth) => ({ at, size: sizes[nth] ?? -1 })).filter(({ at, size }) => size >= 0 && at >= now - DAY_MS)
  // What grew within a minute says nothing about a day.
  return known.length < 2 || now - known[0].at < LEAST_MS ? undefined : { grown: known[known.length - 1].size - known[0].size, ms: now - known[0].at }
}

/** @param {{ times: number[], sizes: number[], now: number }} props */
function Grown ({ times, sizes, now }) {
  const found = growth(times, sizes, now)
  if (found === undefined) return html`<span class="quiet" title="It was counted once so far: the history begins here.">–</span>`
  return html`<span title=${`in the last ${span(found.ms)}`}>${found.grown < 0 ? '−' : found.grown > 0 ? '+' : ''}${bytes(Math.abs(found.grown))}</span>`
}

/** @param {{ size: number, most: number }} props */
const Share = ({ size, most }) => html`<span class="share" aria-hidden="true"><i style=${{ width: `${most > 0 ? Math.max(1, Math.round(100 * size / most)) : 0}%` }}></i></span>`

/** @param {{ space: string, chosen: string }} props */
export function Growth ({ space, chosen }) {
  return html`<section aria-label="What its disk holds"><h3>What the disk of the node that answers holds</h3>
    <${Shown} of=${usage().value} rows=${6}>${(/** @type {any} */ found) => html`<${Held} found=${found} space=${space} chosen=${chosen} />`}</${Shown}></section>`
}

/** @param {{ found: any, space: string, chosen: string }} props */
function Held ({ found, space, chosen }) {
  const times = found.points.map((/** @type {any} */ point) => point.at_ms)
  const most = Math.max(1, ...found.spaces.map((/** @type {any} */ each) => each.bytes))
  const grown = growth([...times, found.now_ms], [...found.points.map((/** @type {any} */ point) => point.disk_bytes), found.disk_bytes], found.now_ms)
  return html`
    <dl class="facts"><dt>on disk</dt><dd class="mono">${bytes(found.disk_bytes)}${found.free_bytes >= 0 && `, ${bytes(found.free_bytes)} free`}${grown && html`, ${grown.grown < 0 ? '−' : '+'}${bytes(Math.abs(grown.grown))} in ${span(grown.ms)}`}</dd>
      <dt>objects</dt><dd class="mono">${bytes(found.stored_bytes)} in ${found.objects}, before compression</dd>
      <dt>log</dt><dd><span class="mono">${bytes(found.log_bytes)}</span><br /><${Kept} found=${found} /></dd>
      <dt>indexes · keys of requests</dt><dd class="mono">${bytes(found.index_bytes)} · ${bytes(found.key_bytes)}</dd></dl>
    ${found.trouble && html`<p class="says"><${Mark} kind="unknown" /> The rows could not be counted: ${found.trouble}</p>`}
    ${found.counted_ms === 0 ? html`<p class="quiet">${found.is_counting ? 'The rows are being counted.' : 'The rows were not counted yet.'}</p>`
      : html`<div class="scroll" tabindex="0" role="region" aria-label="Spaces by size"><table class="plain sized"><caption class="quiet">Spaces by size, as counted <${Time} ms=${found.counted_ms} ago />. Growth is of the last day.</caption>
      <thead><tr><th scope="col">space</th><th scope="col" class="number">bytes</th><th scope="col" aria-label="share"></th><th scope="col" class="number">objects</th><th scope="col" class="number">growth</th></tr></thead>
      <tbody>${found.spaces.map((/** @type {any} */ each) => html`<tr key=${each.name} class=${each.name === chosen ? 'chosen' : ''}><td>${each.name === '' ? html`<span class="quiet">all others</span>` : html`<a href=${address(space, 'cluster', ['space', each.name])}><bdi>${each.name}</bdi></a>`}</td>
        <td class="number mono">${bytes(each.bytes)}</td><td><${Share} size=${each.bytes} most=${most} /></td><td class="number mono">${each.objects}</td><td class="number mono"><${Grown} times=${[...times, found.now_ms]} sizes=${[...each.history, ...(each.history.length === times.length ? [each.bytes] : [])]} now=${found.now_ms} /></td></tr>`)}</tbody></table></div>
      ${found.spaces_in_all > found.spaces.length && html`<p class="quiet">${found.spaces_in_all - found.spaces.length} smaller spaces are not shown: <code>shoal usage --limit 50</code></p>`}`}
    ${times.length > 1 && html`<${Plot} says=${html`The disk since <${Time} ms=${times[0]} />.`} x=${[...times, found.now_ms].map((at) => at / 1000)} unit=${bytes}
      series=${[{ label: 'on disk', values: [...found.points.map((/** @type {any} */ point) => point.disk_bytes), found.disk_bytes] }, { label: 'log', values: [...found.points.map((/** @type {any} */ point) => point.log_bytes), found.log_bytes], lane: 1 }]} />`}`
}

/** What keeps the log. @param {{ found: any }} props */
function Kept ({ found }) {
  if (found.log_holders.length === 0) return html`<span class="quiet">it waits for no member: each operation stays for ${span(found.log_keep_ms)}</span>`
  return found.log_holders.map((/** @type {any} */ { name, bytes: size, linked }) => html`<span><${Mark} kind=${linked ? 'well' : 'waits'} /> up to ${bytes(size)} for <bdi>${name}</bdi>, which ${linked ? 'is about to get it' : 'is not reached'}</span> `)
}

const VIEWS = /** @type {Record<string, string>} */ ({ thread: 'threads', document: 'shared', register: 'shared', counter: 'shared', set: 'shared', map: 'shared', list: 'shared', budget: 'shared', items: 'shared' })

/** Where an object is shown. @param {string} space @param {{ kind: string, name: string }} of */
function placeOf (space, { kind, name }) {
  const view = VIEWS[kind]
  return view === undefined ? undefined : address(space, view, view === 'threads' ? [name] : [kind, name])
}

/** A space on the disk, with its quota and its rules of retention. @param {{ name: string }} props */
export function SpaceHeld ({ name }) {
  const found = live(`usage ${name}`, counted(() => client().space(name).usage({ limit: WITHIN })), { every: EVERY_MS })
  return html`<article aria-label=${`space ${name} on disk`}><div class="head-line"><span class="quiet">space</span><h2><bdi>${name}</bdi></h2><a href=${address(name, 'threads')}>its threads</a></div>
    <${Shown} of=${found.value} rows=${8}>${(/** @type {any} */ value) => html`<${Within} name=${name} found=${value} />`}</${Shown}>
    <${Limits} name=${name} /><${Rules} name=${name} /></article>`
}

/** @param {{ name: string, found: any }} props */
function Within ({ name, found }) {
  if (found.counted_ms === 0) return html`<p class="quiet">The rows are being counted.</p>`
  if (found.objects === 0 && found.bytes === 0) return html`<${Empty} why="This space held nothing when its rows were counted." />`
  const times = [...found.times_ms, found.now_ms]
  const sizes = [...found.history, found.bytes]
  const grown = growth(times, sizes, found.now_ms)
  return html`
    <p class="says">It holds ${bytes(found.bytes)} in ${found.objects} ${found.objects === 1 ? 'object' : 'objects'}${grown && html`, ${grown.grown < 0 ? '−' : '+'}${bytes(Math.abs(grown.grown))} in ${span(grown.ms)}`}; counted <${Time} ms=${found.counted_ms} ago />.</p>
    <${Rows} what="kind" rows=${found.kinds.map((/** @type {any} */ use) => ({ ...use, name: use.kind }))} times=${times} now=${found.now_ms} />
    <${Rows} what="names that begin with" rows=${found.prefixes.map((/** @type {any} */ use) => ({ ...use, name: use.prefix, href: use.prefix && address(name, 'threads', [], { text: use.prefix }) }))} times=${times} now=${found.now_ms} />
    <${Rows} what="largest objects" rows=${found.largest.map((/** @type {any} */ each) => ({ ...each, href: placeOf(name, each), note: each.kind }))} times=${times} now=${found.now_ms} />
    ${found.times_ms.length > 1 && html`<${Plot} says=${html`Its bytes since <${Time} ms=${times[0]} />, before compression.`} x=${times.map((at) => at / 1000)} unit=${bytes} series=${[{ label: 'bytes', values: sizes.map((size) => size < 0 ? null : size) }]} />`}`
}

/** @param {{ what: string, rows: any[], times: number[], now: number }} props */
function Rows ({ what, rows, times, now }) {
  if (rows.length === 0) return null
  const most = Math.max(1, ...rows.map((row) => row.bytes))
  const counts = rows[0].objects !== undefined
  const grows = rows.some((row) => row.history?.length > 0)
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${what}><table class="plain sized"><thead><tr><th scope="col">${what}</th><th scope="col" class="number">bytes</th><th scope="col" aria-label="share"></th>${counts && html`<th scope="col" class="number">objects</th>`}${grows && html`<th scope="col" class="number">growth</th>`}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${`${row.note} ${row.name}`}><td>${row.note && html`<span class="quiet">${row.note}</span> `}${row.name === '' ? html`<span class="quiet">others</span>` : row.href ? html`<a href=${row.href}><bdi>${row.name}</bdi></a>` : html`<bdi>${row.name}</bdi>`}</td>
      <td class="number mono">${bytes(row.bytes)}</td><td><${Share} size=${row.bytes} most=${most} /></td>${counts && html`<td class="number mono">${row.objects}</td>`}${grows && html`<td class="number mono"><${Grown} times=${times} sizes=${row.history?.length ? [...row.history, row.bytes] : []} now=${now} /></td>`}</tr>`)}</tbody></table></div>`
}

const LIMITS = /** @type {[string, string, (value: number) => string][]} */ ([['bytes', 'bytes', bytes], ['objects', 'objects', String], ['writes_per_s', 'writes a second', String], ['watchers', 'watchers', String], ['documents', 'open documents', String], ['leases', 'leases and claims', String], ['presences', 'clients present', String]])

/** What it may hold and do, and what it uses. @param {{ name: string }} props */
function Limits ({ name }) {
  const found = live(`quota ${name}`, () => client().space(name).quota(), { every: EVERY_MS })
  return html`<section aria-label="Quota"><h3>Quota</h3><${Shown} of=${found.value} rows=${2}>${(/** @type {any} */ { limits, used, trouble }) => {
    const set = LIMITS.filter(([key]) => limits[key] > 0)
    return html`${trouble && html`<p><${Mark} kind="waits" /> ${trouble}</p>`}${set.length === 0 ? html`<${Empty} why="It has no quota: nothing bounds what it holds or does." command=${shell`shoal space quota ${name} --bytes 10GiB --url ${location.origin}`} />`
      : html`<dl class="facts">${set.map(([key, says, shown]) => html`<dt>${says}</dt><dd><${Mark} kind=${used[key] >= limits[key] ? 'waits' : 'well'} /> <span class="mono">${shown(used[key])} of ${shown(limits[key])}</span></dd>`)}</dl>`}`
  }}</${Shown}></section>`
}

/** @param {any} rule */
function sentence (rule) {
  const parts = []
  const old = (/** @type {number | null} */ s) => s === null ? '' : span(s * 1000)
  if (rule.keep_last !== null) parts.push(`the last ${rule.keep_last} checkpoints of a branch stay`)
  if (rule.older_than_s !== null) parts.push(`checkpoints go after ${old(rule.older_than_s)}`)
  if (rule.finished_older_than_s !== null) parts.push(`done items of worklists go after ${old(rule.finished_older_than_s)}`)
  if (rule.events_older_than_s !== null) parts.push(`events go after ${old(rule.events_older_than_s)}`)
  if (rule.threads_older_than_s !== null) parts.push(`whole threads go ${old(rule.threads_older_than_s)} after the last write${rule.keep_labelled ? ', unless they have a label' : ''}`)
  return parts.join('; ')
}

/** What goes by itself, and what is due. @param {{ name: string }} props */
function Rules ({ name }) {
  const found = live(`retention ${name}`, () => client().space(name).retention(), { every: EVERY_MS })
  return html`<section aria-label="Retention"><h3>Retention</h3><${Shown} of=${found.value} rows=${2}>${(/** @type {any} */ view) => view.rules.length === 0
    ? html`<${Empty} why="It has no rules of retention: nothing goes by itself." command=${shell`shoal retention set ${name} --keep-last 100 --older-than 30d --url ${location.origin}`} />`
    : html`<ul class="rows">${view.rules.map((/** @type {any} */ rule) => html`<li><span>${rule.prefix ? html`threads <bdi class="mono">${rule.prefix}</bdi>…` : 'all threads'}: ${rule.trouble ? html`<${Mark} kind="waits" /> nothing goes, because ${rule.trouble}` : sentence(rule)}</span></li>`)}</ul>
      <p class="quiet">${!view.is_in_charge ? 'Another node carries them out.' : view.waits_for ? html`<${Mark} kind="waits" /> ${view.waits_for}` : html`${view.due} due${view.last_ms ? html`, looked at <${Time} ms=${view.last_ms} ago />` : ''}; ${view.checkpoints} checkpoints, ${view.events} events and ${view.threads} threads went since this node began, ${bytes(view.bytes)}.`} See first what goes: <code>shoal retention run ${name} --dry-run</code></p>`}</${Shown}></section>`
}
