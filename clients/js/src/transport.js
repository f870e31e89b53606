/**
 * Requests to one of several nodes.
 *
 * Laws:
 * - A call is tried again only if that is safe: a read, or a write that has a key. The node that failed is left for the next one.
 * - If a write may have arrived and no answer came, the error says that it is unknown whether it was written, and has the key.
 * - A caller's signal ends a call at once, with the signal's reason.
 */

import { Bookmarks } from './bookmarks.js'
import { errorOf, invalid, ShoalError } from './errors.js'
import { encode } from './json.js'
import { newKey } from './keys.js'
import { addresses, settings } from './options.js'
import { traceHeaders } from './traces.js'

/**
 * @typedef {object} Call
 * @property {'GET' | 'HEAD' | 'POST' | 'PUT' | 'PATCH' | 'DELETE'} method
 * @property {string} path
 * @property {Record<string, string | number | boolean | undefined>} [query]
 * @property {unknown} [body]
 * @property {string} [key] The idempotency key of a write.
 * @property {Record<string, string>} [headers]
 * @property {Record<string, string>} [trace] The headers of its trace; by default those of the trace under way when it is sent.
 * @property {AbortSignal} [signal]
 * @property {number} [waitMs] How long the node may wait before it answers.
 */

/** @typedef {{ key?: string, durability?: 'memory' | 'local' | 'quorum' | 'all', signal?: AbortSignal }} WriteOptions */
/** @typedef {{ stale?: boolean, signal?: AbortSignal }} ReadOptions */

// Node.js says of these that no connection was made, so that nothing was sent; browsers say nothing.
const NOT_SENT = new Set(['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN', 'EHOSTUNREACH', 'ENETUNREACH', 'UND_ERR_CONNECT_TIMEOUT'])

export class Transport {
  /**
   * @param {string | readonly string[]} urls
   * @param {import('./options.js').Options} options
   */
  constructor (urls, options) {
    this._urls = addresses(urls)
    this.settings = settings(options)
    this._at = 0
    this._bookmarks = new Bookmarks(this.settings.bookmarkBytesMax)
  }

  /** The address of the node that is asked next. */
  get url () {
    return this._urls[this._at]
  }

  /** Leave a node for the next one, unless another call has left it already. @param {string} url */
  leave (url) {
    if (url === this.url) this._at = (this._at + 1) % this._urls.length
  }

  /** The token to show now. @returns {Promise<string | undefined>} */
  async token () {
    const { token } = this.settings
    return typeof token === 'function' ? await token() : token
  }

  /** The headers of the trace under way. @returns {Record<string, string>} */
  trace () {
    return traceHeaders(this.settings.trace)
  }

  /**
   * Read, with retries.
   * @param {string} path
   * @param {Call['query']} [query]
   * @param {{ stale?: boolean, signal?: AbortSignal, waitMs?: number }} [options]
   * @returns {Promise<any>}
   */
  read (path, query, { stale, signal, waitMs } = {}) {
    return this._retried({ method: 'GET', path, query: { ...query, stale: stale || undefined }, signal, waitMs })
  }

  /**
   * Ask for something that changes nothing, but needs a body.
   * @param {string} path
   * @param {unknown} body
   * @param {ReadOptions} [options]
   * @returns {Promise<any>}
   */
  ask (path, body, { stale, signal } = {}) {
    return this._retried({ method: 'POST', path, body, query: { stale: stale || undefined }, signal })
  }

  /**
   * Write, with retries under one idempotency key.
   * @param {'POST' | 'PUT' | 'PATCH' | 'DELETE'} method
   * @param {string} path
   * @param {unknown} body
   * @param {WriteOptions} [options]
   * @param {Call['query']} [query]
   * @returns {Promise<any>}
   */
  write (method, path, body, { key = newKey(), durability, signal } = {}, query = {}) {
    return this._retried({ method, path, body, query: { ...query, durability }, key, signal })
  }

  /**
   * Ask once whether this client may read something.
   * @param {string} path
   * @returns {Promise<void>} Rejected with the node's reason.
   */
  async probe (path) {
    const ask = (/** @type {'HEAD' | 'GET'} */ method) => this._attempt(this.url, { method, path }, undefined, this.settings.attemptTimeoutMs)
    try {
      await ask('HEAD')
    } catch (error) {
      if (!(error instanceof ShoalError) || error.status === 404) return
      // An answer to HEAD has no text.
      if (error.status === 401 || error.status === 403) await ask('GET')
      throw error
    }
  }

  /** @param {Call} given */
  async _retried (given) {
    const call = { ...given, trace: this.trace() }
    // Before the first attempt, so that a value that cannot be written is no failed attempt.
    const text = call.body === undefined ? undefined : encode(call.body)
    if (call.key !== undefined && (typeof call.key !== 'string' || !/^[\x20-\x7e]{1,255}$/.test(call.key))) {
      throw invalid('an idempotency key has 1 to 255 characters of printable ASCII.')
    }
    const tries = this.tries(call.waitMs ?? 0)
    let unsure = false
    /** @type {ShoalError | undefined} What a node said tells more than that the last attempt was cut short. */
    let answer
    for (;;) {
      const url = this.url
      try {
        return await this._attempt(url, call, text, tries.leftMs())
      } catch (error) {
        if (!(error instanceof ShoalError)) throw error
        unsure ||= call.key !== undefined && error.written === 'unknown'
        if (error.status > 0) answer = error
        if (error.retryable) this.leave(url)
        if (!error.retryable || !(await tries.again(error, call.signal))) throw marked(answer ?? error, call.key, unsure)
      }
    }
  }

  /**
   * The pauses between attempts, within `requestTimeoutMs` and what the node itself may wait.
   * @param {number} [waitMs]
   */
  tries (waitMs = 0, forMs = this.settings.requestTimeoutMs) {
    const { retryDelayMs, retryDelayMsMax } = this.settings
    const endsMs = Date.now() + forMs + waitMs
    let pauseMs = retryDelayMs
    return {
      leftMs: () => Math.max(1, endsMs - Date.now()),
      /** Wait; false if the time is over. @param {ShoalError} error @param {AbortSignal} [signal] */
      again: async (error, signal) => {
        // Nodes say when to come back; clients that failed together shall not come back together.
        const told = Number(error.detail.retry_after_s) * 1000 || 0
        const waitedMs = Math.max(told, pauseMs * (0.5 + Math.random() / 2))
        pauseMs = Math.min(2 * pauseMs, retryDelayMsMax)
        if (Date.now() + waitedMs >= endsMs) return false
        await paused(waitedMs, signal)
        return true
      }
    }
  }

  /**
   * @param {string} url @param {Call} call @param {string | undefined} text @param {number} leftMs
   */
  async _attempt (url, call, text, leftMs) {
    const limit = new Limit(Math.min(leftMs, this.settings.attemptTimeoutMs + (call.waitMs ?? 0)), call.signal)
    try {
      const response = await this.open(url, call, limit.signal, text)
      const body = await response.text()
      return call.method === 'HEAD' ? null : json(response, body, url)
    } catch (error) {
      throw failed(error, url, call, limit)
    } finally {
      limit.end()
    }
  }

  /**
   * Send one request, and return its answer if that is a success.
   * @param {string} url @param {Call} call @param {AbortSignal} signal @param {any} [text] JSON, or the bytes of a file.
   * @returns {Promise<Response>}
   */
  async open (url, call, signal, text) {
    const [sent, trace] = [this._bookmarks.held(), call.trace ?? this.trace()]
    const target = url + call.path + queryOf(call.query)
    const send = async () => this.settings.fetch(target, {
      method: call.method, body: text, signal, redirect: 'manual', headers: { ...trace, ...this._headers(call, text, sent, await this.token()) }
    })
    let response = await send()
    if (response.status === 401 && typeof this.settings.token === 'function') {
      await response.body?.cancel()
      response = await send()
    }
    const { headers } = response
    this._bookmarks.note(headers.get('Shoal-Bookmark'), headers.has('Shoal-Bookmark-Left-Out'), sent)
    if (!response.ok) throw errorOf(response.status, await response.text(), url)
    return response
  }

  /**
   * @param {Call} call @param {unknown} text @param {string[]} sent @param {string | undefined} token
   * @returns {Record<string, string>}
   */
  _headers (call, text, sent, token) {
    return {
      ...(text === undefined ? {} : { 'Content-Type': 'application/json' }),
      ...(call.key === undefined ? {} : { 'Idempotency-Key': call.key }),
      ...(sent.length === 0 ? {} : { 'Shoal-Bookmark': sent.join(', ') }),
      ...(token === undefined ? {} : { Authorization: `Bearer ${token}` }),
      ...call.headers
    }
  }
}

/** A time limit together with a caller's signal. */
export class Limit {
  /** @param {number} ms @param {AbortSignal} [outer] */
  constructor (ms, outer) {
    this.passed = false
    this._controller = new AbortController()
    this.signal = this._controller.signal
    this._outer = outer
    this._forward = () => this._controller.abort(outer?.reason)
    if (outer?.aborted) this._forward()
    outer?.addEventListener('abort', this._forward)
    this.renew(ms)
  }

  /** Begin the time anew. @param {number} ms */
  renew (ms) {
    this.rest()
    this._timer = setTimeout(() => { this.passed = true; this._controller.abort() }, Math.min(ms, 2 ** 31 - 1))
  }

  /** Let no time pass until `renew`. */
  rest () {
    clearTimeout(this._timer)
  }

  /** Abort what has the signal. */
  abort () {
    this._controller.abort()
  }

  end () {
    this.rest()
    this._outer?.removeEventListener('abort', this._forward)
  }
}

/**
 * The error of an attempt: the caller's own reason, a node's answer, or no answer.
 * @param {unknown} error @param {string} url @param {Pick<Call, 'key' | 'signal'>} call @param {Pick<Limit, 'passed'>} limit
 */
export function failed (error, url, call, limit) {
  if (call.signal?.aborted) return call.signal.reason
  if (error instanceof ShoalError) return error
  if (!limit.passed && !(error instanceof TypeError) && !(error instanceof DOMException)) return error // A bug, or the caller's own function threw.
  const cause = /** @type {any} */ (error)?.cause
  const sent = !NOT_SENT.has(cause?.code ?? cause?.errors?.[0]?.code)
  const how = limit.passed ? 'did not answer in time' : `could not be reached${cause?.code ? ` (${cause.code})` : ''}`
  if (call.key === undefined || !sent) {
    return new ShoalError('disconnected', `${url} ${how}. Nothing was written. Check the URL, and whether the node runs and allows this page (allowed_origins).`, {
      retryable: true, cause: error
    })
  }
  return new ShoalError('outcome-unknown', `${url} ${how}. The write may or may not be applied. Repeat it with the same key.`, {
    retryable: true, written: 'unknown', cause: error
  })
}

/** @param {ShoalError} error @param {string | undefined} key @param {boolean} unsure Whether an earlier attempt may have written. */
function marked (error, key, unsure) {
  error.key = key
  if (key === undefined) error.written = 'no'
  else if (unsure && error.written === 'no') error.written = 'unknown'
  return error
}

/** @param {Response} response @param {string} text @param {string} url */
function json (response, text, url) {
  if (!/^application\/(.+\+)?json\b/.test(response.headers.get('Content-Type') ?? '')) throw errorOf(response.status, '', url)
  try {
    return JSON.parse(text)
  } catch {
    throw errorOf(response.status, '', url)
  }
}

/** @param {Call['query']} query */
function queryOf (query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined)
  return given.length === 0 ? '' : '?' + new URLSearchParams(given.map(([name, value]) => [name, String(value)]))
}

/** A path of names, each percent-encoded. @param {...string} names */
export function path (...names) {
  for (const name of names) {
    if (typeof name !== 'string' || name === '') throw new ShoalError('invalid-name', 'a name must be a text that is not empty. Nothing was written.')
    if (/\p{Surrogate}/u.test(name)) throw new ShoalError('invalid-name', 'a name holds half of a UTF-16 pair. Nothing was written.')
  }
  // A URL drops the parts "." and "..", also if they are percent-encoded.
  const dots = names.find((name) => name === '.' || name === '..')
  if (dots !== undefined) throw new ShoalError('invalid-name', `the name ${JSON.stringify(dots)} cannot be a part of a URL. Nothing was written.`)
  return names.map((name) => '/' + encodeURIComponent(name)).join('')
}

/** @param {number} ms @param {AbortSignal} [signal] @returns {Promise<void>} */
export function paused (ms, signal) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason)
    const end = () => { clearTimeout(timer); reject(signal?.reason) }
    const timer = setTimeout(() => { signal?.removeEventListener('abort', end); resolve() }, Math.min(ms, 2 ** 31 - 1))
    signal?.addEventListener('abort', end, { once: true })
  })
}
