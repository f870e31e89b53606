#!/bin/sh
# Makes bundle.cjs, the client in one file, of client.js and these packages. Run it again after a change of client.js or of a version.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../../npm/bundling.sh"
packages yjs y-websocket y-protocols lib0 ws y-prosemirror prosemirror-model prosemirror-schema-basic prosemirror-state \
    prosemirror-transform prosemirror-view esbuild
cp "$here/client.js" .
bundle client.js "$here/bundle.cjs" "yjs, y-websocket, y-protocols, lib0, ws, y-prosemirror and prosemirror-* (all MIT). Do not edit." \
    --platform=node --format=cjs --target=node18
