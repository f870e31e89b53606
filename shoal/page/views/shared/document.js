/**
 * A shared document: its texts edited live, its maps and lists as trees, who is here and who wrote what.
 *
 * Laws:
 * - The page is one Yjs client among others; what is typed is in this copy at once, and the line above says whether a node has it on its disk.
 * - A root is opened only as the kind that it has: another kind would break it for everybody.
 * - What no node has acknowledged is kept in the browser, through a reload and a node that dies, and is sent when the document is opened again.
 */

import { Awareness, Y, WebsocketProvider } from '../../vendor/codemirror.js'
import { html, useEffect, useMemo, useState } from '../../vendor/preact.js'
import { act, acted, author, client, draft, drop, live, signedIn } from '../../data.js'
import { shell } from '../../kit/shell.js'
import { Empty, Refusal, Shown } from '../../kit/states.js'
import { Time } from '../../kit/time.js'
import { Tree } from '../../kit/tree.js'
import { SharedText } from './editor.js'
import { hueOf, huesOf, nameOf, written } from './presence.js'
import { ValueForm } from './form.js'
import { clip } from './listing.js'

/** Join a document while the component is there. @param {string} space @param {string} name */
function useDocument (space, name) {
  const [joined, setJoined] = useState(/** @type {any} */ (undefined))
  const [own, setOwn] = useState(/** @type {any} */ (undefined))
  useEffect(() => {
    const doc = new Y.Doc()
    const awareness = new Awareness(doc)
    awareness.setLocalStateField('user', { name: author() })
    const kept = restored(draft(`document ${space}/${name}`).peek())
    if (kept) Y.applyUpdate(doc, kept)
    setOwn({ doc, awareness })
    return () => { awareness.setLocalState(null); doc.destroy(); setOwn(undefined) }
  }, [space, name])
  const times = signedIn.value
  useEffect(() => {
    if (own === undefined) return
    let ended = false
    /** @type {any} */
    let document
    let stop = () => {}
    client().space(space).document(name, { ...own, WebsocketProvider }).then((opened) => {
      document = opened
      if (ended) return document.destroy()
      stop = keepUnsaved(own.doc, document, `document ${space}/${name}`)
      setJoined({ ...own, document })
    }, (error) => setJoined({ error }))
    return () => { ended = true; stop(); document?.destroy(); setJoined(undefined) }
  }, [own, times])
  return joined
}

const KEEP_MS = 150

/** Keep in the browser what was typed here and is on no node's disk yet. @param {any} doc @param {any} document @param {string} key */
function keepUnsaved (doc, document, key) {
  // What a node told has no need to be kept.
  let known = Y.encodeStateVector(new Y.Doc())
  let [gone, turn] = [false, 0]
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer
  const look = () => {
    const mine = ++turn
    const at = Y.encodeStateVector(doc)
    document.saved().then(() => { known = at; if (!gone && mine === turn) { clearTimeout(timer); timer = undefined; drop(key) } }, () => {})
  }
  const changed = (/** @type {Uint8Array} */ _update, /** @type {unknown} */ origin) => {
    if (origin === document.provider) return
    look()
    timer ??= setTimeout(keep, KEEP_MS)
  }
  const keep = () => {
    if (timer === undefined) return
    clearTimeout(timer)
    timer = undefined
    draft(key).value = btoa(Array.from(Y.encodeStateAsUpdate(doc, known), (octet) => String.fromCharCode(octet)).join(''))
  }
  document.synced.then(() => { if (turn === 0) known = Y.encodeStateVector(doc) }, () => {})
  doc.on('update', changed)
  addEventListener('pagehide', keep)
  if (draft(key).peek() !== '') look()
  return () => { gone = true; keep(); doc.off('update', changed); removeEventListener('pagehide', keep) }
}

/** @param {string} text @returns {Uint8Array | undefined} */
function restored (text) {
  try {
    return text === '' ? undefined : Uint8Array.from(atob(text), (character) => character.charCodeAt(0))
  } catch {
    return undefined
  }
}

/** Renders again at each event of a kind. @param {any} emitter @param {string} event */
function useEvents (emitter, event) {
  const [count, set] = useState(0)
  useEffect(() => {
    let due = 0
    const heard = () => { due ||= requestAnimationFrame(() => { due = 0; set((before) => before + 1) }) }
    emitter.on(event, heard)
    return () => { cancelAnimationFrame(due); emitter.off(event, heard) }
  }, [emitter, event])
  return count
}

/** @param {{ space: string, name: string, root: string | undefined, onRoot: (root: string) => void }} props */
export function DocumentView ({ space, name, root, onRoot }) {
  const content = live(`document ${space}/${name}`, () => client().space(space).content(name), { space, kinds: ['document'] })
  const joined = useDocument(space, name)
  return html`<${Shown} of=${content.value}>${(/** @type {any} */ value) => {
    const roots = Object.keys(value)
    if (roots.length === 0) return html`<${Empty} why="This document is empty." command=${shell`shoal doc edit ${name} --space ${space}`} />`
    const chosen = root !== undefined && Object.hasOwn(value, root) ? root : roots.find((each) => typeof value[each] === 'string') ?? roots[0]
    return html`
      ${roots.length > 1 && html`<div class="tabs" role="tablist" aria-label="Roots of the document">${roots.map((each) => html`
        <button type="button" role="tab" aria-selected=${each === chosen} onClick=${() => onRoot(each)}>${each}</button>`)}</div>`}
      ${typeof value[chosen] === 'string'
        ? joined?.document ? html`<${Text} key=${chosen} ...${joined} space=${space} name=${name} root=${chosen} />` : joined?.error ? html`<${Refusal} error=${joined.error} />` : html`<pre class="text">${value[chosen]}</pre>`
        : html`<${Structure} space=${space} name=${name} root=${chosen} value=${value[chosen]} joined=${joined} />`}
      <${Conflicts} space=${space} name=${name} />`
  }}</${Shown}>`
}

/** A part, for people: what is little is not nothing. @param {number} part */
const share = (part) => part > 0 && part < 0.005 ? '< 1 %' : `${Math.round(100 * part)} %`

/** @param {any} props */
function Text ({ doc, awareness, document, space, name, root }) {
  const text = useMemo(() => doc.getText(root), [doc, root])
  const [blame, setBlame] = useState(true)
  useEvents(awareness, 'change')
  useEvents(doc, 'update')
  const told = live(`authors ${space}/${name}`, () => client().space(space).authors(name), { space, kinds: ['document'] }).value.value?.authors ?? []
  const names = () => {
    // Those who have left, as the node knows them; then those who are here, who may have another name by now.
    const known = new Map(told.filter((/** @type {any} */ each) => each.author).map((/** @type {any} */ each) => [each.client, each.author]))
    for (const [id, state] of awareness.getStates()) known.set(id, nameOf(state, id))
    return known
  }
  const known = names()
  const hues = huesOf(known.values())
  const by = new Map()
  for (const { from, to, client: id } of written(text)) {
    const who = known.get(id) ?? ''
    by.set(who, (by.get(who) ?? 0) + to - from)
  }
  return html`
    <${Here} awareness=${awareness} document=${document} hues=${hues} />
    <${SharedText} label=${`${root} of ${name}`} text=${text} awareness=${awareness} names=${names} blame=${blame} />
    <p class="legend">
      <label><input type="checkbox" checked=${blame} onChange=${() => setBlame(!blame)} /> who wrote what</label>
      ${blame && [...by].sort(([, a], [, b]) => b - a).slice(0, 8).map(([who, count]) => html`
        <span class="writer"><span class=${who ? `swatch hue-${hues.get(who) ?? hueOf(who)}` : 'swatch'}></span><bdi>${who || 'unnamed'}</bdi> <span class="quiet">${share(count / Math.max(1, text.length))}</span></span>`)}
    </p>`
}

/** Who is here, and whether what was typed is durable. @param {any} props */
function Here ({ awareness, document, hues = huesOf([]) }) {
  useEvents(awareness, 'change')
  const [saved, setSaved] = useState('saving')
  useEffect(() => {
    let [gone, turn] = [false, 0]
    const look = () => {
      const mine = ++turn
      setSaved(document.provider.wsconnected ? 'saving' : 'away')
      document.saved().then(() => { if (!gone && mine === turn) setSaved('saved') }, () => { if (!gone && mine === turn) setSaved('ended') })
    }
    const lost = () => { if (!document.provider.wsconnected) setSaved('away') }
    look()
    document.doc.on('update', look)
    document.provider.on('status', lost)
    return () => { gone = true; document.doc.off('update', look); document.provider.off('status', lost) }
  }, [document])
  const people = [...awareness.getStates()].map(([id, state]) => ({ id, name: nameOf(state, id), own: id === awareness.clientID }))
  return html`<div class="here" role="status">
    <span class="people">${people.map(({ id, name, own }) => html`<span key=${id} class="person"><span class=${`swatch hue-${hues.get(name) ?? hueOf(name)}`}></span><bdi>${name}</bdi>${own && ' (you)'}</span>`)}</span>
    <span class=${saved === 'ended' ? 'saved stuck' : 'saved quiet'}>${SAYS[saved]}</span>
    ${document.failure && html`<${Refusal} error=${document.failure} />`}
  </div>`
}

/** @type {Record<string, string>} */
const SAYS = {
  saved: 'all typed is durable', saving: 'saving…', away: 'no node answers; what you type is kept in this page and sent when one does', ended: 'not saved'
}

/** A map, a list or XML, as a tree; changed value by value, so that it merges with what others change. @param {any} props */
function Structure ({ space, name, root, value, joined }) {
  return html`
    ${joined?.document && html`<${Here} awareness=${joined.awareness} document=${joined.document} />`}
    <${Tree} value=${value} />
    <${ValueForm} title="Change a value" fields=${[{ name: 'path', label: 'Path', hint: `/${root}/…` }]} what=${`patch ${space}/${name}/${root}`}
      says="Sets this place of the document; changes of others elsewhere stay. An agent or a person can set it back."
      run=${({ path }, typed, { by, key }) => client().space(space).patch(name, [{ op: 'add', path: path.startsWith('/') ? path : `/${root}/${path}`, value: typed }], { author: by, key })} />`
}

/** Values that were overwritten at the same time. @param {{ space: string, name: string }} props */
function Conflicts ({ space, name }) {
  const found = live(`conflicts ${space}/${name}`, () => client().space(space).conflicts(name), { space, kinds: ['document'] })
  const conflicts = found.value.value?.conflicts ?? []
  const undoing = acted(`restore ${space}/${name}`)
  if (conflicts.length === 0) return null
  return html`<section><h3>Overwritten at the same time</h3>
    <ul class="rows">${conflicts.slice(0, 50).map((/** @type {any} */ each) => html`<li>
      <code>/${each.path.join('/')}</code> <span><bdi>${clip(each.stands)}</bdi> <span class="quiet">${each.stands_by && html`by <bdi>${each.stands_by}</bdi>`}</span> stands; <bdi>${clip(each.lost)}</bdi>
      <span class="quiet">${each.lost_by && html`by <bdi>${each.lost_by}</bdi>`}</span> was lost</span> <${Time} ms=${each.wall_ms} />
      ${!each.path.includes('*') && html`<button type="button" class="small" onClick=${() => act(`restore ${space}/${name}`, ({ by, key }) => client().space(space).patch(name, [
        { op: 'add', path: '/' + each.path.map((/** @type {string} */ part) => part.replaceAll('~', '~0').replaceAll('/', '~1')).join('/'), value: each.lost }], { author: by, key }))}>take this one</button>`}
    </li>`)}</ul>${undoing.value.state === 'refused' && html`<${Refusal} error=${undoing.value.error} />`}</section>`
}
