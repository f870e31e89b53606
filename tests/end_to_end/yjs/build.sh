#!/bin/sh
# Makes bundle.cjs, the client in one file, of client.js and of these packages; needs node, npm and a registry.
# The tests need none of that but node. Run it again after a change of client.js or of a version.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$here/client.js" "$work/"
cd "$work"
npm init --yes >/dev/null
npm install --no-save --no-audit --no-fund --no-package-lock --ignore-scripts \
    yjs@13.6.33 y-websocket@3.1.0 y-protocols@1.0.7 lib0@0.2.120 ws@8.23.0 \
    y-prosemirror@1.3.7 prosemirror-model@1.25.13 prosemirror-schema-basic@1.2.5 prosemirror-state@1.4.4 \
    prosemirror-transform@1.12.6 prosemirror-view@1.42.9 esbuild@0.28.2 >&2
node node_modules/esbuild/install.js
# The licences of what is bundled stay in the file.
node_modules/.bin/esbuild client.js --bundle --platform=node --format=cjs --target=node18 --minify-whitespace --minify-syntax \
    --legal-comments=inline --banner:js="// Made by build.sh of yjs, y-websocket, y-protocols, lib0, ws, y-prosemirror and prosemirror-* (all MIT). Do not edit." \
    --outfile="$here/bundle.cjs"
