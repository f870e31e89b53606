/**
 * Who is in a shared text: their carets and selections, and who wrote which passage.
 *
 * Laws:
 * - Colours come from classes, never from a style attribute, which the page's policy forbids.
 * - Where others are is told as y-codemirror does, so editors of other programs and this one see each other.
 * - The author of a passage is the Yjs client that inserted it; one that nobody can name stays unnamed.
 */

import { Decoration, EditorView, hoverTooltip, StateEffect, ViewPlugin, WidgetType, Y } from '../../vendor/codemirror.js'

export const HUES = 8
const PASSAGES_MAX = 5000

/** The hue of a name: the same on every screen. @param {string} name */
export function hueOf (name) {
  let sum = 0
  for (const character of name) sum = (sum * 31 + /** @type {number} */ (character.codePointAt(0))) >>> 0
  return sum % HUES
}

/** The hues of those who are in one text, the same on every screen: no two share one while there are enough. @param {Iterable<string>} names @returns {Map<string, number>} */
export function huesOf (names) {
  const found = new Map()
  const free = new Set(Array.from({ length: HUES }, (_, hue) => hue))
  for (const name of [...new Set(names)].sort()) {
    let hue = hueOf(name)
    while (free.size > 0 && !free.has(hue)) hue = (hue + 3) % HUES // A neighbour looks alike.
    free.delete(hue)
    found.set(name, hue)
  }
  return found
}

/** @param {any} state Of an awareness. @param {number} client */
export const nameOf = (state, client) => String(state?.user?.name ?? state?.name ?? `client ${client}`).slice(0, 80)

const lanes = Object.fromEntries(Array.from({ length: HUES }, (_, hue) => [
  [`.by-${hue}`, { backgroundColor: `color-mix(in srgb, var(--lane-${hue}) 18%, transparent)` }],
  [`.caret-${hue}`, { borderLeft: `2px solid var(--lane-${hue})`, marginLeft: '-1px', marginRight: '-1px', position: 'relative' }],
  [`.caret-${hue} > span`, { backgroundColor: `var(--lane-${hue})` }]
]).flat())
const LOOK = EditorView.baseTheme({
  ...lanes,
  '.caret-name': {
    position: 'absolute', left: '-2px', top: '-16px', font: '11px/14px var(--sans, system-ui)', color: 'var(--ground)', padding: '1px 4px',
    borderRadius: '3px 3px 3px 0', whiteSpace: 'nowrap', pointerEvents: 'none', zIndex: '2'
  }
})

class Caret extends WidgetType {
  /** @param {string} name @param {number} hue */
  constructor (name, hue) {
    super()
    this.name = name
    this.hue = hue
  }

  /** @param {Caret} other */
  eq (other) {
    return other.name === this.name && other.hue === this.hue
  }

  toDOM () {
    const caret = document.createElement('span')
    caret.className = `caret-${this.hue}`
    const label = caret.appendChild(document.createElement('span'))
    label.className = 'caret-name'
    label.textContent = this.name
    return caret
  }

  ignoreEvent () {
    return true
  }
}

const moved = StateEffect.define()

/** The carets and selections of the others, and this one's told to them. @param {any} text A `Y.Text`. @param {any} awareness @param {() => Map<number, string>} names */
export function others (text, awareness, names) {
  const plugin = ViewPlugin.fromClass(class {
    /** @param {any} view */
    constructor (view) {
      this.decorations = Decoration.none
      this.heard = ({ added, updated, removed }, origin) => {
        if ([...added, ...updated, ...removed].some((client) => client !== awareness.clientID)) queueMicrotask(() => view.dispatch({ effects: moved.of(null) }))
      }
      awareness.on('change', this.heard)
    }

    destroy () {
      awareness.off('change', this.heard)
      awareness.setLocalStateField('cursor', null)
    }

    /** @param {any} update */
    update (update) {
      this.tell(update.view)
      this.decorations = marks(text, awareness, huesOf(names().values()))
    }

    /** @param {any} view */
    tell (view) {
      const mine = awareness.getLocalState()
      if (mine === null || !view.hasFocus) return
      const { anchor, head } = view.state.selection.main
      const at = (/** @type {number} */ index) => Y.createRelativePositionFromTypeIndex(text, Math.min(index, text.length))
      const cursor = { anchor: at(anchor), head: at(head) }
      if (JSON.stringify(cursor) !== JSON.stringify(mine.cursor ?? null)) awareness.setLocalStateField('cursor', cursor)
    }
  }, { decorations: (/** @type {any} */ value) => value.decorations })
  return [LOOK, plugin]
}

/** @param {any} text @param {any} awareness @param {Map<string, number>} hues */
function marks (text, awareness, hues) {
  const found = []
  for (const [client, state] of awareness.getStates()) {
    if (client === awareness.clientID || !state.cursor?.anchor || !state.cursor?.head) continue
    const [anchor, head] = [state.cursor.anchor, state.cursor.head].map((place) => absolute(place, text))
    if (anchor === undefined || head === undefined) continue
    const name = nameOf(state, client)
    const hue = hues.get(name) ?? hueOf(name)
    if (anchor !== head) found.push(Decoration.mark({ class: `by-${hue}` }).range(Math.min(anchor, head), Math.max(anchor, head)))
    found.push(Decoration.widget({ widget: new Caret(name, hue), side: head > anchor ? -1 : 1 }).range(head))
  }
  return Decoration.set(found, true)
}

/** @param {any} place Told by another client, so that it may be anything. @param {any} text @returns {number | undefined} */
function absolute (place, text) {
  try {
    const found = Y.createAbsolutePositionFromRelativePosition(Y.createRelativePositionFromJSON(place), text.doc)
    return found?.type === text ? Math.min(found.index, text.length) : undefined
  } catch {
    return undefined
  }
}

/** The passages of a text, each by one client. @param {any} text @returns {{ from: number, to: number, client: number }[]} */
export function written (text) {
  const found = []
  let at = 0
  for (let item = text._start; item !== null && found.length < PASSAGES_MAX; item = item.right) {
    if (item.deleted || !item.countable) continue
    const last = found.at(-1)
    if (last?.client === item.id.client) last.to += item.length
    else found.push({ from: at, to: at + item.length, client: item.id.client })
    at += item.length
  }
  return found
}

/** Passages coloured by who wrote them; the name is told under the pointer. @param {any} text @param {() => Map<number, string>} names */
export function passages (text, names) {
  const colours = ViewPlugin.fromClass(class {
    constructor () {
      this.decorations = coloured(text, names())
    }

    /** @param {any} update */
    update (update) {
      if (update.docChanged || update.transactions.length > 0) this.decorations = coloured(text, names())
    }
  }, { decorations: (/** @type {any} */ value) => value.decorations })
  const told = hoverTooltip((/** @type {any} */ _view, /** @type {number} */ at) => {
    const passage = written(text).find(({ from, to }) => from <= at && at < to)
    if (passage === undefined) return null
    return { pos: passage.from, end: passage.to, create: () => ({ dom: said(names().get(passage.client) ?? 'an author that nobody named') }) }
  })
  return [LOOK, colours, told]
}

/** @param {string} text */
function said (text) {
  const dom = document.createElement('div')
  dom.textContent = `written by ${text}`
  return dom
}

/** @param {any} text @param {Map<number, string>} names */
function coloured (text, names) {
  const hues = huesOf(names.values())
  const ranges = written(text).flatMap(({ from, to, client }) => {
    const name = names.get(client)
    return name === undefined ? [] : [Decoration.mark({ class: `by-${hues.get(name)}` }).range(from, to)]
  })
  return Decoration.set(ranges, true)
}
