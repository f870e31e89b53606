/** The backup of the cluster: where it is, how far behind, when it was last found sound. */

import { html } from '../../vendor/preact.js'
import { client, live } from '../../data.js'
import { Empty, Mark, Shown } from '../../kit/states.js'
import { bytes, span, Time } from '../../kit/time.js'

const EVERY_MS = 10_000
const MARKS = /** @type {Record<string, 'well' | 'waits' | 'stuck'>} */ ({ current: 'well', behind: 'waits', failing: 'stuck' })
const SAYS = /** @type {Record<string, string>} */ ({ current: 'all that this node holds is in it', behind: 'something waits to be shipped', failing: 'this node does not ship' })

export function Backup () {
  const found = live('backup', (signal) => client().backup({ signal }), { every: EVERY_MS })
  return html`<section aria-label="Backup"><h3>Backup</h3><${Shown} of=${found.value} rows=${3}>${(/** @type {any} */ view) => view.state === 'none'
    ? html`<${Empty} why="The cluster is not backed up." command=${`shoal backup init s3://BUCKET/PREFIX --url ${location.origin}`} />`
    : html`<p><${Mark} kind=${MARKS[view.state] ?? 'unknown'} /> <bdi class="mono">${view.url}</bdi>: ${SAYS[view.state] ?? view.state}${view.lag_ms > 0 ? `; what was written in the last ${span(view.lag_ms)} may not be in it` : ''}.</p>
      <dl class="facts"><dt>holds</dt><dd class="mono">${bytes(view.bytes)} in ${view.objects} objects</dd><dt>restores from</dt><dd>${view.earliest_ms ? html`<${Time} ms=${view.earliest_ms} ago /> on` : 'no moment yet'}</dd>
        <dt>restored and found sound</dt><dd>${view.verified_ms ? html`<${Time} ms=${view.verified_ms} ago />` : html`never: <code>shoal backup verify ${view.url}</code>`}</dd></dl>
      ${view.skipped.length > 0 && html`<details><summary>${view.skipped.length} partitions could not be shipped</summary><ul>${view.skipped.slice(0, 50).map((/** @type {string} */ each) => html`<li class="mono">${each}</li>`)}</ul></details>`}`}</${Shown}></section>`
}
