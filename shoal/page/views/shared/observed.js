/**
 * What this browser has seen of numbers over time, such as what is left of a budget: nodes keep the present, not the past.
 *
 * Law: bounded: so many points of so many things, kept in this browser alone; the oldest are left out, every second one first.
 */

const POINTS_MAX = 400
const THINGS_MAX = 40
const NAME = 'shoal.observed'

/** @type {Map<string, [number, number[]][]> | undefined} */
let kept

function all () {
  if (kept === undefined) {
    try {
      kept = new Map(JSON.parse(sessionStorage.getItem(NAME) ?? '[]'))
    } catch {
      kept = new Map()
    }
  }
  return kept
}

/** Note figures now, and return all that were seen, as [seconds since 1970, figures]. @param {string} what @param {number[]} figures @returns {[number, number[]][]} */
export function observed (what, figures) {
  const things = all()
  let points = things.get(what) ?? []
  const last = points.at(-1)
  const now = Date.now() / 1000
  if (last === undefined || now - last[0] > 1 || figures.some((figure, index) => figure !== last[1][index])) {
    points = [...points, [now, figures]]
    if (points.length > POINTS_MAX) points = points.filter((_, index) => index % 2 === 0 || index > POINTS_MAX / 2)
    things.delete(what)
    things.set(what, points)
    if (things.size > THINGS_MAX) things.delete(/** @type {string} */ (things.keys().next().value))
    try {
      sessionStorage.setItem(NAME, JSON.stringify([...things]))
    } catch { /* A browser that keeps nothing shows what it saw since it was opened. */ }
  }
  return points
}
