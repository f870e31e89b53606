/**
 * What needs care in a cluster, each with the command that mends it.
 *
 * Law: a condition that the node reports is listed here or it is shown nowhere: each of its lists and texts of trouble has a line.
 */

/** @typedef {{ kind: 'waits' | 'stuck' | 'unknown', says: string, command: string }} Problem */

const LAG_MS = 5000
const BACKUP_LAG_MS = 5 * 60_000
const DAY_MS = 86_400_000

/** @param {any} cluster @param {any} members @returns {Problem[]} */
export function problems (cluster, members) {
  const { node } = cluster
  const at = `--url ${location.origin}`
  /** @type {Problem[]} */
  const found = []
  const add = (/** @type {Problem['kind']} */ kind, /** @type {any} */ says, /** @type {string} */ command) => { if (says) found.push({ kind, says: String(says), command }) }
  if (!node.serves || node.state === 'read-only' || node.reason) add(node.state === 'ready' ? 'waits' : 'stuck', node.reason || `this node is ${node.state}`, `shoal status ${at}`)
  add('stuck', node.register, `shoal status ${at}`)
  for (const member of cluster.members) {
    if (member.state === 'unreachable' && member.part !== 'removed') {
      add('stuck', `${member.name} is not reached${member.reason ? `: ${member.reason}` : ''}`, `shoal serve --data DIR   # on its machine; if its disk is lost: shoal cluster replace ${member.name} NEW:PORT ${at}`)
    } else if (member.state === 'linked' && member.lag_ms > LAG_MS) {
      add('waits', `${member.name} lacks ${member.lacks} operations, the oldest for ${Math.round(member.lag_ms / 1000)} s${member.reason ? `: ${member.reason}` : ''}`, `shoal status --url http://${member.name}`)
    }
  }
  for (const each of cluster.clocks) add('waits', each, 'chronyc tracking   # on that machine')
  for (const each of cluster.differing) add('stuck', each, 'shoal verify DIR   # with the node stopped')
  for (const each of cluster.disagreements) add('stuck', each, `shoal status ${at}`)
  for (const each of cluster.quarantined.slice(-5)) add('stuck', each, `shoal status ${at}`)
  for (const each of cluster.truncated.slice(0, 5)) add('waits', each, `shoal status ${at}`)
  for (const each of cluster.learning) add('waits', each, '')
  if (members?.trouble) add('stuck', `${members.change} does not go on: ${members.trouble}`, `shoal cluster cancel ${at}`)
  for (const each of members?.waiting ?? []) add('waits', `${each} asks to be a member`, `shoal cluster add ${each} ${at}`)
  for (const { name } of members?.lost ?? []) add('waits', `the directory of ${name} was lost, and is still counted`, `shoal cluster forget ${name} ${at}`)
  add('stuck', node.tls_trouble, 'shoal tls show DIR')
  if (node.tls_ends_ms > 0 && node.tls_ends_ms - Date.now() < 14 * DAY_MS) add('waits', `the certificate of this node ends in ${Math.max(0, Math.round((node.tls_ends_ms - Date.now()) / DAY_MS))} days`, 'shoal tls node DIR NAME')
  for (const each of node.tokens_ending) add('waits', `tokens end soon: ${each}`, 'shoal token create --keys DIR')
  for (const each of node.quotas_reached) add('waits', `a quota was reached: ${each}`, `shoal space quota ${each.split(':')[0]} ${at}`)
  add('waits', node.cluster_key_trouble, `shoal status ${at}`)
  if (node.backup_trouble) add(node.backup === 'failing' ? 'stuck' : 'waits', `the backup: ${node.backup_trouble}`, `shoal backup status ${at}`)
  else if (node.backup === 'behind' && node.backup_lag_ms > BACKUP_LAG_MS) add('waits', `the backup is ${Math.round(node.backup_lag_ms / 60_000)} min behind`, `shoal backup status ${at}`)
  add('waits', node.retention_waits_for && `nothing goes by rules of retention: ${node.retention_waits_for}`, `shoal status ${at}`)
  if (node.repairs_failed > 0) add('stuck', `${node.repairs_failed} requests met damage that no peer could repair`, 'shoal verify DIR   # with the node stopped')
  if (node.garbage_waits_for.length > 0 && node.garbage >= 1000) add('waits', `deleted rows wait until ${node.garbage_waits_for.join(', ')} holds the deletions`, `shoal status ${at}`)
  return found
}
