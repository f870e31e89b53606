/** Differences of JSON values; of long texts by their words. */
export { create } from 'jsondiffpatch/with-text-diffs'
