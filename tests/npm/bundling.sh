# For the scripts that make bundles of npm's packages: `. bundling.sh`, `packages`, `bundle`. Needs node, npm and a registry; the tests need none.
# The version of a package that is bundled stands here and nowhere else.
set -eu
VERSIONS="
    @hocuspocus/provider@4.8.0 esbuild@0.28.2 lib0@0.2.120 openapi-typescript@7.13.0 prosemirror-model@1.25.13 prosemirror-schema-basic@1.2.5
    prosemirror-state@1.4.4 prosemirror-transform@1.12.6 prosemirror-view@1.42.9 typescript@5.9.3 ws@8.23.0 y-indexeddb@9.0.12
    y-prosemirror@1.3.7 y-protocols@1.0.7 y-websocket@3.1.0 yjs@13.6.33"

# packages NAME...: go to a new folder that has these packages; it is removed at the end.
packages() {
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    cd "$work"
    wanted=""
    for name in "$@"; do
        found=""
        for each in $VERSIONS; do [ "${each%@*}" != "$name" ] || found=$each; done
        [ -n "$found" ] || { echo "bundling.sh has no version of $name" >&2; exit 1; }
        wanted="$wanted $found"
    done
    npm init --yes >/dev/null
    npm install --no-save --no-audit --no-fund --no-package-lock --ignore-scripts $wanted >&2
    [ ! -d node_modules/esbuild ] || node node_modules/esbuild/install.js
}

# bundle SOURCE TARGET LICENCES OPTION...: make one file of SOURCE and of all that it imports, whose licences stay in it.
# LICENCES says of what it is made; it may end with lines of code that come first.
bundle() {
    source=$1 target=$2 licences=$3
    shift 3
    node_modules/.bin/esbuild "$source" --bundle --minify-whitespace --minify-syntax --legal-comments=inline \
        --banner:js="// Made by build.sh of $licences" --outfile="$target" "$@"
}
