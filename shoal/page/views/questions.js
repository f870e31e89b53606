/** What a graph asks, and the line of Python that answers: the graph's code is not here, so the page cannot let it go on. */

import { html, useState } from '../vendor/preact.js'
import { draft } from '../data.js'
import { resuming } from '../kit/python.js'
import { Time } from '../kit/time.js'

const ANSWER = '…' // Until one is typed.
const COPIED_MS = 3_000

/** @typedef {{ id: string, says: string, asked_ms: number, answered: boolean }} Question */

/**
 * The snippet for what was typed; '' if more than one asks, and one of those that are answered is known by no id.
 * @param {string} name @param {Question[]} questions @param {string[]} typed
 */
function snippet (name, questions, typed) {
  if (questions.length === 1) return resuming(name, typed[0] || ANSWER)
  const some = questions.map(({ id }, nth) => [id, typed[nth]]).filter(([, answer]) => answer)
  const named = some.length > 0 ? some : questions.map(({ id }) => [id, ANSWER])
  return named.every(([id]) => id) ? resuming(name, Object.fromEntries(named)) : ''
}

/** The questions of a thread, with a field for each answer. @param {{ space: string, name: string, questions: Question[], isWhole?: boolean }} props `isWhole`: with what each asks, which else stands above it. */
export function Questions ({ space, name, questions, isWhole }) {
  const answers = questions.map(({ id, asked_ms: ms }) => draft(`answer ${space}/${name} ${id || ms}`))
  const code = snippet(name, questions, answers.map(({ value }) => value))
  const isGiven = questions.every(({ answered }) => answered)
  return html`<div class="questions">${questions.map(({ id, says, asked_ms: ms }, nth) => html`<div key=${id || nth} class="question">
      ${(isWhole || questions.length > 1) && html`<p class="says"><bdi>${says || 'an empty text'}</bdi> <span class="quiet">asked <${Time} ms=${ms} ago /></span></p>`}
      <label>Answer<input value=${answers[nth].value} maxlength="2000" onInput=${(/** @type {any} */ event) => { answers[nth].value = event.target.value }} /></label></div>`)}
    ${isGiven && html`<p class="quiet">It was answered. If no program runs it now, run the graph again with None in the place of the Command.</p>`}
    ${code ? html`<p class="quiet">Its code is not here, so this page cannot let it go on. Run this where the graph is:</p><${Code} text=${code} />` : html`<p class="quiet">The ids of its questions are not known here. <code>graph.get_state(config).interrupts</code> has them.</p>`}</div>`
}

/** @param {{ text: string }} props */
function Code ({ text }) {
  const [says, setSays] = useState('Copy')
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text)
      setSays('Copied')
    } catch {
      setSays('Select it, and copy by hand') // A browser that forbids it, or a page that came without TLS.
    }
    setTimeout(() => setSays('Copy'), COPIED_MS)
  }
  return html`<pre class="text" tabindex="0" aria-label="Python"><code>${text}</code></pre><button onClick=${copy}><span role="status">${says}</span></button>`
}
