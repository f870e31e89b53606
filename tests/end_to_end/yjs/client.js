// A standard Yjs client: the `yjs` and `y-websocket` packages, driven by one JSON array a line on standard input.
// Each command is answered by one line: {"is": …} or {"error": …}. See build.sh for how bundle.cjs is made of it.

import readline from 'node:readline'
import WebSocket from 'ws'
import * as Y from 'yjs'
import { WebsocketProvider } from 'y-websocket'

const doc = new Y.Doc()
const text = doc.getText('text')
const map = doc.getMap('map')
const list = doc.getArray('list')
let provider = null

const state = () => ({ text: text.toString(), map: map.toJSON(), list: list.toJSON() })

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
  // Resolves once the state is this one.
  until: (expected) => new Promise((resolve) => {
    const look = () => {
      if (JSON.stringify(sorted(state())) !== JSON.stringify(sorted(expected))) return
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
