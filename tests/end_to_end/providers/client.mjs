// What the tests ask of a page: it opens one document by the code that docs/YJS.md shows, and says what it has.
import * as packages from './page.mjs'

const { Y } = packages
const AsyncFunction = (async () => {}).constructor
const names = Object.keys(packages)
const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('')

export const client = {
  shown: [],

  /** Run a snippet of the documentation; it makes `doc` and `provider`, and perhaps `stored`. */
  async open (snippet, { nodes, tokens = [] }) {
    const token = async () => tokens.length > 1 ? tokens.shift() : tokens[0]
    const show = (reason) => { client.shown.push(reason) }
    const made = 'return { doc, provider, stored: typeof stored === "undefined" ? null : stored }'
    Object.assign(client, await new AsyncFunction(...names, 'nodes', 'token', 'show', snippet + made)(...names.map((name) => packages[name]), nodes, token, show))
    client.nodes = nodes
    client.tokens = tokens
    client.text = client.doc.getText('text')
    client.map = client.doc.getMap('map')
    client.doc.getArray('list')
  },

  /** Wait until it holds. */
  async until (holds) {
    while (!holds()) await new Promise((resolve) => setTimeout(resolve, 10))
  },

  synced () {
    return client.until(() => client.provider.synced)
  },

  /** The document, as bytes that are equal if and only if the documents are. */
  state () {
    const ordered = new Y.Doc({ gc: false })
    Y.applyUpdate(ordered, Y.encodeStateAsUpdate(client.doc))
    return hex(Y.encodeStateAsUpdate(ordered))
  },

  value () {
    return { text: String(client.text), map: client.map.toJSON(), list: client.doc.getArray('list').toJSON() }
  },

  /** What IndexedDB has, without the page's document. */
  async kept () {
    const doc = new Y.Doc()
    const stored = new packages.IndexeddbPersistence(client.stored.name, doc)
    await stored.whenSynced
    await stored.destroy()
    return { text: String(doc.getText('text')), map: doc.getMap('map').toJSON(), list: doc.getArray('list').toJSON() }
  },

  others () {
    const { awareness, doc } = client.provider
    return Array.from(awareness.getStates()).filter(([id, state]) => id !== awareness.clientID && state.user).map(([, state]) => state.user.name).sort()
  }
}
