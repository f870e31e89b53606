/**
 * Watch a space: each durable change, once, also across nodes that go away.
 *
 * Laws:
 * - A stream that breaks, falls silent or is ended by a stopping node is opened again, at the next node, after the last event that was yielded.
 * - Nothing is read ahead of the loop but one piece of the network's, so memory is bounded. A loop that falls behind gets one `reset` in place of
 *   what was left out.
 * - `began` and `reset` both say: read now what you show. Then each `change` says what to read again.
 */

import { errorOf, ShoalError } from './errors.js'
import { EventParser } from './events.js'
import { failed, Limit, path } from './transport.js'

/** @typedef {import('../types/api.js').components['schemas']} Schemas */
/** @typedef {{ type: 'began', bookmark: string }} Began The watch has begun; it comes first, and not with `after`. */
/** @typedef {Schemas['ChangeView'] & { type: 'change', bookmark: string }} Change */
/** @typedef {{ type: 'reset', reason: string, bookmark: string }} Reset Changes were left out. */
/** @typedef {Began | Change | Reset} WatchEvent */

/**
 * @typedef {object} WatchOptions
 * @property {Schemas['ChangeView']['kind'][]} [kinds] Only these kinds of objects.
 * @property {string} [prefix] Only objects whose names begin so.
 * @property {string} [after] The bookmark of an event, to continue after it. Without it the watch begins now.
 * @property {AbortSignal} [signal] Ends the loop.
 * @property {number} [reconnectMs] How long to look for a node after the stream broke; `Infinity` for ever (`requestTimeoutMs`).
 */

/**
 * @param {import('./transport.js').Transport} transport
 * @param {string} space
 * @param {WatchOptions} [options]
 * @returns {AsyncGenerator<WatchEvent, void, void>}
 */
export function watch (transport, space, { prefix, ...options } = {}) {
  return followed(transport, `/v1/spaces${path(space)}/watch`, { prefix: prefix || undefined }, options)
}

/**
 * Several spaces over one connection. Nothing is resumed: after a reconnect comes a `reset`, and events have no bookmark.
 * @param {import('./transport.js').Transport} transport
 * @param {readonly string[]} spaces At most 64.
 * @param {Omit<WatchOptions, 'prefix' | 'after'>} [options]
 * @returns {AsyncGenerator<WatchEvent, void, void>}
 */
export function watchSpaces (transport, spaces, options = {}) {
  return followed(transport, '/v1/watch', { spaces: spaces.map(encodeURIComponent).join(',') }, options)
}

/**
 * @param {import('./transport.js').Transport} transport
 * @param {string} address
 * @param {Record<string, string | undefined>} named
 * @param {Omit<WatchOptions, 'prefix'>} options
 * @returns {AsyncGenerator<WatchEvent, void, void>}
 */
async function * followed (transport, address, named, { kinds = [], after = '', signal, reconnectMs = transport.settings.requestTimeoutMs } = {}) {
  const query = { ...named, kinds: kinds.join(',') || undefined }
  let [bookmark, begun] = [after, false]
  let tries = transport.tries(0, reconnectMs)
  for (;;) {
    try {
      const headers = bookmark ? { 'Last-Event-ID': bookmark } : undefined
      let heard = false
      const stream = await Stream.open(transport, { method: 'GET', path: address, query, headers, signal })
      try {
        for (;;) {
          const sent = await stream.next()
          heard = true
          bookmark = sent.id || bookmark
          // Without a bookmark, which can be too long for a stream, the changes since the former stream are not known.
          yield begun && sent.event === 'began' ? { type: 'reset', reason: 'the watch began anew', bookmark } : shown(sent, bookmark)
          begun = true
        }
      } finally {
        stream.close()
        // The time to find a node begins when the stream breaks.
        if (heard) tries = transport.tries(0, reconnectMs)
      }
    } catch (error) {
      if (signal?.aborted) return
      if (!(error instanceof ShoalError) || !error.retryable) throw error
      const goesOn = await tries.again(error, signal).catch(() => null)
      if (goesOn === null) return // The caller's signal.
      if (!goesOn) throw error
    }
  }
}

/** @param {import('./events.js').SentEvent} sent @param {string} bookmark @returns {WatchEvent} */
function shown ({ event, data }, bookmark) {
  const told = JSON.parse(data)
  switch (event) {
    case 'began': return { type: 'began', bookmark }
    case 'change': return { ...told, type: 'change', bookmark }
    case 'reset': return { type: 'reset', reason: told.reason, bookmark }
    default: throw errorOf(200, data, 'the stream')
  }
}

/** One open stream. */
class Stream {
  /**
   * @param {import('./transport.js').Transport} transport
   * @param {import('./transport.js').Call} call
   */
  static async open (transport, call) {
    const { url, settings } = transport
    const limit = new Limit(settings.attemptTimeoutMs, call.signal)
    try {
      const response = await transport.open(url, call, limit.signal)
      if (!response.headers.get('Content-Type')?.startsWith('text/event-stream') || response.body === null) throw errorOf(response.status, '', url)
      return new Stream(transport, url, call, limit, response.body.getReader())
    } catch (error) {
      limit.end()
      const failure = failed(error, url, call, limit)
      if (failure instanceof ShoalError && failure.retryable) transport.leave(url)
      throw failure
    }
  }

  /**
   * @param {import('./transport.js').Transport} transport @param {string} url @param {import('./transport.js').Call} call
   * @param {Limit} limit @param {ReadableStreamDefaultReader<Uint8Array>} reader
   */
  constructor (transport, url, call, limit, reader) {
    this._transport = transport
    this._url = url
    this._call = call
    this._limit = limit
    this._reader = reader
    this._parser = new EventParser(transport.settings.eventBytesMax)
    /** @type {import('./events.js').SentEvent[]} */
    this._ready = []
  }

  /** The next event. @returns {Promise<import('./events.js').SentEvent>} */
  async next () {
    try {
      while (this._ready.length === 0) {
        this._limit.renew(this._transport.settings.streamSilenceMs)
        const { done, value } = await this._reader.read()
        this._limit.rest() // The time that the loop takes is no silence of the node's.
        if (done) throw new ShoalError('disconnected', `${this._url} ended the stream.`, { retryable: true })
        this._ready = this._parser.feed(value)
      }
      return /** @type {import('./events.js').SentEvent} */ (this._ready.shift())
    } catch (error) {
      if (!this._call.signal?.aborted) this._transport.leave(this._url) // Else its caller has ended it.
      throw failed(error, this._url, this._call, this._limit)
    }
  }

  close () {
    this._limit.end()
    this._limit.abort()
  }
}
