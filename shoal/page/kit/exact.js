/**
 * JSON that people type.
 *
 * Law: a number is written as it was typed, or refused: whole numbers beyond 2⁵³ get the node's own form, which a JavaScript number would round.
 */

const LONG = /"(?:[^"\\]|\\.)*"|-?\d{16,}(?![\d.eE])/g
// Of 2025 and later, browsers tell the text of a number.
const tells = JSON.parse('1', /** @type {any} */ ((/** @type {string} */ _key, /** @type {any} */ _value, /** @type {any} */ context) => context?.source)) === '1'

/** @param {string} text @returns {any} */
export function read (text) {
  if (!tells) return JSON.parse(checked(text))
  return JSON.parse(text, /** @type {any} */ ((/** @type {string} */ _key, /** @type {any} */ value, /** @type {any} */ context) => typeof value === 'number' && !Number.isSafeInteger(value) && /^-?\d+$/.test(context.source) ? { $type: 'int', value: String(BigInt(context.source)) } : value))
}

/** @param {string} text */
function checked (text) {
  JSON.parse(text)
  const long = text.match(LONG)?.find((part) => !part.startsWith('"') && !Number.isSafeInteger(Number(part)))
  if (long !== undefined) throw new Error(`this browser would round ${long}; write {"$type": "int", "value": "${long}"} in its place`)
  return text
}

/** The text of a number that JSON has no form for; undefined if it is none. @param {any} value */
export const numberOf = (value) => (value?.$type === 'int' || value?.$type === 'float') && typeof value.value === 'string' && Object.keys(value).length === 2 ? value.value : undefined
