/**
 * Plots over time or over numbers: uPlot in the page's colours.
 *
 * Law: a plot is never the only form of its numbers: `says` tells them in a sentence, for those who cannot see it.
 */

import uPlot from '../vendor/uplot.js'
import { html, useEffect, useRef } from '../vendor/preact.js'
import { bytes } from '../kit/time.js'

const HEIGHT = 180
const SIZES = Array.from({ length: 45 }, (_, power) => 2 ** power) // Ticks of bytes are at 1 MiB, not at 1,000,000.
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500] // Checkpoints are counted: there is none at 1.5.

const LEAST_S = 60 // What is seen for some seconds is no course yet.
const TIMES_S = [1, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 172_800, 604_800, 1_209_600, 2_592_000]

/** Times of the day, or days. @param {any} _plot @param {number[]} ticks @param {number} _axis @param {number} _space @param {number} step */
const times = (_plot, ticks, _axis, _space, step) => ticks.map((at) => new Date(at * 1000).toLocaleString([], step >= 86_400 ? { day: 'numeric', month: 'short' } : { hour: '2-digit', minute: '2-digit', second: step < 60 ? '2-digit' : undefined, hourCycle: 'h23' }))

/** The page's colour of this name. @param {string} name */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim()

/**
 * @param {{ says: string, x: number[], series: { label: string, values: (number | null)[], lane?: number, dash?: boolean, steps?: boolean }[], time?: boolean, unit?: (value: number) => string }} props
 *   `x`: seconds since 1970 if `time`, ascending.
 */
export function Plot (props) {
  // One point is no course of things.
  return props.x.length < 2 ? html`<p class="quiet">${props.says}</p>` : html`<${Drawn} ...${props} />`
}

/** @param {Parameters<typeof Plot>[0]} props */
function Drawn ({ says, x, series, time = true, unit = short }) {
  const host = useRef(/** @type {any} */ (null))
  const plot = useRef(/** @type {any} */ (null))
  const shape = series.map(({ label }) => label).join('\n')
  useEffect(() => {
    const dark = matchMedia('(prefers-color-scheme: dark)')
    const make = () => {
      if (host.current === null) return // It went before its effect began.
      plot.current?.destroy()
      const axis = { stroke: colour('--quiet'), grid: { stroke: colour('--line'), width: 1 }, ticks: { show: false }, font: '11px system-ui' }
      plot.current = new uPlot({
        width: Math.max(200, host.current.clientWidth), height: HEIGHT, legend: { show: series.length > 1, live: false }, cursor: { y: false, points: { size: 6 } },
        scales: { x: { time, range: time ? (/** @type {any} */ _u, /** @type {number} */ low, /** @type {number} */ high) => [low, Math.max(high, low + LEAST_S)] : undefined }, y: { range: (/** @type {any} */ _u, /** @type {number} */ low, /** @type {number} */ high) => [Math.min(0, low), high === low ? high + 1 : high * 1.05] } },
        axes: [{ ...axis, size: 28, space: 80, incrs: time ? TIMES_S : WHOLE, values: time ? times : undefined }, { ...axis, size: 64, incrs: unit === bytes ? SIZES : undefined, values: (/** @type {any} */ _u, /** @type {number[]} */ ticks) => ticks.map(unit) }],
        series: [{}, ...series.map(({ label, lane, dash, steps }) => ({
          label, stroke: colour(lane === undefined ? '--accent' : `--lane-${lane % 8}`), width: 2, dash: dash ? [4, 4] : undefined, spanGaps: false,
          paths: steps ? uPlot.paths.stepped({ align: 1 }) : undefined, points: { show: x.length < 40, size: 5 }
        }))]
      }, [x, ...series.map(({ values }) => values)], host.current)
    }
    make()
    const seen = new ResizeObserver(([entry]) => plot.current?.setSize({ width: Math.max(200, entry.contentRect.width), height: HEIGHT }))
    if (host.current !== null) seen.observe(host.current)
    dark.addEventListener('change', make)
    return () => { seen.disconnect(); dark.removeEventListener('change', make); plot.current?.destroy(); plot.current = null }
  }, [shape, time])
  useEffect(() => { plot.current?.setData([x, ...series.map(({ values }) => values)]) }, [x, series])
  return html`<figure class="plot"><div ref=${host} aria-hidden="true"></div><figcaption>${says}</figcaption></figure>`
}

/** A number in few characters. @param {number} value */
export function short (value) {
  const size = Math.abs(value)
  if (size >= 1e9) return `${+(value / 1e9).toPrecision(3)} G`
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)} M`
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)} k`
  return String(+value.toPrecision(4))
}
