/** Counters, sets and maps: what they hold, and small changes of it. */

import { html } from '../../vendor/preact.js'
import { client, live } from '../../data.js'
import { shell } from '../../kit/shell.js'
import { Empty, Mark, Shown } from '../../kit/states.js'
import { Time } from '../../kit/time.js'
import { Tree } from '../../kit/tree.js'
import { Plot } from '../plot.js'
import { whole } from './budget.js'
import { Action, ValueForm } from './form.js'
import { clip, some } from './listing.js'
import { observed } from './observed.js'

const SHOWN_MAX = 500

/** @param {{ space: string, name: string }} props */
export function CounterView ({ space, name }) {
  const counter = () => client().space(space).counter(name)
  const value = live(`counter ${space}/${name}`, () => counter().value(), { space, kinds: ['counter'] })
  return html`<${Shown} of=${value.value}>${(/** @type {number} */ count) => {
    const points = observed(`counter ${space}/${name}`, [count])
    return html`<p class="figure mono">${count.toLocaleString('en')}</p>
      <${Plot} says=${html`As seen by this browser since <${Time} ms=${points[0][0] * 1000} />.`} x=${points.map(([at]) => at)}
        series=${[{ label: name, values: points.map(([, [each]]) => each), steps: true }]} />
      <${ValueForm} title="Add" what=${`count ${space}/${name}`} value=${null} fields=${[{ name: 'amount', label: 'Amount', hint: '1, or -1' }]}
        says="Every node adds; none overwrites another. Add the negative amount to undo it."
        run=${({ amount }, _value, { key }) => counter().add(whole(amount), { key })} />`
  }}</${Shown}>`
}

/** @param {{ space: string, name: string }} props */
export function SetView ({ space, name }) {
  const set = () => client().space(space).set(name)
  const members = live(`set ${space}/${name}`, () => some(set().members(), SHOWN_MAX), { space, kinds: ['set'] })
  return html`<${Shown} of=${members.value}>${(/** @type {any} */ { items, more }) => html`
    <p class="says">${items.length}${more ? ' or more' : ''} ${items.length === 1 ? 'member' : 'members'}</p>
    ${items.length === 0 && html`<${Empty} why="This set has no members." command=${shell`shoal set add ${name} '"a"' --space ${space}`} />`}
    <ul class="rows">${items.map((/** @type {any} */ member) => html`<li key=${JSON.stringify(member)}><span class="clip mono">${clip(member)}</span>
      <${Action} what=${`remove ${space}/${name} ${JSON.stringify(member)}`} label="remove" says="Removes it on every node; add it again to undo." run=${({ key }) => set().alter({ remove: [member] }, { key })} /></li>`)}</ul>
    ${more && html`<p class="quiet">Only the first ${SHOWN_MAX} are shown.</p>`}
    <${ValueForm} title="Add a member" button="Add" what=${`member ${space}/${name}`} says="It is added once, however often it is added."
      run=${(_fields, typed, { key }) => set().alter({ add: [typed] }, { key })} />`}</${Shown}>`
}

/** @param {{ space: string, name: string }} props */
export function MapView ({ space, name }) {
  const map = () => client().space(space).map(name)
  const entries = live(`map ${space}/${name}`, () => some(map().entries(), SHOWN_MAX), { space, kinds: ['map'] })
  return html`<${Shown} of=${entries.value}>${(/** @type {any} */ { items, more }) => html`
    <p class="says">${items.length}${more ? ' or more' : ''} ${items.length === 1 ? 'key' : 'keys'}${conflicts(items)}</p>
    ${items.length === 0 && html`<${Empty} why="This map has no keys." command=${shell`shoal map set ${name} key '"value"' --space ${space}`} />`}
    <ul class="rows entries">${items.map((/** @type {any} */ entry) => html`<li key=${entry.key}><${Entry} space=${space} name=${name} entry=${entry} /></li>`)}</ul>
    ${more && html`<p class="quiet">Only the first ${SHOWN_MAX} are shown.</p>`}
    <${ValueForm} title="Set a key" button="Set" what=${`entry ${space}/${name}`} fields=${[{ name: 'key', label: 'Key' }]} says="Replaces the key's value, on every node; other keys stay."
      run=${(/** @type {any} */ fields, /** @type {any} */ typed, /** @type {any} */ { key }) => map().set(fields.key, typed, { key })} />`}</${Shown}>`
}

/** @param {any[]} items */
function conflicts (items) {
  const count = items.filter(({ siblings }) => siblings.length > 1).length
  return count === 0 ? '' : html`; <strong>${count}</strong> with several values`
}

/** @param {{ space: string, name: string, entry: any }} props */
function Entry ({ space, name, entry }) {
  const map = () => client().space(space).map(name)
  return html`<details class="entry" open=${entry.siblings.length > 1}><summary><code>${entry.key}</code>
      ${entry.siblings.length > 1 && html`<${Mark} kind="waits" />`}
      <span class="clip mono quiet">${[entry.siblings[0] && clip(entry.siblings[0].value), entry.count !== null && `count ${entry.count}`,
        entry.members.length > 0 && `${entry.members.length} members`].filter(Boolean).join(' · ')}</span></summary>
    ${entry.siblings.map((/** @type {any} */ sibling, /** @type {number} */ index) => html`<div class="sibling"><p class="quiet">set <${Time} ms=${sibling.wall_ms} ago /></p><${Tree} value=${sibling.value} />
      ${entry.siblings.length > 1 && html`<${Action} what=${`settle ${space}/${name}/${entry.key} ${index}`} primary label="Keep this value" says="The others go."
        run=${({ key }) => map().set(entry.key, sibling.value, { expect: entry.version, key })} />`}</div>`)}
    ${entry.members.length > 0 && html`<${Tree} value=${entry.members} />`}
    <${Action} what=${`remove ${space}/${name}/${entry.key}`} label="remove this key" says="Removes what is shown of it on every node." run=${({ key }) => map().remove(entry.key, { key })} />
  </details>`
}
