// What a page takes from npm to edit documents with other providers than y-websocket's. See build.sh for how page.mjs is made of it.
export * as Y from 'yjs'
export { WebsocketProvider } from 'y-websocket'
export { HocuspocusProvider, HocuspocusProviderWebsocket } from '@hocuspocus/provider'
export { IndexeddbPersistence } from 'y-indexeddb'
