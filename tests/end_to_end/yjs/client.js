// A standard Yjs client: the `yjs` and `y-websocket` packages, with `y-prosemirror` for a page of rich text; driven by one JSON array a line on standard input.
// Each command is answered by one line: {"is": …} or {"error": …}. See build.sh for how bundle.cjs is made of it.

import readline from 'node:readline'
import WebSocket from 'ws'
import * as Y from 'yjs'
import { WebsocketProvider } from 'y-websocket'
import { schema } from 'prosemirror-schema-basic'
import { Transform } from 'prosemirror-transform'
import { updateYFragment, yXmlFragmentToProsemirrorJSON } from 'y-prosemirror'

const doc = new Y.Doc()
const text = doc.getText('text')
const map = doc.getMap('map')
const list = doc.getArray('list')
const page = doc.getXmlFragment('page') // ProseMirror's
const rich = doc.getText('rich') // Quill's
let provider = null

// Yjs breaks runs also where a format ends and begins again.
const joined = (delta) => delta.reduce((runs, { insert, attributes }) => {
  const last = runs.at(-1)
  const same = last && JSON.stringify(sorted(last.attributes ?? {})) === JSON.stringify(sorted(attributes ?? {}))
  if (same && typeof insert === 'string' && typeof last.insert === 'string') last.insert += insert
  else runs.push(attributes ? { insert, attributes } : { insert })
  return runs
}, [])

// XML as the agent's JSON shows it.
const shown = (node) => {
  if (node instanceof Y.XmlText) {
    const runs = joined(node.toDelta())
    const attributes = node.getAttributes()
    const plain = runs.every((run) => typeof run.insert === 'string' && !run.attributes) && !Object.keys(attributes).length
    return plain ? node.toString() : { text: runs, attributes }
  }
  const children = node.toArray().map(shown)
  return node instanceof Y.XmlElement ? { tag: node.nodeName, attributes: node.getAttributes(), children } : children
}

const state = () => ({
  text: text.toString(), map: map.toJSON(), list: list.toJSON(), page: shown(page), rich: joined(rich.toDelta())
})

const pageNode = () => schema.nodeFromJSON(yXmlFragmentToProsemirrorJSON(page))
// What ProseMirror's binding does with each transaction of its editor.
const setPage = (node) => {
  node.check()
  doc.transact(() => updateYFragment(doc, page, node, { mapping: new Map(), isOMark: new Map() }))
}
const transformed = (change) => {
  const node = pageNode()
  const transform = new Transform(node)
  // The position before the content of the block at an index.
  const inside = (block) => { let at = 1; for (let i = 0; i < block; i++) at += node.child(i).nodeSize; return at }
  change(transform, inside, node)
  setPage(transform.doc)
}

const commands = {
  // Resolves once the node has answered step 1.
  connect: (url, room) => new Promise((resolve) => {
    if (provider !== null) provider.destroy()
    provider = new WebsocketProvider(url, room, doc, { WebSocketPolyfill: WebSocket, disableBc: true })
    provider.once('sync', () => resolve(true))
  }),
  // What is edited from now on stays here until the next `connect`.
  disconnect: () => { provider.disconnect(); return true },
  insert: (index, string) => { text.insert(index, string) },
  remove: (index, length) => { text.delete(index, length) },
  append: (string) => { text.insert(text.length, string) },
  set: (key, value) => { map.set(key, value) },
  push: (value) => { list.push([value]) },
  nest: (key) => { const inner = new Y.Map(); map.set(key, inner); inner.set('list', new Y.Array()) },
  into: (key, value) => { map.get(key).get('list').push([value]) },
  state,
  // ── ProseMirror ──
  write: (json) => { setPage(schema.nodeFromJSON(json)) },
  prosemirror: () => { pageNode().check(); return yXmlFragmentToProsemirrorJSON(page) },
  type: (block, offset, string) => transformed((transform, inside, node) => {
    const at = inside(block) + (offset < 0 ? node.child(block).content.size : offset)
    transform.insert(at, schema.text(string, node.resolve(at).marks()))
  }),
  mark: (block, from, to, name, attrs) => transformed((transform, inside) => {
    transform.addMark(inside(block) + from, inside(block) + to, schema.mark(name, attrs))
  }),
  level: (block, level) => transformed((transform, inside) => {
    transform.setNodeMarkup(inside(block) - 1, schema.nodes.heading, { level })
  }),
  block: (at, json) => transformed((transform, inside) => { transform.insert(inside(at) - 1, schema.nodeFromJSON(json)) }),
  remove_block: (block) => transformed((transform, inside, node) => {
    transform.delete(inside(block) - 1, inside(block) - 1 + node.child(block).nodeSize)
  }),
  // ── Quill ──
  delta: (delta) => { rich.applyDelta(delta) },
  // ── Lexical: the root is an XML text with attributes, its paragraphs are XML texts embedded in it, their texts are maps ──
  lexical: (string) => doc.transact(() => {
    const root = doc.get('lexical', Y.XmlText)
    root.setAttribute('__dir', 'ltr')
    const paragraph = new Y.XmlText()
    root.insertEmbed(root.length, paragraph)
    paragraph.setAttribute('__type', 'paragraph')
    const about = new Y.Map()
    paragraph.insertEmbed(0, about)
    about.set('__type', 'text')
    paragraph.insert(1, string)
  }),
  lexical_state: () => {
    const root = doc.get('lexical', Y.XmlText)
    return { dir: root.getAttribute('__dir') ?? null, paragraphs: root.toDelta().map((run) => run.insert.toString()) }
  },
  // Resolves once the state has these parts.
  until: (expected) => new Promise((resolve) => {
    const look = () => {
      const parts = Object.fromEntries(Object.entries(state()).filter(([name]) => name in expected))
      if (JSON.stringify(sorted(parts)) !== JSON.stringify(sorted(expected))) return
      doc.off('update', look)
      resolve(true)
    }
    doc.on('update', look)
    look()
  }),
  say: (about) => { provider.awareness.setLocalState(about) },
  others: () => [...provider.awareness.getStates()].filter(([id]) => id !== doc.clientID).map(([, about]) => about),
  // Resolves once so many others are here.
  meet: (count) => new Promise((resolve) => {
    const look = () => {
      if (commands.others().length !== count) return
      provider.awareness.off('update', look)
      resolve(commands.others())
    }
    provider.awareness.on('update', look)
    look()
  }),
  id: () => doc.clientID
}

const sorted = (value) => {
  if (value === null || typeof value !== 'object') return value
  if (Array.isArray(value)) return value.map(sorted)
  return Object.fromEntries(Object.keys(value).sort().map((key) => [key, sorted(value[key])]))
}

const answer = (said) => process.stdout.write(JSON.stringify(said) + '\n')

readline.createInterface({ input: process.stdin }).on('line', async (line) => {
  const [name, ...args] = JSON.parse(line)
  try {
    answer({ is: (await commands[name](...args)) ?? null })
  } catch (error) {
    answer({ error: String(error) })
  }
}).on('close', () => process.exit(0))
