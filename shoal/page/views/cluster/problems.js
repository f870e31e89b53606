/**
 * What needs care in a cluster, each with what it means for users and the command that mends it.
 *
 * Law: the node's table of conditions says what is wrong (docs/CONDITIONS.md). Nothing here decides that.
 */

/** @typedef {{ kind: 'waits' | 'stuck' | 'unknown', says: string, means: string, command: string, since: number, about: { member: string, space: string } }} Problem */

/** @param {any} conditions As `Store.conditions` answers. @returns {Problem[]} */
export function problems ({ standing }) {
  return standing.map((/** @type {any} */ { severity, says, means, mends, since_ms: since, about = '' }) => ({
    kind: severity === 'page' ? 'stuck' : 'waits', says, means, command: mends.replaceAll('--url URL', `--url ${location.origin}`), since,
    about: { member: about, space: about !== '' && says.includes(`space ${about}`) ? about : '' }
  }))
}
