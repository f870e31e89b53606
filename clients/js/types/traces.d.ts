/**
 * The headers of the trace under way; none if there is none.
 * @param {import('./options.js').Trace} [trace]
 * @returns {Record<string, string>}
 */
export function traceHeaders(trace?: import("./options.js").Trace): Record<string, string>;
