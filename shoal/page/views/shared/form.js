/** A small form that carries out one action; what is typed stays until the action is acknowledged, and a refusal is shown below it. */

import { html } from '../../vendor/preact.js'
import { act, acted, draft, drop } from '../../data.js'
import { read } from '../../kit/exact.js'
import { Refusal } from '../../kit/states.js'

/** The value that a text stands for: JSON if it is that, else the text itself. @param {string} text */
export function valueOf (text) {
  try {
    return read(text)
  } catch (error) {
    if (error instanceof SyntaxError) return text
    throw error
  }
}

/**
 * @param {{ title: string, what: string, says: string, value?: string | null, button?: string, fields?: { name: string, label: string, hint?: string, choices?: string[][] }[],
 *   run: (fields: Record<string, string>, value: any, options: { by: string, key: string }) => Promise<any> }} props
 *   `value`: the label of the value's field, null if there is none; `choices`: value and text of each, the first if nothing is chosen.
 */
export function ValueForm ({ title, what, says, value = 'Value (JSON, or plain text)', button, fields = [], run }) {
  const state = acted(what).value
  const text = draft(`${what} value`)
  const typed = fields.map((field) => ({ ...field, draft: draft(`${what} ${field.name}`) }))
  const names = [...typed.map((field) => `${what} ${field.name}`), `${what} value`]
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault()
    const given = Object.fromEntries(typed.map((field) => [field.name, field.draft.value]))
    const sent = names.map((name) => draft(name).peek())
    await act(what, async (options) => run(given, valueOf(sent[sent.length - 1]), options))
    // What was typed meanwhile is not written yet.
    if (acted(what).peek().state === 'done') names.forEach((name, nth) => { if (draft(name).peek() === sent[nth]) drop(name) })
  }
  return html`<form class="action" onSubmit=${submit} aria-label=${title}>
    <h3>${title}</h3>
    <div class="fields">
      ${typed.map((field) => html`<label>${field.label}${field.choices
        ? html`<select value=${field.draft.value} onChange=${(/** @type {any} */ event) => { field.draft.value = event.target.value }}>${field.choices.map(([each, says]) => html`<option value=${each}>${says}</option>`)}</select>`
        : html`<input class="mono" required value=${field.draft.value} placeholder=${field.hint ?? ''} spellcheck=${false} onInput=${(/** @type {any} */ event) => { field.draft.value = event.target.value }} />`}</label>`)}
      ${value !== null && html`<label class="wide">${value}<textarea class="mono" required rows="2" spellcheck=${false} value=${text.value}
        onInput=${(/** @type {any} */ event) => { text.value = event.target.value }}></textarea></label>`}
      <button type="submit" disabled=${state.state === 'running'}>${state.state === 'running' ? 'at work…' : button ?? title}</button>
    </div>
    <p class="quiet">${says}</p>
    ${state.state === 'refused' && html`<${Refusal} error=${state.error} />`}
    ${state.state === 'done' && html`<p class="quiet" role="status">Done.</p>`}
  </form>`
}

/**
 * One button that carries out one action, and says what happens.
 * @param {{ what: string, label: string, says: string, name?: string, way?: string, disabled?: boolean, primary?: boolean, run: (options: { by: string, key: string }) => Promise<any> }} props
 *   `name`: what it is called if its label is a sign.
 */
export function Action ({ what, label, says, name, way, disabled = false, primary = false, run }) {
  const state = acted(what).value
  return html`<span class="act">
    <button type="button" class=${primary ? 'primary' : ''} title=${says} aria-label=${name} data-way=${way} disabled=${disabled || state.state === 'running'} onClick=${() => act(what, run)}>${label}</button>
    ${state.state === 'refused' && html`<${Refusal} error=${state.error} />`}
  </span>`
}
