/**
 * A table of any length: only the rows that are seen are in the page.
 *
 * Laws:
 * - Nothing moves under the pointer. Rows that come, or that would change their places, wait behind "12 new" until they are asked for.
 * - Scrolling costs as much as the rows that come into sight, however many there are.
 */

import { html, signal, useEffect, useMemo, useRef, useState } from '../vendor/preact.js'
import { useKeys } from '../keys.js'

const ROW = matchMedia('(pointer: coarse)').matches ? 44 : 32
const SPARE = 8
const NARROW = matchMedia('(max-width: 899px)')
const isNarrow = signal(NARROW.matches)
NARROW.addEventListener('change', () => { isNarrow.value = NARROW.matches })

/** Move the focus into what is chosen. @returns {boolean} Whether there is something. */
function enter () {
  const found = /** @type {HTMLElement | null | undefined} */ (document.querySelector('.pane.chosen')?.querySelector('button:not(.back), a, input, select, textarea, summary'))
  found?.focus()
  return found !== null && found !== undefined
}

/**
 * @typedef {object} Column
 * @property {string} name
 * @property {(row: any) => any} cell
 * @property {string} [width] As in `grid-template-columns`; `1fr` if left out.
 * @property {(a: any, b: any) => number} [by] How it is sorted.
 * @property {'wide'} [when] Left out on a narrow screen.
 */

/**
 * @param {{ columns: Column[], rows: any[], key?: (row: any) => string, rowKey?: (row: any) => string, chosen?: string, onChoose?: (row: any) => void,
 *   href?: (row: any) => string, sort?: string, onSort?: (name: string) => void, anew?: string, label?: string, onEnd?: () => void, fit?: number }} props
 *   `rowKey`: what a row is (JSX takes `key` for itself); `anew`: if it changes, rows take their places at once; `sort`: a column's name, with "-" for descending; `onEnd`: the last rows are seen; `fit`: as high as its rows, of which it shows at most so many at once.
 */
export function Table ({ columns: all, rows, rowKey, chosen, onChoose, href, sort, onSort, anew = '', label = 'Rows', onEnd, fit }) {
  const of = /** @type {(row: any) => string} */ (rowKey)
  const narrow = isNarrow.value
  const columns = useMemo(() => narrow ? all.filter(({ when }) => when !== 'wide') : all, [all, narrow])
  const box = useRef(/** @type {HTMLElement | null} */ (null))
  const kept = useRef({ order: /** @type {string[]} */ ([]), anew: '\0', over: false })
  const [top, setTop] = useState(0)
  const [height, setHeight] = useState(800)
  const [, again] = useState(0)
  const column = columns.find(({ name }) => name === sort?.replace(/^-/, ''))
  const known = useMemo(() => {
    const sorted = column?.by ? rows.slice().sort((a, b) => /** @type {any} */ (column).by(a, b) * (sort?.startsWith('-') ? -1 : 1)) : rows
    return new Map(sorted.map((row) => [of(row), row]))
  }, [rows, column?.by && columns, sort])
  const { current } = kept
  const isStill = current.anew === anew + sort && (current.over || top > 0) && current.order.length > 0
  const before = isStill ? current.order : undefined
  const order = useMemo(() => before === undefined ? [...known.keys()] : grown(before, known), [known, before])
  Object.assign(current, { order, anew: anew + sort })
  const waiting = known.size - order.length
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => setHeight(entry.contentRect.height))
    if (box.current) watch.observe(box.current)
    return () => watch.disconnect()
  }, [])
  // Keys may come faster than the rows are drawn again: each goes on from where the one before led.
  const now = useRef(/** @type {any} */ ({}))
  now.current = { order, known, chosen, onChoose }
  const move = (/** @type {number} */ by) => {
    const { order, known, chosen, onChoose } = now.current
    const at = chosen === undefined ? -1 : order.indexOf(chosen)
    const next = Math.max(0, Math.min(order.length - 1, at + by))
    if (order[next] === undefined) return
    now.current.chosen = order[next]
    onChoose?.(known.get(order[next]))
    const y = next * ROW
    const seen = box.current
    if (seen && (y < seen.scrollTop || y + ROW * 2 > seen.scrollTop + seen.clientHeight)) seen.scrollTop = y - seen.clientHeight / 2
  }
  useKeys([
    { key: 'j', says: 'next row', does: () => move(1) }, { key: 'k', says: 'row before', does: () => move(-1) },
    { key: 'ArrowDown', says: 'next row', does: () => move(1) }, { key: 'ArrowUp', says: 'row before', does: () => move(-1) },
    { key: 'Enter', says: 'into the chosen row', does: () => { if (!enter()) move(0) } }
  ])
  const widths = { gridTemplateColumns: widthsOf(columns) }
  const from = Math.max(0, Math.floor(top / ROW) - SPARE)
  const seen = order.slice(from, from + Math.ceil(height / ROW) + 2 * SPARE)
  // A row that stays in sight as it was is not made again.
  const made = useRef({ columns, rows: /** @type {Map<string, { row: any, at: number, isChosen: boolean, link?: string, node: any }>} */ (new Map()) })
  const drawn = new Map(seen.map((each, index) => {
    const [row, at, isChosen, old] = [known.get(each), from + index, each === chosen, made.current.columns === columns ? made.current.rows.get(each) : undefined]
    const link = href?.(row)
    return [each, old && old.row === row && old.at === at && old.isChosen === isChosen && old.link === link ? old : { row, at, isChosen, link, node: html`<${Row} key=${each} row=${row} at=${at} isChosen=${isChosen} link=${link} columns=${columns} now=${now} />` }]
  }))
  made.current = { columns, rows: drawn }
  const adopt = () => { current.anew = '\0'; if (box.current) box.current.scrollTop = 0; setTop(0); again((n) => n + 1) }
  return html`<div class=${fit ? 'table fit' : 'table'} style=${fit ? { height: `${Math.min(fit, order.length) * ROW + 34}px` } : {}} role="table" aria-label=${label} aria-rowcount=${order.length + 1}>
    <div role="rowgroup"><div class="tr head" role="row" style=${widths}>${columns.map(({ name, by }) => html`<span role="columnheader"
      aria-sort=${column?.name === name ? (sort?.startsWith('-') ? 'descending' : 'ascending') : undefined}>${by && onSort
      ? html`<button class="link" onClick=${() => onSort(sort === name ? `-${name}` : name)}>${name}${column?.name === name ? (sort?.startsWith('-') ? ' ↓' : ' ↑') : ''}</button>` : name}</span>`)}</div></div>
    ${waiting > 0 && html`<button class="new-rows" onClick=${adopt}>${waiting} new ↑</button>`}
    <div class="tbody" role="rowgroup" ref=${box} tabindex="0" aria-label=${label} onScroll=${(/** @type {any} */ event) => { setTop(event.target.scrollTop); if (event.target.scrollTop + 3 * height > order.length * ROW) onEnd?.() }}
      onPointerEnter=${() => { current.over = true }} onPointerLeave=${() => { current.over = false; again((n) => n + 1) }}>
      <div role="presentation" style=${{ height: `${order.length * ROW}px`, position: 'relative' }}>${[...drawn.values()].map(({ node }) => node)}</div></div></div>`
}

/** The order that is shown, without rows that went, and with those that came after all others: they move nothing. @param {string[]} before @param {Map<string, any>} known @returns {string[]} */
function grown (before, known) {
  const left = before.every((each) => known.has(each)) ? before : before.filter((each) => known.has(each))
  if (left.length === known.size) return left
  const had = new Set(left)
  const all = [...known.keys()]
  let end = all.length
  while (end > 0 && !had.has(all[end - 1])) end--
  return end === all.length ? left : left.concat(all.slice(end))
}

/** @param {{ row: any, at: number, isChosen: boolean, link?: string, columns: Column[], now: { current: { onChoose?: (row: any) => void } } }} props `at`: its place in the order. */
function Row ({ row, at, isChosen, link, columns, now }) {
  return html`<div class=${'tr' + (isChosen ? ' chosen' : '')} role="row" aria-rowindex=${at + 2} style=${{ gridTemplateColumns: widthsOf(columns), top: `${at * ROW}px` }}
    onClick=${(/** @type {MouseEvent} */ event) => { if (!(event.target instanceof Element && event.target.closest('button, a, label, input'))) now.current.onChoose?.(row) }}>
    ${columns.map(({ cell }, place) => html`<span role="cell">${place === (columns[0].name === '' ? 1 : 0) && link ? html`<a href=${link}>${cell(row)}</a>` : cell(row)}</span>`)}</div>`
}

/** @param {Column[]} columns */
const widthsOf = (columns) => columns.map(({ width }) => width ?? 'minmax(0, 1fr)').join(' ')
