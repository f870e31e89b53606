/**
 * What was typed, until its action is acknowledged: through a reload, as far as the browser keeps it.
 *
 * Law: what is kept is what was typed last: if that is too much for the browser, nothing older comes back in its place.
 */

import { effect, signal } from './vendor/preact.js'

const CHARACTERS_MAX = 1 << 20
/** @type {Map<string, import('./vendor/preact.js').Signal<string>>} */
const drafts = new Map()
const DRAFT = 'shoal.draft.'

/** What is typed somewhere; it stays until `drop`. @param {string} key @returns {import('./vendor/preact.js').Signal<string>} */
export function draft (key) {
  let found = drafts.get(key)
  if (found === undefined) {
    const kept = signal(stored(DRAFT + key))
    effect(() => keep(DRAFT + key, kept.value))
    drafts.set(key, found = kept)
  }
  return found
}

/** Its action is acknowledged, or it is given up. @param {string} key */
export function drop (key) {
  draft(key).value = ''
}

/** @param {string} name */
function stored (name) {
  try {
    return localStorage.getItem(name) ?? ''
  } catch {
    return '' // A browser that keeps nothing.
  }
}

/** @param {string} name @param {string} text */
function keep (name, text) {
  try {
    localStorage.removeItem(name)
    if (text !== '' && text.length <= CHARACTERS_MAX) localStorage.setItem(name, text)
  } catch { /* A browser that keeps nothing, or not so much. */ }
}

/** The name that was typed for the page's own writes. */
export const named = signal(stored('shoal.author'))
effect(() => keep('shoal.author', named.value))
