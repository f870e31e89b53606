/** What work there is in a space: its crew, its leases, and the queues of its threads, as far as the bound reaches. */

import { client, spacesOf } from '../../data.js'
import { some } from '../shared/listing.js'

// One request each, every few seconds.
const THREADS_MAX = 60
export const CREW = 'shoal-crew'
export const MACHINES = 'shoal-crew/'
export const WAITS = 'shoal-crew-waits/'

/** @param {string} space @param {AbortSignal} signal */
export async function worked (space, signal) {
  const spaces = await spacesOf(space)
  const parts = await Promise.all(spaces.names.map((each) => ofSpace(each, signal)))
  return { rows: parts.flatMap(({ rows }) => rows), looked: THREADS_MAX, more: parts.some(({ more }) => more), isCut: spaces.more }
}

/** @param {string} name @param {AbortSignal} signal */
async function ofSpace (name, signal) {
  const space = client().space(name)
  const [leases, threads] = await Promise.all([space.leases({ signal }), some(space.names('threads', { signal }), THREADS_MAX)])
  const queues = await Promise.all(threads.items.filter((each) => each !== CREW).map(async (each) => {
    const [lists, inbox] = await Promise.all([space.thread(each).worklists({ signal }), space.thread(each).inbox.page({ limit: 1, signal })])
    const rows = lists.map((list) => ({ space: name, kind: 'worklist', names: [each, list.name], title: list.name === each ? each : `${each} / ${list.name}`, ...list }))
    const { pending, finished, dead } = inbox
    return pending + finished + dead === 0 ? rows : [...rows, { space: name, kind: 'inbox', names: [each], title: each, pending, finished, dead }]
  }))
  const crew = threads.items.includes(CREW) ? [await crewOf(name, leases, signal)] : []
  const held = leases.filter(({ lease }) => !lease.startsWith(MACHINES) && !lease.startsWith(WAITS) && lease !== CREW)
  const rows = [...crew, ...queues.flat().sort((a, b) => b.dead - a.dead || b.pending - a.pending),
    ...held.map((lease) => ({ space: name, kind: 'lease', names: [lease.lease], title: lease.lease, holder: lease.holder, lease, dead: 0 }))]
  return { rows, more: threads.more }
}

/** @param {string} name @param {any[]} leases @param {AbortSignal} signal */
async function crewOf (name, leases, signal) {
  const { state } = await client().space(name).thread(CREW).load({ signal })
  const agents = Object.values(/** @type {Record<string, any>} */ (state.agents ?? {})).reduce((sum, { count }) => sum + count, 0)
  return { space: name, kind: 'crew', names: [], title: 'crew', agents, machines: leases.filter(({ lease }) => lease.startsWith(MACHINES)).length, dead: 0 }
}
