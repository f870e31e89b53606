#!/bin/sh
# Makes yjs.mjs, for Node.js and browsers, and ws.mjs, for Node.js, of these packages; needs node, npm and a registry. The tests need none of that but node.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$here/yjs.js" "$work/"
cd "$work"
npm init --yes >/dev/null
npm install --no-save --no-audit --no-fund --no-package-lock --ignore-scripts \
    yjs@13.6.33 y-websocket@3.1.0 y-protocols@1.0.7 lib0@0.2.120 ws@8.23.0 esbuild@0.28.2 >&2
node node_modules/esbuild/install.js
# The licences of what is bundled stay in the file.
node_modules/.bin/esbuild yjs.js --bundle --platform=browser --format=esm --target=es2022 --minify-whitespace --minify-syntax \
    --legal-comments=inline --banner:js="// Made by build.sh of yjs, y-websocket, y-protocols and lib0 (all MIT). Do not edit." --outfile="$here/yjs.mjs"
echo "export { WebSocket } from 'ws'" >ws.js
node_modules/.bin/esbuild ws.js --bundle --platform=node --format=esm --target=node20 --minify-whitespace --minify-syntax --legal-comments=inline \
    --banner:js="// Made by build.sh of ws (MIT). Do not edit.
import { createRequire } from 'node:module'; const require = createRequire(import.meta.url);" --outfile="$here/ws.mjs"
