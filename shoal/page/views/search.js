/**
 * Where a text stands in threads: in names, labels, tags, metadata and states, each place with its address.
 *
 * Law: bounded: a page is asked for at a time, and how far was looked is told.
 */

import { html, useState } from '../vendor/preact.js'
import { client, live, spacesOf } from '../data.js'
import { address, EVERY_SPACE } from '../router.js'
import { Shown, useKept } from '../kit/states.js'

const PAGE = 20
const PAGES_MAX = 25
const EMPTY_MAX = 5 // Pages without a hit, which are passed over at a time.
const SAID = /** @type {Record<string, string>} */ ({ name: 'name', label: 'label', tag: 'tag', metadata: 'metadata', state: 'state' })

/** @typedef {{ hits: any[], more: boolean, looked: number, skipped: number }} Hits */

/** @param {string} space @param {string} text @param {number} pages @param {AbortSignal} signal @returns {Promise<Hits>} */
async function found (space, text, pages, signal) {
  const { names } = await spacesOf(space)
  const parts = await Promise.all(names.map((name) => ofSpace(name, text, pages, signal).catch((error) => {
    if (space === EVERY_SPACE && error.status === 403) return { hits: [], more: false, looked: 0, skipped: 0 }
    throw error
  })))
  const sum = (/** @type {'looked' | 'skipped'} */ what) => parts.reduce((all, part) => all + part[what], 0)
  return { hits: parts.flatMap(({ hits }) => hits), more: parts.some(({ more }) => more), looked: sum('looked'), skipped: sum('skipped') }
}

/** @param {string} name @param {string} text @param {number} pages @param {AbortSignal} signal @returns {Promise<Hits>} */
async function ofSpace (name, text, pages, signal) {
  const hits = []
  let [looked, skipped] = [0, 0]
  let after
  for (let [full, all] = [0, 0]; full < pages && all < pages + EMPTY_MAX; all++) {
    const page = await client().space(name).search(text, { after, limit: PAGE, signal })
    hits.push(...page.hits.map((/** @type {any} */ hit) => ({ ...hit, space: name })))
    looked += page.looked
    skipped += page.skipped
    if (!page.more) return { hits, more: false, looked, skipped }
    if (page.hits.length > 0) full++
    after = page.cursor
  }
  return { hits, more: true, looked, skipped }
}

/** The hits of a text, with more at a click. @param {{ space: string, text: string }} props */
export function Found ({ space, text }) {
  const [pages, setPages] = useState(1)
  const hits = useKept(live(`search ${pages} ${space} ${text}`, (signal) => found(space, text, pages, signal)).value, text)
  return html`<section class="found" aria-label="Found inside"><h2>Found inside</h2>
    <${Shown} of=${hits} rows=${4}>${(/** @type {Hits} */ { hits: all, more, looked, skipped }) => html`
      ${all.length === 0 && html`<p class="quiet">No name, label, tag, metadata or state has this text${more ? ', as far as was looked' : ''}.</p>`}
      <ul class="rows">${all.map((hit, index) => html`<li key=${index}><a class="row-link" href=${address(hit.space, 'threads', [hit.thread, ...(hit.checkpoint ? ['at', hit.checkpoint] : [])], hit.place === 'state' ? { show: 'state' } : hit.place === 'metadata' || hit.place === 'tag' ? { show: 'about' } : {})}>
        <strong>${space === EVERY_SPACE && html`<span class="quiet"><bdi>${hit.space}</bdi> / </span>`}<bdi>${hit.thread}</bdi></strong>
        <span class="quiet">${SAID[hit.place] ?? hit.place}${hit.place === 'state' || hit.place === 'metadata' ? html` <code><bdi>${hit.path}</bdi></code>` : ''}</span> <bdi class="clip">${hit.excerpt}</bdi></a></li>`)}</ul>
      <p class="quiet">${looked} ${looked === 1 ? 'thread was' : 'threads were'} looked through${skipped > 0 ? `; ${skipped} large ${skipped === 1 ? 'channel was' : 'channels were'} left out` : ''}. ${more && pages < PAGES_MAX && html`<button class="link" onClick=${() => setPages(pages + 1)}>Look further</button>`}</p>`}</${Shown}></section>`
}
