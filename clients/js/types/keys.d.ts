/** Idempotency keys, in the form of docs/PROTOCOL.md: its time lets a node tell a key that it may have forgotten from a new one. */
/** @returns {string} */
export function newKey(): string;
