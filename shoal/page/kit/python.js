/**
 * Python to copy: a text is one literal of it, whatever it holds, and looks like what it is.
 *
 * Law: characters that turn the direction of a line, end it or are not seen are written as escapes.
 */

const UNSEEN = /[\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g

/** @param {string} text */
export const literal = (text) => JSON.stringify(text).replace(UNSEEN, (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, '0')}`)

/** The bytes of an id that was written with `%`, as text; half of a surrogate pair has three bytes of its own. @param {string} escapes */
function text (escapes) {
  const octets = escapes.slice(1).split('%').map((each) => parseInt(each, 16))
  /** @type {string[]} */
  const found = []
  for (let at = 0; at < octets.length;) {
    const [first, second = 0, third = 0] = octets.slice(at)
    const size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc0 ? 2 : 1
    found.push(first === 0xed && second >= 0xa0 ? String.fromCharCode(0xd000 | (second & 0x3f) << 6 | third & 0x3f) : new TextDecoder().decode(new Uint8Array(octets.slice(at, at + size))))
    at += size
  }
  return found.join('')
}

/** LangGraph's id of a thread, given the thread's name in Shoal. @param {string} name */
export const idOf = (name) => name === '%' ? '' : name.replace(/(?:%[0-9a-f]{2})+/g, text)

/**
 * What lets a graph go on, in its own program.
 * @param {string} name The thread's. @param {string | Record<string, string>} answer One for the only question, or several by the ids of their questions.
 */
export function resuming (name, answer) {
  const given = typeof answer === 'string' ? literal(answer) : `{${Object.entries(answer).map(([id, each]) => `${literal(id)}: ${literal(each)}`).join(', ')}}`
  return `from langgraph.types import Command\n\ngraph.invoke(Command(resume=${given}), {"configurable": {"thread_id": ${literal(idOf(name))}}})`
}
