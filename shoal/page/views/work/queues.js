/** A worklist or an inbox: what is to do, what was given up, what is done; entries are put back, finished and added in place. */

import { html } from '../../vendor/preact.js'
import { client, live } from '../../data.js'
import { address, refine } from '../../router.js'
import { shell } from '../../kit/shell.js'
import { Empty, Mark, Shown } from '../../kit/states.js'
import { Time } from '../../kit/time.js'
import { Tree } from '../../kit/tree.js'
import { Action, ValueForm } from '../shared/form.js'
import { clip } from '../shared/listing.js'

const SHOWN_MAX = 200
const PARTS = /** @type {[string, string][]} */ ([['pending', 'to do'], ['dead', 'given up'], ['finished', 'done']])

/** @param {{ space: string, kind: string, thread: string, name: string | undefined, query: Record<string, string> }} props */
export function QueueView ({ space, kind, thread, name, query }) {
  const handle = client().space(space).thread(thread)
  const queue = name === undefined ? handle.inbox : handle.worklist(name)
  const title = name === undefined || name === thread ? thread : `${thread} / ${name}`
  const part = /** @type {'pending' | 'dead' | 'finished'} */ (PARTS.some(([each]) => each === query.part) ? query.part : 'pending')
  const what = `${kind} ${space}/${thread}/${name ?? ''}`
  const found = live(`${what} ${part}`, (signal) => queue.page({ part, limit: SHOWN_MAX, signal }), { space, kinds: ['thread'] })
  return html`<article aria-label=${`${kind} ${title}`}><div class="head-line"><span class="quiet">${kind}</span><h2><bdi>${title}</bdi></h2><a href=${address(space, 'threads', [thread])}>its thread</a></div>
    <${Shown} of=${found.value}>${(/** @type {any} */ page) => html`
      <div class="tabs" role="tablist" aria-label="Parts of the queue">${PARTS.map(([each, says]) => html`<button type="button" role="tab" aria-selected=${each === part}
        onClick=${() => refine({ part: each })}>${page[each]} ${says}</button>`)}</div>
      ${page.entries.length === 0 && html`<${Empty} why=${part === 'dead' ? 'Nothing was given up.' : part === 'finished' ? 'Nothing is done yet.' : 'Nothing is to do.'}
        command=${part !== 'pending' ? '' : name === undefined ? shell`shoal inbox send ${thread} '"hello"' --space ${space}` : shell`shoal worklist add ${thread} ${name} '{"page": 1}' --space ${space}`} />`}
      <ul class="rows">${page.entries.map((/** @type {any} */ entry) => html`<li key=${entry.id}><${Entry} queue=${queue} what=${what} entry=${entry} part=${part} worklist=${name !== undefined} /></li>`)}</ul>
      ${page.more && html`<p class="quiet">Only the first ${SHOWN_MAX} are shown.</p>`}
      <${ValueForm} title=${name === undefined ? 'Send a message' : 'Add an item'} button=${name === undefined ? 'Send' : 'Add'} what=${`add ${what}`}
        fields=${name === undefined ? [] : [{ name: 'key', label: 'Key' }]}
        says=${name === undefined ? 'The agent takes it when it looks into its inbox; take it out before that to undo it.' : 'A worker gets it once; an item with this key that is there stays as it is.'}
        run=${(/** @type {any} */ { key: item }, /** @type {any} */ value, /** @type {any} */ { by, key }) => queue.add([{ key: item || undefined, value }], { by, key })} />`}</${Shown}></article>`
}

/** @param {{ queue: any, what: string, entry: any, part: string, worklist: boolean }} props */
function Entry ({ queue, what, entry, part, worklist }) {
  const { tried } = entry
  const [finish] = entry.finishes
  return html`<details class="entry"><summary>${part === 'dead' && html`<${Mark} kind="stuck" /> `}<strong><bdi>${entry.key ?? ''}</bdi></strong> <span class="clip mono quiet">${clip(entry.value)}</span>
      <span class="quiet">${finish ? html`by <bdi>${finish.by || 'somebody'}</bdi> <${Time} ms=${finish.wall_ms} />` : tried?.state === 'claimed' ? html`<${Mark} kind="well" /> <bdi>${tried.by}</bdi>, attempt ${tried.attempt}`
        : tried ? html`attempt ${tried.attempt}: <bdi>${tried.reason}</bdi>` : html`<${Time} ms=${entry.wall_ms} />`}</span></summary>
    <${Tree} value=${entry.value} />
    ${tried && html`<p class="quiet">${tried.state} by <bdi>${tried.by || 'somebody'}</bdi>, attempt ${tried.attempt}, <${Time} ms=${tried.wall_ms} />${tried.reason && html`: <bdi>${tried.reason}</bdi>`}</p>`}
    ${finish && finish.result !== null && html`<h4>Result</h4><${Tree} value=${finish.result} />`}
    ${part === 'dead' && worklist && html`<${Action} what=${`revive ${what} ${entry.id}`} primary label="Put back" says="Workers get it again; its attempts are counted anew."
      run=${(/** @type {any} */ { by, key }) => queue.revive(entry.id, { by, key })} />`}
    ${part === 'pending' && (worklist
      ? html`<${Action} what=${`done ${what} ${entry.id}`} label="Mark as done" says="No worker gets it any more. This cannot be undone." run=${(/** @type {any} */ { by, key }) => queue.done(entry.id, null, { by, key })} />`
      : html`<${Action} what=${`take ${what} ${entry.id}`} label="Take it out" says="The agent does not get it any more." run=${(/** @type {any} */ { by, key }) => queue.take(entry.id, { by, key })} />`)}
  </details>`
}
