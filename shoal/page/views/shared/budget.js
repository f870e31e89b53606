/** A budget: what is left of it and how fast it goes, and which node may spend how much alone. */

import { html } from '../../vendor/preact.js'
import { called, client, live } from '../../data.js'
import { Duration, Id, Time } from '../../kit/time.js'
import { Plot, short } from '../plot.js'
import { ValueForm } from './form.js'
import { observed } from './observed.js'
import { Shown } from '../../kit/states.js'

/** @param {{ space: string, name: string }} props */
export function BudgetView ({ space, name }) {
  const budget = live(`budget ${space}/${name}`, async () => {
    const handle = client().space(space).budget(name)
    const [state, course] = await Promise.all([handle.get(), handle.course()])
    return { ...state, course }
  }, { space, kinds: ['budget'], every: 5000 })
  return html`<${Shown} of=${budget.value}>${(/** @type {any} */ state) => html`<${Budget} space=${space} name=${name} state=${state} />`}</${Shown}>`
}

const PACE_S = 3600 // The pace is that of the last hour, or of as much of it as is known.

/** The course that the node noted, and what this browser saw since its last point: seconds since 1970, spent, left. @param {any[]} course @param {[number, number[]][]} seen @returns {[number, number, number][]} */
function told (course, seen) {
  const noted = course.slice(0, -1)
  const since = (noted.at(-1)?.at_ms ?? 0) / 1000
  return [...noted.map(({ at_ms: at, granted, spent }) => /** @type {[number, number, number]} */ ([at / 1000, spent, granted - spent])),
    ...seen.filter(([at]) => at > since).map(([at, [left, spent]]) => /** @type {[number, number, number]} */ ([at, spent, left]))]
}

/** @param {{ space: string, name: string, state: any }} props */
function Budget ({ space, name, state }) {
  const { granted, spent, remaining, pool, holders, conflicts, course } = state
  const members = live('members', () => client().cluster(), { every: 30_000 }).value.value?.members
  const points = told(course, observed(`budget ${space}/${name}`, [remaining, spent]))
  const now = points[points.length - 1]
  const began = points.find(([at]) => at >= now[0] - PACE_S) ?? now
  const rate = now[0] - began[0] > 5 ? (now[1] - began[1]) / (now[0] - began[0]) : 0
  const left = rate > 0 ? remaining / rate * 1000 : undefined
  const share = (/** @type {number} */ amount) => `${Math.max(0, 100 * amount / Math.max(1, remaining)).toFixed(1)}%`
  return html`
    <p class="says"><strong>${short(remaining)}</strong> of ${short(granted)} is left; ${short(spent)} was spent.
      ${left !== undefined && html` At the pace of the last <${Duration} ms=${(now[0] - began[0]) * 1000} /> it lasts <${Duration} ms=${left} />.`}</p>
    <div class="bar" aria-hidden="true"><span class="bar-spent" style=${{ width: `${granted > 0 ? 100 * spent / granted : 0}%` }}></span></div>
    <${Plot} says=${html`What is left and what was spent, as the node that answers saw it since <${Time} ms=${points[0][0] * 1000} />${points.length < 2 ? '; a point is added when it changes' : ''}.`}
      x=${points.map(([at]) => at)} series=${[{ label: 'left', values: points.map(([,, value]) => value), steps: true }, { label: 'spent', values: points.map(([, value]) => value), steps: true, lane: 1 }]} />
    <h3>Rights of each node</h3>
    <table class="plain"><thead><tr><th scope="col">node</th><th scope="col" class="number">may spend alone</th><th scope="col">share of the rest</th></tr></thead><tbody>
      ${holders.map((/** @type {any} */ holder) => html`<tr><td><${Holder} node=${holder.node || holder.origin} members=${members} /></td><td class="number mono">${short(holder.rights)}</td>
        <td><div class="bar thin"><span class="bar-held" style=${{ width: share(holder.rights) }}></span></div></td></tr>`)}
      <tr><td class="quiet">not drawn by any node</td><td class="number mono">${short(pool)}</td><td><div class="bar thin"><span class="bar-pool" style=${{ width: share(pool) }}></span></div></td></tr>
    </tbody></table>
    ${conflicts.length > 0 && html`<h3>Do not count</h3><ul class="rows">${conflicts.map((/** @type {any} */ each) => html`<li>${each.what} of ${each.amount}: another amount has its key <code>${each.key}</code></li>`)}</ul>`}
    <${ValueForm} title="Grant more" what=${`grant ${space}/${name}`} value=${null} button="Grant" fields=${[{ name: 'amount', label: 'Amount', hint: '1000' }]}
      says="Adds to what may be spent, on all nodes. It cannot be taken back; what is not spent stays."
      run=${({ amount }, _value, { key }) => client().space(space).budget(name).grant(whole(amount), { key })} />`
}

/** A node by its address, as far as it is a member now. @param {{ node: string, members: any[] | undefined }} props */
function Holder ({ node, members }) {
  const member = members?.find((each) => each.node === node)
  return member ? html`<bdi title=${node}>${called(member.name)}</bdi>` : html`<${Id} value=${node} />${members && html` <span class="quiet">no member now</span>`}`
}

/** @param {string} text */
export function whole (text) {
  const number = Number(text.trim())
  if (!Number.isSafeInteger(number)) throw new Error(`${JSON.stringify(text)} is no whole number. Nothing was written. Type digits alone.`)
  return number
}
