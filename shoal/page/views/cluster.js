/** The cluster: its nodes and how far behind they are, changes under way, what is wrong and the command that mends it. */

import { html } from '../vendor/preact.js'
import { called, client, live } from '../data.js'
import { address, go } from '../router.js'
import { Command, Empty, Mark, Panes, Sentence, Shown } from '../kit/states.js'
import { Table } from '../kit/table.js'
import { bytes, Duration, Id, Time } from '../kit/time.js'
import { Backup } from './cluster/backup.js'
import { Growth, SpaceHeld } from './cluster/growth.js'
import { Load } from './cluster/load.js'
import { problems } from './cluster/problems.js'
import { observed } from './shared/observed.js'
import { Plot, short } from './plot.js'

export const title = 'Cluster'
export const keys = []

const EVERY_MS = 2000
const HIGH_LAG_MS = 5000

/** @param {{ space: string, path: string[] }} props */
export function View ({ space, path }) {
  const found = live('cluster', (signal) => client().cluster({ signal }), { every: EVERY_MS })
  const conditions = live('conditions', (signal) => client().conditions({ signal }), { every: EVERY_MS })
  return html`<${Panes} list=${html`<${Shown} of=${found.value} rows=${8}>${(/** @type {any} */ cluster) => html`<${List} space=${space} cluster=${cluster} conditions=${conditions.value.value} chosen=${path[0] === 'space' ? '' : path[0] ?? ''} held=${path[0] === 'space' ? path[1] : ''} />`}</${Shown}>`}
    chosen=${path[0] === 'space' && path[1] !== undefined ? html`<${SpaceHeld} key=${path[1]} name=${path[1]} />` : path[0] !== undefined && html`<${Shown} of=${found.value}>${(/** @type {any} */ cluster) => html`<${Node} cluster=${cluster} name=${path[0]} />`}</${Shown}>`} />`
}

/** @param {any} member @returns {'well' | 'waits' | 'stuck' | 'unknown'} */
const markOf = ({ state, lag_ms: lag, told }) => state === 'self' ? 'well' : state !== 'linked' ? 'stuck' : !told ? 'unknown' : lag > HIGH_LAG_MS ? 'waits' : 'well'

/** @param {{ member: any }} props */
function Lag ({ member }) {
  if (member.state === 'self') return html`<span class="quiet">answers</span>`
  if (member.lag_ms === null) return html`<span class="quiet">unknown</span>`
  return member.lag_ms === 0 ? html`<span class="quiet">none</span>` : html`<${Duration} ms=${member.lag_ms} />`
}

/** @param {{ space: string, cluster: any, conditions: any, chosen: string, held: string }} props */
function List ({ space, cluster, conditions, chosen, held }) {
  const wrong = conditions === undefined ? [] : problems(conditions)
  const linked = cluster.members.filter((/** @type {any} */ member) => member.state !== 'unreachable').length
  const others = cluster.members.filter((/** @type {any} */ member) => member.state !== 'self')
  const isSame = others.length > 0 && others.every((/** @type {any} */ { state, lacks, ahead }) => state === 'linked' && lacks === 0 && ahead === 0)
  for (const member of cluster.members) if (member.state !== 'self') observed(`lag ${member.name}`, [member.lag_ms ?? -1])
  const columns = [
    { name: 'node', cell: (/** @type {any} */ row) => html`<${Mark} kind=${markOf(row)} /> <bdi>${called(row.name)}</bdi>` },
    { name: 'lag', width: '88px', cell: (/** @type {any} */ row) => html`<${Lag} member=${row} />` },
    { name: 'lacks', width: '72px', cell: (/** @type {any} */ row) => html`<span class="mono">${row.state === 'self' ? '–' : row.lacks ?? 'unknown'}</span>` },
    { name: 'clock', width: '88px', when: 'wide', cell: (/** @type {any} */ row) => html`<span class="mono">${row.state === 'self' ? '–' : row.clock_ms === null ? 'unknown' : `${row.clock_ms > 0 ? '+' : ''}${row.clock_ms} ms`}</span>` },
    { name: 'waits to be sent', width: '112px', when: 'wide', cell: (/** @type {any} */ row) => html`<span class="mono">${bytes(row.waiting_bytes)}</span>` }
  ]
  return html`
    <${Sentence}><a href=${address(space, 'cluster', [(cluster.members.find((/** @type {any} */ { state }) => state === 'unreachable') ?? cluster.members[0]).name])}>${linked} of ${cluster.members.length} ${cluster.members.length === 1 ? 'node answers' : 'nodes answer'}</a>${isSame ? ' and hold the same' : ''}${wrong.length > 0 ? html`; <a href=${location.hash} onClick=${(/** @type {Event} */ event) => { event.preventDefault(); document.querySelector('.problems')?.scrollIntoView({ block: 'nearest' }); /** @type {HTMLElement | null} */ (document.querySelector('.problems'))?.focus() }}>${wrong.length} ${wrong.length === 1 ? 'thing needs' : 'things need'} care</a>` : conditions === undefined ? '' : '; nothing needs care'}${cluster.change && html`; <code>${cluster.change}</code> is under way`}.</${Sentence}>
    ${wrong.length > 0 && html`<ul class="problems" tabindex="-1" aria-label="What needs care">${wrong.map((/** @type {any} */ { kind, says, means, command, since, about }) => html`<li key=${says}><${Mark} kind=${kind} /><div><p>${says}</p>${means && html`<p class="quiet">${means} Noticed <${Time} ms=${since} ago />.</p>`}${command && html`<${Command} text=${command} />`}<${About} about=${about} space=${space} members=${cluster.members} /></div></li>`)}</ul>`}
    <${Table} fit=${12} columns=${columns} rows=${cluster.members} rowKey=${(/** @type {any} */ row) => row.name} chosen=${chosen} label="Nodes"
      href=${(/** @type {any} */ row) => address(space, 'cluster', [row.name])} onChoose=${(/** @type {any} */ row) => go(address(space, 'cluster', [row.name]))} />
    <${Growth} space=${space} chosen=${held} /><${Backup} /><${Load} />`
}

/** The thing that a problem names, where it is shown. @param {{ about: { member: string, space: string }, space: string, members: any[] }} props */
function About ({ about, space, members }) {
  if (members.some(({ name }) => name === about.member)) return html`<p><a href=${address(space, 'cluster', [about.member])}>Look at <bdi>${about.member}</bdi></a></p>`
  return about.space === '' ? null : html`<p><a href=${address(space, 'cluster', ['space', about.space])}>Look at space <bdi>${about.space}</bdi></a></p>`
}

/** @param {{ cluster: any, name: string }} props */
function Node ({ cluster, name }) {
  const member = cluster.members.find((/** @type {any} */ each) => each.name === name)
  if (member === undefined) return html`<${Empty} why="No node of this name is in the list of members." command="shoal status --url URL" />`
  const own = member.state === 'self' ? cluster.node : undefined
  return html`<article aria-label=${`node ${name}`}><div class="head-line"><span class="quiet">${member.part}</span><h2><bdi>${called(name)}</bdi></h2>${member.node && html`<${Id} value=${member.node} />`}</div>
    <p class="says"><${Mark} kind=${markOf(member)} /> ${said(member, cluster)}</p>
    ${own === undefined ? html`<${Peer} member=${member} />` : html`<${Own} cluster=${cluster} node=${own} />`}
    <details><summary>How many operations of each origin it holds</summary><table class="plain"><thead><tr><th scope="col">origin</th><th scope="col" class="number">operations</th></tr></thead><tbody>
      ${Object.entries(member.vector).slice(0, 200).map(([origin, count]) => html`<tr><td><${Id} value=${origin} /></td><td class="number mono">${count}</td></tr>`)}</tbody></table></details></article>`
}

/** @param {any} member @param {any} cluster */
function said (member, cluster) {
  if (member.state === 'self') return `answers this page; ${cluster.node.state}${cluster.node.reason ? `: ${cluster.node.reason}` : ''}`
  if (member.state !== 'linked') return `is not linked${member.reason ? `: ${member.reason}` : ''}`
  if (!member.told) return 'has not told yet what it holds'
  if (member.lag_ms === 0) return 'holds all that is durable here'
  return html`lacks ${member.lacks} operations, the oldest of them for <${Duration} ms=${member.lag_ms ?? 0} />${member.waiting_bytes > 0 ? `; ${bytes(member.waiting_bytes)} wait to be sent` : '; it is asked for what it lacks'}${member.reason ? `. Last refusal: ${member.reason}` : ''}`
}

/** @param {{ member: any }} props */
function Peer ({ member }) {
  const points = observed(`lag ${member.name}`, [member.lag_ms ?? -1])
  return html`<dl class="facts"><dt>linked</dt><dd><${Time} ms=${member.linked_ms} ago /></dd><dt>holds</dt><dd class="mono">${member.operations ?? 'unknown'}</dd><dt>lacks</dt><dd class="mono">${member.lacks ?? 'unknown'}</dd>
      <dt>has, and this node lacks</dt><dd class="mono">${member.ahead ?? 'unknown'}</dd><dt>clock ahead</dt><dd class="mono">${member.clock_ms === null ? 'unknown' : `${member.clock_ms} ms`}</dd>
      <dt>waits to be sent</dt><dd class="mono">${bytes(member.waiting_bytes)}</dd><dt>pushes dropped</dt><dd class="mono">${member.dropped}</dd></dl>
    <${Plot} says=${html`Lag, seen by this browser since <${Time} ms=${points[0][0] * 1000} />; a gap: unknown.`} x=${points.map(([at]) => at)} unit=${(/** @type {number} */ ms) => `${short(ms)} ms`}
      series=${[{ label: 'lag', values: points.map(([, [lag]]) => lag < 0 ? null : lag) }]} />`
}

/** @param {{ cluster: any, node: any }} props */
function Own ({ cluster, node }) {
  const points = observed('bytes on disk', [node.bytes_on_disk, node.operations])
  return html`<dl class="facts"><dt>version</dt><dd class="mono">${node.version}</dd><dt>started</dt><dd><${Time} ms=${node.started_ms} ago /></dd><dt>on disk</dt><dd class="mono">${bytes(node.bytes_on_disk)}</dd>
      <dt>spaces</dt><dd class="mono">${node.spaces}</dd><dt>operations, this opening</dt><dd class="mono">${node.operations}</dd><dt>group commits</dt><dd class="mono">${node.commits}</dd>
      <dt>sessions</dt><dd class="mono">${node.connections}</dd><dt>epoch of the members</dt><dd class="mono">${cluster.epoch}</dd><dt>quorum</dt><dd class="mono">${cluster.quorum} of ${cluster.size}</dd>
      <dt>waits to be swept</dt><dd class="mono">${node.garbage}</dd><dt>rows compared with peers</dt><dd>${cluster.compared_ms === null || cluster.compared_ms === undefined ? 'by the others, or not yet' : html`<${Duration} ms=${cluster.compared_ms} /> ago`}</dd><dt>repaired</dt><dd class="mono">${node.repaired}</dd>
      <dt>digest of all it holds</dt><dd>${cluster.digest ? html`<${Id} value=${cluster.digest} />` : 'not known yet'}</dd></dl>
    <${Plot} says=${html`Bytes on its disk, seen by this browser since <${Time} ms=${points[0][0] * 1000} />.`} x=${points.map(([at]) => at)} unit=${bytes} series=${[{ label: 'on disk', values: points.map(([, [size]]) => size) }]} />`
}
