#!/bin/sh
# Makes yjs.mjs, for Node.js and browsers, and ws.mjs, for Node.js, of these packages.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../../npm/bundling.sh"
packages yjs y-websocket y-protocols lib0 ws esbuild
cp "$here/yjs.js" .
bundle yjs.js "$here/yjs.mjs" "yjs, y-websocket, y-protocols and lib0 (all MIT). Do not edit." --platform=browser --format=esm --target=es2022
echo "export { WebSocket } from 'ws'" >ws.js
bundle ws.js "$here/ws.mjs" "ws (MIT). Do not edit.
import { createRequire } from 'node:module'; const require = createRequire(import.meta.url);" --platform=node --format=esm --target=node20
