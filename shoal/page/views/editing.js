/** Editing a state as a person: the JSON is a draft until it is saved, and only what was changed is written. */

import { html, useEffect, useMemo, useRef, useState } from '../vendor/preact.js'
import { act, acted, draft, drop } from '../data.js'
import { Outcome } from '../kit/states.js'
import { Diff } from '../kit/diff.js'
import { GRAPH } from '../kit/graphs.js'
import { read } from '../kit/exact.js'
import { hides, masked } from '../kit/secret.js'
import { still, threadOf } from './thread.js'

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
const same = (a, b) => a === b || (typeof a === 'object' && typeof b === 'object' && JSON.stringify(a) === JSON.stringify(b))

/**
 * The state of a checkpoint as JSON that can be edited.
 *
 * A draft is compared with the state that it was begun on, however old: what others changed since is not undone by it.
 * @param {{ space: string, name: string, checkpoint?: string, branch?: string, approves?: boolean, since?: number, forks?: boolean, onEnd: (saved?: any) => void }} props
 *   `approves`: the thread is approved after it, if it still asks what it asked `since`; `forks`: it becomes a new branch that begins at the checkpoint.
 */
export function EditState ({ space, name, checkpoint, branch = 'main', approves, since = 0, forks, onEnd }) {
  const key = `state ${space}/${name}/${checkpoint ?? branch}${forks ? ' fork' : ''}`
  const text = draft(key)
  const base = draft(`${key} base`)
  const called = draft(`${key} branch`)
  const [found, setFound] = useState(/** @type {any} */ (undefined))
  const [failure, setFailure] = useState('')
  const saved = useRef({ text: '', value: /** @type {any} */ (undefined) })
  useEffect(() => {
    begin(threadOf(space, name), { checkpoint, branch, text, base }).then(setFound, (error) => setFailure(error.message))
  }, [key])
  const secret = found?.secret ?? []
  const before = useMemo(() => found && masked(found.state, secret), [found])
  let edited
  let wrong = failure
  if (text.value !== '' && !failure) try { edited = read(text.value) } catch (error) { wrong = `This is no JSON yet: ${/** @type {Error} */ (error).message}` }
  const patch = found && edited !== undefined ? patchOf(before, edited) : []
  if (secret.length > 0 && patch.some(({ value }) => hides(value))) wrong = 'This would write «secret» in the place of a secret field. Change the parts beside it alone, or use a terminal: shoal edit --reveal.'
  const what = `edit ${key} ${since}`
  const end = (/** @type {any} */ done) => { for (const each of [key, `${key} base`, `${key} branch`]) drop(each); onEnd(done) }
  const target = called.value || `edit-${(checkpoint ?? '').slice(-4) || 'main'}`
  const save = async () => {
    const sent = text.peek()
    const value = await act(what, async (how) => {
      const thread = approves ? await still(space, name, since) : threadOf(space, name)
      if (forks) await thread.fork(target, { at: /** @type {string} */ (checkpoint), ...how, key: `${how.key}-f` })
      // What was saved before the approval was refused is not saved once more.
      if (saved.current.text !== sent) {
        const done = patch.length === 0 ? found : await thread.edit(patch, { branch: forks ? target : branch, ...how }).catch((/** @type {any} */ error) => {
          throw forks ? added(error, `Branch ${target} begins here now, without your change.`) : error
        })
        saved.current = { text: sent, value: done }
      }
      if (approves) await thread.approve({ ...how, key: `${how.key}-a`, expectMs: since }).catch((/** @type {any} */ error) => { throw added(error, 'Your change is saved, but not the approval.') })
      return saved.current.value
    })
    if (acted(what).peek().state === 'done') end({ ...value, branch: forks ? target : branch })
  }
  const isRunning = acted(what).value.state === 'running'
  return html`<div class="confirm editing" role="group" aria-label="Edit the state">
    ${forks && html`<label>Name of the new branch<input value=${called.value} placeholder=${target} maxlength="200" readonly=${isRunning} onInput=${(/** @type {any} */ event) => { called.value = event.target.value }} /></label>`}
    <label>State, as JSON<textarea rows="12" spellcheck=${false} readonly=${isRunning} value=${text.value} onInput=${(/** @type {any} */ event) => { text.value = event.target.value }}></textarea></label>
    ${wrong ? html`<p class="stale" role="status">${wrong}</p>` : patch.length > 0 ? html`<${Diff} before=${before} after=${edited} />` : html`<p class="quiet">Nothing is changed yet.</p>`}
    <p class="quiet">${forks ? 'A branch begins here with your change; the other branches stay as they are.' : 'A new checkpoint on this branch holds your change. It can be rolled back.'}${found?.schema === GRAPH && html` A running graph does not read it: it goes on from LangGraph's own checkpoints. To change what it goes on with, call <code>graph.update_state</code>.`}</p>
    <div class="row"><button class="primary" disabled=${Boolean(wrong) || (patch.length === 0 && !forks) || isRunning} onClick=${save}>${approves ? 'Save and approve' : forks ? 'Fork' : 'Save'}</button>
      <button disabled=${isRunning} onClick=${() => end(undefined)}>Discard</button></div><${Outcome} what=${what} /></div>`
}

/** The checkpoint that a draft was begun on, or the newest if there is no draft that changes anything. @param {any} thread @param {any} of */
async function begin (thread, { checkpoint, branch, text, base }) {
  const shown = (/** @type {any} */ loaded) => JSON.stringify(masked(loaded.state, loaded.secret), null, 2)
  if (text.peek() !== '' && base.peek() !== '') {
    const old = await thread.load({ checkpoint: base.peek() }).catch((/** @type {any} */ error) => {
      if (error?.status === 404 || error?.status === 410) throw new Error('The checkpoint that this draft was begun on was pruned, so what it changes is not known any more. Copy what you need of it, then discard it.')
      throw error
    })
    if (shown(old) !== text.peek()) return old
  }
  const loaded = await thread.load({ checkpoint, branch })
  if (shown(loaded).length > CHARACTERS_MAX) throw new Error('This state is too large to be edited here. At a terminal: shoal edit.')
  if (text.peek() === '' || base.peek() !== '') text.value = shown(loaded)
  base.value = loaded.id
  return loaded
}

/** An error after something was written: it says what. @param {any} error @param {string} what */
function added (error, what) {
  error.message = `${what} ${error.message}`
  if (error.written === 'no') error.written = undefined
  return error
}
