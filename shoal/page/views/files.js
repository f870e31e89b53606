/**
 * The files of a thread or a space: listed, saved, and shown in place where that is safe.
 *
 * Law: a file's bytes are drawn as pixels or as text, and never given to the browser as a document: nothing in them runs.
 */

import { html, useEffect, useRef } from '../vendor/preact.js'
import { client, live } from '../data.js'
import { Confirm, Empty, Shown } from '../kit/states.js'
import { bytes, Id, Time } from '../kit/time.js'
import { first } from './timeline.js'

const SHOWN_MAX = 200
const TEXT_BYTES = 64 * 1024
const IMAGE_BYTES = 16 * 1024 * 1024
/** Drawn at most so large on each side. */
const PIXELS = 2048
const IMAGES = /^image\/(png|jpeg|gif|webp|avif)$/
const TEXTS = /^(text\/|application\/(json|xml|yaml|toml|javascript|x-ndjson|x-sh))/

/** A handle of the files. @param {string} space @param {string} [thread] */
const filesOf = (space, thread) => thread === undefined ? client().space(space).files : client().space(space).thread(thread).files

/** The files as a part of a pane; nothing if there are none. @param {{ space: string, thread?: string, hrefOf: (name: string) => string }} props */
export function FileList ({ space, thread, hrefOf }) {
  const found = live(`files ${space}\n${thread ?? ''}`, () => first(filesOf(space, thread).list(), SHOWN_MAX + 1), { space, kinds: ['thread'], every: 60_000 })
  const files = found.value.value
  if (found.value.state === 'refused') return html`<${Shown} of=${found.value}>${() => null}</${Shown}>`
  if (files === undefined || files.length === 0) return null
  const shown = files.slice(0, SHOWN_MAX)
  return html`<details class="files" open=${files.length <= 5}><summary>${files.length > SHOWN_MAX ? `More than ${SHOWN_MAX}` : files.length} ${files.length === 1 ? 'file' : 'files'}, ${bytes(shown.reduce((sum, file) => sum + file.size, 0))}</summary>
    <ul class="rows">${shown.map((file) => html`<li key=${file.name}><a class="row-link" href=${hrefOf(file.name)}><bdi class="clip">${file.name}</bdi><span class="quiet mono">${bytes(file.size)}</span><span class="quiet"><${Time} ms=${Date.parse(file.stored)} ago /></span></a></li>`)}</ul></details>`
}

/** One file, with a preview. @param {{ space: string, thread?: string, name: string, onGone: () => void }} props */
export function FilePane ({ space, thread, name, onGone }) {
  const files = filesOf(space, thread)
  const found = live(`file ${space}\n${thread ?? ''}\n${name}`, async () => {
    for await (const each of files.list()) if (each.name === name) return { file: each }
    return { file: undefined }
  }, { space, kinds: ['thread'] })
  return html`<${Shown} of=${found.value}>${(/** @type {any} */ { file }) => file === undefined ? html`<${Empty} why="There is no file of this name any more." />`
    : html`<div class="thread-head"><h2 class="sentence"><bdi>${name}</bdi></h2>
      <p class="quiet">${bytes(file.size)} of <code>${file.media_type}</code>, put <${Time} ms=${Date.parse(file.stored)} ago />, SHA-256 <${Id} value=${file.sha256} /></p>
      <div class="row"><a class="button" href=${files.url(name)} download=${name}>Save</a>
        <${Confirm} what=${`delete file ${space}/${thread ?? ''}/${name}`} label="Delete" danger says="The file goes, on every node; checkpoints that name it stay." run=${(/** @type {any} */ { key }) => files.delete(name, { key })} onDone=${onGone} /></div></div>
      <${Preview} key=${file.sha256} files=${files} file=${file} />`}</${Shown}>`
}

/** @param {{ files: any, file: any }} props */
function Preview ({ files, file }) {
  const kind = file.media_type.split(';')[0].trim().toLowerCase()
  if (file.size === 0) return html`<p class="quiet">It is empty.</p>`
  if (IMAGES.test(kind)) return file.size > IMAGE_BYTES ? html`<p class="quiet">It is too large to be shown here. Save it.</p>` : html`<${Picture} files=${files} file=${file} />`
  if (TEXTS.test(kind)) return html`<${Text} files=${files} file=${file} />`
  return html`<p class="quiet">Files of this type are not shown here. Save it.</p>`
}

/** @param {{ files: any, file: any }} props */
function Text ({ files, file }) {
  const found = live(`text ${file.sha256} ${file.name}`, async (signal) => {
    const response = await files.open(file.name, { stop: Math.min(file.size, TEXT_BYTES), signal })
    return new TextDecoder().decode(await response.arrayBuffer())
  })
  return html`<${Shown} of=${found.value}>${(/** @type {string} */ text) => html`<pre class="text" tabindex="0" aria-label="Its text">${text}</pre>${file.size > TEXT_BYTES && html`<p class="quiet">The first ${bytes(TEXT_BYTES)} of ${bytes(file.size)}.</p>`}`}</${Shown}>`
}

/** @param {{ files: any, file: any }} props */
function Picture ({ files, file }) {
  const found = live(`image ${file.sha256} ${file.name}`, async (signal) => {
    const response = await files.open(file.name, { signal })
    // A picture that cannot be read is none; the browser says no more about it.
    const bitmap = await createImageBitmap(await response.blob()).catch(() => undefined)
    return { bitmap }
  })
  return html`<${Shown} of=${found.value}>${(/** @type {any} */ { bitmap }) => bitmap === undefined ? html`<p class="quiet">It is no picture that this browser can read. Save it.</p>` : html`<${Drawn} bitmap=${bitmap} says=${`${file.name}, ${bitmap.width} × ${bitmap.height}`} />`}</${Shown}>`
}

/** @param {{ bitmap: ImageBitmap, says: string }} props */
function Drawn ({ bitmap, says }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null))
  const scale = Math.min(1, PIXELS / Math.max(bitmap.width, bitmap.height))
  useEffect(() => {
    canvas.current?.getContext('2d')?.drawImage(bitmap, 0, 0, bitmap.width * scale, bitmap.height * scale)
  }, [bitmap])
  return html`<figure class="picture"><canvas ref=${canvas} width=${Math.max(1, Math.round(bitmap.width * scale))} height=${Math.max(1, Math.round(bitmap.height * scale))} role="img" aria-label=${says}></canvas><figcaption class="quiet">${bitmap.width} × ${bitmap.height}</figcaption></figure>`
}
