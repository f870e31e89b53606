/** Honest states: the two panes, the sentence on top, marks, and what is said when something is empty, loading, old, refused or asked. */

import { Fragment, html, useEffect, useRef, useState } from '../vendor/preact.js'
import { act, acted, forget, SPACES_MAX, told } from '../data.js'
import { place, refine, up } from '../router.js'
import { Time } from './time.js'

/** The list, and beside it the chosen thing; on a narrow screen one of them. @param {{ list: any, chosen?: any }} props */
export function Panes ({ list, chosen }) {
  return html`<div class=${'panes' + (chosen ? ' has-chosen' : '')}><section class="pane list" aria-label="List"><${Guard}>${list}</${Guard}></section>
    ${chosen && html`<section class="pane chosen" aria-label="Chosen" key=${place.value.path.join('/')}><button class="back link" onClick=${up}>${place.value.view === 'threads' && place.value.path.length > 1 ? '← thread' : '← list'}</button><${Guard}>${chosen}</${Guard}></section>`}</div>`
}

const AGAIN_MS = 3_000

/**
 * What cannot be shown says so in its own place, and is tried again now and then: a node of another version, or a proxy, may answer in a form that no view knows.
 * @this {any} The component, whose way to catch errors of those within this is.
 * @param {{ children: any }} props
 */
export function Guard ({ children }) {
  const [error, setError] = useState(/** @type {Error | undefined} */ (undefined))
  this.componentDidCatch = setError
  useEffect(() => {
    if (error === undefined) return
    const timer = setTimeout(() => setError(undefined), AGAIN_MS)
    return () => clearTimeout(timer)
  }, [error])
  return error === undefined ? children : html`<${Refusal} error=${told(error)} again=${() => setError(undefined)} />`
}

/** The answer, on top of each view. @param {{ children: any }} props */
export const Sentence = ({ children }) => html`<h1 class="sentence">${children}</h1>`

const SAID = { well: 'well', waits: 'waits for a person', stuck: 'stuck', unknown: 'unknown' }

/** A status by its colour and its shape. @param {{ kind: 'well' | 'waits' | 'stuck' | 'unknown' }} props */
export const Mark = ({ kind }) => html`<i class=${'mark ' + kind} role="img" aria-label=${SAID[kind] ?? kind} title=${SAID[kind] ?? kind}></i>`

/** @param {{ why: any, command?: string, says?: string }} props `says`: the answer on top, if the view has none. */
export const Empty = ({ why, command, says }) => html`${says && html`<${Sentence}>${says}</${Sentence}>`}<div class="empty"><p>${why}</p>${command && html`<${Command} text=${command} />`}</div>`

/** A command for a shell, that is not broken within an option. @param {{ text: string }} props */
export const Command = ({ text }) => html`<pre><code>${text.split(/ (?=--)/).map((part, nth) => html`${nth > 0 ? ' ' : ''}<span>${part}</span>`)}</code></pre>`

/** That filters leave nothing, and the way back. @param {{ filters: string[] }} props `filters`: their names in the address. */
export const NoneFits = ({ filters }) => html`<div class="empty"><p>Nothing fits what is typed or chosen above.</p><p><button class="link" onClick=${() => refine(Object.fromEntries(filters.map((name) => [name, ''])))}>Show all</button></p></div>`

/** That a view of all spaces has not all. @param {{ more: number | undefined }} props `more`: how many are left out; -1: not known. */
export const SpacesLeft = ({ more }) => more ? html`<p class="quiet note" role="note">${more < 0 ? 'More' : more} ${more === 1 ? 'space is' : 'spaces are'} not shown: these are the ${SPACES_MAX} that are used most. Choose one of the others at the top of the page.</p>` : null

/** The shape of what comes, after 150 ms. @param {{ rows?: number }} props */
export function Loading ({ rows = 6 }) {
  const [late, setLate] = useState(false)
  useEffect(() => { const timer = setTimeout(() => setLate(true), 150); return () => clearTimeout(timer) }, [])
  return late ? html`<div class="shape" role="status"><span class="sr">Loading</span>${Array.from({ length: rows }, () => html`<i></i>`)}</div>` : null
}

/** A part whose module is loaded when it is first shown. @param {{ load: () => Promise<any>, part: string, [name: string]: any }} props */
export function Later ({ load, part, ...props }) {
  const [found, setFound] = useState(/** @type {any} */ (undefined))
  useEffect(() => { load().then(setFound, (error) => setFound({ error })) }, [load])
  if (found === undefined) return html`<${Loading} />`
  return found.error ? html`<${Refusal} error=${found.error} />` : html`<${found[part]} ...${props} />`
}

const WRITTEN = { no: 'Nothing was written.', yes: 'It was written.', unknown: 'It is unknown whether it was written. Tried again here, it counts once.' }

/** An error in its three parts: what happened, what was written, what to do. @param {{ error: any, again?: () => void }} props */
export function Refusal ({ error, again }) {
  const sentences = String(error?.message ?? error).match(/[^.!?]+(?:[.!?]+(?=\s|$)|$)|[.!?]\S*/g) ?? []
  const at = sentences.findIndex((part) => /(was|is|were|been) (written|sent|applied)|may not be applied/.test(part))
  const happened = (at === -1 ? sentences.slice(0, 1) : sentences.slice(0, Math.max(at, 1))).join('')
  const rest = (at === -1 ? sentences.slice(1) : sentences.slice(Math.max(at + 1, 1))).join('')
  return html`<div class="refusal" role="alert"><p><strong>${happened}</strong></p>
    ${error?.written && html`<p>${WRITTEN[/** @type {'no'} */ (error.written)]}</p>`}${rest.trim() && html`<p>${rest}</p>`}
    <p class="quiet">${error?.code && html`<code>${error.code}</code> `}${again && html`<button class="link" onClick=${again}>Try again</button>`}</p></div>`
}

/**
 * What `live` gave, in whichever state it is.
 * @param {{ of: import('../data.js').Live<any>, children: (value: any) => any, rows?: number }} props
 */
export function Shown ({ of, children, rows }) {
  const { state, value, error, since } = of
  if (state === 'refused' && value === undefined) return html`<${Refusal} error=${error} />`
  if (value === undefined) return html`<${Loading} rows=${rows} />`
  return html`<${Fragment}>${(state === 'stale' || state === 'refused') && html`<p class="stale" role="status">As it was <${Time} ms=${since} />: ${error?.message}</p>`}${children(value)}</${Fragment}>`
}

/**
 * While something else of the same kind is loaded, such as a filter's next letter or one more page, what was there before.
 * @param {import('../data.js').Live<any>} of @param {string} what If it is another, nothing is kept.
 * @returns {import('../data.js').Live<any>}
 */
export function useKept (of, what) {
  const kept = useRef({ what, value: /** @type {any} */ (undefined) })
  if (kept.current.what !== what) kept.current = { what, value: undefined }
  if (of.value !== undefined) kept.current.value = of.value
  return of.value === undefined && of.state === 'loading' && kept.current.value !== undefined ? { ...of, state: 'ready', value: kept.current.value } : of
}

const TYPING_MS = 200

/** A filter of the address that is typed. @param {{ name: string, label: string, value?: string, isMain?: boolean }} props */
export function Filter ({ name, label, value = '', isMain }) {
  const timer = useRef(/** @type {any} */ (undefined))
  return html`<input class="filter" type="search" data-search=${isMain ? '' : undefined} placeholder=${label} aria-label=${label} value=${value} maxlength="200" size=${isMain ? 18 : 9} onInput=${(/** @type {any} */ event) => {
    const typed = event.target.value
    clearTimeout(timer.current)
    timer.current = setTimeout(() => refine({ [name]: typed }), TYPING_MS)
  }} />`
}

/** How an action ended, beside it. @param {{ what: string, done?: any }} props */
export function Outcome ({ what, done }) {
  const { state, error } = acted(what).value
  if (state === 'refused') return html`<${Refusal} error=${error} />`
  if (state === 'done' && done) return html`<p class="done" role="status">${done} <button class="link" onClick=${() => forget(what)}>OK</button></p>`
  return null
}

/**
 * One action that is asked once more, in place: one line says what will happen, another how it is undone.
 * @param {{ label: any, says: any, undo?: any, run: (options: { by: string, key: string }) => Promise<any>, what: string, primary?: boolean, danger?: boolean, done?: any, onDone?: (value: any) => void, onAsk?: (asks: boolean) => void, children?: any }} props
 */
export function Confirm ({ label, says, undo, run, what, primary, danger, done, onDone, onAsk, children }) {
  const [asked, ask] = useState(false)
  const setAsked = (/** @type {boolean} */ asks) => { ask(asks); onAsk?.(asks) }
  const { state } = acted(what).value
  const go = async () => {
    const value = await act(what, run)
    if (acted(what).peek().state === 'done') { setAsked(false); onDone?.(value) }
  }
  const kind = danger ? 'danger' : primary ? 'primary' : ''
  if (!asked) return html`<span class="act"><button class=${kind} onClick=${() => { forget(what); setAsked(true) }}>${label}</button><${Outcome} what=${what} done=${done} /></span>`
  return html`<div class="confirm" role="group" aria-label=${label}>
    <p>${says}</p>${children}<p class="quiet">${undo ?? 'This cannot be undone.'}</p>
    <div class="row"><button class=${kind || 'primary'} disabled=${state === 'running'} onClick=${go} ref=${(/** @type {any} */ node) => { if (node && !children && !node.dataset.met) { node.dataset.met = '1'; node.focus() } }}>
      ${state === 'running' ? 'Writing …' : label}</button><button onClick=${() => setAsked(false)}>Cancel</button></div>
    <${Outcome} what=${what} /></div>`
}
