/** The options of `connect`, their defaults and their checks. Times are in milliseconds. */

import { invalid } from './errors.js'

/**
 * @typedef {object} Options
 * @property {string | (() => string | undefined | Promise<string | undefined>)} [token] A token, or a function that returns one, or undefined if a cookie is to count. It is
 *   called for each request, and once more if a token is refused.
 * @property {number} [requestTimeoutMs] How long one call may take, retries included (30,000).
 * @property {number} [attemptTimeoutMs] How long one attempt at one node may take (10,000).
 * @property {number} [retryDelayMs] The first pause between two attempts; each next one doubles (100).
 * @property {number} [retryDelayMsMax] The longest pause between two attempts (2,000).
 * @property {number} [streamSilenceMs] A stream on which nothing came for so long is opened again; longer than the node's `heartbeat_s` (60,000).
 * @property {number} [eventBytesMax] The longest event of a stream (1 MiB).
 * @property {number} [bookmarkBytesMax] The bookmarks that are sent with a request (12 KiB).
 * @property {Trace} [trace] The trace (W3C Trace Context) that requests belong to: a function that is asked once for each call, at its beginning.
 * @property {typeof globalThis.fetch} [fetch] In place of the global one, such as one that trusts a CA of yours.
 */

/** @typedef {() => string | { traceparent?: string, tracestate?: string } | undefined} Trace A `traceparent`, or both headers; undefined if there is no trace. */
/** @typedef {Required<Omit<Options, 'token' | 'trace'>> & Pick<Options, 'token' | 'trace'>} Settings */

const DEFAULTS = {
  requestTimeoutMs: 30_000,
  attemptTimeoutMs: 10_000,
  retryDelayMs: 100,
  retryDelayMsMax: 2_000,
  streamSilenceMs: 60_000,
  eventBytesMax: 1 << 20,
  bookmarkBytesMax: 12 << 10
}
const OTHERS = ['token', 'trace', 'fetch']

/** @param {Options} options @returns {Settings} */
export function settings (options) {
  const unknown = Object.keys(options).find((name) => !(name in DEFAULTS) && !OTHERS.includes(name))
  if (unknown !== undefined) throw invalid(`connect has no option ${JSON.stringify(unknown)}.`)
  const { token, trace, fetch, ...given } = options
  const bounds = { ...DEFAULTS, ...given }
  for (const [name, value] of Object.entries(bounds)) {
    if (typeof value !== 'number' || !(value > 0)) throw invalid(`the option ${name} must be a number above 0.`)
  }
  if (token !== undefined && typeof token !== 'function' && (typeof token !== 'string' || !/^[\x21-\x7e]+$/.test(token))) {
    throw invalid('the option token must be a token (without spaces or line ends), or a function that returns one.')
  }
  if (trace !== undefined && typeof trace !== 'function') throw invalid('the option trace must be a function that returns a traceparent.')
  // Called as a method of another object, the browsers' fetch throws.
  const chosen = fetch ?? ((request, init) => globalThis.fetch(request, init))
  if (typeof chosen !== 'function') throw invalid('the option fetch must be a function.')
  return { ...bounds, token, trace, fetch: chosen }
}

/**
 * The addresses of the nodes, without a slash at the end.
 * @param {string | readonly string[]} given
 * @returns {string[]}
 */
export function addresses (given) {
  const urls = typeof given === 'string' ? given.split(',').map((part) => part.trim()) : given
  if (!Array.isArray(urls) || urls.length === 0) throw invalid('connect needs the URL of a node, or several.')
  return urls.map(address)
}

/** @param {string} text */
function address (text) {
  let url
  try {
    url = new URL(text)
  } catch {
    throw invalid(`${JSON.stringify(text)} is not the URL of a node, as https://n1.example.com:7400 is.`)
  }
  if (!/^https?:$/.test(url.protocol)) throw invalid(`${text} must begin with http:// or https://.`)
  if (url.username || url.password || url.search || url.hash) throw invalid('the URL of a node has no user, query or fragment; give a token as the option token.')
  return (url.origin + url.pathname).replace(/\/+$/, '')
}
