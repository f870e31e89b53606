/** Signing in with a token, which the node then keeps in a cookie that no script can read. */

import { html, useState } from '../vendor/preact.js'
import { signIn } from '../data.js'
import { Refusal } from '../kit/states.js'

export const title = 'Sign in'

export function View () {
  const [typed, setTyped] = useState('')
  const [error, setError] = useState(/** @type {Error | undefined} */ (undefined))
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault()
    setError(undefined)
    try { await signIn(typed.trim()) } catch (failure) { setError(/** @type {Error} */ (failure)) }
  }
  return html`<main class="signin"><form onSubmit=${submit}>
    <h1 class="sentence">This node asks for a token.</h1>
    <label>Token<input type="password" autocomplete="off" spellcheck=${false} value=${typed} onInput=${(/** @type {any} */ event) => setTyped(event.target.value)} autofocus required /></label>
    <p class="quiet">You see, and may do, what it allows. Somebody who administers the node makes one:</p>
    <p><code>shoal token create ./tokens ana --allow 'crew:read,write'</code></p>
    <button class="primary">Sign in</button>${error && html`<${Refusal} error=${error} />`}
  </form></main>`
}
