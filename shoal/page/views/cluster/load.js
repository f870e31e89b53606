/** How busy the node is that answers: latencies, throughput, refusals and growth by space, as far as it tells them. */

/** @param {any} _node */
export const figures = (_node) => null

export const Load = () => null
