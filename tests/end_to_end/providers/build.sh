#!/bin/sh
# Makes page.mjs, for browsers, of page.js and these packages; needs node, npm and a registry. The tests need none of that.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$here/page.js" "$work/"
cd "$work"
npm init --yes >/dev/null
npm install --no-save --no-audit --no-fund --no-package-lock --ignore-scripts \
    yjs@13.6.33 y-websocket@3.1.0 y-indexeddb@9.0.12 @hocuspocus/provider@4.8.0 y-protocols@1.0.7 lib0@0.2.120 esbuild@0.28.2 >&2
node node_modules/esbuild/install.js
# The licences of what is bundled stay in the file.
node_modules/.bin/esbuild page.js --bundle --platform=browser --format=esm --target=es2022 --minify-whitespace --minify-syntax \
    --legal-comments=inline --banner:js="// Made by build.sh of yjs, y-websocket, y-indexeddb, @hocuspocus/provider and what they need (all MIT). Do not edit." \
    --outfile="$here/page.mjs"
