/** A crew: its machines as columns, the agents that each drives, and those that no machine drives. */

import { html } from '../../vendor/preact.js'
import { client, live } from '../../data.js'
import { address } from '../../router.js'
import { Mark, Shown } from '../../kit/states.js'
import { CREW, MACHINES, WAITS } from './listing.js'

const EVERY_MS = 3000
const AGENTS_MAX = 512

/** @typedef {{ name: string, state: 'running' | 'waiting' | 'finished' | 'failed', machine: string, reason: string }} Agent */

/**
 * Who runs where, from the crew's record and the leases that are held.
 * @param {any} record @param {any[]} leases @param {Map<string, string>} asks What each asks of a person. @returns {{ agents: Agent[], machines: { name: string, alive: boolean, drained: boolean, capacity: number, labels: string[] }[] }}
 */
export function placed (record, leases, asks) {
  const threads = new Map(leases.filter(({ thread }) => thread).map((each) => [each.lease, each]))
  const waits = new Map(leases.filter(({ thread, lease }) => !thread && lease.startsWith(WAITS)).map((each) => [each.lease.slice(WAITS.length), each]))
  const alive = new Set(leases.filter(({ lease }) => lease.startsWith(MACHINES)).map(({ lease }) => lease.slice(MACHINES.length)))
  const agents = /** @type {Agent[]} */ ([])
  for (const [agent, { count, version }] of Object.entries(/** @type {Record<string, any>} */ (record.agents ?? {}))) {
    for (let number = 1; number <= count && agents.length < AGENTS_MAX; number++) {
      const name = `${agent}-${number}`
      const outcome = record.outcomes?.[name]?.version === version ? record.outcomes[name] : undefined
      const [lease, wait] = [threads.get(name), waits.get(name)]
      const ended = outcome !== undefined && outcome.state !== 'retrying'
      agents.push({
        name,
        state: ended ? outcome.state : wait !== undefined || lease === undefined ? 'waiting' : 'running',
        machine: ended ? '' : (wait ?? lease)?.holder ?? '',
        reason: outcome?.error || (ended ? '' : asks.get(name) ?? (wait !== undefined ? 'waits for something outside of it' : lease === undefined ? 'no machine drives it' : ''))
      })
    }
  }
  const machines = Object.entries(/** @type {Record<string, any>} */ (record.machines ?? {})).sort(([a], [b]) => a < b ? -1 : 1)
    .map(([name, { capacity, drained, labels }]) => ({ name, alive: alive.has(name), drained, capacity, labels }))
  return { agents, machines }
}

/** @param {{ space: string }} props */
export function Crew ({ space }) {
  const found = live(`crew ${space}`, async (signal) => {
    const of = client().space(space)
    const [{ state }, leases, { threads }] = await Promise.all([of.thread(CREW).load({ signal }), of.leases({ signal }), of.summaries({ state: 'waits', limit: AGENTS_MAX, signal })])
    return placed(state, leases, new Map(threads.map((/** @type {any} */ { name, says }) => [name, says])))
  }, { space, kinds: ['thread'], every: EVERY_MS })
  return html`<article aria-label="Crew"><div class="head-line"><span class="quiet">crew</span><h2><bdi>${space}</bdi></h2></div>
    <${Shown} of=${found.value}>${(/** @type {any} */ crew) => html`<${Board} space=${space} ...${crew} />`}</${Shown}></article>`
}

/** @param {{ space: string, agents: Agent[], machines: any[] }} props */
function Board ({ space, agents, machines }) {
  const on = (/** @type {string} */ machine) => agents.filter((agent) => agent.machine === machine)
  const count = (/** @type {string} */ state) => agents.filter((agent) => agent.state === state).length
  const free = agents.filter(({ machine }) => machine === '' || !machines.some(({ name }) => name === machine))
  const dead = machines.filter(({ alive }) => !alive).length
  return html`
    <p class="says">${count('failed') > 0 && html`<strong>${count('failed')}</strong> failed · `}${count('running')} run, ${count('waiting')} wait, ${count('finished')} have finished
      on ${machines.length - dead} ${machines.length - dead === 1 ? 'machine' : 'machines'}${dead > 0 ? `; ${dead} ${dead === 1 ? 'is' : 'are'} gone` : ''}.</p>
    <div class="columns" tabindex="0" role="region" aria-label="Machines">
      ${machines.map(({ name, alive, drained, capacity, labels }) => html`<section key=${name} class="column">
        <h3><${Mark} kind=${alive ? 'well' : 'stuck'} /> <bdi>${name}</bdi></h3>
        <p class="quiet">${alive ? `${on(name).length} of ${capacity}` : 'gone: its agents go on elsewhere'}${drained ? ', drained' : ''}${labels.length > 0 ? `, ${labels.join(' ')}` : ''}</p>
        <${Agents} space=${space} agents=${on(name)} /></section>`)}
      ${free.length > 0 && html`<section class="column"><h3>on no machine</h3><p class="quiet">${free.length}</p><${Agents} space=${space} agents=${free} /></section>`}
    </div>
    <p class="quiet">Scale it with <code>shoal crew scale AGENT COUNT --space ${space}</code>, empty a machine with <code>shoal crew drain MACHINE --space ${space}</code>.</p>`
}

/** @type {Record<string, 'well' | 'waits' | 'stuck'>} */
const MARKS = { running: 'well', waiting: 'waits', finished: 'well', failed: 'stuck' }

/** @param {{ space: string, agents: Agent[] }} props */
const Agents = ({ space, agents }) => html`<ul class="rows">${agents.map(({ name, state, reason }) => html`<li key=${name}>
  <a class="row-link" href=${address(space, 'threads', [name])}><${Mark} kind=${MARKS[state]} /> <bdi>${name}</bdi> <span class="quiet clip" title=${reason}>${state === 'running' ? '' : reason || state}</span></a></li>`)}</ul>`
