// Random histories of several Yjs clients, and what Yjs shows. `generate SEED COUNT` prints a history a line; `show` reads one update a line.
import { createInterface } from 'node:readline'
import { Y } from '../clients/js/yjs.mjs'

const PIECES = ['a', 'bc', 'é', 'e\u0301', '\r\n', '\n', '😀', '😀😁', '👩\u200d👩\u200d👧', 'x𝒳y', '🇩🇪', '\ud83d', '\ude00', '\ude01\ud83d', '']

const base64 = update => Buffer.from(update).toString('base64')

// mulberry32
const random = seed => () => {
  seed = (seed + 0x6d2b79f5) | 0
  let t = Math.imul(seed ^ (seed >>> 15), 1 | seed)
  t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
  return ((t ^ (t >>> 14)) >>> 0) / 4294967296
}

const inserted = text => text.toDelta().map(({ insert }) => (typeof insert === 'string' ? insert : '')).join('')

const shown = doc => {
  const xml = doc.getXmlFragment('x')
  return {
    t: inserted(doc.getText('t')),
    m: [...doc.getMap('m').entries()].sort().map(([key, text]) => [key, inserted(text)]),
    a: doc.getArray('a').map(inserted),
    x: xml.toArray().map(inserted),
  }
}

const fresh = updates => {
  const doc = new Y.Doc()
  for (const update of updates) Y.applyUpdate(doc, update)
  return doc
}

const history = seed => {
  const next = random(seed)
  const below = n => Math.floor(next() * n)
  const updates = []
  const clients = Array.from({ length: 2 + below(3) }, (_, n) => {
    const doc = new Y.Doc()
    doc.clientID = 1 + n + 10 * below(9)
    const client = { doc, unsent: [], undo: new Y.UndoManager(doc.getText('t'), { captureTimeout: 0 }) }
    doc.on('update', (update, origin) => {
      if (origin === 'remote') return
      updates.push(update)
      client.unsent.push(updates.length - 1)
    })
    return client
  })
  const texts = doc => {
    const found = [doc.getText('t'), doc.getText('t')]
    doc.getMap('m').forEach(text => found.push(text))
    doc.getArray('a').forEach(text => found.push(text))
    doc.getXmlFragment('x').forEach(text => found.push(text))
    return found
  }
  const edit = ({ doc, undo }) => {
    const found = texts(doc)
    const text = found[below(found.length)]
    const at = below(text.length + 1)
    const what = below(20)
    if (what < 9) text.insert(at, PIECES[below(PIECES.length)], below(5) ? undefined : { bold: true })
    else if (what < 14) text.length > at && text.delete(at, 1 + below(Math.min(3, text.length - at)))
    else if (what < 16) text.length > at && text.format(at, 1 + below(text.length - at), { bold: below(2) ? true : null })
    else if (what === 16) undo.undo()
    else if (what === 17) doc.getMap('m').set('k' + below(2), new Y.Text('n😀' + PIECES[below(PIECES.length)]))
    else if (what === 18) doc.getArray('a').insert(0, [new Y.Text('a😀😁')])
    else doc.getXmlFragment('x').insert(0, [new Y.XmlText('x😀y')])
  }
  clients[0].doc.getText('t').insert(0, 'x😀😁y')
  const everyone = () => clients.forEach(from => clients.forEach(to => sync(from, to)))
  const sync = (from, to) => from !== to && Y.applyUpdate(to.doc, Y.encodeStateAsUpdate(from.doc, Y.encodeStateVector(to.doc)), 'remote')
  if (below(4)) everyone()
  for (let step = 4 + below(16); step > 0; step--) {
    const client = clients[below(clients.length)]
    if (below(6)) edit(client)
    else if (below(3)) sync(client, clients[below(clients.length)])
    else client.doc.transact(() => { edit(client); edit(client) })
  }
  // What a client has is sometimes sent whole, and joined of several.
  const whole = below(3) ? [] : [base64(Y.encodeStateAsUpdate(clients[below(clients.length)].doc))]
  const merged = []
  for (let at = 0; at < updates.length; ) merged.push(Y.mergeUpdates(updates.slice(at, (at += 1 + below(5)))))
  const doc = fresh(updates)
  return { seed, updates: updates.map(base64), merged: merged.map(base64), whole, shown: shown(doc), state: base64(Y.encodeStateVector(doc)) }
}

const [what, seed, count] = process.argv.slice(2)
if (what === 'generate') {
  for (let n = 0; n < Number(count); n++) console.log(JSON.stringify(history(Number(seed) + n)))
} else {
  for await (const line of createInterface({ input: process.stdin })) {
    console.log(JSON.stringify(shown(fresh([Buffer.from(line, 'base64')]))))
  }
}
