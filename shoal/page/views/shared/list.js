/**
 * A list: its elements in their order, each of which can be moved, replaced and removed, and values to insert anywhere.
 *
 * Law: what is done is done to an element by its id, never to a place: what others insert or move meanwhile cannot turn it to another element.
 */

import { html, useEffect, useRef } from '../../vendor/preact.js'
import { client, live } from '../../data.js'
import { shell } from '../../kit/shell.js'
import { Empty, Shown } from '../../kit/states.js'
import { Tree } from '../../kit/tree.js'
import { Action, ValueForm } from './form.js'
import { clip, some } from './listing.js'

const SHOWN_MAX = 500

/** @param {{ space: string, name: string }} props */
export function ListView ({ space, name }) {
  const list = () => client().space(space).list(name)
  const found = live(`list ${space}/${name}`, async (signal) => {
    const [page, size] = await Promise.all([some(list().items({ signal }), SHOWN_MAX), list().size({ signal })])
    return { ...page, size }
  }, { space, kinds: ['list'] })
  // A moved row is taken out of the page and put in again, which takes the focus from its button: it gets it back.
  const moved = useRef({ id: '', way: '' })
  const box = useRef(/** @type {HTMLElement | null} */ (null))
  useEffect(() => {
    const { id, way } = moved.current
    if (id === '' || (document.activeElement !== document.body && document.activeElement !== null)) return
    const row = box.current?.querySelector(`[data-element="${CSS.escape(id)}"]`)
    const button = /** @type {HTMLElement | null | undefined} */ (row?.querySelector(`[data-way="${way}"]:not(:disabled)`) ?? row?.querySelector('[data-way]:not(:disabled)'))
    button?.focus()
  })
  return html`<${Shown} of=${found.value}>${(/** @type {any} */ { items, more, size }) => html`
    <p class="says">${size} ${size === 1 ? 'element' : 'elements'}</p>
    ${items.length === 0 && html`<${Empty} why="This list is empty." command=${shell`shoal list push ${name} '"write tests"' --space ${space}`} />`}
    <ol class="rows elements" ref=${box} onPointerDown=${() => { moved.current = { id: '', way: '' } }}>${items.map((/** @type {any} */ element, /** @type {number} */ index) => html`<li key=${element.id} data-element=${element.id}>
      <${Element} list=${list} what=${`${space}/${name}`} element=${element} index=${index} before=${items[index - 1]} after=${items[index + 1]} onMove=${(/** @type {string} */ way) => { moved.current = { id: element.id, way } }} /></li>`)}</ol>
    ${more && html`<p class="quiet">Only the first ${SHOWN_MAX} are shown.</p>`}
    <${ValueForm} title="Insert a value" button="Insert" what=${`insert ${space}/${name}`} says="Everything that others insert at the same place is there, too. Remove it to undo this."
      fields=${[{ name: 'place', label: 'Where', choices: [['', 'at the end'], ['start', 'at the start'], ...items.slice(1).map(({ id, value }, /** @type {number} */ at) => [id, `before ${at + 2}: ${clip(value).slice(0, 40)}`])] }]}
      run=${(/** @type {any} */ { place }, /** @type {any} */ typed, /** @type {any} */ { key }) => list().insert([typed], place === '' ? {} : place === 'start' ? { index: 0 } : { before: place }, { key })} />`}</${Shown}>`
}

/** @param {{ list: () => import('../../client/values.js').SharedList, what: string, element: any, index: number, before: any, after: any, onMove: (way: string) => void }} props */
function Element ({ list, what, element, index, before, after, onMove }) {
  const { id, value } = element
  const at = `${what} ${id}`
  const move = (/** @type {string} */ way, /** @type {any} */ place) => (/** @type {any} */ { key }) => { onMove(way); return list().move(id, place, { key }) }
  return html`<span class="mono quiet place">${index + 1}</span>
    <details class="entry"><summary><span class="clip mono">${clip(value)}</span></summary>
      <${Tree} value=${value} />
      <${ValueForm} title="Put another value in its place" button="Replace" what=${`replace ${at}`} says="A new element takes its place, and this one goes. Nobody else's changes are undone."
        run=${async (/** @type {any} */ _fields, /** @type {any} */ typed, /** @type {any} */ { key }) => {
          const inserted = await list().insert([typed], { after: id }, { key: `${key}-i` })
          await list().removeAll([id], { key: `${key}-r` })
          return inserted
        }} /></details>
    <span class="acts"><${Action} what=${`move ${at}`} label="↑" name=${`Move ${index + 1} up`} says="Moves it before the one above; move it down to undo." way="up" disabled=${before === undefined} run=${move('up', { before: before?.id })} />
      <${Action} what=${`move ${at}`} label="↓" name=${`Move ${index + 1} down`} says="Moves it after the one below; move it up to undo." way="down" disabled=${after === undefined} run=${move('down', { after: after?.id })} />
      <${Action} what=${`remove ${at}`} label="remove" name=${`Remove ${index + 1}`} says="Removes it on every node; insert its value again to undo." run=${(/** @type {any} */ { key }) => list().removeAll([id], { key })} /></span>`
}
