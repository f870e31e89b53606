/** A lease: who holds it, how long unless it is renewed, and who waits for it. */

import { html, useEffect, useState } from '../../vendor/preact.js'
import { client, live } from '../../data.js'
import { address } from '../../router.js'
import { Empty, Mark, Shown } from '../../kit/states.js'
import { Duration } from '../../kit/time.js'

const EVERY_MS = 2000
const TICK_MS = 1000

/** The time that is left, counted down. @param {{ lease: any }} props */
export function Left ({ lease }) {
  const [now, setNow] = useState(Date.now())
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), TICK_MS)
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
      ? html`<${Empty} why="Nobody holds this lease." command=${`shoal lease run ${name} --space ${space} -- PROGRAM`} />`
      : html`<p class="says"><${Mark} kind=${lease.held ? 'well' : 'unknown'} /> <bdi>${lease.holder || 'unknown'}</bdi> holds it; <${Left} lease=${lease} /> unless it is renewed.</p>
        <dl class="facts"><dt>for</dt><dd>${lease.thread ? html`the thread <a href=${address(space, 'threads', [name])}><bdi>${name}</bdi></a>` : 'a purpose of its name'}</dd>
          <dt>renewed for</dt><dd><${Duration} ms=${lease.ttl * 1000} /></dd><dt>fencing number</dt><dd class="mono">${lease.fence}</dd>
          <dt>waiting</dt><dd>${lease.waiting.length === 0 ? 'nobody' : html`<ol class="plain">${lease.waiting.map((/** @type {string} */ each) => html`<li><bdi>${each}</bdi></li>`)}</ol>`}</dd></dl>
        <p class="quiet">Only its holder can release it, or hand it to one that waits: a lease is bound to a secret that the holder has. If the holder is gone, the lease ends by itself.</p>`}</${Shown}></article>`
}
