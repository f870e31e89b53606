/** Now: which agent waits for a person or is stuck, and why, decided in place; then what happened last. */

import { html, signal, useEffect, useRef, useState } from '../vendor/preact.js'
import { ShoalError } from '../client/index.js'
import { acted, draft, drop } from '../data.js'
import { address, EVERY_SPACE, go } from '../router.js'
import { Confirm, Empty, Mark, Panes, Refusal, Sentence, Shown, SpacesLeft } from '../kit/states.js'
import { Table } from '../kit/table.js'
import { Time } from '../kit/time.js'
import { columns, glances, isAgent, keyOf, STUCK_MAX, Sum } from './glance.js'
import { EditState } from './editing.js'
import { Questions } from './questions.js'
import { still, ThreadPane, threadOf } from './thread.js'

export const title = 'Now'
export const keys = []

/** What somebody else decided before it was decided here: its row goes, and takes along what was said and typed there. @type {import('../vendor/preact.js').Signal<{ space: string, name: string, since: number, error: any, reason: string } | undefined>} */
export const late = signal(/** @type {any} */ (undefined))

/** That it was decided elsewhere, with the reason that was typed for it here. */
export function Late () {
  const { space, name, error, reason } = /** @type {any} */ (late.value)
  const close = () => { late.value = undefined; drop(`reason ${space}/${name}`) }
  return html`<section aria-label="Decided meanwhile"><h2><bdi>${name}</bdi></h2><${Refusal} error=${error} />${reason && html`<p class="quiet">Your reason was not written: <bdi>${reason}</bdi></p>`}<button onClick=${close}>OK</button></section>`
}

/** @param {{ space: string, path: string[], query: Record<string, string> }} props */
export function View ({ space, path, query }) {
  const [waits, stuck, all] = [glances(space, { state: 'waits', limit: 50 }).value, glances(space, { state: 'stuck', limit: STUCK_MAX }).value, glances(space, {}).value]
  const chosen = space === EVERY_SPACE ? path.slice(0, 2) : path.length > 0 ? [space, path[0]] : []
  const to = (/** @type {any} */ row) => address(space, 'now', space === EVERY_SPACE ? [row.space, row.name] : [row.name])
  const isReady = waits.value && stuck.value && all.value
  // Both come at once: a button that moves may be hit for another.
  const isAsked = waits.value && stuck.value
  const list = html`<${Sentence}>${isReady ? html`<${Sum} space=${space} waits=${waits.value} stuck=${stuck.value} all=${all.value} />` : ' '}</${Sentence}>
    ${[stuck, waits].map((each) => each.state === 'refused' && html`<${Shown} of=${each}>${() => null}</${Shown}>`)}
    ${isAsked && late.value && !waits.value.threads.some((/** @type {any} */ row) => row.space === late.value?.space && row.name === late.value?.name && row.since_ms === late.value?.since) && html`<${Late} />`}
    ${isAsked && stuck.value.threads.length > 0 && html`<section class="asks"><h2>Stuck</h2>${stuck.value.threads.map((/** @type {any} */ row) => html`<${Ask} key=${keyOf(row)} row=${row} href=${to(row)} scope=${space} isChosen=${chosen[0] === row.space && chosen[1] === row.name} />`)}</section>`}
    ${isAsked && waits.value.threads.length > 0 && html`<section class="asks"><h2>Waiting for a person</h2>${waits.value.threads.map((/** @type {any} */ row) => html`<${Ask} key=${keyOf(row)} row=${row} href=${to(row)} scope=${space} isChosen=${chosen[0] === row.space && chosen[1] === row.name} />`)}</section>`}
    <${Shown} of=${all}>${(/** @type {any} */ value) => value.threads.length === 0 && html`<${Empty} why="Threads appear here as soon as an agent saves its first checkpoint. To see nine of them at work:" command="shoal demo --url ${location.origin}" />`}</${Shown}>
    ${all.value?.threads.length > 0 && html`<h2>Recent</h2>${all.value.more && html`<p class="quiet note">Of the first ${all.value.threads.length} by name. <a href=${address(space, 'threads')}>All threads</a>, or what was done last: <a href=${address(space, 'audit')}>Audit</a></p>`}<${Table} label="Recent threads" columns=${columns({ spaces: space === EVERY_SPACE, isNarrow: chosen.length > 0 })}
      rows=${all.value.threads.filter(isAgent).sort((/** @type {any} */ a, /** @type {any} */ b) => (b.checkpoint_ms || b.since_ms) - (a.checkpoint_ms || a.since_ms))} rowKey=${keyOf} href=${to}
      chosen=${chosen.join('\n') || undefined} onChoose=${(/** @type {any} */ row) => go(to(row))} anew=${space} />`}<${SpacesLeft} more=${all.value?.left} />`
  return html`<${Panes} list=${list} chosen=${chosen.length === 2 && html`<${ThreadPane} key=${chosen.join('\n')} space=${chosen[0]} name=${chosen[1]} query=${query} />`} />`
}

/** A thread that asks for something, with what can be decided. @param {{ row: any, href: string, scope: string, isChosen: boolean }} props */
function Ask ({ row, href, scope, isChosen }) {
  return html`<article class=${isChosen ? 'ask chosen' : 'ask'} aria-current=${isChosen ? 'true' : undefined}><div class="row"><${Mark} kind=${row.state} /><a href=${href}><strong>${scope === EVERY_SPACE && html`<span class="quiet"><bdi>${row.space}</bdi> / </span>`}<bdi>${row.name}</bdi></strong></a>
    <span class="quiet"><${Time} ms=${row.since_ms || row.steps[0]?.begun_ms || row.checkpoint_ms} /></span>${row.driver && html`<span class="quiet">driven by <bdi>${row.driver}</bdi></span>`}</div>
    <p class="says"><bdi>${row.questions.length > 1 || row.questions[0]?.answered ? row.says : row.asks || row.says}</bdi>${row.asks && row.by && !row.questions.length && html` <span class="quiet">asked by <bdi>${row.by}</bdi></span>`}</p>
    ${row.questions.length > 0 && row.state === 'waits' ? html`<${Answer} row=${row} />` : row.state === 'waits' ? html`<${Decide} key=${row.since_ms} space=${row.space} name=${row.name} isPaused=${row.status === 'paused'} since=${row.since_ms} />` : html`<${Unstick} row=${row} />`}</article>`
}

/** What its graph asks is answered where that runs. @param {{ row: any }} props */
function Answer ({ row }) {
  const [isOpen, setOpen] = useState(false)
  return isOpen ? html`<${Questions} space=${row.space} name=${row.name} questions=${row.questions} />` : html`<div class="row"><button class="primary" onClick=${() => setOpen(true)}>${row.questions.every((/** @type {any} */ each) => each.answered) ? 'How it goes on' : 'Answer'}</button></div>`
}

/**
 * Approve, reject, or edit and approve; one that was paused asks for nothing, and is let go on or ended.
 * @param {{ space: string, name: string, isPaused: boolean, since: number }} props `since`: when it asked what is shown; also as the key, so that what was pressed for one question is not
 *   there for the next.
 */
export function Decide ({ space, name, isPaused, since }) {
  const at = `${space}/${name}`
  const reason = draft(`reason ${at}`)
  const [isEditing, setEditing] = useState(false)
  const open = useRef(/** @type {Set<string>} */ (new Set()))
  const told = (/** @type {any} */ error) => { late.value = { space, name, since, error, reason: reason.peek() } }
  /** @param {(thread: any) => Promise<any>} decide */
  const decided = (decide) => still(space, name, since).then(decide).catch((error) => {
    if (!(error instanceof ShoalError) || error.code === 'status-changed') told(error)
    throw error
  })
  // What is open goes with its row once somebody else decides; then that is told, and what was typed.
  useEffect(() => () => {
    const isOwn = [`approve ${at} ${since}`, `reject ${at} ${since}`, `edit state ${at}/main ${since}`].some((what) => ['running', 'done'].includes(acted(what).peek().state))
    if (open.current.size > 0 && !isOwn) still(space, name, since).catch((error) => { if (!(error instanceof ShoalError)) told(error) })
  }, [])
  const asks = (/** @type {string} */ what) => (/** @type {boolean} */ is) => { is ? open.current.add(what) : open.current.delete(what) }
  asks('edit')(isEditing)
  if (isEditing) return html`<div class="row"><${EditState} space=${space} name=${name} approves since=${since} onEnd=${() => setEditing(false)} /></div>`
  return html`<div class="row">
    <${Confirm} what=${`approve ${at} ${since}`} label=${isPaused ? 'Let it go on' : 'Approve'} primary says="The agent goes on with its next step." undo="It can be paused again." onAsk=${asks('approve')} run=${(/** @type {any} */ how) => decided((thread) => thread.approve({ ...how, expectMs: since }))} done=${isPaused ? 'It may go on.' : 'Approved: the agent goes on.'} />
    <${Confirm} what=${`reject ${at} ${since}`} label=${isPaused ? 'End it' : 'Reject'} danger says="The thread ends as failed, with your reason." undo="Approving it later lets it go on." onAsk=${asks('reject')} run=${(/** @type {any} */ how) => decided((thread) => thread.fail({ ...how, reason: reason.peek(), expectMs: since }))} onDone=${() => drop(`reason ${at}`)} done=${isPaused ? 'Ended.' : 'Rejected.'}>
      <label>Reason<input value=${reason.value} maxlength="2000" onInput=${(/** @type {any} */ event) => { reason.value = event.target.value }} /></label></${Confirm}>
    <button onClick=${() => setEditing(true)}>Edit first</button></div>`
}

/** What lets a stuck thread go on. @param {{ row: any }} props */
function Unstick ({ row }) {
  const at = `${row.space}/${row.name}`
  const step = row.steps[0]
  return html`<div class="row">${row.status === 'failed' && html`<${Confirm} what=${`approve ${at}`} label="Let it go on" primary says="Its status becomes running, and its agent may go on from its last checkpoint." undo="It can be paused again."
      run=${(/** @type {any} */ how) => threadOf(row.space, row.name).approve(how)} done="It may go on." />`}
    ${step && html`<a class="button" href=${address(row.space, 'threads', [row.name, 'step', step.key])}>Settle ${step.name}</a>`}</div>`
}
