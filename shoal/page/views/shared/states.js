/** How a live value is shown while it is not there: the shape of what comes, since when it is old, or why it was refused. */

import { html, useEffect, useState } from '../../vendor/preact.js'
import { Refusal } from '../../kit/states.js'
import { Time } from '../../kit/time.js'

const QUIET_MS = 150

/** @param {{ of: any, lines?: number, children: (value: any) => any }} props `of`: a signal of `live`. */
export function Loaded ({ of, lines = 5, children }) {
  const { state, value, error, since } = of.value
  const show = Array.isArray(children) ? children[0] : children
  if (value !== undefined) {
    return html`${state === 'stale' && html`<p class="note" role="status">As of <${Time} ms=${since} />: no node answers.</p>`}
      ${state === 'refused' && html`<${Refused} error=${error} />`}${show(value)}`
  }
  return state === 'loading' ? html`<${Shape} lines=${lines} />` : html`<${Refused} error=${error} />`
}

/** @param {{ lines: number }} props */
export function Shape ({ lines }) {
  const [late, setLate] = useState(false)
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), QUIET_MS)
    return () => clearTimeout(timer)
  }, [])
  return late ? html`<div class="shape" aria-busy="true" aria-label="loading">${Array.from({ length: lines }, () => html`<div class="shape-line"></div>`)}</div>` : null
}

/** @param {{ error: any }} props */
export const Refused = ({ error }) => html`<${Refusal} error=${error} />`
