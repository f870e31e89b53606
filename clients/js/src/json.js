/**
 * Values as JSON text, without silent loss.
 *
 * Law: what JSON would drop or replace without a word is written in a node's own form (bigint, NaN, infinities) or refused (Map, Set, bytes, functions,
 * `undefined` in an array). As usual in JavaScript, members that are `undefined` are left out, and a Date becomes text.
 * Answers are plain JSON; what JSON has no type for is `{"$type": …, "value": …}` in them.
 */

import { ShoalError } from './errors.js'

/** @param {unknown} value @returns {string} */
export function encode (value) {
  try {
    return JSON.stringify(value, replaced)
  } catch (cause) {
    if (cause instanceof ShoalError) throw cause
    // A cycle, or a nesting beyond the stack.
    throw unfit(String(cause instanceof Error ? cause.message : cause))
  }
}

/** @this {any} @param {string} key @param {any} value */
function replaced (key, value) {
  switch (typeof value) {
    case 'number':
      return Number.isFinite(value) ? value : { $type: 'float', value: Number.isNaN(value) ? 'nan' : value > 0 ? 'inf' : '-inf' }
    case 'bigint':
      return { $type: 'int', value: String(value) }
    case 'undefined':
      if (Array.isArray(this) || key === '') throw unfit('undefined is no JSON value; use null')
      return value
    case 'function':
    case 'symbol':
      throw unfit(`a ${typeof value} is no JSON value`)
    case 'object':
      if (value instanceof Map || value instanceof Set || ArrayBuffer.isView(value) || value instanceof ArrayBuffer) {
        throw unfit(`a ${value.constructor.name} is no JSON value; use an object, an array, or text`)
      }
  }
  return value
}

/** @param {string} why */
const unfit = (why) => new ShoalError('invalid-value', `a value cannot be written: ${why}. Nothing was written.`)
