/** Writes manifest.json and licences.txt: of each bundle its bytes and SHA-256, and the packages in it with version and licence. */

import { createHash } from 'node:crypto'
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'

const [vendor, ...metas] = process.argv.slice(2)
const inside = /^(.*node_modules\/((?:@[^/]+\/)?[^/]+))\//
const texts = new Map()
const files = {}

for (const meta of metas.sort()) {
  const { outputs } = JSON.parse(readFileSync(meta, 'utf8'))
  for (const [output, { inputs }] of Object.entries(outputs)) {
    const folders = new Set(Object.entries(inputs).filter(([, used]) => used.bytesInOutput > 0).map(([path]) => inside.exec(path)?.[1]).filter(Boolean))
    const packages = [...folders].map((folder) => described(folder)).sort((a, b) => a.name < b.name ? -1 : 1)
    const content = readFileSync(join(vendor, basename(output)))
    files[basename(output)] = { bytes: content.length, sha256: createHash('sha256').update(content).digest('hex'), packages }
  }
}
writeFileSync(join(vendor, 'manifest.json'), JSON.stringify({ files }, null, 2) + '\n')
const sections = [...texts].sort(([a], [b]) => a < b ? -1 : 1).map(([name, text]) => `=== ${name} ===\n${text.trim()}\n`)
writeFileSync(join(vendor, 'licences.txt'), 'The licences of the packages that are bundled here; manifest.json says which file holds which.\n\n' + sections.join('\n'))

/** @param {string} folder */
function described (folder) {
  const { name, version, license } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'))
  const own = readdirSync(folder).find((each) => /^(licen[cs]e|copying)/i.test(each))
  // Some packages are published without the text that their repository has, or only name the Apache licence.
  const file = [own && join(folder, own), join('licences', `${name}.txt`), license === 'Apache-2.0' && 'APACHE-2.0'].find((each) => each && existsSync(each))
  if (!file) throw new Error(`${name} ${version} has no text of its licence`)
  texts.set(`${name} ${version} (${license})`, readFileSync(file, 'utf8').replace(/\r\n?/g, '\n').replace(/[ \t]+$/gm, ''))
  return { name, version, licence: license }
}
