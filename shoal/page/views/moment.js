/** A moment of a thread: what a checkpoint changed first, then its state as messages and as a tree; a step with its attempts; an event. */

import { html, useMemo, useState } from '../vendor/preact.js'
import { draft, drop, live } from '../data.js'
import { address, go, place, refine } from '../router.js'
import { useKeys } from '../keys.js'
import { Confirm, Mark, Outcome, Refusal, Shown } from '../kit/states.js'
import { Diff } from '../kit/diff.js'
import { GRAPH, known } from '../kit/graphs.js'
import { read } from '../kit/exact.js'
import { conversations, Messages } from '../kit/messages.js'
import { masked } from '../kit/secret.js'
import { Tree } from '../kit/tree.js'
import { clock, Duration, exact, Id, Time } from '../kit/time.js'
import { EditState } from './editing.js'
import { threadOf } from './thread.js'
import { labelsOf, OLD_STEP_MS, termOf } from './timeline.js'

/** @param {string} space @param {string} name @param {string} id */
const checkpointOf = (space, name, id) => live(`checkpoint ${space}\n${name}\n${id}`, async () => {
  const thread = threadOf(space, name)
  const [found, all] = await Promise.all([thread.load({ checkpoint: id }), labelsOf(thread)])
  const labels = all.get(found.id) ?? []
  if (found.parents.length === 0) return { found, before: {}, labels }
  // Of a parent that was pruned nothing is known.
  const parent = await thread.load({ checkpoint: found.parents[0] }).catch(() => undefined)
  return { found, before: parent?.state, labels }
}, { space, kinds: ['thread', 'label'] })

/** What the newest checkpoint changed, for those who decide on it. @param {{ space: string, name: string, id: string }} props */
export function LastChange ({ space, name, id }) {
  const of = checkpointOf(space, name, id).value
  if (of.value?.before === undefined) return null
  const { found, before } = of.value
  return html`<details class="last" open><summary>What it did last</summary><div tabindex="0" role="region" aria-label="What it did last"><${Change} before=${before} after=${found.state} secret=${found.secret} isGraph /></div></details>`
}

/** @param {{ space: string, name: string, id: string, query: Record<string, string>, steps: any[] }} props `steps`: of the thread, whose times tool calls get. */
export function Moment ({ space, name, id, query, steps }) {
  return html`<${Shown} of=${checkpointOf(space, name, id).value}>${(/** @type {any} */ value) => html`<${State} space=${space} name=${name} ...${value} query=${query} steps=${steps} />`}</${Shown}>`
}

/** What changed; of secret fields only whether they did. @param {{ before: any, after: any, secret?: string[], isGraph?: boolean }} props `isGraph`: without what only its loop reads. */
function Change ({ before, after, secret = [], isGraph = false }) {
  const hidden = useMemo(() => (secret.length === 0 ? [before, after] : [masked(before, secret), masked(after, secret, before)]).map((state) => isGraph ? known(state) : state), [before, after, secret.join('\n'), isGraph])
  return html`<${Diff} before=${hidden[0]} after=${hidden[1]} />`
}

/** @param {{ space: string, name: string, found: any, before: any, labels: string[], query: Record<string, string>, steps: any[] }} props */
function State ({ space, name, found, before, labels, query, steps }) {
  const [isOpen, setOpen] = useState(false)
  const secret = isOpen ? [] : found.secret ?? []
  const state = useMemo(() => masked(found.state, secret), [found, isOpen])
  const hasHidden = useMemo(() => (found.secret ?? []).length > 0 && JSON.stringify(masked(found.state, found.secret)) !== JSON.stringify(found.state), [found])
  const talks = useMemo(() => conversations(state), [state])
  const tabs = ['changes', ...(talks.length > 0 ? ['messages'] : []), 'state', 'about']
  const tab = tabs.includes(query.show) ? query.show : before === undefined ? 'state' : 'changes'
  const [doing, setDoing] = useState('')
  useKeys([...tabs.map((each, index) => ({ key: String(index + 1), says: `show ${each}`, does: () => refine({ show: each }) })), { key: 'f', says: 'fork here', does: () => setDoing('fork') }], [tabs.join()])
  const isHead = found.heads.includes(found.id)
  const isGraph = found.schema === GRAPH
  const ended = (/** @type {any} */ saved) => { setDoing(''); if (saved?.id) go(address(space, 'threads', [name, 'at', saved.id])) }
  return html`<div class="thread-head"><h2 class="sentence">${labels.length > 0 ? html`<bdi>${labels.join(', ')}</bdi>` : 'Checkpoint'} <${Id} value=${found.id} /></h2>
    <p class="quiet"><${Time} ms=${found.wall_ms} ago />, on <bdi>${found.branch}</bdi>${found.author && html`, by <bdi>${found.author}</bdi>`}${isHead ? ', its head' : ''}${isGraph && typeof found.metadata?.step === 'number' ? `, step ${found.metadata.step} of the graph` : ''}</p>
    <div class="row">${doing === 'fork' ? html`<${EditState} space=${space} name=${name} checkpoint=${found.id} forks onEnd=${ended} />` : html`<button class="primary" onClick=${() => setDoing('fork')}>Fork here</button>`}
      ${!isHead && html`<${Confirm} what=${`rollback ${space}/${name}/${found.id}`} label="Roll back to here" says=${isGraph ? html`Branch <bdi>${found.branch}</bdi> goes back to this checkpoint. A running graph does not read it: it goes on from LangGraph's own checkpoints. To let it go on from this one, call <code>graph.invoke(None, config)</code> with the config that <code>graph.get_state_history</code> has for it.` : html`Branch <bdi>${found.branch}</bdi> goes back to this checkpoint, and its agent loads this state next.`} undo="No checkpoint is deleted: roll forward to the former head in the same way."
        run=${(/** @type {any} */ how) => threadOf(space, name).rollback(found.id, { branch: found.branch, ...how })} done="The branch is here now." />`}
      ${hasHidden && html`<button onClick=${() => setOpen(!isOpen)}>${isOpen ? 'Hide' : 'Show'} secret fields</button>`}
      <${Label} space=${space} name=${name} found=${found} />${labels.map((label) => html`<${Unlabel} key=${label} space=${space} name=${name} label=${label} />`)}</div></div>
    <div class="tabs" role="tablist" aria-label="What is shown">${tabs.map((each) => html`<button role="tab" aria-selected=${each === tab} onClick=${() => refine({ show: each })}>${each[0].toUpperCase() + each.slice(1)}</button>`)}</div>
    <div role="tabpanel" aria-label=${tab}>${tab === 'changes' ? before === undefined ? html`<p class="quiet">Its parent was pruned, so what it changed is unknown.</p>` : html`<${Change} before=${before} after=${found.state} secret=${secret} isGraph=${isGraph} />`
      : tab === 'messages' ? talks.map(([channel, value]) => html`<section>${talks.length > 1 && html`<h3><bdi>${channel}</bdi></h3>`}<${Messages} value=${value} steps=${steps} /></section>`)
        : tab === 'state' ? html`<${Tree} value=${state} />` : html`<${Tree} value=${{ id: found.id, saved: exact(found.wall_ms), branch: found.branch, author: found.author, parents: found.parents, metadata: found.metadata, ...(found.schema ? { schema: `${found.schema} ${found.schema_version}` } : {}), ...(found.secret?.length ? { secret: found.secret } : {}) }} />`}</div>`
}

/** A channel as it is, because a checkpoint that changes nothing names one; none that hides something. @param {any} found @returns {Record<string, any>} */
function unchanged (found) {
  const names = Object.keys(found.state).filter((name) => !found.secret?.some((/** @type {string} */ pointer) => pointer.startsWith(`/${name}`)))
  return Object.fromEntries(names.slice(0, 1).map((name) => [name, found.state[name]]))
}

/** @param {{ space: string, name: string, found: any }} props */
function Label ({ space, name, found }) {
  const key = `label ${space}/${name}/${found.id}`
  const typed = draft(key)
  const isHead = found.heads[0] === found.id
  if (!isHead) return null
  return html`<${Confirm} what=${key} label="Label" says="A checkpoint with the same state, and this label, follows. Labelled ones are never pruned." undo="A label can be removed." done="Labelled."
    run=${(/** @type {any} */ how) => threadOf(space, name).update({ set: unchanged(found) }, { branch: found.branch, expectHead: found.id, label: typed.peek().trim(), author: how.by, key: how.key })} onDone=${(/** @type {any} */ saved) => { drop(key); if (saved?.id) go(address(space, 'threads', [name, 'at', saved.id])) }}>
    <label>Label<input value=${typed.value} maxlength="200" onInput=${(/** @type {any} */ event) => { typed.value = event.target.value }} /></label></${Confirm}>`
}

/** @param {{ space: string, name: string, label: string }} props */
function Unlabel ({ space, name, label }) {
  return html`<${Confirm} what=${`unlabel ${space}/${name}/${label}`} label="Remove the label" says=${html`<bdi>${label}</bdi> names no checkpoint any more, and this one may be pruned.`} undo="Only the newest checkpoint of a branch can get a label: this one cannot get it back."
    run=${(/** @type {any} */ { key }) => threadOf(space, name).unlabel(label, { key })} />`
}

/** The difference of any two checkpoints. @param {{ space: string, name: string, a: string, b: string }} props */
export function Compared ({ space, name, a, b }) {
  const both = live(`diff ${space}\n${name}\n${a}\n${b}`, () => Promise.all([a, b].map((checkpoint) => threadOf(space, name).load({ checkpoint })))).value
  return html`<${Shown} of=${both}>${([first, second]) => html`<h2 class="sentence">From <${Id} value=${a} /> to <${Id} value=${b} /></h2>
    <p class="quiet"><bdi>${first.branch}</bdi>, <${Time} ms=${first.wall_ms} ago /> → <bdi>${second.branch}</bdi>, <${Time} ms=${second.wall_ms} ago />. <a href=${address(space, 'threads', [name, 'diff', b, a])}>The other way round</a></p><${Change} before=${first.state} after=${second.state} secret=${[...new Set([...first.secret ?? [], ...second.secret ?? []])]} />`}</${Shown}>`
}

/** @param {{ space: string, name: string, step: string }} props */
export function StepPane ({ space, name, step }) {
  const found = live(`step ${space}\n${name}\n${step}`, async () => {
    for await (const each of threadOf(space, name).steps()) if (each.key === step) return each
    return null
  }, { space, kinds: ['thread'] }).value
  return html`<${Shown} of=${found}>${(/** @type {any} */ of) => of === null ? html`<p>There is no step with the key <bdi>${step}</bdi> any more.</p>` : html`<div class="thread-head"><h2 class="sentence"><${Mark} kind=${of.state === 'done' || (of.state === 'open' && clock() - of.begun_ms < OLD_STEP_MS) ? 'well' : of.state === 'open' || of.state === 'failed' ? 'stuck' : 'unknown'} /> <bdi>${of.name}</bdi> <span class="quiet">${of.state}</span></h2>
      <p class="quiet">Key <code>${of.key}</code>, began <${Time} ms=${of.begun_ms} ago />${of.ended_ms ? html`, took <${Duration} ms=${of.ended_ms - of.begun_ms} />` : ''}${of.result_by && html`, settled by <bdi>${of.result_by}</bdi>`}</p>
      ${of.state === 'open' && html`<p>Its effect may have happened, and nobody has written how it ended. Find out, then settle it.</p><${Settle} space=${space} name=${name} step=${step} />`}</div>
    <section><h3>Arguments</h3>${of.arguments === null ? html`<p class="quiet">None are recorded.</p>` : html`<${Tree} value=${of.arguments} name=${typeof of.arguments === 'object' ? undefined : 'value'} />`}</section>
    ${of.state === 'done' && html`<section><h3>Result</h3><${Tree} value=${of.result} /></section>`}
    <section><h3>Attempts</h3><ul class="attempts">${of.attempts.map((/** @type {any} */ each) => html`<li><span class="mono">${exact(each.begun_ms).slice(11, 19)}</span> ${each.state}${each.holder && html` <span class="quiet">at <bdi>${each.holder}</bdi></span>`}${each.by && html` <span class="quiet">by <bdi>${each.by}</bdi></span>`}${each.ended_ms ? html` <${Duration} ms=${each.ended_ms - each.begun_ms} />` : ''}${hasContent(each.error) && html`<${Tree} value=${each.error} />`}</li>`)}</ul></section>`}</${Shown}>`
}

/** @param {any} value */
const hasContent = (value) => value !== null && value !== undefined && value !== '' && !(typeof value === 'object' && Object.keys(value).length === 0)

/** Settle a step by a person's decision. @param {{ space: string, name: string, step: string }} props */
export function Settle ({ space, name, step }) {
  const at = `${space}/${name}/${step}`
  const [value, reason] = [draft(`result ${at}`), draft(`reason ${at}`)]
  const settle = (/** @type {any} */ how, /** @type {any} */ more) => threadOf(space, name).resolve(step, { how, reason: reason.peek(), ...more })
  const ended = () => { drop(`result ${at}`); drop(`reason ${at}`) }
  const why = html`<label>Reason<input value=${reason.value} maxlength="2000" onInput=${(/** @type {any} */ event) => { reason.value = event.target.value }} /></label>`
  return html`<div class="row">
    <${Confirm} what=${`result ${at}`} label="It happened" primary says="The step is done with this result; it is not called again, and the agent goes on." run=${(/** @type {any} */ how) => settle('result', { value: value.peek() === '' ? null : read(value.peek()), ...how })} onDone=${ended} done="Settled: the step is done.">
      <label>Result, as JSON<textarea rows="3" placeholder="null" value=${value.value} onInput=${(/** @type {any} */ event) => { value.value = event.target.value }}></textarea></label>${why}</${Confirm}>
    <${Confirm} what=${`retry ${at}`} label="It did not: try again" says="The step may be called once more." run=${(/** @type {any} */ how) => settle('retry', how)} onDone=${ended} done="Settled: it is tried again.">${why}</${Confirm}>
    <${Confirm} what=${`abandon ${at}`} label="Give it up" danger says="The step is never called again, and its agent gets an error." run=${(/** @type {any} */ how) => settle('abandon', how)} onDone=${ended} done="Settled: it is given up.">${why}</${Confirm}></div>`
}

/** A term in which somebody drove the thread under its lease. @param {{ space: string, name: string, axis: any, lease: any, id: string }} props */
export function LeasePane ({ space, name, axis, lease, id }) {
  return html`<${Shown} of=${axis}>${(/** @type {any} */ value) => {
    const of = value.entries.find((/** @type {any} */ entry) => entry.kind === 'lease' && entry.id === id)?.of
    if (of === undefined) return html`<p>This term of the lease is older than what is shown, or was never noted.</p>`
    const { untilMs, isHeld, how } = termOf(of, lease?.held ? lease.fence : undefined)
    const saved = value.entries.filter((/** @type {any} */ { kind, ms }) => kind === 'checkpoint' && ms >= of.from_ms && (untilMs === 0 || ms <= untilMs)).length
    const other = (/** @type {any} */ term) => term ? html`<a href=${address(space, 'threads', [name, 'lease', String(term.fence)])}><bdi>${term.holder || 'a holder without a name'}</bdi></a>` : 'nobody'
    return html`<h2 class="sentence"><bdi>${of.holder || 'A holder without a name'}</bdi> ${isHeld ? 'drives the thread' : 'drove the thread'}</h2>
      <dl class="facts"><dt>taken</dt><dd class="mono">${exact(of.from_ms)}</dd><dt>ended</dt><dd>${isHeld ? html`not yet${lease.until_ms ? html`: it was renewed, and lasts until <span class="mono">${exact(lease.until_ms).slice(11, 19)}</span> unless it is renewed again` : ''}` : html`${of.until_ms > 0 && html`<span class="mono">${exact(of.until_ms)}</span>, `}${how}`}</dd>
        <dt>for</dt><dd>${untilMs > 0 ? html`<${Duration} ms=${Math.max(0, untilMs - of.from_ms)} />` : 'unknown'}</dd><dt>fencing number</dt><dd class="mono">${of.fence}</dd>
        <dt>before it</dt><dd>${other(of.before)}</dd><dt>after it</dt><dd>${other(of.next)}</dd><dt>checkpoints meanwhile</dt><dd class="mono">${saved}</dd></dl>`
  }}</${Shown}>`
}

/** @param {{ space: string, name: string, axis: any, id: string, atMs: number }} props `atMs`: when it was written, as its address says; 0: it does not say. */
export function EventPane ({ space, name, axis, id, atMs }) {
  return html`<${Shown} of=${axis}>${(/** @type {any} */ value) => {
    const found = value.entries.find((/** @type {any} */ entry) => entry.kind === 'event' && entry.id === id)?.of
    if (found === undefined && atMs > 0) return html`<h2 class="sentence">Event <${Id} value=${id} /></h2><p class="quiet"><${Time} ms=${atMs} ago /></p><${Long} space=${space} name=${name} event=${{ id, wall_ms: atMs }} />`
    if (found === undefined) return html`<p>This event is older than what is shown, or was trimmed.</p>`
    return html`<h2 class="sentence">Event <${Id} value=${found.id} /></h2><p class="quiet"><${Time} ms=${found.wall_ms} ago />${found.by && html`, by <bdi>${found.by}</bdi>`}</p>
      ${found.erased ? html`<p>Its value was erased.</p>` : found.whole ? html`<${Value} value=${found.data} />` : html`<${Long} space=${space} name=${name} event=${found} />`}`
  }}</${Shown}>`
}

/** @param {{ value: any }} props */
const Value = ({ value }) => html`<${Tree} value=${value} name=${value !== null && typeof value === 'object' ? undefined : 'value'} />`

const NEAR_MAX = 200

/** An event that is too long for a time line. @param {{ space: string, name: string, event: any }} props */
function Long ({ space, name, event }) {
  const found = live(`event ${space}\n${name}\n${event.id}`, async () => {
    for await (const each of threadOf(space, name).journal.read({ sinceMs: event.wall_ms, limit: NEAR_MAX, skipTrimmed: true })) if (each.id === event.id) return { of: each }
    return { of: undefined }
  }).value
  return html`<${Shown} of=${found}>${(/** @type {any} */ { of }) => of === undefined ? html`<p>It was trimmed or erased meanwhile.</p>` : html`<${Value} value=${of.event} />`}</${Shown}>`
}
