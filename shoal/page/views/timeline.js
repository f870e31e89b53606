/**
 * A thread's one axis of time, newest on top: checkpoints in the lanes of their branches, and beside them steps, events and decisions.
 *
 * Law: a place in the list is a place in time. A bar says how long something took, and a gap is shown as one.
 */

import { html } from '../vendor/preact.js'
import { address, go, refine } from '../router.js'
import { brief } from '../kit/messages.js'
import { Duration, exact, now, span } from '../kit/time.js'

const CHECKPOINTS = 120
const BRANCHES_MAX = 24
const STEPS_MAX = 1000
const EVENTS_MAX = 500
const LABELS_MAX = 500
const LABELS_SHOWN = 12
const COMPARED_MAX = 12
const GAP_MS = 10 * 60_000
const ROW = 32
const LANE = 14

/** @typedef {{ kind: 'checkpoint' | 'step' | 'event', ms: number, id: string, of: any }} Entry */
/** @typedef {{ entries: Entry[], heads: Record<string, string[]>, branches: string[], checkpoints: Map<string, any>, labels: Map<string, string[]>, more: boolean }} Axis `labels`: of checkpoints, by their ids. */

/** @template T @param {AsyncIterable<T>} source @returns {Promise<T[]>} */
export async function all (source) {
  const found = []
  for await (const each of source) found.push(each)
  return found
}

/** @param {any} thread A handle. @param {number} pages How many pages of checkpoints of each branch. @returns {Promise<Axis>} */
export async function axis (thread, pages) {
  const heads = await thread.heads()
  const branches = Object.keys(heads).sort((a, b) => a === 'main' ? -1 : b === 'main' ? 1 : 0)
  const limit = CHECKPOINTS * pages
  const histories = await Promise.all(branches.slice(0, BRANCHES_MAX).map((branch) => all(thread.history({ branch, limit }))))
  const checkpoints = new Map(histories.flat().map((each) => [each.id, each]))
  const more = histories.some((each) => each.length >= limit)
  const since = more ? Math.max(...histories.filter((each) => each.length >= limit).map((each) => each.at(-1).wall_ms)) : 0
  const [labels, steps, events] = await Promise.all([labelsOf(thread), all(thread.steps({ limit: STEPS_MAX })), all(thread.journal.read({ sinceMs: since || undefined, limit: EVENTS_MAX, skipTrimmed: true }))])
  /** @type {Entry[]} */
  const entries = [
    ...[...checkpoints.values()].map((of) => ({ kind: /** @type {const} */ ('checkpoint'), ms: of.wall_ms, id: of.id, of })),
    ...steps.map((of) => ({ kind: /** @type {const} */ ('step'), ms: of.begun_ms, id: of.key, of })),
    ...events.map((of) => ({ kind: /** @type {const} */ ('event'), ms: of.wall_ms, id: of.id, of }))
  ].filter(({ ms }) => ms >= since)
  entries.sort((a, b) => b.ms - a.ms || (a.id < b.id ? 1 : -1))
  return { entries, heads, branches, checkpoints, labels, more }
}

/** The labels that checkpoints have now: one that was saved with a label may have lost it. @param {any} thread @returns {Promise<Map<string, string[]>>} */
export async function labelsOf (thread) {
  const found = new Map()
  let count = 0
  for await (const { label, checkpoint: { id } } of thread.labels()) {
    found.set(id, [...found.get(id) ?? [], label])
    if (++count >= LABELS_MAX) break
  }
  return found
}

/** The channels that a checkpoint changed against its first parent, by their hashes. @param {any} checkpoint @param {Map<string, any>} known @returns {string[] | undefined} */
export function touched (checkpoint, known) {
  const parent = known.get(checkpoint.parents[0])
  if (checkpoint.parents.length > 0 && parent === undefined) return undefined
  const [before, after] = [parent?.hashes ?? {}, checkpoint.hashes]
  return [...Object.keys(after).filter((name) => before[name] !== after[name]).map((name) => name in before ? name : `+${name}`), ...Object.keys(before).filter((name) => !(name in after)).map((name) => `−${name}`)]
}

const COLOURS = 8
/** @param {number} lane */
const colour = (lane) => `var(--lane-${lane % COLOURS})`

/** The lines between checkpoints: down in the lane of the later one, then over to that of its parent. @param {{ rows: any[], lanes: Map<string, number>, width: number, heads: Set<string>, chosen?: string }} props */
function Lanes ({ rows, lanes, width, heads, chosen }) {
  const at = new Map()
  rows.forEach((row, index) => { if (row.kind === 'checkpoint') at.set(row.id, index) })
  const x = (/** @type {string} */ branch) => 8 + (lanes.get(branch) ?? 0) * LANE
  const y = (/** @type {number} */ index) => index * ROW + ROW / 2
  const lines = []
  const dots = []
  for (const [id, index] of at) {
    const { of } = rows[index]
    const from = x(of.branch)
    for (const parent of of.parents) {
      const below = at.get(parent)
      const to = below === undefined ? from : x(rows[below].of.branch)
      const end = below === undefined ? rows.length * ROW : y(below)
      const bend = Math.max(y(index), end - ROW)
      lines.push(html`<path d=${to === from ? `M${from} ${y(index)}V${end}` : `M${from} ${y(index)}V${bend}C${from} ${end - ROW / 3} ${to} ${bend + ROW / 3} ${to} ${end}`} stroke=${colour(lanes.get(of.branch) ?? 0)} />`)
    }
    const merged = of.parents.length > 1
    dots.push(html`<circle cx=${from} cy=${y(index)} r=${id === chosen ? 6 : merged ? 5 : 4} stroke=${colour(lanes.get(of.branch) ?? 0)} class=${heads.has(id) ? 'head' : 'dot'} fill=${heads.has(id) || merged ? colour(lanes.get(of.branch) ?? 0) : 'var(--ground)'} />`)
  }
  return html`<svg class="lanes" width=${width} height=${rows.length * ROW} aria-hidden="true">${lines}${dots}</svg>`
}

/** Entries with the gaps between them. @param {Entry[]} entries */
function withGaps (entries) {
  /** @type {any[]} */
  const rows = []
  entries.forEach((entry, index) => {
    const before = entries[index - 1]
    if (before && before.ms - entry.ms > GAP_MS) rows.push({ kind: 'gap', ms: before.ms - entry.ms, id: `gap ${entry.id}` })
    rows.push(entry)
  })
  return rows
}

const CHANNELS_MAX = 200

/** @param {{ of: Axis, space: string, name: string, part?: string, id?: string, channel?: string, onMore: () => void }} props `channel`: only checkpoints that changed it. */
export function TimeLine ({ of, space, name, part, id, channel, onMore }) {
  const rows = withGaps(channel ? of.entries.filter(({ kind, of: entry }) => kind === 'checkpoint' && (touched(entry, of.checkpoints) ?? [channel]).some((each) => each.replace(/^[+−]/, '') === channel)) : of.entries)
  const channels = [...new Set([...of.checkpoints.values()].flatMap(({ hashes }) => Object.keys(hashes)))].sort().slice(0, CHANNELS_MAX)
  const used = new Set([...of.checkpoints.values()].map(({ branch }) => branch))
  const shown = [...new Set([...of.branches, ...used])].filter((branch) => used.has(branch))
  const lanes = new Map(shown.map((branch, lane) => [branch, lane]))
  const width = 16 + Math.min(shown.length, 16) * LANE
  const heads = new Set(Object.values(of.heads).flat())
  const ends = new Map(Object.entries(of.heads).map(([branch, [first]]) => [first, branch]))
  const labels = [...of.labels].flatMap(([checkpoint, names]) => names.map((label) => ({ checkpoint, label })))
  return html`<div class="axis"><div class="branches">${shown.map((branch, lane) => html`<span class="branch"><i style=${{ background: colour(lane) }}></i><bdi>${branch}</bdi></span>`)}
      ${labels.slice(0, LABELS_SHOWN).map(({ checkpoint, label }) => html`<a class="tag" title="The checkpoint with this label" href=${address(space, 'threads', [name, 'at', checkpoint])}><bdi>${label}</bdi></a>`)}${labels.length > LABELS_SHOWN && html`<span class="quiet">${labels.length - LABELS_SHOWN} more labels</span>`}
      ${shown.length > 1 && html`<a class="also" href=${address(space, 'compare', [], { of: shown.slice(0, COMPARED_MAX).map((branch) => `${encodeURIComponent(name)}:${encodeURIComponent(branch)}`).join(',') })}>Compare its branches</a>`}
      ${channels.length > 1 && html`<label class="also quiet">Changes of <select class="quiet-field" value=${channel ?? ''} onChange=${(/** @type {any} */ event) => refine({ channel: event.target.value })}><option value="">everything</option>${channels.map((each) => html`<option value=${each}>${each}</option>`)}</select></label>`}</div>
    ${rows.length === 0 && html`<p class="quiet">No checkpoint that is shown changed ${channel}.</p>`}
    <div class="rows"><${Lanes} rows=${rows} lanes=${lanes} width=${width} heads=${heads} chosen=${part === 'at' ? id : undefined} />
    <ol style=${{ paddingLeft: `${width}px` }}>${rows.map((row) => html`<${Row} key=${`${row.kind} ${row.id}`} row=${row} space=${space} name=${name} axis=${of} isChosen=${row.id === id && PARTS[row.kind] === part} compared=${part === 'at' ? id : undefined} channel=${channel} branch=${ends.get(row.id)} lane=${lanes.get(row.of?.branch) ?? 0} />`)}</ol></div>
    ${of.more && html`<button onClick=${onMore}>Older</button>`}</div>`
}

const PARTS = /** @type {Record<string, string>} */ ({ checkpoint: 'at', step: 'step', event: 'event' })

/** @param {{ row: any, space: string, name: string, axis: Axis, isChosen: boolean, compared?: string, channel?: string, branch?: string, lane: number }} props */
function Row ({ row, space, name, axis, isChosen, compared, channel, branch, lane }) {
  if (row.kind === 'gap') return html`<li class="gap"><span>${span(row.ms)} without anything</span></li>`
  const href = address(space, 'threads', [name, PARTS[row.kind], row.id], { channel })
  return html`<li class=${`${row.kind}${isChosen ? ' chosen' : ''}`} onClick=${(/** @type {any} */ event) => { if (!event.target.closest('a, button')) go(href) }}>
    <a href=${href} aria-current=${isChosen ? 'true' : undefined}><time datetime=${new Date(row.ms).toISOString()} title=${exact(row.ms)}>${new Date(row.ms).toLocaleTimeString([], { hourCycle: 'h23' })}</time>
    ${row.kind === 'checkpoint' ? html`<${CheckpointText} of=${row.of} axis=${axis} branch=${branch} lane=${lane} />` : row.kind === 'step' ? html`<${StepText} of=${row.of} />` : html`<${EventText} of=${row.of} />`}</a>
    ${row.kind === 'checkpoint' && compared && compared !== row.id && html`<a class="compare" href=${address(space, 'threads', [name, 'diff', row.id, compared])} title="Compare with the chosen one">compare</a>`}</li>`
}

/** @param {{ of: any, axis: Axis, branch?: string, lane: number }} props */
function CheckpointText ({ of, axis, branch, lane }) {
  const changed = touched(of, axis.checkpoints)
  return html`<span class="says">${branch && html`<span class="tag" style=${{ borderColor: colour(lane), color: colour(lane) }}><bdi>${branch}</bdi></span> `}${(axis.labels.get(of.id) ?? []).map((label) => html`<span class="tag"><bdi>${label}</bdi></span> `)}${of.parents.length > 1 ? 'merged ' : ''}${changed === undefined ? 'checkpoint' : changed.length === 0 ? 'nothing changed' : html`<bdi>${brief(changed.join(', '))}</bdi>`}
    ${of.author && html` <span class="quiet">by <bdi>${of.author}</bdi></span>`}</span>`
}

const TONE = /** @type {Record<string, string>} */ ({ open: 'stuck', failed: 'stuck', done: 'well', ready: 'waits', abandoned: 'unknown' })

/** @param {{ of: any }} props */
function StepText ({ of }) {
  const ms = (of.ended_ms || now.value) - of.begun_ms
  // Each tenfold time is one more fifth of the bar.
  const width = Math.max(6, Math.min(90, Math.log10(Math.max(1, ms)) * 15))
  return html`<i class=${`bar ${TONE[of.state] ?? 'unknown'}`} style=${{ width: `${width}px` }}></i><span class="says"><bdi>${of.name}</bdi> ${of.state === 'open' ? html`<b>open</b> ` : of.state === 'done' ? '' : of.state}<${Duration} ms=${ms} />
    ${of.state === 'done' && html` <span class="quiet">→ <bdi>${brief(of.result)}</bdi></span>`}</span>`
}

/** What Shoal itself writes into a journal, in words. @param {any} event @returns {any} */
function told (event) {
  if (event?.kind === 'status' && event.status) return html`<b>${event.status}</b>${event.reason && html` <bdi>${event.reason}</bdi>`}${event.by && html` <span class="quiet">by <bdi>${event.by}</bdi></span>`}`
  const by = event?.by && html` <span class="quiet">by <bdi>${event.by}</bdi></span>`
  if (event?.kind === 'rollback') return html`<b>rolled back</b> <bdi>${event.branch}</bdi> to <span class="mono">${String(event.to).slice(0, 8)}</span> <bdi>${event.reason ?? ''}</bdi>${by}`
  if (event?.kind === 'delete-branch') return html`<b>deleted the branch</b> <bdi>${event.branch}</bdi>`
  if (event?.kind === 'step-resolved') return html`<b>step settled</b> <bdi>${event.step ?? event.key ?? ''}</bdi>: ${event.how ?? ''} <bdi>${event.reason ?? ''}</bdi>${by}`
  return html`<span class="quiet"><bdi>${brief(event)}</bdi></span>`
}

/** @param {{ of: any }} props */
function EventText ({ of }) {
  return html`<span class="says">${of.erased ? html`<span class="quiet">an erased event</span>` : told(of.event)}</span>`
}
