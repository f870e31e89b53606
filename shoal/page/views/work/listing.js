/** What work there is in a space: its crew, its leases, and the queues of its threads, in one request of bounded pages. */

import { client, spacesOf } from '../../data.js'

const PAGES_MAX = 5
export const CREW = 'shoal-crew'
export const MACHINES = 'shoal-crew/'
export const WAITS = 'shoal-crew-waits/'

/** @param {string} space @param {AbortSignal} signal */
export async function worked (space, signal) {
  const spaces = await spacesOf(space)
  const parts = await Promise.all(spaces.names.map((each) => ofSpace(each, signal).catch((error) => {
    if (space === '*' && error.status === 403) return { rows: [], looked: 0, more: false }
    throw error
  })))
  const cut = parts.filter(({ more }) => more)
  return { rows: parts.flatMap(({ rows }) => rows), looked: Math.max(0, ...cut.map(({ looked }) => looked)), more: cut.length > 0, left: spaces.more }
}

/** @param {string} name @param {AbortSignal} signal */
async function ofSpace (name, signal) {
  const space = client().space(name)
  const [leases, queues] = [/** @type {any[]} */ ([]), /** @type {any[]} */ ([])]
  let [looked, more] = [0, true]
  /** @type {string | undefined} */
  let after
  for (let pages = 0; more && pages < PAGES_MAX; pages++) {
    const page = await space.work({ after, signal })
    leases.push(...page.leases)
    queues.push(...page.queues)
    looked += page.looked
    more = page.more
    after = page.cursor
  }
  const crew = leases.some(({ lease }) => lease.startsWith(MACHINES)) ? [await crewOf(name, leases, signal)] : []
  const held = leases.filter(({ lease }) => !lease.startsWith(MACHINES) && !lease.startsWith(WAITS) && lease !== CREW)
  const rows = [...crew, ...queues.filter(({ thread }) => thread !== CREW).map((queue) => rowOf(name, queue)).sort((a, b) => b.dead - a.dead || b.pending - a.pending),
    ...held.map((lease) => ({ space: name, kind: 'lease', names: [lease.lease], title: lease.lease, holder: lease.holder, lease, dead: 0 }))]
  return { rows, looked, more }
}

/** @param {string} name @param {any} queue */
function rowOf (name, { thread, worklist, ...counts }) {
  const isInbox = worklist === ''
  return { space: name, kind: isInbox ? 'inbox' : 'worklist', names: isInbox ? [thread] : [thread, worklist], title: isInbox || worklist === thread ? thread : `${thread} / ${worklist}`, ...counts }
}

/** @param {string} name @param {any[]} leases @param {AbortSignal} signal */
async function crewOf (name, leases, signal) {
  const { state } = await client().space(name).thread(CREW).load({ signal })
  const agents = Object.values(/** @type {Record<string, any>} */ (state.agents ?? {})).reduce((sum, { count }) => sum + count, 0)
  return { space: name, kind: 'crew', names: [], title: 'crew', agents, machines: leases.filter(({ lease }) => lease.startsWith(MACHINES)).length, dead: 0 }
}
