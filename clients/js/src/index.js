/**
 * A client of Shoal for browsers and Node.js, over the HTTP of the nodes.
 *
 * Laws:
 * - Every write has an idempotency key, made before the first attempt, so that a write that is sent again, to any node, counts once.
 * - Whatever the node answers is passed on as it is, with the names of the OpenAPI description; only what the caller writes is in camelCase.
 * - Every wait, retry and buffer has a bound, named among the options of `connect`.
 */

export { connect, Space, Store } from './store.js'
export { NO_HEAD, Journal, Thread } from './thread.js'
export { Inbox, Worklist } from './queues.js'
export { Budget, Counter, Register, SharedList, SharedMap, SharedSet } from './values.js'
export { Items } from './items.js'
export { Files } from './files.js'
export { SharedDocument } from './document.js'
export { ShoalError } from './errors.js'

/** @typedef {import('./options.js').Options} Options */
/** @typedef {import('./watch.js').WatchEvent} WatchEvent */
/** @typedef {import('./watch.js').WatchOptions} WatchOptions */
/** @typedef {import('./thread.js').Checkpoint} Checkpoint */
/** @typedef {import('./transport.js').ReadOptions} ReadOptions */
/** @typedef {import('./transport.js').WriteOptions} WriteOptions */
