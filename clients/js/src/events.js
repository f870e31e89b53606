/** Read server-sent events (WHATWG HTML, section 9.2.6). No I/O, and at most one event that is not complete. */

import { ShoalError } from './errors.js'

/** @typedef {{ event: string, data: string, id: string | null }} SentEvent */

export class EventParser {
  /** @param {number} bytesMax The longest event. */
  constructor (bytesMax) {
    this._bytesMax = bytesMax
    this._decoder = new TextDecoder()
    this._rest = '' // A line that is not complete.
    /** @type {string[]} */
    this._data = []
    this._event = ''
    /** @type {string | null} */
    this._id = null
    this._size = 0
  }

  /**
   * The events that these bytes complete.
   * @param {Uint8Array} bytes
   * @returns {SentEvent[]}
   */
  feed (bytes) {
    const text = this._rest + this._decoder.decode(bytes, { stream: true })
    // A carriage return at the end may be half of a line end.
    const held = text.endsWith('\r') ? '\r' : ''
    const lines = text.slice(0, text.length - held.length).split(/\r\n|\n|\r/)
    this._rest = lines.pop() + held
    const events = lines.flatMap((line) => this._line(line))
    if (this._rest.length + this._size > this._bytesMax) {
      throw new ShoalError('too-large', `an event of the stream has more than ${this._bytesMax} bytes (eventBytesMax).`)
    }
    return events
  }

  /** @param {string} line @returns {SentEvent[]} */
  _line (line) {
    if (line === '') return this._complete()
    this._size += line.length
    const colon = line.indexOf(':')
    const field = colon === -1 ? line : line.slice(0, colon)
    const value = colon === -1 ? '' : line.slice(colon + 1).replace(/^ /, '')
    if (field === 'data') this._data.push(value)
    else if (field === 'event') this._event = value
    else if (field === 'id' && !value.includes('\0')) this._id = value
    else if (field === '') this._size -= line.length // A comment, such as a heartbeat.
    return []
  }

  _complete () {
    const { _data, _event, _id } = this
    Object.assign(this, { _data: [], _event: '', _id: null, _size: 0 })
    return _data.length === 0 ? [] : [{ event: _event || 'message', data: _data.join('\n'), id: _id }]
  }
}
