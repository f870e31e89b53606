/**
 * A thread's one axis of time, newest on top: checkpoints in the lanes of their branches, and beside them steps, events, decisions, and who drove it under a lease.
 *
 * Law: a place in the list is a place in time. A bar says how long something took, and a gap is shown as one.
 */

import { html } from '../vendor/preact.js'
import { address, go, refine } from '../router.js'
import { isId, isLoops } from '../kit/graphs.js'
import { brief } from '../kit/messages.js'
import { Duration, exact, now, span } from '../kit/time.js'

const PAGE = 200
const HEADS = 100 // Branches that are asked for at once; of more, those of the checkpoints that are seen.
const NAMED_MAX = 256
const LANES_MAX = 16
const BRANCHES_SHOWN = 24
const LABELS_MAX = 500
const LABELS_SHOWN = 12
const ENDS_SHOWN = 2
const COMPARED_MAX = 12
const GAP_MS = 10 * 60_000
const ROW = matchMedia('(pointer: coarse)').matches ? 44 : 32 // As `--row` is.
const LANE = 14

/** @typedef {{ kind: 'checkpoint' | 'step' | 'event' | 'lease', ms: number, id: string, of: any }} Entry */
/** @typedef {{ entries: Entry[], heads: Record<string, string[]>, branches: string[], checkpoints: Map<string, any>, labels: Map<string, string[]>, more: boolean, isCut: boolean }} Axis `labels`: of checkpoints, by their ids; `isCut`: there are more branches than those that are seen. */

/** @template T @param {AsyncIterable<T>} source @param {number} most @returns {Promise<T[]>} */
export async function first (source, most) {
  const found = []
  for await (const each of source) if (found.push(each) >= most) break
  return found
}

/** So many pages of the time line, from the newest on. @param {any} thread A handle. @param {number} pages @returns {Promise<Axis>} */
export async function axis (thread, pages) {
  /** @type {any[]} */
  const told = []
  /** @type {any[]} */
  let terms = []
  const lined = async () => {
    let after
    for (let page = 0; page < pages; page++) {
      const { entries, cursor, more, terms: driven = [] } = await thread.timeline({ after, limit: PAGE })
      told.push(...entries)
      if (page === 0) terms = driven
      if (!more) return false
      after = cursor
    }
    return true
  }
  const [listed, labels, more] = await Promise.all([thread.heads({ limit: HEADS }), labelsOf(thread), lined()])
  const isCut = Object.keys(listed).length === HEADS
  // Of thousands of branches those count that are seen.
  const heads = isCut ? await thread.heads({ names: [...new Set(['main', ...told.filter(({ kind }) => kind === 'checkpoint').map(({ text }) => text)])].slice(0, NAMED_MAX) }) : listed
  const branches = Object.keys(heads).sort((a, b) => a === 'main' ? -1 : b === 'main' ? 1 : 0)
  const entries = withLeases(told.map((/** @type {any} */ of) => ({ kind: of.kind, ms: of.wall_ms, id: of.id, of })), terms, more)
  const checkpoints = new Map(withAdded(told.filter(({ kind }) => kind === 'checkpoint')).map((of) => [of.id, { ...of, branch: of.text }]))
  return { entries: entries.map((entry) => entry.kind === 'checkpoint' ? { ...entry, of: checkpoints.get(entry.id) } : entry), heads, branches, checkpoints, labels, more, isCut }
}

/** Terms of leases in their places in time; of what is older than the entries nothing is shown yet. @param {Entry[]} entries @param {any[]} terms Newest first. @param {boolean} more @returns {Entry[]} */
function withLeases (entries, terms, more) {
  const leases = terms.map((term, nth) => ({ kind: /** @type {const} */ ('lease'), ms: term.from_ms, id: String(term.fence), of: { ...term, next: terms[nth - 1], before: terms[nth + 1] } }))
  const oldest = entries.at(-1)?.ms ?? 0
  return [...leases.filter(({ ms }) => !more || ms >= oldest), ...entries].sort((one, other) => other.ms - one.ms)
}

/** Checkpoints with the channels that each added, as far as all before it is known. @param {any[]} checkpoints Newest first. */
function withAdded (checkpoints) {
  /** @type {Map<string, Set<string>>} */
  const has = new Map()
  return checkpoints.toReversed().map((of) => {
    const before = of.parents.length === 0 ? new Set() : has.get(of.parents[0])
    if (before !== undefined) has.set(of.id, new Set([...before, ...of.changed]))
    return { ...of, added: before === undefined ? [] : of.changed.filter((/** @type {string} */ name) => !before.has(name)) }
  }).reverse()
}

/** The labels that checkpoints have now: one that was saved with a label may have lost it. @param {any} thread @returns {Promise<Map<string, string[]>>} */
export async function labelsOf (thread) {
  const found = new Map()
  let count = 0
  for await (const { label, checkpoint: { id } } of thread.labels()) {
    if (!isId(label)) found.set(id, [...found.get(id) ?? [], label])
    if (++count >= LABELS_MAX) break
  }
  return found
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

/** @param {{ of: Axis, space: string, name: string, part?: string, id?: string, channel?: string, fence?: number, onMore: () => void }} props `channel`: only checkpoints that changed it; `fence`: of the lease that is held now. */
export function TimeLine ({ of, space, name, part, id, channel, fence, onMore }) {
  const rows = withGaps(channel ? of.entries.filter(({ kind, of: entry }) => kind === 'checkpoint' && entry.changed.includes(channel)) : of.entries)
  const channels = [...new Set([...of.checkpoints.values()].flatMap(({ changed }) => changed.filter((/** @type {string} */ each) => !isLoops(each))))].sort().slice(0, CHANNELS_MAX)
  const used = new Set([...of.checkpoints.values()].map(({ branch }) => branch))
  const shown = [...new Set([...of.branches, ...used])].filter((branch) => used.has(branch))
  const lanes = new Map(shown.map((branch, lane) => [branch, Math.min(lane, LANES_MAX - 1)]))
  const width = 16 + Math.min(shown.length, LANES_MAX) * LANE
  const heads = new Set(Object.values(of.heads).flat())
  /** @type {Map<string, string[]>} */
  const ends = new Map()
  for (const branch of of.branches) ends.set(of.heads[branch][0], [...ends.get(of.heads[branch][0]) ?? [], branch])
  const labels = [...of.labels].flatMap(([checkpoint, names]) => names.map((label) => ({ checkpoint, label })))
  return html`<div class="axis"><div class="branches">${shown.slice(0, BRANCHES_SHOWN).map((branch, lane) => html`<span class="branch"><i style=${{ background: colour(lane) }}></i><bdi>${branch}</bdi></span>`)}${shown.length > BRANCHES_SHOWN && html`<span class="quiet">${shown.length - BRANCHES_SHOWN} more branches</span>`}${of.isCut && html` <span class="quiet">Only branches with checkpoints below are shown.</span>`}
      ${labels.slice(0, LABELS_SHOWN).map(({ checkpoint, label }) => html`<a class="tag" title="The checkpoint with this label" href=${address(space, 'threads', [name, 'at', checkpoint])}><bdi>${label}</bdi></a>`)}${labels.length > LABELS_SHOWN && html`<span class="quiet">${labels.length - LABELS_SHOWN} more labels</span>`}
      ${shown.length > 1 && html`<a class="also" href=${address(space, 'compare', [], { of: shown.slice(0, COMPARED_MAX).map((branch) => `${encodeURIComponent(name)}:${encodeURIComponent(branch)}`).join(',') })}>Compare its branches</a>`}
      ${channels.length > 1 && html`<label class="also quiet">Changes of <select class="quiet-field" value=${channel ?? ''} onChange=${(/** @type {any} */ event) => refine({ channel: event.target.value })}><option value="">everything</option>${channels.map((each) => html`<option value=${each}>${each}</option>`)}</select></label>`}</div>
    ${rows.length === 0 && html`<p class="quiet">No checkpoint that is shown changed ${channel}.</p>`}
    <div class="rows"><${Lanes} rows=${rows} lanes=${lanes} width=${width} heads=${heads} chosen=${part === 'at' ? id : undefined} />
    <ol style=${{ paddingLeft: `${width}px` }}>${rows.map((row) => html`<${Row} key=${`${row.kind} ${row.id}`} row=${row} space=${space} name=${name} axis=${of} isChosen=${row.id === id && PARTS[row.kind] === part} compared=${part === 'at' ? id : undefined} channel=${channel} fence=${fence} branches=${ends.get(row.id) ?? []} lane=${lanes.get(row.of?.branch) ?? 0} />`)}</ol></div>
    ${of.more && html`<button onClick=${onMore}>Older</button>`}</div>`
}

const PARTS = /** @type {Record<string, string>} */ ({ checkpoint: 'at', step: 'step', event: 'event', lease: 'lease' })

/** @param {{ row: any, space: string, name: string, axis: Axis, isChosen: boolean, compared?: string, channel?: string, fence?: number, branches: string[], lane: number }} props */
function Row ({ row, space, name, axis, isChosen, compared, channel, fence, branches, lane }) {
  if (row.kind === 'gap') return html`<li class="gap"><span>${span(row.ms)} without anything</span></li>`
  const href = address(space, 'threads', [name, PARTS[row.kind], row.id], { channel, ms: row.kind === 'event' ? String(row.ms) : undefined })
  return html`<li class=${`${row.kind}${isChosen ? ' chosen' : ''}`} onClick=${(/** @type {any} */ event) => { if (!event.target.closest('a, button')) go(href) }}>
    <a href=${href} aria-current=${isChosen ? 'true' : undefined}><time datetime=${new Date(row.ms).toISOString()} title=${exact(row.ms)}>${new Date(row.ms).toLocaleTimeString([], { hourCycle: 'h23' })}</time>
    ${row.kind === 'checkpoint' ? html`<${CheckpointText} of=${row.of} axis=${axis} branches=${branches} lane=${lane} />` : row.kind === 'step' ? html`<${StepText} of=${row.of} />` : row.kind === 'lease' ? html`<${LeaseText} of=${row.of} fence=${fence} />` : html`<${EventText} of=${row.of} />`}</a>
    ${row.kind === 'checkpoint' && compared && compared !== row.id && html`<a class="compare" href=${address(space, 'threads', [name, 'diff', row.id, compared])} title="Compare with the chosen one">compare</a>`}</li>`
}

/** @param {{ of: any, axis: Axis, branches: string[], lane: number }} props `branches`: those that end here. */
function CheckpointText ({ of, axis, branches, lane }) {
  const changed = of.changed.filter((/** @type {string} */ name) => !isLoops(name)).map((/** @type {string} */ name) => of.added.includes(name) ? `+${name}` : name)
  return html`<span class="says">${branches.slice(0, ENDS_SHOWN).map((branch) => html`<span class="tag" style=${{ borderColor: colour(lane) }}><bdi>${branch}</bdi></span> `)}${branches.length > ENDS_SHOWN && html`<span class="quiet">and ${branches.length - ENDS_SHOWN} more branches </span>`}${(axis.labels.get(of.id) ?? []).map((label) => html`<span class="tag"><bdi>${label}</bdi></span> `)}${of.parents.length > 1 ? 'merged ' : ''}${changed.length === 0 ? of.changed.length > 0 ? html`<span class="quiet">${of.changed.includes('__start__') && of.parents.length === 0 ? 'the graph began' : 'the graph went on'}</span>` : 'nothing changed' : html`<bdi>${brief(changed.join(', '))}</bdi>`}
    ${of.by && html` <span class="quiet">by <bdi>${of.by}</bdi></span>`}</span>`
}

export const OLD_STEP_MS = 600_000
const TONE = /** @type {Record<string, string>} */ ({ open: 'stuck', failed: 'stuck', done: 'well', ready: 'waits', abandoned: 'unknown' })

/** The width of a bar: each tenfold time is one more fifth of it. @param {number} ms */
const wide = (ms) => Math.max(6, Math.min(90, Math.log10(Math.max(1, ms)) * 15))

/** How a term of a lease ended, or that it goes on. @param {any} of @param {number | undefined} fence Of the lease that is held now. @returns {{ untilMs: number, isHeld: boolean, how: any }} */
export function termOf ({ fence: own, until_ms: until, next }, fence) {
  if (own === fence) return { untilMs: now.value, isHeld: true, how: 'goes on' }
  const to = next && html`, then <bdi>${next.holder || 'a holder without a name'}</bdi>`
  if (until) return { untilMs: until, isHeld: false, how: html`given back${to}` }
  return { untilMs: next?.from_ms ?? 0, isHeld: false, how: html`not renewed${to}` }
}

/** @param {{ of: any, fence?: number }} props */
function LeaseText ({ of, fence }) {
  const { untilMs, isHeld, how } = termOf(of, fence)
  const ms = Math.max(0, untilMs - of.from_ms)
  return html`${untilMs > 0 && html`<i class=${`bar ${isHeld ? 'running' : 'held'}`} style=${{ width: `${wide(ms)}px` }}></i>`}<span class="says"><b>${of.before ? 'lease taken over' : 'lease taken'}</b> by <bdi>${of.holder || 'a holder without a name'}</bdi>${untilMs > 0 && html`, <${Duration} ms=${ms} />`} <span class="quiet">${how}</span></span>`
}

/** @param {{ of: any }} props */
function StepText ({ of }) {
  const ms = (of.ended_ms || now.value) - of.wall_ms
  return html`<i class=${`bar ${of.state === 'open' && ms < OLD_STEP_MS ? 'running' : TONE[of.state] ?? 'unknown'}`} style=${{ width: `${wide(ms)}px` }}></i><span class="says"><bdi>${of.text}</bdi> ${of.state === 'open' ? html`<b>open</b> for ` : of.state === 'done' ? '' : of.state}<${Duration} ms=${ms} />
    ${of.state === 'done' && html` <span class="quiet">→ <bdi>${brief(of.data)}</bdi></span>`}</span>`
}

/** What Shoal itself writes into a journal, in words. @param {any} event @param {string} kind @returns {any} */
function told (event, kind) {
  if (event?.kind === 'status' && event.status) return html`<b>${event.status}</b>${event.reason && html` <bdi>${event.reason}</bdi>`}${event.by && html` <span class="quiet">by <bdi>${event.by}</bdi></span>`}`
  const by = event?.by && html` <span class="quiet">by <bdi>${event.by}</bdi></span>`
  if (event?.kind === 'rollback') return html`<b>rolled back</b> <bdi>${event.branch}</bdi> to <span class="mono">${String(event.to).slice(0, 8)}</span> <bdi>${event.reason ?? ''}</bdi>${by}`
  if (event?.kind === 'delete-branch') return html`<b>deleted the branch</b> <bdi>${event.branch}</bdi>`
  if (event?.kind === 'step-resolved') return html`<b>step settled</b> <bdi>${event.step ?? event.key ?? ''}</bdi>: ${event.how ?? ''} <bdi>${event.reason ?? ''}</bdi>${by}`
  if (kind === 'lease-ended') return html`<b>lease ended</b> of <bdi>${event?.holder ?? ''}</bdi>${event?.to && html`, for <bdi>${event.to}</bdi>`} <bdi>${event?.reason ?? ''}</bdi>${by}`
  return html`<span class="quiet"><bdi>${brief(event)}</bdi></span>`
}

/** @param {{ of: any }} props */
function EventText ({ of }) {
  return html`<span class="says">${of.erased ? html`<span class="quiet">an erased event</span>` : !of.whole ? html`<span class="quiet">a long event</span>` : told(of.data, of.text)}</span>`
}
