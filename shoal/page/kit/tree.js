/** A value as a tree. What is folded is not in the page, and a long text or list shows its beginning first, so any size can be opened. */

import { html, useState } from '../vendor/preact.js'
import { numberOf } from './exact.js'

const TEXT_MAX = 600
const TEXT_STEP = 20_000
const CHILDREN = 50

/** @param {{ value: any, open?: boolean, name?: string, depth?: number }} props */
export function Tree ({ value, open = true, name, depth = 0 }) {
  if (value === null || typeof value !== 'object' || numberOf(value) !== undefined) return html`<div class="leaf">${name !== undefined && html`<span class="field">${name}</span>`}<${Leaf} value=${value} /></div>`
  if (depth === 0 && name === undefined) return html`<div class="tree"><${Children} value=${value} depth=${0} /></div>`
  return html`<${Branch} value=${value} name=${name} depth=${depth} open=${open} />`
}

/** @param {{ value: any, name?: string, depth: number, open: boolean }} props */
function Branch ({ value, name, depth, open }) {
  const count = Array.isArray(value) ? value.length : Object.keys(value).length
  const [isOpen, setOpen] = useState(open && count > 0 && depth < 3 && count <= 12)
  return html`<details open=${isOpen} onToggle=${(/** @type {any} */ event) => { event.stopPropagation(); setOpen(event.currentTarget.open) }}>
    <summary><span class="field">${name}</span><span class="quiet">${Array.isArray(value) ? `list of ${count}` : count === 1 ? '1 field' : `${count} fields`}</span></summary>
    ${isOpen && html`<${Children} value=${value} depth=${depth} />`}</details>`
}

/** @param {{ value: any, depth: number }} props */
function Children ({ value, depth }) {
  const [count, setCount] = useState(CHILDREN)
  const entries = Array.isArray(value) ? value.slice(0, count).map((each, index) => /** @type {[string, any]} */ ([String(index), each])) : Object.entries(value).slice(0, count)
  const all = Array.isArray(value) ? value.length : Object.keys(value).length
  return html`<ul>${entries.map(([name, each]) => html`<li key=${name}><${Tree} value=${each} name=${name} depth=${depth + 1} /></li>`)}
    ${all > count && html`<li><button class="link" onClick=${() => setCount(count + CHILDREN * 4)}>${all - count} more</button></li>`}
    ${all === 0 && html`<li class="quiet">empty</li>`}</ul>`
}

/** @param {{ value: any }} props */
export function Leaf ({ value }) {
  if (typeof value === 'string') return html`<${Text} text=${value} quoted />`
  if (numberOf(value) !== undefined) return html`<span class="value number">${numberOf(value)}</span>`
  return html`<span class=${'value ' + (value === null ? 'null' : typeof value)}>${value === undefined ? '–' : String(value)}</span>`
}

/** A text, of which a long one shows its beginning. @param {{ text: string, quoted?: boolean, max?: number }} props */
export function Text ({ text, quoted, max = TEXT_MAX }) {
  const [shown, setShown] = useState(max)
  const part = text.length > shown ? text.slice(0, shown) : text
  return html`<bdi class=${quoted ? 'value string' : 'text'}>${part}</bdi>${text.length > shown && html` <button class="link" onClick=${() => setShown(shown + TEXT_STEP)}>
    … ${(text.length - shown).toLocaleString('en')} more characters</button>`}`
}
