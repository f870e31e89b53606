// What TypeScript programs may write, and what is refused. build.sh compiles it; it is never run.
import * as Y from 'yjs'
import { WebsocketProvider } from 'y-websocket'
import { connect, NO_HEAD, ShoalError, type WatchEvent } from 'shoal-client'

const store = connect(['https://n1.example.com:7400', 'https://n2.example.com:7400'], { token: async () => 'a.b.c', requestTimeoutMs: 5_000, trace: () => ({ traceparent: '' }) })
const space = store.space('crew')

export async function uses (): Promise<void> {
  const thread = space.thread('planner')
  const saved = await thread.save({ plan: [1] }, { expectHead: NO_HEAD, key: 'turn-1', durability: 'quorum' })
  const ids: string[] = saved.heads
  const found = await thread.load({ label: ids[0] })
  const at: number = found.wall_ms
  for await (const event of thread.journal.read({ follow: true, signal: AbortSignal.timeout(at) })) console.log(event.cursor, event.event.kind)
  for await (const event of space.watch({ kinds: ['thread'] })) show(event)
  const document = await space.document('plan', { doc: new Y.Doc(), WebsocketProvider })
  const provider: WebsocketProvider = document.provider
  await document.saved()
  provider.disconnect()
  await space.items.put(['memory', 'ana'], 'n1', { kind: 'fact' }, { ttlS: 60, expect: '' })
  for await (const item of space.items.search(['memory'], { filter: { kind: 'fact' } })) console.log(item.key, item.namespace.length)
  // @ts-expect-error a namespace is an array
  await space.items.get('memory', 'n1')
  if (await space.set('seen').has('x')) await space.counter('n').add(1)
  // @ts-expect-error there is no such kind
  space.watch({ kinds: ['threads'] })
  // @ts-expect-error there is no such option
  connect('http://127.0.0.1:7400', { timeout: 1 })
  // @ts-expect-error it is asked for each call
  connect('http://127.0.0.1:7400', { trace: '' })
  // @ts-expect-error a state has channels
  await thread.save(1)
}

function show (event: WatchEvent): string {
  if (event.type === 'change') return event.name
  // @ts-expect-error only a change names an object
  return event.name
}

export const retryable = (error: unknown): boolean => error instanceof ShoalError && error.retryable && error.written !== 'yes'
