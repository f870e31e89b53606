#!/bin/sh
# Makes page.mjs, for browsers, of page.js and these packages.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../../npm/bundling.sh"
packages yjs y-websocket y-indexeddb @hocuspocus/provider y-protocols lib0 esbuild
cp "$here/page.js" .
bundle page.js "$here/page.mjs" "yjs, y-websocket, y-indexeddb, @hocuspocus/provider and what they need (all MIT). Do not edit." \
    --platform=browser --format=esm --target=es2022
