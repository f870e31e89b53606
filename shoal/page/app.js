/**
 * The shell: header, navigation and the view that the address names. Views are loaded when they are first shown.
 */

import { html, render, useEffect, useRef, useState } from './vendor/preact.js'
import { about, access, begin, client, isReader, live, named, serving, signedOut, signInThere, signOut, silent, wanted } from './data.js'
import { address, EVERY_SPACE, go, place, refine, up } from './router.js'
import { layers, shown, useKeys } from './keys.js'
import { Guard, Loading, Refusal } from './kit/states.js'
import { Time } from './kit/time.js'
import { View as SignIn } from './views/signin.js'

/** View → its name, and the second key after `g`. @type {Record<string, [string, string]>} */
const VIEWS = {
  now: ['Now', 'n'], threads: ['Threads', 't'], shared: ['Shared', 's'], work: ['Work', 'w'], compare: ['Compare', 'c'], cluster: ['Cluster', 'k'], audit: ['Audit', 'a']
}

const PREPARE_MS = 1000 // After what is shown at first.
const FIRST_MS = 100
/** @type {Map<string, any>} */
const loaded = new Map()
const SPACES_MAX = 500

async function spaceNames () {
  const names = []
  for await (const name of client().spaces()) if (names.push(name) >= SPACES_MAX) break
  return names
}

function SpaceChoice () {
  const names = live('spaces', spaceNames, { every: 20_000 }).value.value ?? []
  const { space, view } = place.value
  const listed = space === EVERY_SPACE || names.includes(space) ? names : [space, ...names]
  return html`<select class="quiet-field" aria-label="Space" value=${space} onChange=${(/** @type {any} */ event) => go(address(event.target.value, view))}>
    <option value=${EVERY_SPACE}>all spaces</option>${listed.map((name) => html`<option value=${name}>${name}</option>`)}
  </select>`
}

function Search () {
  const { space, view, query } = place.value
  const field = useRef(/** @type {HTMLInputElement | null} */ (null))
  useKeys([{ key: '/', says: 'search', does: () => field.current?.focus() }])
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault()
    const text = field.current?.value ?? ''
    if (view === 'threads') refine({ text }); else go(address(space, 'threads', [], { text }))
    field.current?.blur()
  }
  return html`<form class="search" role="search" onSubmit=${submit}>
    <input ref=${field} type="search" placeholder="Search  /" aria-label="Search threads" defaultValue=${query.text ?? ''} key=${query.text ?? ''} maxlength="200" />
  </form>`
}

/** Which node serves, and how many there are. */
function NodeState () {
  const told = about.value
  const { url, lost } = serving.value
  if (told === undefined) return html`<span class="node quiet">${silent.value ? 'no node answers' : ''}</span>`
  const all = 1 + (told.others?.length ?? 0)
  return html`<a class="node" href=${address(EVERY_SPACE, 'cluster')} title=${`${url}, node ${told.node}`}>
    <span class="mono">${new URL(url).host}</span><i class=${'mark ' + (silent.value ? 'stuck' : lost ? 'waits' : 'well')} aria-hidden="true"></i>
    <span class="quiet">${all === 1 ? 'one node' : `${all} nodes`}</span></a>`
}

function Author () {
  const told = access.value
  if (told === undefined) return null
  if (!told.open) return html`<span class="quiet author"><bdi title=${told.grants.join('\n')}>${told.author || 'token'}</bdi>${isReader(place.value.space) ? ', who may only read here' : ''} <button class="link" onClick=${signOut}>sign out</button></span>`
  return html`<label class="author"><span class="sr">Your name, for what you write</span>
    <input class="quiet-field" placeholder="your name" value=${named.value} maxlength="100" size="10" onInput=${(/** @type {any} */ event) => { named.value = event.target.value }} /></label>`
}

function Banner () {
  const { url, since, lost } = serving.value
  if (silent.value) return html`<p class="banner stuck" role="status">No node answers since <${Time} ms=${silent.value} exact />. What is shown may be old; what you type is kept. The page tries again by itself.</p>`
  if (wanted.value) return html`<${TokenAgain} />`
  if (lost) return html`<p class="banner waits" role="status">${lost} did not answer at <${Time} ms=${since} exact />. The page goes on with ${url}; nothing that you typed is lost.</p>`
  if (about.value?.open && !access.value?.author && about.value.local === false) return html`<p class="banner waits">This node asks for no token, and other machines reach it.</p>`
  return null
}

/** The token once more, for the node that took over. */
function TokenAgain () {
  const [typed, setTyped] = useState('')
  const [error, setError] = useState(/** @type {Error | undefined} */ (undefined))
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault()
    setError(undefined)
    try { await signInThere(typed.trim()) } catch (failure) { setError(/** @type {Error} */ (failure)) }
  }
  return html`<form class="banner waits" aria-label="Token for the other node" onSubmit=${submit}><p>${new URL(wanted.value).host} has taken over, and asks for your token: this page forgot it when it was loaded again. What is shown may be old; what you typed stays.</p>
    <div class="row"><label><span class="sr">Token</span><input type="password" placeholder="Token" autocomplete="off" spellcheck=${false} required value=${typed} onInput=${(/** @type {any} */ event) => setTyped(event.target.value)} /></label><button class="primary">Go on</button></div>
    ${error && html`<${Refusal} error=${error} />`}</form>`
}

function KeyList () {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null))
  useEffect(() => { if (shown.value) dialog.current?.showModal(); else dialog.current?.close() }, [shown.value])
  const rows = [...new Map(layers.value.flat().map((each) => [each.key, each])).values()]
  return html`<dialog ref=${dialog} class="keys" aria-label="Keys" onClose=${() => { shown.value = false }}><h2>Keys</h2>
    <dl>${rows.map(({ key, says }) => html`<div><dt>${key.split(' ').map((part) => html`<kbd>${part}</kbd>`)}</dt><dd>${says}</dd></div>`)}</dl>
    <form method="dialog"><button>Close</button></form></dialog>`
}

function Navigation () {
  const { space, view } = place.value
  return html`<nav aria-label="Views">${Object.entries(VIEWS).map(([name, [title]]) => html`
    <a href=${address(space, name)} aria-current=${name === view ? 'page' : undefined}>${title}</a>`)}
    <button class="link keys-hint" onClick=${() => { shown.value = true }}>Keys <kbd>?</kbd></button></nav>`
}

/** @param {string} view */
const load = (view) => import(`./views/${view}.js`).then((module) => loaded.set(view, module), (error) => loaded.set(view, { error }))

/** The view of the address. */
function Viewed () {
  const { space, view, path, query } = place.value
  const [, again] = useState(0)
  const known = view in VIEWS
  const found = loaded.get(view)
  useEffect(() => {
    if (found !== undefined || !known) return
    load(view).then(() => again((n) => n + 1))
  }, [view])
  document.title = `${path.at(-1) ? `${path.at(-1)} · ` : ''}${VIEWS[view]?.[0] ?? 'Shoal'} · Shoal`
  if (!known) return html`<div class="pane"><h1 class="sentence">There is no view ${view}.</h1><p><a class="button" href=${address(space, 'now')}>Show what happens now</a></p></div>`
  if (found === undefined) return html`<div class="pane"><${Loading} rows=${8} /></div>`
  if (found.error) return html`<div class="pane"><${Refusal} error=${found.error} /></div>`
  return html`<${ViewKeys} key=${view} keys=${found.keys ?? []} /><${Guard} key=${`guard ${view}`}><${found.View} key=${view} space=${space} path=${path} query=${query} /></${Guard}>`
}

/** @param {{ keys: import('./keys.js').Key[] }} props */
function ViewKeys ({ keys }) {
  useKeys(keys)
  return null
}

function Page () {
  useKeys([
    ...Object.entries(VIEWS).map(([name, [title, key]]) => ({ key: `g ${key}`, says: `go to ${title}`, does: () => go(address(place.peek().space, name)) })),
    { key: '?', says: 'show the keys', does: () => { shown.value = !shown.value } },
    { key: 'Escape', says: 'up, to the list', does: up }
  ])
  if (signedOut.value) return html`<${SignIn} />`
  return html`<a class="skip" href="#main" onClick=${(/** @type {Event} */ event) => { event.preventDefault(); document.getElementById('main')?.focus() }}>Skip to the content</a>
    <header><a class="brand" href=${address(place.value.space, 'now')}>Shoal</a><${SpaceChoice} /><${Search} /><${Author} /><${NodeState} /></header>
    <${Navigation} /><main id="main" tabindex="-1"><${Banner} /><${Viewed} /></main><${KeyList} />`
}

/** The modules of the other views, and of the editor, but for those that are here from the beginning: a test holds this list. */
const LATER = [
  'views/shared.js', 'views/work.js', 'views/compare.js', 'views/cluster.js', 'views/audit.js', 'views/shared/document.js', 'views/shared/budget.js',
  'views/shared/items.js', 'views/shared/listing.js', 'views/shared/list.js', 'views/shared/register.js', 'views/shared/values.js',
  'views/work/crew.js', 'views/work/listing.js', 'views/work/queues.js', 'views/compare/runs.js', 'views/plot.js', 'views/cluster/backup.js',
  'views/cluster/growth.js', 'views/cluster/load.js', 'views/cluster/problems.js', 'views/shared/observed.js', 'views/audit/records.js',
  'vendor/codemirror.js', 'views/shared/editor.js', 'views/shared/presence.js', 'views/shared/form.js', 'vendor/uplot.js'
]

/** Fetch the other views before they are asked for: the node that they come from may be gone by then. They run once they are shown: what runs now would hold up whoever scrolls. */
function prepare () {
  document.head.append(...LATER.map((name) => Object.assign(document.createElement('link'), { rel: 'modulepreload', href: `ui/${name}` })))
}

begin()
setTimeout(() => (globalThis.requestIdleCallback ?? setTimeout)(prepare), PREPARE_MS)
// What the view asks for is asked at once, and drawn once; but nothing waits long for its module.
const { view } = place.peek()
if (view in VIEWS) await Promise.race([load(view), new Promise((resolve) => setTimeout(resolve, FIRST_MS))])
render(html`<${Page} />`, /** @type {HTMLElement} */ (document.getElementById('page')))
