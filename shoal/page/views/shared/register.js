/**
 * A register: its value, the values that were set at the same time, and its history.
 *
 * Law: a conflict is settled against the version that is shown: if somebody wrote meanwhile, nothing is written and the new values appear.
 */

import { html, useState } from '../../vendor/preact.js'
import { client, live } from '../../data.js'
import { shell } from '../../kit/shell.js'
import { Diff } from '../../kit/diff.js'
import { Empty, Mark, Shown } from '../../kit/states.js'
import { Time } from '../../kit/time.js'
import { Tree } from '../../kit/tree.js'
import { clip } from './listing.js'
import { Action, ValueForm } from './form.js'

/** @param {{ space: string, name: string }} props */
export function RegisterView ({ space, name }) {
  const register = () => client().space(space).register(name)
  const value = live(`register ${space}/${name}`, () => register().get(), { space, kinds: ['register'] })
  const history = live(`history ${space}/${name}`, () => register().history(), { space, kinds: ['register'] })
  return html`<${Shown} of=${value.value}>${(/** @type {any} */ now) => html`
    ${now.siblings.length > 1
      ? html`<p class="says"><${Mark} kind="waits" /> ${now.siblings.length} values were set at the same time. Readers see the first one until somebody chooses.</p>`
      : now.siblings.length === 0 && html`<${Empty} why="This register has no value." command=${shell`shoal register set ${name} '"value"' --space ${space}`} />`}
    ${now.siblings.map((/** @type {any} */ sibling, /** @type {number} */ index) => html`<section class="sibling" key=${index} aria-label=${`value ${index + 1}`}>
      <p class="quiet">set <${Time} ms=${sibling.wall_ms} ago /><bdi>${by(history.value.value, sibling)}</bdi>${now.siblings.length > 1 && index === 0 && ', shown to readers'}</p>
      <${Tree} value=${sibling.value} />
      ${now.siblings.length > 1 && html`
        ${index > 0 && html`<details><summary>difference to the first</summary><${Diff} before=${now.siblings[0].value} after=${sibling.value} /></details>`}
        <${Action} what=${`settle ${space}/${name} ${index}`} primary label="Keep this value" says="The others go; they stay in the history."
          run=${({ by: who, key }) => register().set(sibling.value, { expect: now.version, by: who, key })} />`}
    </section>`)}
    <${History} values=${history.value.value} />
    <${ValueForm} title="Set another value" button="Set" what=${`assign ${space}/${name}`} says="Replaces what is shown here; refused if somebody wrote meanwhile. The value before stays in the history."
      run=${(_fields, typed, { by: who, key }) => register().set(typed, { expect: now.version, by: who, key })} />`}</${Shown}>`
}

/** @param {any[] | undefined} values @param {any} sibling */
function by (values, sibling) {
  const noted = values?.find(({ time, value }) => Date.parse(time) === sibling.wall_ms && JSON.stringify(value) === JSON.stringify(sibling.value))
  return noted?.by ? ` by ${noted.by}` : ''
}

/** @param {{ values: any[] | undefined }} props */
function History ({ values = [] }) {
  const [open, setOpen] = useState('')
  if (values.length === 0) return null
  return html`<section><h3>History</h3><ol class="rows history">${values.map((noted, index) => html`<li key=${noted.id}>
    <button type="button" class="row-button" aria-expanded=${open === noted.id} onClick=${() => setOpen(open === noted.id ? '' : noted.id)}>
      <${Time} ms=${Date.parse(noted.time)} /> <bdi>${noted.by || 'unnamed'}</bdi>
      <code class="clip">${noted.is_kept ? clip(noted.value) : `${noted.size} bytes, not kept`}</code></button>
    ${open === noted.id && noted.is_kept && html`<${Diff} before=${values[index + 1]?.is_kept ? values[index + 1].value : null} after=${noted.value} />`}
  </li>`)}</ol></section>`
}
