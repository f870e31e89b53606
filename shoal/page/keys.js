/**
 * The keyboard: everything can be done with it, and `?` shows how.
 *
 * Law: no key acts while something is typed, but Escape, which leaves the field.
 */

import { signal, useEffect } from './vendor/preact.js'

/** @typedef {{ key: string, says: string, does: (event: KeyboardEvent) => void }} Key `key` is one key, or two with a space between ("g t"). */

/** The layers of keys, the innermost last: the page's, the view's, the list's. @type {import('./vendor/preact.js').Signal<Key[][]>} */
export const layers = signal([])
/** Whether the list of keys is shown. */
export const shown = signal(false)

const SECOND_KEY_MS = 1200
let first = ''
let firstAt = 0

/** Have these keys act while the component is there. @param {readonly Key[]} keys @param {readonly unknown[]} [inputs] What they close over. */
export function useKeys (keys, inputs = []) {
  useEffect(() => {
    const layer = [...keys]
    layers.value = [...layers.peek(), layer]
    return () => { layers.value = layers.peek().filter((each) => each !== layer) }
  }, inputs)
}

/** @param {EventTarget | null} target */
const isTyped = (target) => target instanceof Element && target.closest('input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable=true], .cm-editor') !== null

addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return
  if (isTyped(event.target)) {
    if (event.key === 'Escape') /** @type {HTMLElement} */ (event.target).blur()
    return
  }
  const pair = performance.now() - firstAt < SECOND_KEY_MS ? `${first} ${event.key}` : ''
  const all = layers.peek().slice().reverse().flat()
  const found = (pair && all.find(({ key }) => key === pair)) || all.find(({ key }) => key === event.key)
  first = pair && found ? '' : event.key
  firstAt = performance.now()
  if (!found) return
  // Enter on a link or a button is that one's.
  if (event.key === 'Enter' && event.target instanceof Element && event.target.closest('a, button, summary') !== null) return
  event.preventDefault()
  found.does(event)
})
