/** What a space shares, by kind and name, with bounds that are told when they cut something off. */

import { client, spacesOf } from '../../data.js'

/** @typedef {{ space: string, kind: string, name: string, note?: string, mark?: 'well' | 'waits' }} Shared */

/** Kind → the family of its names, and how it is called. */
export const KINDS = /** @type {Record<string, { family: any, one: string, many: string }>} */ ({
  document: { family: 'documents', one: 'document', many: 'documents' },
  register: { family: 'registers', one: 'register', many: 'registers' },
  counter: { family: 'counters', one: 'counter', many: 'counters' },
  set: { family: 'sets', one: 'set', many: 'sets' },
  map: { family: 'maps', one: 'map', many: 'maps' },
  list: { family: 'lists', one: 'list', many: 'lists' },
  budget: { family: 'budgets', one: 'budget', many: 'budgets' },
  items: { family: 'items', one: 'memory', many: 'memories' }
})

const NAMES_MAX = 500
const REGISTERS_MAX = 40
const CLIPPED = 200

/** The first elements, and whether there are more. @template T @param {AsyncIterable<T>} from @param {number} most @returns {Promise<{ items: T[], more: boolean }>} */
export async function some (from, most) {
  const items = []
  for await (const one of from) {
    if (items.length === most) return { items, more: true }
    items.push(one)
  }
  return { items, more: false }
}

/** @param {string} space @param {AbortSignal} signal @returns {Promise<{ all: Shared[], more: string[], left: number, unread: number }>} `unread`: registers that were not looked at for conflicts. */
export async function listed (space, signal) {
  const more = /** @type {string[]} */ ([])
  const spaces = await spacesOf(space)
  const found = await Promise.all(spaces.names.flatMap((name) => Object.entries(KINDS).map(async ([kind, { family, many }]) => {
    const names = await some(client().space(name).names(family, { signal }), NAMES_MAX)
    if (names.more) more.push(`${many} of ${name}`)
    return names.items.map((each) => ({ space: name, kind, name: each }))
  })))
  const all = found.flat()
  // Conflicts come first, as far as they can be looked for.
  const every = all.filter(({ kind }) => kind === 'register')
  const registers = every.slice(0, REGISTERS_MAX)
  const marked = new Map(await Promise.all(registers.map(async (each) => {
    const { siblings } = await client().space(each.space).register(each.name).get({ signal })
    return /** @type {[any, any]} */ ([each, { ...each, mark: siblings.length > 1 ? 'waits' : 'well', note: siblings.length > 1 ? `${siblings.length} values at once` : clip(siblings[0]?.value) }])
  })))
  return { all: all.map((each) => marked.get(each) ?? each), more, left: spaces.more, unread: every.length - registers.length }
}

const HELD = 4

/** What one of them holds, in a line. @type {Record<string, (space: any, name: string, signal: AbortSignal) => Promise<string>>} */
export const HOLDS = {
  register: async (space, name, signal) => {
    const { siblings } = await space.register(name).get({ signal })
    return siblings.length > 1 ? `${siblings.length} values at once` : clip(siblings[0]?.value)
  },
  counter: async (space, name, signal) => (await space.counter(name).value({ signal })).toLocaleString('en'),
  budget: async (space, name, signal) => {
    const { granted, remaining } = await space.budget(name).get({ signal })
    return `${remaining.toLocaleString('en')} of ${granted.toLocaleString('en')} left`
  },
  set: async (space, name, signal) => line(await some(space.set(name).members({ limit: HELD + 1, signal }), HELD), plain),
  list: async (space, name, signal) => line(await some(space.list(name).items({ limit: HELD + 1, signal }), HELD), ({ value }) => plain(value)),
  map: async (space, name, signal) => line(await some(space.map(name).entries({ limit: HELD + 1, signal }), HELD), ({ key, siblings, count, members }) => `${key}: ${plain(siblings[0]?.value ?? count ?? members)}`)
}

/** @param {{ items: any[], more: boolean }} found @param {(one: any) => string} told */
const line = ({ items, more }, told) => items.length === 0 ? 'empty' : `${items.map(told).join(', ')}${more ? ' …' : ''}`

/** @param {unknown} value */
const plain = (value) => (typeof value === 'string' ? value : clip(value)).slice(0, 40)

/** The beginning of a value, for a line. @param {unknown} value */
export const clip = (value) => (value === undefined ? 'no value' : JSON.stringify(value).slice(0, CLIPPED))
