/**
 * The files of a thread or of a space: streamed in and out, in one request each.
 */

import { ShoalError } from './errors.js'
import { failed, path } from './transport.js'

const PAGE = 1000

/** @typedef {import('../types/api.js').components['schemas']} Schemas */
/** @typedef {import('./transport.js').ReadOptions} ReadOptions */
/** @typedef {import('./transport.js').WriteOptions} WriteOptions */
/** @typedef {Schemas['FileDetail']} FileDetail */
/** @typedef {{ type?: string, durability?: WriteOptions['durability'], signal?: AbortSignal }} PutOptions */

export class Files {
  /** @param {import('./transport.js').Transport} transport @param {string} at The path of the files. */
  constructor (transport, at) {
    this._transport = transport
    this._path = at
  }

  /**
   * Store bytes under a name. A `Blob`, such as a `File` that a user has chosen, is read as it is sent.
   * @param {string} name
   * @param {Blob | ArrayBuffer | Uint8Array<ArrayBuffer> | string} body
   * @param {PutOptions} [options] The media type is the Blob's if none is given.
   * @returns {Promise<FileDetail>}
   */
  async put (name, body, { type, durability, signal } = {}) {
    const own = body instanceof Blob && body.type !== '' ? body.type : 'application/octet-stream'
    const headers = { 'Content-Type': type ?? own }
    const response = await this._open({ method: 'PUT', path: this._path + path(name), query: { durability }, headers }, signal, body)
    return (await response.json()).file
  }

  /**
   * A file, or the bytes of it from `start` to before `stop`, as the `Response` of `fetch`: its `body` is a stream.
   * @param {string} name
   * @param {{ start?: number, stop?: number, signal?: AbortSignal }} [options]
   * @returns {Promise<Response>}
   */
  open (name, { start = 0, stop, signal } = {}) {
    /** @type {Record<string, string>} */
    const headers = start === 0 && stop === undefined ? {} : { Range: `bytes=${start}-${stop === undefined ? '' : stop - 1}` }
    return this._open({ method: 'GET', path: this._path + path(name), headers }, signal)
  }

  /** The address of a file at the node that answers now, as for a link to save it. It asks for the caller's token as all addresses do. @param {string} name */
  url (name) {
    return this._transport.url + this._path + path(name)
  }

  /** The files by name. @param {ReadOptions} [options] @returns {AsyncGenerator<Schemas['FileInfoView'], void, void>} */
  async * list (options) {
    let after = ''
    for (;;) {
      const page = await this._transport.read(this._path, { after, limit: PAGE }, options)
      yield * page.files
      if (!page.more) return
      after = page.files.at(-1).name
    }
  }

  /** Delete a file; false if there is none. @param {string} name @param {WriteOptions} [options] @returns {Promise<boolean>} */
  async delete (name, options) {
    return (await this._transport.write('DELETE', this._path + path(name), undefined, options)).existed
  }

  /**
   * One request, which the next node gets if this one cannot take it: what has arrived of a file is not stored twice.
   * @param {import('./transport.js').Call} given @param {AbortSignal} [signal] @param {any} [body]
   */
  async _open (given, signal = new AbortController().signal, body) {
    const call = { ...given, trace: this._transport.trace() }
    const tries = this._transport.tries()
    for (;;) {
      const url = this._transport.url
      try {
        return await this._transport.open(url, call, signal, body)
      } catch (reason) {
        const error = failed(reason, url, { ...call, signal }, { passed: false })
        if (!(error instanceof ShoalError) || !error.retryable) throw error
        this._transport.leave(url)
        if (!(await tries.again(error, signal))) throw error
      }
    }
  }
}
