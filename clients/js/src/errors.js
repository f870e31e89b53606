/** The one class of errors. A node's problem document becomes one; `docs/ERRORS.md` lists the codes. */

/** @typedef {'no' | 'yes' | 'unknown'} Written */

/**
 * @typedef {object} Facts
 * @property {number} [status] The HTTP status; 0 if no node answered.
 * @property {Written} [written] Whether anything was written.
 * @property {boolean} [retryable] Whether the same call, unchanged, may succeed later or at another node.
 * @property {Record<string, unknown>} [detail] Further values, such as `heads`.
 * @property {unknown} [cause]
 */

export class ShoalError extends Error {
  /**
   * @param {string} code The name of the error, such as `head-moved`.
   * @param {string} message What happened, whether anything was written, and what to do.
   * @param {Facts} [facts]
   */
  constructor (code, message, { status = 0, written = 'no', retryable = false, detail = {}, cause } = {}) {
    super(message, cause === undefined ? undefined : { cause })
    this.name = 'ShoalError'
    this.code = code
    this.status = status
    /** @type {Written} */
    this.written = written
    this.retryable = retryable
    this.detail = detail
    /** The idempotency key of the write that failed: the same call with it, at any node, counts once. @type {string | undefined} */
    this.key = undefined
  }
}

const MEMBERS = new Set(['type', 'title', 'status', 'detail', 'code', 'written', 'retryable'])

/**
 * The error of an answer that is no success.
 * @param {number} status
 * @param {string} text The body.
 * @param {string} url Of the node.
 */
export function errorOf (status, text, url) {
  const problem = parsed(text)
  if (problem !== null && typeof problem.code === 'string' && typeof problem.detail === 'string') {
    const detail = Object.fromEntries(Object.entries(problem).filter(([name]) => !MEMBERS.has(name)))
    const { written, retryable } = problem
    return new ShoalError(problem.code, problem.detail, { status, written, retryable: retryable === true, detail })
  }
  // Something between the client and the node: a proxy, or another server.
  const retryable = [429, 502, 503, 504].includes(status)
  const told = status === 0 || (status >= 300 && status < 400) ? 'redirects to another address' : `answered with status ${status}`
  return new ShoalError('unreachable', `${url} ${told}, and not as a Shoal node does. Check the URL, and what is between the client and the node.`, {
    status, retryable, written: retryable ? 'unknown' : 'no'
  })
}

/** @param {string} text @returns {Record<string, any> | null} */
function parsed (text) {
  try {
    const value = JSON.parse(text)
    return value !== null && typeof value === 'object' ? value : null
  } catch {
    return null
  }
}

/** @param {string} message @returns {ShoalError} */
export const invalid = (message) => new ShoalError('invalid-input', `${message} Nothing was written.`)
