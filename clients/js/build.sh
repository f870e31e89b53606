#!/bin/sh
# Checks src/ with TypeScript and writes types/, from src/ and from the OpenAPI description; needs node, npm, a registry and Shoal's Python.
# Users and tests need none of that. `python -m tests.reference` runs it if types/ is stale, which types/SOURCES tells.
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-$here/../../.venv/bin/python}
. "$here/../../tests/npm/bundling.sh"
packages openapi-typescript typescript yjs y-websocket y-protocols lib0
cp -r "$here/src" "$here/tsconfig.json" "$here/check.ts" "$here/package.json" .
mkdir types
(cd "$here/../.." && "$python" -m tests.clients.js.description >"$work/description.json")
node_modules/.bin/openapi-typescript description.json --default-non-nullable false --output types/api.d.ts >&2
node_modules/.bin/tsc --project .
# A caller's view of what was written: uses that must be accepted, and some that must not.
mkdir -p node_modules/shoal-client && cp -r package.json types node_modules/shoal-client/
node_modules/.bin/tsc --strict --noEmit --target es2022 --module nodenext --lib es2022,dom,dom.iterable,esnext.asynciterable check.ts
rm -rf "$here/types" && cp -r types "$here/types"
cd "$here/../.." && "$python" -m tests.clients.js.description --sources >"$here/types/SOURCES"
