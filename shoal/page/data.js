/**
 * The data of the page: one client, what is shown of it and kept up to date, actions, and drafts.
 *
 * Laws:
 * - The page asks through the client library alone. If the node dies it goes on with another one of the cluster, and says so.
 * - What is shown is loaded again when a watch tells of a change, at most four times a second, and only while somebody looks at it.
 * - What was typed stays until its action is acknowledged: through a reload, a refusal and a dead node. An action that is tried again counts once.
 */

import { batch, signal } from './vendor/preact.js'
import { connect, ShoalError } from './client/index.js'
import { named } from './drafts.js'
import { clock, compared } from './kit/time.js'

export { draft, drop, named } from './drafts.js'

/** @typedef {import('./client/store.js').Store} Store */
/** @template T @typedef {{ state: 'loading' | 'ready' | 'stale' | 'refused', value: T | undefined, error: Error | undefined, since: number }} Live */

const PER_SECOND = 4
const RETRY_MS = 2_000
const LIVE_MAX = 64 // Results that nobody looks at any more, kept so that Back shows them at once.
const ABOUT_MS = 15_000

const ORIGIN = location.origin
// Of the node's own paths: a proxy may serve them below one.
const HOME = new URL('.', location.href).href.replace(/\/$/, '')
/** What the node says of itself: `{node, version, open, local, others}`; undefined until it answered. */
export const about = signal(/** @type {any} */ (undefined))
/** Whose token it is: `{open, author, grants, …}`; undefined until it is known. */
export const access = signal(/** @type {any} */ (undefined))
/** Whether the node asks for a token that the page has not. */
export const signedOut = signal(false)
/** The other node that asks for a token which the page has no more, since a reload forgot it and the cookie is for the page's own node alone; '' if none does. */
export const wanted = signal('')
/** How often somebody signed in here: what was refused for want of a token may be tried again. */
export const signedIn = signal(0)
/** Who serves the page's data now: its address, since when, and which node was lost. */
export const serving = signal({ url: ORIGIN, since: clock(), lost: '' })
/** Since when no node answers; 0 if one does. */
export const silent = signal(0)

// The token that was typed, for the other nodes: the cookie is this one's, and scripts cannot read it.
let token = ''
/** @type {Store} */
let store = connected([HOME])

/** @param {string[]} urls */
function connected (urls) {
  return connect(urls, { requestTimeoutMs: 12_000, attemptTimeoutMs: 6_000, retryDelayMs: 150, fetch: asked, token: () => token || undefined })
}

/** The global fetch, that notes which node answers. @param {RequestInfo | URL} request @param {RequestInit} [init] */
async function asked (request, init = {}) {
  const { origin } = new URL(String(request), ORIGIN)
  const elsewhere = origin !== ORIGIN
  const response = await fetch(request, { ...init, credentials: 'same-origin' }).catch((error) => {
    if (error instanceof TypeError) missed()
    throw error
  })
  if (response.status < 500) answered(origin)
  if (!elsewhere) compared(response.headers.get('Date'))
  if (response.status === 401) {
    if (elsewhere) wanted.value = origin
    else signedOut.value = true
  } else if (response.ok && !elsewhere) wanted.value = ''
  return response
}

// Since when no node was reached; 0 if the last request was answered. One that is tried again soon is no news.
let missing = 0
const SILENT_MS = 1_500

function missed () {
  if (missing !== 0) return
  const since = missing = clock()
  setTimeout(() => { if (missing === since && silent.peek() === 0) silent.value = since }, SILENT_MS)
}

// A browser that has lost its network tells so: what is shown is asked for at once, and a node on this machine still answers.
for (const change of ['offline', 'online']) addEventListener(change, () => refresh())

/** @param {string} origin */
function answered (origin) {
  missing = 0
  if (silent.peek() !== 0) silent.value = 0
  const before = serving.peek()
  if (before.url !== origin) serving.value = { url: origin, since: clock(), lost: origin === ORIGIN ? '' : before.url }
}

/** The store, at whichever node answers. @returns {Store} */
export const client = () => store

export const SPACES_MAX = 20

const SPACES_LISTED_MAX = 1000

/**
 * The spaces that the one of an address means: it alone, or those of all that are used most; `more`: how many are not among them, -1 if that is not known.
 * @param {string} space @returns {Promise<{ names: string[], more: number }>}
 */
export async function spacesOf (space) {
  if (space !== '*') return { names: [space], more: 0 }
  if (performance.now() - listed.at > LISTED_MS) listed = { at: performance.now(), found: listedNow() }
  return listed.found
}

const LISTED_MS = 100 // What is loaded at once asks for them once.
let listed = { at: -LISTED_MS, found: Promise.resolve({ names: /** @type {string[]} */ ([]), more: 0 }) }

/** @returns {Promise<{ names: string[], more: number }>} */
async function listedNow () {
  /** @type {string[]} */
  const names = []
  let isCut = false
  for await (const name of store.spaces()) {
    if (!name.startsWith('.') && names.push(name) > SPACES_LISTED_MAX) { isCut = true; break }
  }
  if (names.length <= SPACES_MAX) return { names, more: 0 }
  const rank = await usedMost()
  // Names that nobody used stay in their order.
  const chosen = names.map((name, nth) => ({ name, rank: rank.get(name) ?? rank.size + nth })).sort((one, other) => one.rank - other.rank).slice(0, SPACES_MAX).map(({ name }) => name)
  return { names: chosen.sort(), more: isCut ? -1 : names.length - SPACES_MAX }
}

const RANKED_MS = 300_000
let ranked = { at: -RANKED_MS, order: /** @type {Map<string, number>} */ (new Map()) }

/** Spaces by their use at the node, unless the token may not know that. They keep their places for some minutes: nothing moves by itself. @returns {Promise<Map<string, number>>} */
async function usedMost () {
  if (performance.now() - ranked.at < RANKED_MS) return ranked.order
  ranked = { at: performance.now(), order: await rankedNow() }
  return ranked.order
}

/** @returns {Promise<Map<string, number>>} */
async function rankedNow () {
  try {
    const [{ spaces }, figures] = await Promise.all([store.usage({ limit: 100 }), store.figures()])
    const asked = Object.entries(figures.spaces).sort(([, one], [, other]) => Number(other) - Number(one)).map(([name]) => name)
    const held = spaces.map(({ name }) => name)
    // Half of them as those that are asked for most now, half as the largest.
    const order = Array.from({ length: Math.max(asked.length, held.length) }, (_, nth) => [asked[nth], held[nth]]).flat().filter((name) => name !== undefined)
    return new Map([...new Set(order)].map((name, nth) => [name, nth]))
  } catch {
    return new Map()
  }
}

/** Read what the node says of itself and of the others, and whom it takes the caller for. */
export async function begin () {
  try {
    const told = await store.about()
    const urls = [HOME, ...(told.others ?? []).filter((/** @type {string} */ url) => url !== ORIGIN)]
    if (about.peek() === undefined && urls.length > 1) store = connected(urls)
    about.value = told
    if (access.peek() === undefined || signedOut.peek()) access.value = await store.access()
    signedOut.value = false
  } catch (error) {
    if (/** @type {any} */ (error)?.status !== 401) noted(error)
  }
}
setInterval(() => { if (!document.hidden && !signedOut.peek()) begin() }, ABOUT_MS)

/** An error in words for people: also if an answer was of another form than is known, or none came in time. @param {unknown} error @returns {Error} */
export function told (error) {
  if (error instanceof TypeError || error instanceof RangeError) return new Error(`The node's answer is not of the form that this page knows. Nothing was written. The node is of another version, or something on the way changed the answer: load the page again. (${error.message})`)
  if (error instanceof DOMException && error.name === 'TimeoutError') return new Error('The node did not answer in time. Nothing was written. The page asks again by itself.')
  return error instanceof Error ? error : new Error(String(error))
}

/** @param {unknown} error */
function noted (error) {
  if (error instanceof ShoalError && error.status === 0 && silent.peek() === 0) silent.value = clock()
}

/** Sign in: the node keeps the token in a cookie that no script can read. @param {string} typed */
export async function signIn (typed) {
  await store.signIn(typed)
  token = typed
  signedOut.value = false
  await begin()
  for (const resource of resources.values()) resource.load()
}

/** Sign in at the node that took over: it gets the token in a header, and what is shown and typed stays. @param {string} typed */
export async function signInThere (typed) {
  token = typed
  try {
    access.value = await store.access()
  } catch (error) {
    if (/** @type {any} */ (error)?.status === 401) token = ''
    throw error
  }
  wanted.value = ''
  signedIn.value += 1
  for (const resource of resources.values()) resource.changed()
}

/** Whether the token certainly may change nothing in a space. @param {string} space */
export const isReader = (space) => access.value?.open === false && !access.value.grants.some((/** @type {string} */ grant) => {
  const [pattern, ...rest] = grant.split(':')
  const isFit = space === '*' || !/^[\w*.-]+$/.test(pattern) || new RegExp(`^${pattern.replaceAll('.', '\\.').replaceAll('*', '.*')}$`).test(space)
  return isFit && /append|write|admin/.test(rest.at(-1) ?? 'write')
})

/** Forget the token. */
export async function signOut () {
  await store.signOut()
  token = ''
  batch(() => { access.value = undefined; signedOut.value = true })
}

// --- What is shown, and kept up to date -------------------------------------------------------------------------------

/** @type {Map<string, Resource>} */
const resources = new Map()

/**
 * A value that is loaded, and loaded again when it changes.
 * @template T
 * @param {string} key What it is: the same key is the same value.
 * @param {(signal: AbortSignal) => Promise<T>} load
 * @param {{ space?: string, kinds?: string[], every?: number, share?: number }} [options] `space` and `kinds`: changes after which it is loaded again; `every`: and after so
 *   many milliseconds; `share`: the part of the time that loading may take at most, so that what costs much is loaded seldom.
 * @returns {import('./vendor/preact.js').Signal<Live<T>>}
 */
export function live (key, load, options = {}) {
  let resource = resources.get(key)
  if (resource === undefined) {
    resource = new Resource(load, options)
    resources.set(key, resource)
    for (const [old, each] of resources) {
      if (resources.size <= LIVE_MAX) break
      if (!each.watched) resources.delete(old)
    }
  } else {
    resources.delete(key)
    resources.set(key, resource) // The last to go.
    resource.how = load
  }
  return resource.signal
}

class Resource {
  /** @param {(signal: AbortSignal) => Promise<any>} how @param {{ space?: string, kinds?: string[], every?: number, share?: number }} options */
  constructor (how, { space, kinds = [], every = 0, share = 1 }) {
    this.how = how
    this.kinds = new Set(kinds)
    this.space = space
    this.every = every
    this.share = share
    this.took = 0
    this.watched = false
    this.underWay = false
    this.again = false
    this.at = 0
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined
    this.signal = signal(/** @type {Live<any>} */ ({ state: 'loading', value: undefined, error: undefined, since: clock() }), {
      watched: () => this.look(), unwatched: () => this.leave()
    })
  }

  look () {
    this.watched = true
    if (this.space !== undefined) follow(this.space, this)
    this.load()
  }

  leave () {
    this.watched = false
    clearTimeout(this.timer)
    if (this.space !== undefined) unfollow(this.space, this)
  }

  /** Something changed: load it soon. */
  changed () {
    if (!this.watched) return
    const wait = Math.max(0, this.at + Math.max(1000 / PER_SECOND, this.took / this.share) - performance.now())
    clearTimeout(this.timer)
    this.timer = setTimeout(() => this.load(), wait)
  }

  async load () {
    if (this.underWay) { this.again = true; return }
    this.underWay = true
    this.at = performance.now()
    const before = this.signal.peek()
    let next = this.every
    try {
      const value = await this.how(AbortSignal.timeout(20_000))
      this.signal.value = { state: 'ready', value, error: undefined, since: clock() }
    } catch (error) {
      noted(error)
      next = RETRY_MS
      const failure = told(error)
      const state = before.value === undefined || (error instanceof ShoalError && error.status >= 400 && error.status < 500) ? 'refused' : 'stale'
      this.signal.value = { ...before, state, error: failure, since: before.state === 'ready' ? clock() : before.since }
      if (state === 'refused' && error instanceof ShoalError && error.status !== 0) next = this.every
    } finally {
      this.underWay = false
      this.took = performance.now() - this.at
    }
    if (this.again) { this.again = false; this.changed() } else if (next > 0 && this.watched && !document.hidden) {
      clearTimeout(this.timer)
      this.timer = setTimeout(() => this.load(), Math.max(next, this.took / this.share - this.took))
    }
  }
}

/** Load what is shown of a space again, such as after an action. @param {string} [space] */
export function refresh (space) {
  for (const resource of resources.values()) if (space === undefined || resource.space === space || resource.space === '*') resource.changed()
}

// A browser opens six connections to a node: two may be streams, and a page that is hidden has none.
const STREAMS_MAX = 2
const POLL_MS = 2_000
const HELD_MS = 4_000
const SPACES_MS = 30_000 // How often it is asked whether there are new spaces.
/** @type {Map<string, { followers: Set<Resource>, end: AbortController | undefined, timer?: ReturnType<typeof setInterval> }>} */
const followed = new Map()

/** @param {string} space @param {Resource} resource */
function follow (space, resource) {
  let entry = followed.get(space)
  if (entry === undefined) followed.set(space, entry = { followers: new Set(), end: undefined })
  entry.followers.add(resource)
  open(space)
}

/** @param {string} space @param {Resource} resource */
function unfollow (space, resource) {
  const entry = followed.get(space)
  entry?.followers.delete(resource)
  // A view that changes leaves and comes back at once.
  setTimeout(() => { if (entry?.followers.size === 0 && followed.get(space) === entry) { close(space); followed.delete(space) } }, 500)
}

/** @param {string} space */
function open (space) {
  const entry = followed.get(space)
  if (entry === undefined || entry.end !== undefined || entry.timer !== undefined || document.hidden) return
  const streams = [...followed.values()].filter(({ end }) => end !== undefined).length
  if (space === '*') openAll(entry)
  else if (streams >= STREAMS_MAX) entry.timer = setInterval(() => tell(entry.followers, undefined), POLL_MS)
  else {
    const { signal: ending } = entry.end = new AbortController()
    listen(() => store.space(space).watch({ signal: ending, reconnectMs: Infinity }), entry.followers, ending)
  }
}

/** One stream has all spaces that are shown; without names they are asked again. @param {NonNullable<ReturnType<typeof followed.get>>} entry */
async function openAll (entry) {
  const { signal: ending } = entry.end = new AbortController()
  const names = await spacesOf('*').then((found) => found.names).catch(() => [])
  if (ending.aborted) return
  if (names.length === 0) {
    entry.timer = setInterval(() => tell(entry.followers, undefined), POLL_MS)
    return
  }
  listen(() => store.watch(names, { signal: ending, reconnectMs: Infinity }), entry.followers, ending)
  entry.timer = setInterval(async () => {
    const found = await spacesOf('*').catch(() => undefined)
    if (found === undefined || ending.aborted || found.names.join('\n') === names.join('\n')) return
    close('*')
    open('*')
    tell(entry.followers, undefined)
  }, SPACES_MS)
}

/** @param {string} space */
function close (space) {
  const entry = followed.get(space)
  entry?.end?.abort()
  clearInterval(entry?.timer)
  if (entry !== undefined) entry.end = entry.timer = undefined
}

/** @param {Set<Resource>} followers @param {any} event */
function tell (followers, event) {
  for (const resource of followers) if (event?.type !== 'change' || resource.kinds.size === 0 || resource.kinds.has(event.kind)) resource.changed()
}

/** @param {() => AsyncIterable<any>} watch @param {Set<Resource>} followers @param {AbortSignal} ending */
async function listen (watch, followers, ending) {
  while (!ending.aborted) {
    // A proxy that holds back what is streamed tells not even that the stream began: then it is asked now and then.
    const held = setInterval(() => tell(followers, undefined), HELD_MS)
    ending.addEventListener('abort', () => clearInterval(held), { once: true })
    try {
      for await (const event of watch()) {
        clearInterval(held)
        if (event.type !== 'began') tell(followers, event)
      }
    } catch {
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS))
      tell(followers, undefined)
    } finally {
      clearInterval(held)
    }
  }
}

document.addEventListener('visibilitychange', () => {
  for (const [space, { followers }] of followed) {
    if (document.hidden) close(space)
    else { open(space); tell(followers, undefined) }
  }
})

// --- Actions and their author -------------------------------------------------------------------------------------------

/** @typedef {{ state: 'idle' | 'running' | 'done' | 'refused', error?: Error, value?: any, says?: string }} Act */
/** @type {Map<string, { signal: import('./vendor/preact.js').Signal<Act>, key: string }>} */
const acts = new Map()
const ACTS_MAX = 200

/** @param {string} what */
function actOf (what) {
  let act = acts.get(what)
  if (act === undefined) {
    acts.set(what, act = { signal: signal(/** @type {Act} */ ({ state: 'idle' })), key: '' })
    if (acts.size > ACTS_MAX) acts.delete(/** @type {string} */ (acts.keys().next().value))
  }
  return act
}

/** How an action stands. @param {string} what @returns {import('./vendor/preact.js').Signal<Act>} */
export const acted = (what) => actOf(what).signal

/** Forget how an action ended. @param {string} what */
export function forget (what) {
  actOf(what).signal.value = { state: 'idle' }
}

/**
 * Carry out one action. Its refusal is shown where `acted(what)` is; tried again, it counts once.
 * @template T
 * @param {string} what What it is, such as `approve crew/ticket-7`.
 * @param {(options: { by: string, key: string }) => Promise<T>} run
 * @returns {Promise<T | undefined>} Undefined if it was refused.
 */
export async function act (what, run) {
  const entry = actOf(what)
  if (entry.signal.peek().state === 'running') return undefined
  // A key whose outcome is not known is used again, so that the action happens once.
  entry.key ||= `page-${Array.from(crypto.getRandomValues(new Uint8Array(12)), (octet) => octet.toString(16).padStart(2, '0')).join('')}`
  entry.signal.value = { state: 'running' }
  try {
    const value = await run({ by: author(), key: entry.key })
    entry.key = ''
    entry.signal.value = { state: 'done', value }
    refresh()
    return value
  } catch (error) {
    noted(error)
    if (!(error instanceof ShoalError) || error.written !== 'unknown') entry.key = ''
    entry.signal.value = { state: 'refused', error: error instanceof Error ? error : new Error(String(error)) }
    return undefined
  }
}

/** Under whose name the page writes: the token's, or the one that was typed. */
export const author = () => access.peek()?.author || named.peek() || 'page'

/** How a node is called: one that was given no port, as that of `shoal ui`, is the one that answers. @param {string} name */
export const called = (name) => name.endsWith(':0') ? location.host : name
