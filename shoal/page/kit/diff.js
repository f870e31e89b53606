/** What changed between two values: each place by its path; of long lists the changed elements, and of long texts the changed part, with some context. */

import { html, useMemo } from '../vendor/preact.js'
import { create } from '../vendor/jsondiffpatch.js'
import { briefly, Messages, turn } from './messages.js'
import { Leaf, Tree } from './tree.js'

const TEXT_MIN = 40
const CONTEXT = 40
const LINES_MAX = 300
const AROUND = 2 // Elements beside a changed one.

/** @typedef {{ path: string[], kind: 'added' | 'removed' | 'changed' | 'same', before?: any, after?: any }} Line */

const keyOf = (/** @type {any} */ value) => value?.id ?? value?.key ?? (value?.role ? JSON.stringify(value).slice(0, 500) : undefined)
const differ = create({ objectHash: (/** @type {any} */ value, /** @type {any} */ index) => keyOf(value) ?? `$${index}`, textDiff: { minLength: Infinity } })
const LONG = 1000 // Elements; of longer lists the best of all matches would take time and memory with the square of their length.

/** The changes of a value, in order. @param {any} before @param {any} after @returns {Line[]} */
export function changes (before, after) {
  /** @type {Line[]} */
  const lines = []
  if (isLong(before) || isLong(after)) compare(before, after, [], lines)
  else walk(differ.diff(before, after), before, after, [], lines)
  return lines
}

/** Whether a list in it is long. @param {any} value @returns {boolean} */
const isLong = (value) => value !== null && typeof value === 'object' && ((Array.isArray(value) && value.length > LONG) || Object.values(value).some(isLong))

/** @param {any} a @param {any} b */
const same = (a, b) => a === b || (a !== null && b !== null && typeof a === 'object' && typeof b === 'object' && JSON.stringify(a) === JSON.stringify(b))

/** The same with long lists: each place is looked at once. @param {any} before @param {any} after @param {string[]} path @param {Line[]} lines */
function compare (before, after, path, lines) {
  if (lines.length > LINES_MAX || same(before, after)) return
  const areBoth = before !== null && after !== null && typeof before === 'object' && typeof after === 'object' && Array.isArray(before) === Array.isArray(after)
  if (!areBoth) lines.push({ path, kind: 'changed', before, after })
  else if (Array.isArray(before)) compareLists(before, after, path, lines)
  else {
    for (const [key, each] of Object.entries(before)) {
      if (Object.hasOwn(after, key)) compare(each, after[key], [...path, key], lines)
      else lines.push({ path: [...path, key], kind: 'removed', before: each })
    }
    for (const [key, each] of Object.entries(after)) if (!Object.hasOwn(before, key)) lines.push({ path: [...path, key], kind: 'added', after: each })
  }
}

/** Elements of one key, or that are equal, are the same, in the order of both. @param {any[]} before @param {any[]} after @param {string[]} path @param {Line[]} lines */
function compareLists (before, after, path, lines) {
  const [from, to] = alike(before, after)
  const gone = before.slice(from, before.length - to)
  /** @type {Map<any, number[]>} */
  const places = new Map()
  const nameOf = (/** @type {any} */ value) => keyOf(value) ?? JSON.stringify(value)
  gone.forEach((each, nth) => { const name = nameOf(each); places.has(name) ? places.get(name)?.push(nth) : places.set(name, [nth]) })
  const kept = new Set()
  /** @type {[number, number][]} Of what came: its place, and that of the same before; -1: none. */
  const come = []
  let last = -1
  for (let nth = from; nth < after.length - to; nth++) {
    const found = places.get(nameOf(after[nth]))
    while (found !== undefined && found.length > 0 && found[0] <= last) found.shift()
    const was = found?.shift() ?? -1
    if (was >= 0) { last = was; kept.add(was) }
    come.push([nth, was])
  }
  let room = LINES_MAX / 2
  for (let nth = 0; nth < gone.length && room > 0; nth++) if (!kept.has(nth)) { lines.push({ path: [...path, String(from + nth)], kind: 'removed', before: gone[nth] }); room-- }
  let shown = -1
  for (const [nth, was] of come) {
    if (lines.length > LINES_MAX) return
    if (was >= 0 && same(gone[was], after[nth])) continue
    for (let near = Math.max(shown + 1, nth - AROUND); near < nth; near++) lines.push({ path: [...path, String(near)], kind: 'same', after: after[near] })
    if (was < 0) lines.push({ path: [...path, String(nth)], kind: 'added', after: after[nth] })
    else compare(gone[was], after[nth], [...path, String(nth)], lines)
    shown = nth
  }
}

/** How many elements are equal at the beginning, and at the end. @param {any[]} before @param {any[]} after @returns {[number, number]} */
function alike (before, after) {
  const least = Math.min(before.length, after.length)
  let [from, to] = [0, 0]
  while (from < least && same(before[from], after[from])) from++
  while (to < least - from && same(before[before.length - 1 - to], after[after.length - 1 - to])) to++
  return [from, to]
}

/** @param {any} delta @param {any} before @param {any} after @param {string[]} path @param {Line[]} lines */
function walk (delta, before, after, path, lines) {
  if (delta === undefined || lines.length > LINES_MAX) return
  if (Array.isArray(delta)) {
    if (delta.length === 1) lines.push({ path, kind: 'added', after: delta[0] })
    else if (delta.length === 2) lines.push({ path, kind: 'changed', before: delta[0], after: delta[1] })
    else if (delta[2] === 0) lines.push({ path, kind: 'removed', before: delta[0] })
    return
  }
  if (delta._t === 'a') {
    const at = new Set(Object.keys(delta).filter((key) => !key.startsWith('_')).map(Number))
    for (const [key, each] of Object.entries(delta)) if (/^_\d/.test(key) && each[2] === 0) lines.push({ path: [...path, key.slice(1)], kind: 'removed', before: each[0] })
    let last = -1
    for (const index of [...at].sort((a, b) => a - b)) {
      for (let near = Math.max(last + 1, index - AROUND); near < index; near++) lines.push({ path: [...path, String(near)], kind: 'same', after: after[near] })
      walk(delta[index], before?.[index], after[index], [...path, String(index)], lines)
      last = index
    }
    return
  }
  for (const key of Object.keys(delta)) walk(delta[key], before?.[key], after?.[key], [...path, key], lines)
}

/** @param {{ before: any, after: any }} props */
export function Diff ({ before, after }) {
  const lines = useMemo(() => changes(before, after), [before, after])
  if (lines.length === 0) return html`<p class="quiet">Nothing differs.</p>`
  return html`<ul class="diff">${lines.slice(0, LINES_MAX).map((line) => html`<li class=${line.kind}>
    <span class="path">${line.path.join(' › ') || 'all'}</span><span class="sr">${line.kind}</span><${Change} ...${line} /></li>`)}
    ${lines.length > LINES_MAX && html`<li class="quiet">and more, which the whole state has</li>`}</ul>`
}

/** @param {Line} props */
function Change ({ kind, before, after }) {
  if (kind === 'changed' && typeof before === 'string' && typeof after === 'string' && Math.max(before.length, after.length) >= TEXT_MIN) return html`<${TextChange} before=${before} after=${after} />`
  return html`<span class="change">${(kind === 'removed' || kind === 'changed') && html`<del><${Brief} value=${before} /></del>`}
    ${kind === 'added' || kind === 'changed' ? html`<ins><${Brief} value=${after} /></ins>` : kind === 'same' && html`<bdi class="quiet">${briefly(after)}</bdi>`}</span>`
}

/** @param {{ value: any }} props */
const Brief = ({ value }) => value === null || typeof value !== 'object' ? html`<${Leaf} value=${value} />` : turn(value) !== null ? html`<${Messages} value=${[value]} />` : html`<${Tree} value=${value} />`

/** A long text: what it has in common at both ends is left out but for some context. @param {{ before: string, after: string }} props */
function TextChange ({ before, after }) {
  const least = Math.min(before.length, after.length)
  let start = 0
  while (start < least && before[start] === after[start]) start++
  let end = 0
  while (end < least - start && before[before.length - 1 - end] === after[after.length - 1 - end]) end++
  const [gone, come] = [before.slice(start, before.length - end), after.slice(start, after.length - end)]
  const [lead, tail] = [after.slice(Math.max(0, start - CONTEXT), start), after.slice(after.length - end, after.length - end + CONTEXT)]
  return html`<span class="change"><span class="quiet">${start > CONTEXT ? '…' : ''}${lead}</span>${gone && html`<del><${Leaf} value=${gone} /></del>`}${come && html`<ins><${Leaf} value=${come} /></ins>`}<span class="quiet">${tail}${end > CONTEXT ? '…' : ''}</span></span>`
}
