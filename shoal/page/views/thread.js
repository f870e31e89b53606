/** A thread: its status and who drives it, what can be done, and its time line; a moment of it opens beside. */

import { Fragment, html, useState } from '../vendor/preact.js'
import { acted, act, client, live } from '../data.js'
import { address, go, place } from '../router.js'
import { shell } from '../kit/shell.js'
import { Confirm, Empty, Mark, Outcome, Panes, Shown, useKept } from '../kit/states.js'
import { bytes, clock, span, Time } from '../kit/time.js'
import { Decide, Late, late } from './now.js'
import { EditState } from './editing.js'
import { Questions } from './questions.js'
import { Compared, EventPane, LastChange, LeasePane, Moment, StepPane } from './moment.js'
import { FileList, FilePane } from './files.js'
import { EndLease } from './work/leases.js'
import { axis, first, OLD_STEP_MS, TimeLine } from './timeline.js'

/** A handle of a thread. @param {string} space @param {string} name */
export const threadOf = (space, name) => client().space(space).thread(name)

/**
 * The thread, if it still asks what was shown: of two people who decide at once, the second is told what the first did.
 * @param {string} space @param {string} name @param {number} since When it asked.
 */
export async function still (space, name, since) {
  const thread = threadOf(space, name)
  const { status, by, wall_ms: ms } = await thread.status()
  if (ms === since) return thread
  const isAsking = status === 'waiting' || status === 'paused'
  throw new Error(`${isAsking ? 'It asks for something else by now' : `${by || 'Somebody'} has decided meanwhile: it is ${status}`}. Nothing was written. Look at it again.`)
}

const OPEN_MAX = 20

/** @param {string} space @param {string} name */
const standing = (space, name) => live(`standing ${space}\n${name}`, async () => {
  const thread = threadOf(space, name)
  const [status, lease, open, { threads: [summary] }] = await Promise.all([thread.status(), thread.lease().catch(() => undefined), first(thread.steps({ open: true, limit: OPEN_MAX }), OPEN_MAX), client().space(space).summaries({ prefix: name, limit: 1 })])
  return { status, lease, open, questions: summary?.name === name ? summary.questions : [] }
}, { space, kinds: ['thread', 'lease'], every: 15_000 })

/** @param {string} space @param {string} name @param {number} pages */
const axisOf = (space, name, pages) => live(`axis ${pages} ${space}\n${name}`, () => axis(threadOf(space, name), pages), { space: pages > 1 ? undefined : space, kinds: ['thread', 'label'], every: pages > 1 ? 5_000 : 30_000 })

const KINDS = /** @type {Record<string, 'well' | 'waits' | 'stuck' | 'unknown'>} */ ({ running: 'well', done: 'well', waiting: 'waits', paused: 'waits', failed: 'stuck' })
const SAYS = /** @type {Record<string, string>} */ ({ running: 'is well', done: 'is done', waiting: 'waits for a person', paused: 'is paused', failed: 'failed' })

/** The thread as a pane. @param {{ space: string, name: string, part?: string, id?: string, query?: Record<string, string> }} props */
export function ThreadPane ({ space, name, part, id, query = {} }) {
  const [pages, setPages] = useState(1)
  const [isEditing, setEditing] = useState(false)
  const is = standing(space, name).value
  const line = useKept(axisOf(space, name, pages).value, `${space}\n${name}`)
  const open = is.value?.open ?? []
  const status = is.value?.status
  const isBare = line.value?.entries.length === 0
  const questions = status?.status === 'running' ? is.value?.questions ?? [] : []
  const kind = isBare ? 'unknown' : open.length > 0 && status?.status === 'running' && open.some((/** @type {any} */ step) => clock() - step.begun_ms > OLD_STEP_MS) ? 'stuck' : questions.length > 0 ? 'waits' : KINDS[status?.status ?? ''] ?? 'unknown'
  return html`<div class="thread-head"><h2 class="sentence">${status && html`<${Mark} kind=${kind} /> `}<bdi>${name}</bdi> <span class="quiet">${status === undefined ? '' : isBare ? 'holds nothing' : kind === 'stuck' && status.status === 'running' ? 'is stuck' : questions.length > 0 ? 'waits for an answer' : SAYS[status.status]}</span></h2>
    <${Shown} of=${is} rows=${1}>${() => html`${(status.reason || status.by) && html`<p class="says">${status.reason && html`<bdi>${status.reason}</bdi> `}${status.by && html`<span class="quiet">by <bdi>${status.by}</bdi>, <${Time} ms=${status.wall_ms} ago /></span>`}</p>`}
      <${Driver} space=${space} name=${name} lease=${is.value.lease} />`}</${Shown}>
    ${place.value.view !== 'now' && status && late.value?.space === space && late.value.name === name && late.value.since !== status.wall_ms && html`<${Late} />`}
    ${questions.length > 0 && html`<${Questions} space=${space} name=${name} questions=${questions} isWhole />`}
    ${open.map((/** @type {any} */ of) => html`<p class="row"><${Mark} kind=${clock() - of.begun_ms > OLD_STEP_MS ? 'stuck' : 'well'} /><span>Step <bdi>${of.name}</bdi> is open for <${Time} ms=${of.begun_ms} />.</span> <a href=${address(space, 'threads', [name, 'step', of.key])}>Settle it</a></p>`)}
    ${status && !isBare && (status.status === 'waiting' || status.status === 'paused' ? html`<${Decide} key=${status.wall_ms} space=${space} name=${name} isPaused=${status.status === 'paused'} since=${status.wall_ms} />` : html`<div class="row">
      ${status.status === 'running' ? html`<${Confirm} what=${`pause ${space}/${name}`} label="Pause" says="The agent stops before its next step, and a crew's agent gives its lease back." undo="Approving lets it go on." run=${(/** @type {any} */ how) => threadOf(space, name).pause(how)} done="Paused." />`
        : html`<${Confirm} what=${`approve ${space}/${name}`} label="Let it go on" says="Its status becomes running." undo="It can be paused again." run=${(/** @type {any} */ how) => threadOf(space, name).approve(how)} done="It may go on." />`}
      ${isEditing ? html`<${EditState} space=${space} name=${name} onEnd=${() => setEditing(false)} />` : html`<button onClick=${() => setEditing(true)}>Edit</button>`}
      <${Prune} space=${space} name=${name} /></div>`)}</div>
    <${FileList} space=${space} thread=${name} hrefOf=${(/** @type {string} */ file) => address(space, 'threads', [name, 'file', file])} />
    ${status?.status === 'waiting' && part === undefined && line.value?.heads.main && html`<${LastChange} space=${space} name=${name} id=${line.value.heads.main[0]} />`}
    <${Shown} of=${line} rows=${12}>${(/** @type {any} */ value) => value.entries.length === 0 ? html`<${Empty} why="No checkpoint, step or event has this name here: nothing was written yet, or it was deleted, or the name is another one. A first checkpoint makes the thread:" command=${shell`shoal save ${name} '{"found": 3}' --url ${location.origin} --space ${space}`} />` : html`<${TimeLine} of=${value} space=${space} name=${name} part=${part} id=${id} channel=${query.channel} fence=${is.value?.lease?.held ? is.value.lease.fence : undefined} onMore=${() => setPages(pages + 3)} />`}</${Shown}>`
}

/** Who drives it, and until when. @param {{ space: string, name: string, lease: any }} props */
function Driver ({ space, name, lease }) {
  if (!lease?.held) return html`<p class="quiet">Nobody drives it now.</p>`
  const left = lease.until_ms ? Math.max(0, lease.until_ms - clock()) : undefined
  return html`<p class="quiet">Driven by <bdi>${lease.holder || 'a holder without a name'}</bdi>${left === undefined ? '' : html`, whose <a href=${address(space, 'threads', [name, 'lease', String(lease.fence)])}>lease</a> ends in ${span(left)} unless it is renewed`}${lease.waiting.length > 0 ? html`; <bdi>${lease.waiting.join(', ')}</bdi> ${lease.waiting.length === 1 ? 'waits' : 'wait'} for it` : ''}.</p><${EndLease} space=${space} name=${name} lease=${lease} />`
}

/** Prune, after a dry run that says what would go. @param {{ space: string, name: string }} props */
function Prune ({ space, name }) {
  const [keep, setKeep] = useState('20')
  const what = `prune ${space}/${name}`
  const tried = acted(`dry ${what}`).value
  const keepLast = Number(keep)
  const report = tried.state === 'done' && tried.value?.keep === keepLast ? tried.value.report : undefined
  const isFit = Number.isInteger(keepLast) && keepLast > 0
  const dry = () => act(`dry ${what}`, async (how) => ({ keep: keepLast, report: await threadOf(space, name).prune({ keepLast, dryRun: true, key: how.key }) }))
  return html`<${Confirm} what=${what} label="Prune" danger undo="Checkpoints that are gone cannot be brought back. Heads and labelled ones stay." done="Pruned."
    says=${report ? html`${report.count} ${report.count === 1 ? 'checkpoint goes' : 'checkpoints go'}, which frees ${bytes(report.bytes)} on each node; ${Object.entries(report.stays).map(([why, count]) => `${count} ${Number(count) === 1 ? 'stays' : 'stay'} (${why})`).join(', ') || 'none stays'}.` : 'Old checkpoints go, but for the newest of each branch. See first which.'}
    run=${(/** @type {any} */ how) => { if (!isFit) throw new Error('Keep at least one checkpoint. Nothing was written.'); return threadOf(space, name).prune({ keepLast, key: how.key }) }}>
    <label>Keep the newest<input type="number" min="1" value=${keep} onInput=${(/** @type {any} */ event) => setKeep(event.target.value)} /></label><button disabled=${!isFit} onClick=${dry}>See what would go</button><${Outcome} what=${`dry ${what}`} /></${Confirm}>`
}

/** The steps that are seen on the axis. @param {any} line */
const stepsOf = (line) => line?.entries.filter((/** @type {any} */ { kind }) => kind === 'step').map((/** @type {any} */ { of }) => of) ?? []

/** The thread on the left, and a moment of it on the right. @param {{ space: string, name: string, part: string, rest: string[], query: Record<string, string> }} props */
export function ThreadPlace ({ space, name, part, rest, query }) {
  const chosen = part === 'at' ? html`<${Moment} key=${rest[0]} space=${space} name=${name} id=${rest[0]} query=${query} steps=${stepsOf(axisOf(space, name, 1).value.value)} />`
    : part === 'diff' ? html`<${Compared} space=${space} name=${name} a=${rest[0]} b=${rest[1]} />`
      : part === 'step' ? html`<${StepPane} key=${rest[0]} space=${space} name=${name} step=${rest[0]} />`
        : part === 'lease' ? html`<${LeasePane} key=${rest[0]} space=${space} name=${name} axis=${axisOf(space, name, 1).value} lease=${standing(space, name).value.value?.lease} id=${rest[0]} />`
          : part === 'file' ? html`<${FilePane} key=${rest[0]} space=${space} thread=${name} name=${rest[0]} onGone=${() => go(address(space, 'threads', [name]))} />`
          : part === 'event' ? html`<${EventPane} key=${rest[0]} space=${space} name=${name} atMs=${Number(query.ms) || 0} axis=${axisOf(space, name, 1).value} id=${rest[0]} />` : html`<${Empty} why=${`A thread has no part ${part}.`} />`
  return html`<${Panes} list=${html`<${Fragment}><button class="link up" onClick=${() => go(address(space, 'threads', [name]))}>← thread</button><${ThreadPane} space=${space} name=${name} part=${part} id=${rest.at(-1)} query=${query} /></${Fragment}>`} chosen=${chosen} />`
}
