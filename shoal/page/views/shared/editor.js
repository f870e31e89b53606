/**
 * A text of a shared document, edited live: CodeMirror over Yjs, in a shadow tree.
 *
 * Laws:
 * - CodeMirror's styles are adopted by the shadow tree as sheets, which the page's policy allows; no style is written into the markup.
 * - An edit is in the document at once, also without a node, and is sent when one answers; nothing typed waits for the network.
 */

import {
  bracketMatching, defaultKeymap, drawSelection, EditorState, EditorView, highlightActiveLine, highlightSelectionMatches, highlightSpecialChars, history, historyKeymap, json,
  jsonParseLinter, keymap, lineNumbers, linter, search, searchKeymap, yCollab, yUndoManagerKeymap, Y
} from '../../vendor/codemirror.js'
import { html, useEffect, useRef } from '../../vendor/preact.js'
import { others, passages } from './presence.js'

const LOOK = EditorView.theme({
  '&': { minHeight: '158px', color: 'var(--text)', backgroundColor: 'var(--ground)', fontSize: '13px' },
  '&.cm-focused': { outline: 'none' },
  '.cm-scroller': { fontFamily: 'var(--mono, ui-monospace, monospace)', lineHeight: '20px', maxHeight: '60vh', overflow: 'auto' },
  '.cm-content': { padding: '14px 0 8px', caretColor: 'var(--text)' },
  '.cm-line': { padding: '0 12px' },
  '.cm-cursor': { borderLeftColor: 'var(--text)' },
  '.cm-gutters': { backgroundColor: 'var(--panel)', color: 'var(--quiet)', border: 'none', borderRight: '1px solid var(--line)' },
  '.cm-activeLine': { backgroundColor: 'transparent' },
  '&.cm-focused .cm-activeLine': { backgroundColor: 'color-mix(in srgb, var(--panel) 70%, transparent)' },
  '.cm-activeLineGutter': { backgroundColor: 'transparent' },
  '.cm-selectionBackground, &.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground': {
    backgroundColor: 'color-mix(in srgb, var(--accent) 22%, transparent)'
  },
  '.cm-panels': { backgroundColor: 'var(--panel)', color: 'var(--text)' },
  '.cm-tooltip': { backgroundColor: 'var(--panel)', color: 'var(--text)', border: '1px solid var(--line)', borderRadius: '6px', padding: '4px 8px' },
  '.cm-specialChar': { color: 'var(--stuck)' },
  '.cm-diagnostic-error': { borderLeft: '3px solid var(--stuck)' }
})

// CodeMirror shows most marks that reorder what stands around them (CVE-2021-42574), and leaves out these.
const MORE_MARKS = /[\u202a-\u202c\u2068]/g

const COMMON = [lineNumbers(), highlightSpecialChars({ addSpecialChars: MORE_MARKS }), drawSelection(), highlightActiveLine(), bracketMatching(), highlightSelectionMatches(), search({ top: true }), EditorView.lineWrapping, LOOK]

/**
 * @param {HTMLElement} host @param {string} label @param {string} doc @param {any[]} extensions
 * @returns {any} The view; `destroy()` ends it.
 */
function mounted (host, label, doc, extensions) {
  const root = host.shadowRoot ?? host.attachShadow({ mode: 'open' })
  const state = EditorState.create({ doc, extensions: [...COMMON, EditorView.contentAttributes.of({ 'aria-label': label, tabindex: '0' }), ...extensions] })
  return new EditorView({ state, parent: root, root })
}

/**
 * A shared text. `blame`: whether passages are coloured by who wrote them; `names`: Yjs client id → name.
 * @param {{ label: string, text: any, awareness: any, names: () => Map<number, string>, blame: boolean, readonly?: boolean }} props
 */
export function SharedText ({ label, text, awareness, names, blame, readonly = false }) {
  const host = useRef(/** @type {any} */ (null))
  const known = useRef(names)
  const shown = useRef(/** @type {any} */ (null))
  known.current = names
  useEffect(() => {
    const undoManager = new Y.UndoManager(text)
    const view = shown.current = mounted(host.current, label, text.toString(), [
      keymap.of([...yUndoManagerKeymap, ...defaultKeymap, ...searchKeymap]),
      yCollab(text, null, { undoManager }),
      others(text, awareness, () => known.current()),
      blame ? passages(text, () => known.current()) : [],
      readonly ? [EditorState.readOnly.of(true), EditorView.editable.of(false)] : []
    ])
    return () => { shown.current = null; view.destroy(); undoManager.destroy() }
  }, [text, blame, readonly])
  // Names that come later colour what stands there already.
  const told = JSON.stringify([...names()])
  useEffect(() => { shown.current?.dispatch({}) }, [told])
  return html`<div class="editor cm-editor" ref=${host}></div>`
}

/**
 * JSON that is typed, with its mistakes shown where they are.
 * @param {{ label: string, value: string, onChange: (text: string) => void }} props `value` counts when the editor is made.
 */
export function JsonText ({ label, value, onChange }) {
  const host = useRef(/** @type {any} */ (null))
  const told = useRef(onChange)
  told.current = onChange
  useEffect(() => {
    const view = mounted(host.current, label, value, [
      history(), json(), linter(jsonParseLinter()), keymap.of([...defaultKeymap, ...historyKeymap, ...searchKeymap]),
      EditorView.updateListener.of((/** @type {any} */ update) => { if (update.docChanged) told.current(update.state.doc.toString()) })
    ])
    return () => view.destroy()
  }, [])
  return html`<div class="editor cm-editor" ref=${host}></div>`
}
