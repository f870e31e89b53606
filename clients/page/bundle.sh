#!/bin/sh
# Bundles what the page uses of npm into shoal/page/vendor, with its manifest; needs node, npm and a registry. Installing Shoal needs none of that.
# `bundle.sh --axe FOLDER` only fetches axe-core there, for the tests of accessibility.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
vendor=$here/../../shoal/page/vendor
if [ "${1:-}" = --axe ]; then
    mkdir -p "$2"
    axe=$(cd "$2" && pwd)
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$here/package.json" "$here/entries" "$here/licences" "$here/manifest.mjs" "$work"
cp "$here/../../LICENSE" "$work/APACHE-2.0"
cd "$work"
npm install --no-audit --no-fund --no-package-lock --ignore-scripts >&2
if [ "${1:-}" = --axe ]; then
    cp node_modules/axe-core/axe.min.js "$axe/axe.min.js"
    exit
fi
node node_modules/esbuild/install.js
mkdir -p "$vendor"
for entry in entries/*.js; do
    name=$(basename "$entry" .js)
    node_modules/.bin/esbuild "$entry" --bundle --minify --format=esm --target=es2022 --legal-comments=none --log-level=warning \
        --metafile="$name.meta.json" --outfile="$vendor/$name.js"
done
node_modules/.bin/esbuild node_modules/uplot/dist/uPlot.min.css --minify --log-level=warning --metafile=uplot.css.meta.json --outfile="$vendor/uplot.css"
node manifest.mjs "$vendor" ./*.meta.json
