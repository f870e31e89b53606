/**
 * Secret fields of a state: hidden until somebody asks for them, as commands and differences do it.
 *
 * Law: what is masked is never written: an edit that has the mask in it is refused.
 */

export const HIDDEN = '«secret»'
const CHANGED = `${HIDDEN} (changed)`

/** A state with a mask in the place of these fields. @param {Record<string, any>} state @param {string[]} [fields] JSON pointers; `*` is every key and index. @param {any} [before] Of which it says what differs. @returns {Record<string, any>} */
export const masked = (state, fields = [], before) => fields.reduce((made, field) => changed(made, state, partsOf(field), before), state)

/** @param {string} field */
const partsOf = (field) => field.startsWith('/') ? field.slice(1).split('/').map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~')) : [field]

/** @param {any} tree @param {any} whole The same, unmasked. @param {string[]} parts @param {any} before @returns {any} */
function changed (tree, whole, parts, before) {
  if (parts.length === 0) return before === undefined || JSON.stringify(before) === JSON.stringify(whole) ? HIDDEN : CHANGED
  if (tree === null || typeof tree !== 'object') return tree
  const [first, ...rest] = parts
  const fits = (/** @type {string} */ key) => first === '*' || first === key
  if (Array.isArray(tree)) return tree.map((each, nth) => fits(String(nth)) ? changed(each, whole?.[nth], rest, before?.[nth]) : each)
  if (tree.$type === 'tuple' && Array.isArray(tree.value)) return { ...tree, value: changed(tree.value, whole?.value, parts, before?.value) }
  if ('$type' in tree) return HIDDEN
  return Object.fromEntries(Object.entries(tree).map(([key, each]) => [key, fits(key) ? changed(each, whole?.[key], rest, before?.[key]) : each]))
}

/** Whether a mask is in a value. @param {any} value @returns {boolean} */
export const hides = (value) => value === HIDDEN || (value !== null && typeof value === 'object' && Object.values(value).some(hides))
