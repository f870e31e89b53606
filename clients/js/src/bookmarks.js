/**
 * What the client has written and seen, as the nodes' answers tell it.
 *
 * Law: an answer's bookmark covers those that its request sent, so these are dropped; of answers that overlap, each is kept. If they do not fit the
 * bound, the oldest are left out: reads at another node may then be older than what this client saw at the first.
 */

export class Bookmarks {
  /** @param {number} bytesMax */
  constructor (bytesMax) {
    this._bytesMax = bytesMax
    /** @type {string[]} Oldest first. */
    this._held = []
  }

  /** Those to send with a request. */
  held () {
    return [...this._held]
  }

  /**
   * @param {string | null} told The bookmark of an answer.
   * @param {boolean} partial Whether it left something out.
   * @param {readonly string[]} sent With the request.
   */
  note (told, partial, sent) {
    if (!told) return
    const kept = partial ? this._held : this._held.filter((one) => !sent.includes(one))
    const next = [...kept.filter((one) => one !== told), told]
    while (next.length > 1 && next.join(', ').length > this._bytesMax) next.shift()
    this._held = next
  }
}
