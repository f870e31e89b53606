/** The editor of texts and of JSON, and the binding of shared documents. One copy of Yjs: two would break documents. */
export { defaultKeymap, history, historyKeymap, indentWithTab } from '@codemirror/commands'
export { json, jsonParseLinter } from '@codemirror/lang-json'
export { bracketMatching, HighlightStyle, syntaxHighlighting } from '@codemirror/language'
export { linter, lintGutter } from '@codemirror/lint'
export { highlightSelectionMatches, search, searchKeymap } from '@codemirror/search'
export { Annotation, Compartment, EditorState, RangeSet, RangeSetBuilder, StateEffect, StateField } from '@codemirror/state'
export {
  Decoration, drawSelection, EditorView, gutter, GutterMarker, highlightActiveLine, highlightSpecialChars, hoverTooltip, keymap, lineNumbers, placeholder, ViewPlugin, WidgetType
} from '@codemirror/view'
export { tags } from '@lezer/highlight'
export { yCollab, ySyncFacet, yUndoManagerKeymap } from 'y-codemirror.next'
export { Awareness } from 'y-protocols/awareness'
export { WebsocketProvider } from 'y-websocket'
export * as Y from 'yjs'
