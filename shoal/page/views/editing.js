/** Editing a state as a person: the JSON is a draft until it is saved, and only what was changed is written. */

import { html, useEffect, useState } from '../vendor/preact.js'
import { act, acted, draft, drop } from '../data.js'
import { Outcome } from '../kit/states.js'
import { Diff } from '../kit/diff.js'
import { GRAPH } from '../kit/graphs.js'
import { threadOf } from './thread.js'

const CHARACTERS_MAX = 2_000_000

/** A JSON Patch with the places that differ, so that what is hidden or was changed by others meanwhile stays. @param {any} before @param {any} after @param {string} [path] @returns {any[]} */
export function patchOf (before, after, path = '') {
  if (same(before, after)) return []
  const isPlain = (/** @type {any} */ value) => value !== null && typeof value === 'object'
  if (!isPlain(before) || !isPlain(after) || Array.isArray(before) !== Array.isArray(after) || (Array.isArray(before) && before.length !== after.length)) return [{ op: 'replace', path, value: after }]
  const at = (/** @type {string} */ key) => `${path}/${key.replaceAll('~', '~0').replaceAll('/', '~1')}`
  return [
    ...Object.keys(before).filter((key) => !(key in after)).map((key) => ({ op: 'remove', path: at(key) })),
    ...Object.keys(after).flatMap((key) => key in before ? patchOf(before[key], after[key], at(key)) : [{ op: 'add', path: at(key), value: after[key] }])
  ]
}

/** @param {any} a @param {any} b */
const same = (a, b) => a === b || JSON.stringify(a) === JSON.stringify(b)

/**
 * The state of a checkpoint as JSON that can be edited.
 * @param {{ space: string, name: string, checkpoint?: string, branch?: string, approves?: boolean, forks?: boolean, onEnd: (saved?: any) => void }} props
 *   `approves`: the thread is approved after it; `forks`: it becomes a new branch that begins at the checkpoint.
 */
export function EditState ({ space, name, checkpoint, branch = 'main', approves, forks, onEnd }) {
  const key = `state ${space}/${name}/${checkpoint ?? branch}${forks ? ' fork' : ''}`
  const text = draft(key)
  const called = draft(`${key} branch`)
  const [found, setFound] = useState(/** @type {any} */ (undefined))
  const [failure, setFailure] = useState('')
  useEffect(() => {
    threadOf(space, name).load({ checkpoint, branch }).then((loaded) => {
      setFound(loaded)
      const shown = JSON.stringify(loaded.state, null, 2)
      if (shown.length > CHARACTERS_MAX) setFailure('This state is too large to be edited here. At a terminal: shoal edit.')
      else if (text.peek() === '') text.value = shown
    }, (error) => setFailure(error.message))
  }, [key])
  let edited
  let wrong = failure
  if (text.value !== '' && !failure) try { edited = JSON.parse(text.value) } catch (error) { wrong = `This is no JSON yet: ${/** @type {Error} */ (error).message}` }
  const patch = found && edited !== undefined ? patchOf(found.state, edited) : []
  const what = `edit ${key}`
  const end = (/** @type {any} */ saved) => { drop(key); drop(`${key} branch`); onEnd(saved) }
  const target = called.value || `edit-${(checkpoint ?? '').slice(-4) || 'main'}`
  const save = async () => {
    const saved = await act(what, async (how) => {
      const thread = threadOf(space, name)
      if (forks) await thread.fork(target, { at: /** @type {string} */ (checkpoint), ...how, key: `${how.key}-f` })
      const done = patch.length > 0 ? await thread.edit(patch, { branch: forks ? target : branch, ...how }) : found
      if (approves) await thread.approve({ ...how, key: `${how.key}-a` })
      return done
    })
    if (acted(what).peek().state === 'done') end({ ...saved, branch: forks ? target : branch })
  }
  return html`<div class="confirm editing" role="group" aria-label="Edit the state">
    ${forks && html`<label>Name of the new branch<input value=${called.value} placeholder=${target} maxlength="200" onInput=${(/** @type {any} */ event) => { called.value = event.target.value }} /></label>`}
    <label>State, as JSON<textarea rows="12" spellcheck=${false} value=${text.value} onInput=${(/** @type {any} */ event) => { text.value = event.target.value }}></textarea></label>
    ${wrong ? html`<p class="stale" role="status">${wrong}</p>` : patch.length > 0 ? html`<${Diff} before=${found.state} after=${edited} />` : html`<p class="quiet">Nothing is changed yet.</p>`}
    <p class="quiet">${forks ? 'A branch begins here with your change; the other branches stay as they are.' : 'A new checkpoint on this branch holds your change. It can be rolled back.'}${found?.schema === GRAPH && html` A running graph does not read it: it goes on from LangGraph's own checkpoints. To change what it goes on with, call <code>graph.update_state</code>.`}</p>
    <div class="row"><button class="primary" disabled=${Boolean(wrong) || (patch.length === 0 && !forks) || acted(what).value.state === 'running'} onClick=${save}>${approves ? 'Save and approve' : forks ? 'Fork' : 'Save'}</button>
      <button onClick=${() => end(undefined)}>Discard</button></div><${Outcome} what=${what} /></div>`
}
