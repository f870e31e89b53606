// A program that uses the client, driven by one JSON array a line on standard input: [code, argument]. Each is answered by one line:
// {"is": …}, {"error": {code, written, …}} for a ShoalError, or {"threw": "…"}. `kept` lives as long as the program.
import readline from 'node:readline'
import * as shoal from '../../../clients/js/src/index.js'
import { EventParser } from '../../../clients/js/src/events.js'
import { Bookmarks } from '../../../clients/js/src/bookmarks.js'

// Node.js 20 has no WebSocket of its own that tells when it could not connect.
const yjs = async () => ({ ...await import('./yjs.mjs'), ...await import('./ws.mjs') })
const kept = {}
const Code = (async () => {}).constructor
const answer = (said) => process.stdout.write(JSON.stringify(said) + '\n')

readline.createInterface({ input: process.stdin }).on('line', async (line) => {
  const [code, given] = JSON.parse(line)
  try {
    const run = new Code('shoal', 'kept', 'given', 'parts', code)
    answer({ is: (await run(shoal, kept, given, { EventParser, Bookmarks, yjs })) ?? null })
  } catch (error) {
    if (!(error instanceof shoal.ShoalError)) return answer({ threw: String(error?.stack ?? error) })
    const { code, status, written, retryable, detail, key, message } = error
    answer({ error: { code, status, written, retryable, detail, key: key ?? null, message } })
  }
}).on('close', () => process.exit(0))
