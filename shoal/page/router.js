/**
 * Addresses: everything that is shown has one, `#/SPACE/VIEW/NAME…?filters`, which a colleague can open.
 *
 * Law: the address says all that is chosen, so Back, a reload and another browser show the same. Names are percent-encoded parts.
 */

import { signal } from './vendor/preact.js'

/** @typedef {{ space: string, view: string, path: string[], query: Record<string, string> }} Place */

/** All spaces that the caller may read. */
export const EVERY_SPACE = '*'

/** @param {string} hash @returns {Place} */
export function parsed (hash) {
  const [parts, search = ''] = split(hash.replace(/^#\/?/, ''))
  const [space = EVERY_SPACE, view = 'now', ...path] = parts.split('/').filter((part) => part !== '').map(decoded)
  return { space, view, path, query: Object.fromEntries(new URLSearchParams(search)) }
}

/** @param {string} text @returns {[string, string | undefined]} */
function split (text) {
  const at = text.indexOf('?')
  return at === -1 ? [text, undefined] : [text.slice(0, at), text.slice(at + 1)]
}

/** @param {string} part */
function decoded (part) {
  try {
    return decodeURIComponent(part)
  } catch {
    return part
  }
}

/**
 * The address of a place; filters that are empty are left out.
 * @param {string} space @param {string} view @param {readonly string[]} [path] @param {Record<string, string | undefined>} [query]
 */
export function address (space, view, path = [], query = {}) {
  const parts = [space, view, ...path].map((part) => encodeURIComponent(part).replaceAll('%2A', '*'))
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== '')
  const search = given.length === 0 ? '' : '?' + new URLSearchParams(/** @type {[string, string][]} */ (given))
  return `#/${parts.join('/')}${search}`
}

/** The place that is shown. */
export const place = signal(parsed(location.hash))

/** Go to an address. @param {string} href @param {{ replace?: boolean }} [options] `replace`: Back does not come here again. */
export function go (href, { replace = false } = {}) {
  if (replace) history.replaceState(null, '', href)
  else history.pushState(null, '', href)
  place.value = parsed(href)
}

/** Change filters of the place that is shown; a filter that is empty goes. @param {Record<string, string | undefined>} changes */
export function refine (changes) {
  const { space, view, path, query } = place.peek()
  go(address(space, view, path, { ...query, ...changes }), { replace: true })
}

/** One step up: from a part to its whole, at last to the list. */
export function up () {
  const { space, view, path, query } = place.peek()
  // Of all spaces, the first part is that of the chosen thing.
  if (path.length > 0) go(address(space, view, path.length > 1 && space !== EVERY_SPACE ? path.slice(0, 1) : [], query))
}

const follow = () => { place.value = parsed(location.hash) }
addEventListener('popstate', follow)
addEventListener('hashchange', follow)
