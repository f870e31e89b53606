#!/bin/sh
# Checks src/ with TypeScript and writes types/, from src/ and from the OpenAPI description; needs node, npm, a registry and Shoal's Python.
# Users and tests need none of that. `python -m tests.reference` runs it if types/ is stale, which types/SOURCES tells.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-$here/../../.venv/bin/python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$here/src" "$here/tsconfig.json" "$here/check.ts" "$work/"
mkdir "$work/types"
(cd "$here/../.." && "$python" -m tests.clients.js.description >"$work/description.json")
cd "$work"
npm init --yes >/dev/null
npm install --no-save --no-audit --no-fund --no-package-lock --ignore-scripts \
    openapi-typescript@7.13.0 typescript@5.9.3 yjs@13.6.33 y-websocket@3.1.0 y-protocols@1.0.7 lib0@0.2.120 >&2
cp "$here/package.json" package.json
node_modules/.bin/openapi-typescript description.json --default-non-nullable false --output types/api.d.ts >&2
node_modules/.bin/tsc --project .
# A caller's view of what was written: uses that must be accepted, and some that must not.
mkdir -p node_modules/shoal-client && cp -r package.json types node_modules/shoal-client/
node_modules/.bin/tsc --strict --noEmit --target es2022 --module nodenext --lib es2022,dom,dom.iterable,esnext.asynciterable check.ts
rm -rf "$here/types" && cp -r types "$here/types"
cd "$here/../.." && "$python" -m tests.clients.js.description --sources >"$here/types/SOURCES"
