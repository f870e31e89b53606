/**
 * The trace that a request belongs to, as the caller tells it.
 *
 * Laws:
 * - A trace changes nothing of a request: what is no legal context, or a function that throws, counts as no trace.
 * - It is asked for at the beginning of a call, before anything is waited for: a page has no other way to know who called.
 */

const TRACEPARENT = /^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$/
const TRACESTATE = /^[\x20-\x7e]{1,512}$/

/**
 * The headers of the trace under way; none if there is none.
 * @param {import('./options.js').Trace} [trace]
 * @returns {Record<string, string>}
 */
export function traceHeaders (trace) {
  if (trace === undefined) return {}
  let told
  try {
    told = trace()
  } catch {
    return {}
  }
  const { traceparent, tracestate } = typeof told === 'string' ? { traceparent: told, tracestate: undefined } : told ?? {}
  if (typeof traceparent !== 'string' || !TRACEPARENT.test(traceparent)) return {}
  return typeof tracestate === 'string' && TRACESTATE.test(tracestate) ? { traceparent, tracestate } : { traceparent }
}
