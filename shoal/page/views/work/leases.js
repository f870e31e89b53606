/** A lease: who holds it, how long unless it is renewed, who waits for it, and its end by a person who sees that its holder is gone or wrong. */

import { html, useEffect, useState } from '../../vendor/preact.js'
import { client, draft, drop, live } from '../../data.js'
import { address } from '../../router.js'
import { shell } from '../../kit/shell.js'
import { Confirm, Empty, Mark, Shown } from '../../kit/states.js'
import { clock, Duration } from '../../kit/time.js'

const EVERY_MS = 2000
const TICK_MS = 1000

/** The time that is left, counted down. @param {{ lease: any }} props */
export function Left ({ lease }) {
  const [now, setNow] = useState(clock())
  useEffect(() => {
    const timer = setInterval(() => setNow(clock()), TICK_MS)
    return () => clearInterval(timer)
  }, [])
  if (lease.until_ms === null) return 'time left unknown'
  const left = lease.until_ms - now
  return left > 0 ? html`<${Duration} ms=${left} /> left` : 'ends now'
}

/** @param {{ space: string, name: string }} props */
export function LeaseView ({ space, name }) {
  const found = live(`lease ${space}/${name}`, async (signal) => (await client().space(space).leases({ signal })).find(({ lease }) => lease === name) ?? null, { every: EVERY_MS })
  return html`<article aria-label=${`lease ${name}`}><div class="head-line"><span class="quiet">lease</span><h2><bdi>${name}</bdi></h2></div>
    <${Shown} of=${found.value}>${(/** @type {any} */ lease) => lease === null
      ? html`<${Empty} why="Nobody holds this lease." command=${shell`shoal lease run ${name} --space ${space} -- PROGRAM`} />`
      : html`<p class="says"><${Mark} kind=${lease.held ? 'well' : 'unknown'} /> <bdi>${lease.holder || 'unknown'}</bdi> holds it; <${Left} lease=${lease} /> unless it is renewed.</p>
        <dl class="facts"><dt>for</dt><dd>${lease.thread ? html`the thread <a href=${address(space, 'threads', [name])}><bdi>${name}</bdi></a>` : 'a purpose of its name'}</dd>
          <dt>renewed for</dt><dd><${Duration} ms=${lease.ttl * 1000} /></dd><dt>fencing number</dt><dd class="mono">${lease.fence}</dd>
          <dt>waiting</dt><dd>${lease.waiting.length === 0 ? 'nobody' : html`<ol class="plain">${lease.waiting.map((/** @type {string} */ each) => html`<li><bdi>${each}</bdi></li>`)}</ol>`}</dd></dl>
        ${lease.held && html`<${EndLease} space=${space} name=${name} lease=${lease} />`}
        <p class="quiet">If its holder is gone, the lease ends by itself once it is not renewed.</p>`}</${Shown}></article>`
}

/** End a lease that somebody else holds, or hand it over to one that waits. @param {{ space: string, name: string, lease: any }} props */
export function EndLease ({ space, name, lease }) {
  const what = `end lease ${space}/${name}`
  const [to, reason] = [draft(`${what} to`), draft(`${what} reason`)]
  return html`<${Confirm} what=${what} label=${lease.waiting.length > 0 ? 'Hand its lease over' : 'End its lease'} danger says=${html`<bdi>${lease.holder || 'Its holder'}</bdi> may not write under it any more. ${lease.waiting.length > 0 ? 'The one that is chosen' : 'The next one that asks'} gets it once the former term is over everywhere.`}
    undo="The former holder can acquire it again." done=${lease.waiting.length > 0 ? 'Ended; the next one gets it.' : 'Ended.'} onDone=${() => { drop(`${what} to`); drop(`${what} reason`) }}
    run=${async (/** @type {any} */ { by, key }) => {
      const isEnded = await client().space(space).endLease(name, { fence: lease.fence, thread: lease.thread, to: to.peek(), by, reason: reason.peek(), key })
      if (!isEnded) throw new Error('Somebody else holds it by now. Nothing was written. Look who, and decide again.')
    }}>
    ${lease.waiting.length > 0 && html`<label>Hand it to<select value=${to.value} onChange=${(/** @type {any} */ event) => { to.value = event.target.value }}><option value="">the first that waits</option>${lease.waiting.map((/** @type {string} */ each) => html`<option value=${each}>${each}</option>`)}</select></label>`}
    <label>Reason<input value=${reason.value} maxlength="2000" onInput=${(/** @type {any} */ event) => { reason.value = event.target.value }} /></label></${Confirm}>`
}
