// What a page takes from npm to edit documents. See build.sh for how yjs.mjs is made of it.
export * as Y from 'yjs'
export { WebsocketProvider } from 'y-websocket'
