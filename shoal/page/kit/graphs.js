/** What LangGraph writes for itself: its ids of checkpoints, which are no labels that a person gave, and channels that only its loop reads. */

const ID = /\/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/
const OWN = /^(branch:|__)/

export const GRAPH = 'langgraph' // The schema of its checkpoints.

/** Whether a label is a graph's id of a checkpoint (`namespace/id`). @param {string} label */
export const isId = (label) => ID.test(label)

/** Whether a channel is the loop's own: which node comes next, and what a graph was begun with. @param {string} name */
export const isLoops = (name) => OWN.test(name)

/** The channels of a state that people know. @param {Record<string, any>} state @returns {Record<string, any>} */
export const known = (state) => Object.fromEntries(Object.entries(state).filter(([name]) => !isLoops(name)))

/** An object as LangGraph packed it, by its fields. @param {any} value @returns {any} */
export const fieldsOf = (value) => typeof value?.class === 'string' && value.value !== null && typeof value.value === 'object' && !Array.isArray(value.value) ? value.value : value
