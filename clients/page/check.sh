#!/bin/sh
# Checks shoal/page with TypeScript, against the types of the client; needs node, npm and a registry. Installing Shoal and its tests need none of that.
# The bundled libraries count as untyped: their types are in the packages, and not in what is bundled of them. Parameters of small functions within
# templates have no types, and a value that is shown once it is there is not asked for again: so neither is checked.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../../tests/npm/bundling.sh"
packages typescript
cp -rL "$here/../../shoal/page" page
cp -r "$here/../js/types" page/types
for file in page/vendor/*.js; do
    { sed -n 's/.*export *{\([^}]*\)}.*/\1/p' "$file" | tr ',' '\n' | sed 's/.* as //; s/ //g' | while read -r name; do
        [ "$name" = default ] && echo 'declare const it: any; export default it' || { [ -z "$name" ] || echo "export const $name: any"; }
    done; echo 'export interface Signal<T> { value: T; peek (): T }'; } >"${file%.js}.d.ts"
    rm "$file"
done
cat >tsconfig.json <<'END'
{
  "compilerOptions": {
    "target": "es2022", "module": "esnext", "moduleResolution": "bundler", "lib": ["es2023", "dom", "dom.iterable", "dom.asynciterable"], "types": [],
    "strict": true, "noImplicitAny": false, "strictNullChecks": false, "checkJs": true, "allowJs": true, "noEmit": true
  },
  "include": ["page/*.js", "page/kit", "page/views"]
}
END
node_modules/.bin/tsc --project .
