/** Idempotency keys, in the form of docs/PROTOCOL.md: its time lets a node tell a key that it may have forgotten from a new one. */

/** @returns {string} */
export function newKey () {
  const random = crypto.getRandomValues(new Uint8Array(10)) // randomUUID exists only in pages that came over TLS.
  const hex = Array.from(random, (octet) => octet.toString(16).padStart(2, '0')).join('')
  return `c${Date.now().toString(16).padStart(12, '0')}-${hex}`
}
