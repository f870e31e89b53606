/** How busy the node is that answers: how long each kind of request took, how often, what was refused, and for which spaces. */

import { html } from '../../vendor/preact.js'
import { client, live } from '../../data.js'
import { Shown } from '../../kit/states.js'
import { span } from '../../kit/time.js'
import { observed } from '../shared/observed.js'
import { Plot, short } from '../plot.js'

const EVERY_MS = 5000
const KINDS_MAX = 60
const KINDS_SHOWN = 6
const SPACES_MAX = 20

/** @param {Record<string, number>} outcomes */
const asked = (outcomes) => Object.values(outcomes).reduce((sum, count) => sum + count, 0)

/** Outcomes that are no success, such as "no-quorum 3". @param {Record<string, number>} outcomes */
const refused = (outcomes) => Object.entries(outcomes).filter(([code]) => code !== 'ok').map(([code, count]) => `${code} ${count}`).join(', ')

/** @param {number} ms */
const took = (ms) => ms < 1000 ? `${short(ms)} ms` : span(ms)

/** Requests for each second, between each two looks; a node that was started again begins anew. @param {[number, number[]][]} points */
const rates = (points) => points.map(([at, [count]], nth) => {
  const before = points[nth - 1]
  return before === undefined || count < before[1][0] || at <= before[0] ? null : (count - before[1][0]) / (at - before[0])
})

export function Load () {
  const found = live('figures', (signal) => client().figures({ signal }), { every: EVERY_MS })
  return html`<section aria-label="How busy this node is"><h3>How busy the node is that answers</h3>
    <${Shown} of=${found.value}>${(/** @type {any} */ figures) => html`<${Figures} figures=${figures} />`}</${Shown}></section>`
}

/** @param {{ figures: any }} props */
function Figures ({ figures }) {
  const kinds = [...figures.kinds].sort((one, other) => asked(other.outcomes) - asked(one.outcomes))
  const points = observed('requests', [kinds.reduce((sum, kind) => sum + asked(kind.outcomes), 0)])
  const spaces = Object.entries(figures.spaces).sort(([, one], [, other]) => Number(other) - Number(one))
  return html`
    <dl class="facts"><dt>its loop is late, p50 · p99 · p99.9</dt><dd class="mono">${took(figures.late_ms.p50)} · ${took(figures.late_ms.p99)} · ${took(figures.late_ms.p999)}</dd>
      <dt>writes not yet durable</dt><dd class="mono">${figures.writes_pending}, the oldest for ${took(figures.durable_lag_s * 1000)}</dd></dl>
    ${points.length > 2 && html`<${Plot} says="Requests answered each second, seen by this browser." x=${points.map(([at]) => at)} unit=${(/** @type {number} */ rate) => short(rate)} series=${[{ label: 'requests/s', values: rates(points) }]} />`}
    <${Requests} kinds=${kinds.slice(0, KINDS_SHOWN)} says="Since the node began; times are upper bounds." />
    ${kinds.length > KINDS_SHOWN && html`<details><summary>${kinds.length - KINDS_SHOWN} other kinds of requests</summary><${Requests} kinds=${kinds.slice(KINDS_SHOWN, KINDS_MAX)} says="Asked less often." /></details>`}
    ${spaces.length > 0 && html`<table class="plain"><thead><tr><th scope="col">space</th><th scope="col" class="number">requests</th></tr></thead>
      <tbody>${spaces.slice(0, SPACES_MAX).map(([name, count]) => html`<tr key=${name}><td><bdi>${name}</bdi></td><td class="number mono">${count}</td></tr>`)}</tbody></table>`}`
}

/** @param {{ kinds: any[], says: string }} props */
function Requests ({ kinds, says }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${says}><table class="plain"><caption class="quiet">${says}</caption>
      <thead><tr><th scope="col">request</th><th scope="col" class="number">asked</th><th scope="col" class="number">p50</th><th scope="col" class="number">p99</th><th scope="col" class="number">p99.9</th><th scope="col">not done</th></tr></thead>
      <tbody>${kinds.map(({ kind, outcomes, ms }) => html`<tr key=${kind}><td class="mono">${kind}</td><td class="number mono">${asked(outcomes)}</td><td class="number mono">${took(ms.p50)}</td><td class="number mono">${took(ms.p99)}</td><td class="number mono">${took(ms.p999)}</td><td class="mono">${refused(outcomes) || '–'}</td></tr>`)}</tbody></table></div>`
}
