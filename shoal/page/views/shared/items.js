/** Memory items of a first label: searched by text and by fields, each with its value, its other values and its end. */

import { html } from '../../vendor/preact.js'
import { client, live } from '../../data.js'
import { go, address, refine } from '../../router.js'
import { shell } from '../../kit/shell.js'
import { Confirm, Empty, Mark, Shown } from '../../kit/states.js'
import { Duration, Time } from '../../kit/time.js'
import { Tree } from '../../kit/tree.js'
import { ValueForm } from './form.js'
import { clip, some } from './listing.js'

const LOOKED_MAX = 500

/**
 * `field: value` looks for a field, everything else for text; several are joined by commas.
 * @param {string} typed @returns {{ filter: Record<string, unknown>, texts: string[] }}
 */
export function meant (typed) {
  const filter = /** @type {Record<string, unknown>} */ ({})
  const texts = []
  for (const part of typed.split(',').map((each) => each.trim()).filter(Boolean)) {
    const field = /^([\w.]+)\s*[:=]\s*(.+)$/.exec(part)
    if (field === null) texts.push(part.toLowerCase())
    else filter[field[1]] = value(field[2])
  }
  return { filter, texts }
}

/** @param {string} text */
function value (text) {
  try {
    return JSON.parse(text)
  } catch {
    return text
  }
}

/** @param {{ space: string, name: string, rest: string[], query: Record<string, string> }} props `name`: the first label; `rest`: namespace and key of the chosen item. */
export function ItemsView ({ space, name, rest, query }) {
  const items = client().space(space).items
  const { filter, texts } = meant(query.find ?? '')
  const found = live(`items ${space}/${name} ${JSON.stringify(filter)}`, () => some(items.search([name], { filter: Object.keys(filter).length > 0 ? filter : undefined }), LOOKED_MAX), { space, kinds: ['items'] })
  if (rest.length === 2) return html`<${Item} space=${space} name=${name} namespace=${rest[0].split('.')} itemKey=${rest[1]} />`
  return html`
    <form class="find" role="search" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <label class="wide"><span class="sr">Search memories</span><input type="search" value=${query.find ?? ''} placeholder="text, or field: value"
        onInput=${(/** @type {any} */ event) => refine({ find: event.target.value })} /></label></form>
    <${Shown} of=${found.value}>${(/** @type {any} */ page) => {
      const shown = page.items.filter((/** @type {any} */ item) => {
        const text = `${item.namespace.join(' ')} ${item.key} ${JSON.stringify(item.value)}`.toLowerCase()
        return texts.every((each) => text.includes(each))
      })
      return html`<p class="says">${shown.length} of ${page.items.length}${page.more ? ' looked through' : ''} ${page.items.length === 1 ? 'memory' : 'memories'}</p>
        ${shown.length === 0 && html`<${Empty} why=${query.find ? 'No memory has this text.' : 'There are no memories here.'} command=${shell`shoal items search ${name} --space ${space}`} />`}
        <ul class="rows">${shown.slice(0, 200).map((/** @type {any} */ item) => html`<li key=${`${item.namespace.join('.')} ${item.key}`}>
          <a class="row-link" href=${address(space, 'shared', ['items', name, item.namespace.join('.'), item.key], query)}><code>${item.namespace.slice(1).join('.')}</code> <strong>${item.key}</strong>
            ${item.siblings.length > 1 && html`<${Mark} kind="waits" />`} <span class="clip quiet">${clip(item.value)}</span> <${Time} ms=${item.updated_ms} /></a></li>`)}</ul>
        ${page.more && html`<p class="quiet">Only the first ${LOOKED_MAX} were looked through; name a field to look through all.</p>`}`
    }}</${Shown}>`
}

/** @param {{ space: string, name: string, namespace: string[], itemKey: string }} props */
function Item ({ space, name, namespace, itemKey }) {
  const items = client().space(space).items
  const found = live(`item ${space}/${namespace.join('.')}/${itemKey}`, () => items.get(namespace, itemKey), { space, kinds: ['items'] })
  return html`<p class="says"><code>${namespace.slice(1).join('.')}</code> <strong><bdi>${itemKey}</bdi></strong>, one of <a href=${address(space, 'shared', ['items', name])}><bdi>${name}</bdi></a></p>
    <${Shown} of=${found.value}>${(/** @type {any} */ item) => html`
      <p class="quiet">put <${Time} ms=${item.created_ms} ago />, changed <${Time} ms=${item.updated_ms} ago />${item.expires_ms !== null && html`, expires in <${Duration} ms=${Math.max(0, item.expires_ms - Date.now())} />`}</p>
      ${item.siblings.length > 1 && html`<p class="says"><${Mark} kind="waits" /> ${item.siblings.length} values were put at the same time.</p>`}
      ${(item.siblings.length > 1 ? item.siblings : [item]).map((/** @type {any} */ each) => html`<section class="sibling"><${Tree} value=${each.value} /></section>`)}
      <${ValueForm} title="Put another value" button="Put" what=${`put ${space}/${namespace.join('.')}/${itemKey}`} says="Replaces the value that is shown; refused if somebody wrote meanwhile."
        run=${(/** @type {any} */ _fields, /** @type {any} */ typed, /** @type {any} */ { key }) => items.put(namespace, itemKey, typed, { expect: item.version, key })} />
      <${Confirm} what=${`delete ${space}/${namespace.join('.')}/${itemKey}`} label="Delete" danger says=${`Deletes ${itemKey} on every node.`} run=${async (/** @type {any} */ options) => {
        await items.delete(namespace, itemKey, { key: options.key })
        go(address(space, 'shared', ['items', name]))
      }} />`}</${Shown}>`
}
