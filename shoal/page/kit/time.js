/** Times are relative, with the exact one on hover; durations and sizes have two digits; ids eight, and one click copies the whole. */

import { html, signal, useState } from '../vendor/preact.js'

const WRONG_MS = 5_000 // What is less is the network's time, or the rest of a second.
let offMs = 0

/** The time now, by the node's clock if this computer's is wrong by more than some seconds: ages are told of the node's times. */
export const clock = () => Date.now() + offMs

/** A node has told its time. @param {string | null} date As in an answer's header. */
export function compared (date) {
  const off = date === null ? NaN : Date.parse(date) - Date.now()
  if (Number.isNaN(off)) return
  offMs = Math.abs(off) > WRONG_MS ? off : 0
  if (Math.abs(now.peek() - clock()) > WRONG_MS) now.value = clock()
}

/** It goes on each second, while the page is seen. */
export const now = signal(clock())
setInterval(() => { if (!document.hidden) now.value = clock() }, 1000)

const STEPS = /** @type {[number, string][]} */ ([[86_400_000, 'd'], [3_600_000, 'h'], [60_000, 'min'], [1000, 's'], [1, 'ms']])

/** A duration in two digits: "1.2 s", "14 min". @param {number} ms */
export function span (ms) {
  const [size, unit] = STEPS.find(([each]) => ms >= each) ?? [1, 'ms']
  const amount = ms / size
  return `${amount < 10 && size > 1 ? Number(amount.toFixed(1)) : Math.round(amount)} ${unit}`
}

/** @param {number} ms */
export const exact = (ms) => new Date(ms).toISOString().replace('T', ' ').replace('Z', ' UTC')

/** @param {{ ms: number, exact?: boolean, ago?: boolean }} props `exact`: the time of the day, and not how long ago; `ago`: with this word. */
export function Time ({ ms, exact: isExact = false, ago = false }) {
  if (!ms) return html`<span class="quiet">–</span>`
  const age = isExact ? 0 : now.value - ms
  const text = isExact ? new Date(ms).toLocaleTimeString([], { hourCycle: 'h23' }) : age < 1000 ? 'now' : `${span(Math.floor(age / 1000) * 1000)}${ago ? ' ago' : ''}`
  return html`<time datetime=${new Date(ms).toISOString()} title=${exact(ms)}>${text}</time>`
}

/** @param {{ ms: number }} props */
export const Duration = ({ ms }) => html`<span class="mono" title=${`${ms} ms`}>${span(ms)}</span>`

/** @param {{ value: string }} props */
export function Id ({ value }) {
  const [copied, setCopied] = useState(false)
  const copy = async (/** @type {Event} */ event) => {
    event.preventDefault()
    event.stopPropagation()
    try { await navigator.clipboard.writeText(value) } catch { return }
    setCopied(true)
    setTimeout(() => setCopied(false), 1200)
  }
  return html`<button class="id" title=${`${value}\nClick copies it`} aria-label=${`Copy ${eight(value)}`} onClick=${copy}>${copied ? 'copied' : eight(value)}</button>`
}

/** @param {string} id */
export const eight = (id) => id.slice(0, 8)

const UNITS = ['KiB', 'MiB', 'GiB', 'TiB']

/** Bytes as the command line tells them: "1.2 MiB". @param {number} count */
export function bytes (count) {
  if (count < 1024) return `${count} B`
  const nth = Math.min(UNITS.length, Math.floor(Math.log2(count) / 10))
  const amount = count / 1024 ** nth
  return `${amount < 10 ? Number(amount.toFixed(1)) : Math.round(amount)} ${UNITS[nth - 1]}`
}
