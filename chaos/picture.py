"""One time line of a trial, as SVG: strikes by node, and below them what users felt and how far nodes were behind.

A chart library that draws in the browser is 1 to 4 MB in a page that needs nothing else, and those that draw in Python have
no lanes that share an axis or no dark page. The marks take about 80 lines.

Laws:
- All lanes share the time axis; each strike is shaded through all of them.
- Warm colours are strikes, by kind; cool ones are nodes. A colour is never the only sign: bars, lines and
  areas are named where they are.
- The picture needs nothing else: its colours are variables, with others for a dark page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

from chaos.composed import FAULTS
from chaos.evidence import Evidence, Recovery
from chaos.samples import Samples

WIDTH, _LEFT, _RIGHT = 1120, 128, 20
_ROW, _LANE, _GAP, _HEAD = 30, 104, 22, 24  # Heights: a node's row, a lane, what is between lanes, a lane's title.
_KIND = 18  # The height of the row of one kind of error.
_LETTER = 6.4  # The width of a letter, about.
_LEAST_S = 0.001  # That the lane of latencies shows.
_BRIDGED_S = 1.0  # A line goes on over so long a time in which nothing was asked,
_LOOKED_S = 4.0  # and over so long a one in which a node did not answer.

WARM = ("#d6293e", "#e08600", "#a4509f", "#8a5a2b", "#c2185b", "#b5a000", "#6d4c9f", "#d45a1c", "#7a7a00", "#9c3b3b")
COOL = ("#2f6fde", "#0f9b8e", "#6b5bd6", "#3aa0d8", "#2e8b57", "#5a7184", "#1aa7c4", "#4658a8", "#77a33b")

STYLE = """
.chaos { font: 12px system-ui, sans-serif; fill: var(--ink); width: 100%; height: auto; --ink: #1f2328; --faint: #6b7280;
  --line: #e4e7eb; --area: #9db7dd; --area2: #d3dff0; --slow: #c2410c; --quick: #2f6fde; --bad: #c0182b; }
@media (prefers-color-scheme: dark) { .chaos { --ink: #e6e6e6; --faint: #9aa3af;
  --line: #30343b; --area: #4a6797; --area2: #2d3d57; --slow: #fb923c; --quick: #7aa8ff; --bad: #ff6b6b; } }
.chaos .faint { fill: var(--faint); } .chaos .title { font-weight: 600; } .chaos .on { fill: #fff; font-weight: 600; }
.chaos .rule { stroke: var(--line); }
.chaos .line { fill: none; stroke-width: 1.6; stroke-linejoin: round; stroke-linecap: round; }
"""

Legend = Sequence[tuple[str, str, float]]
"""Texts, each with its colour and opacity."""

Scale = Callable[[float], float]
"""A value → its share of the lane's height."""


class _Axis(NamedTuple):
    """Time from left to right."""

    began_s: float
    seconds: float

    def x(self, at_s: float) -> float:
        share = (at_s - self.began_s) / self.seconds
        return _LEFT + min(max(share, 0.0), 1.0) * (WIDTH - _LEFT - _RIGHT)


def draw(evidence: Evidence) -> str:
    samples = evidence.samples
    axis = _Axis(samples.began_s, max(evidence.seconds, samples.slice_s, 1e-9))
    struck = dict.fromkeys(recovery.strike.fault for recovery in evidence.recoveries)
    # A kind has the same colour in every report.
    colours = {kind: WARM[nth % len(WARM)] for nth, kind in enumerate(dict.fromkeys((*FAULTS, *struck))) if kind in struck}
    nodes = _nodes(evidence)
    top, rows, lanes = float(_HEAD), float(_HEAD + _ROW * len(nodes) + _GAP), list[str]()
    for lane in (_throughput, _latency, _errors, _lag):
        drawn, height = lane(samples, axis, nodes, rows)
        lanes.append(drawn)
        rows += _HEAD + height + _GAP
    bottom = rows - _GAP
    parts = [
        f'<svg class="chaos" viewBox="0 0 {WIDTH} {bottom + 24:g}" role="img" aria-label="Time line of the trial">',
        f"<style>{STYLE}</style>",
        _text(_LEFT, 14, "Strikes", "title") + _legend(_LEFT + 200, 14, _phases(colours)),
        *_times(axis, top, bottom),
        *(
            _shade(recovery, axis, colours, rows_end=_HEAD + _ROW * len(nodes), bottom=bottom)
            for recovery in evidence.recoveries
        ),
        *lanes,
        *(_text(_LEFT - 10, top + _ROW * nth + 20, node, "title", end=True) for nth, node in enumerate(nodes)),
        *(_rule(_LEFT, WIDTH - _RIGHT, top + _ROW * nth + 15) for nth in range(len(nodes))),
        *_bars(evidence.recoveries, axis, colours, nodes, top),
        "</svg>",
    ]
    return "\n".join(parts)


def _nodes(evidence: Evidence) -> list[str]:
    struck = {name for recovery in evidence.recoveries for name in struck_by(recovery)}
    behind = {name for each in evidence.samples.slices for name in each.lag_s}
    return sorted(struck | behind | set(evidence.founds)) or ["n1"]


def struck_by(recovery: Recovery) -> list[str]:
    """The nodes that a strike names."""
    return [name.strip() for name in recovery.strike.node.split(",") if name.strip()]


# ── strikes ───────────────────────────────────────────────────────────────────


def _phases(colours: dict[str, str]) -> Legend:
    first = next(iter(colours.values()), "var(--faint)")
    return [("struck", first, 1.0), ("not back yet", first, 0.5), ("back, and catching up", first, 0.25)]


def _bars(recoveries: Sequence[Recovery], axis: _Axis, colours: dict[str, str], nodes: list[str], top: float) -> Iterator[str]:
    free = dict.fromkeys(nodes, 0.0)  # Where a label may begin, beside a bar that is too narrow for it.
    for nth, recovery in enumerate(recoveries, 1):
        strike, colour = recovery.strike, colours[recovery.strike.fault]
        healed_s = strike.over_s + (recovery.healed_s or 0.0)
        for node in struck_by(recovery):
            y = top + _ROW * nodes.index(node) + 4
            began, lifted, over, healed = (axis.x(at_s) for at_s in (strike.began_s, strike.lifted_s, strike.over_s, healed_s))
            wide = max(lifted - began, 3)
            took = f"strike {nth}: {strike.fault} on {node}, {strike.over_s - strike.began_s:.2f} s"
            yield f"<g><title>{escape(took)}</title>"
            yield _rect(began, y, max(healed - began, wide), 22, colour, 0.25, 4)
            yield _rect(began, y, max(over - began, wide), 22, colour, 0.4, 4)
            yield _rect(began, y, wide, 22, colour, 1, 4)
            needed = _LETTER * len(strike.fault) + 10
            at = max(healed, began + wide) + 4
            if needed <= wide:
                yield _text(began + wide / 2, y + 15, strike.fault, "on", middle=True)
            elif needed <= healed - lifted:
                yield _text(began + wide + 5, y + 15, strike.fault, "title")
            elif at >= free[node] and at + needed <= WIDTH:
                yield _text(at, y + 15, strike.fault, "")
                free[node] = at + needed
            yield "</g>"
            free[node] = max(free[node], healed)


def _shade(recovery: Recovery, axis: _Axis, colours: dict[str, str], *, rows_end: float, bottom: float) -> str:
    """The strike through all lanes, and where agents were paused."""
    strike, (from_s, to_s) = recovery.strike, recovery.paused_s
    began, over = axis.x(strike.began_s), axis.x(strike.over_s)
    shade = _rect(began, rows_end, max(over - began, 1), bottom - rows_end, colours[strike.fault], 0.11, 0)
    if to_s > from_s:
        paused = max(axis.x(to_s) - axis.x(from_s), 1.5)
        shade += _rect(axis.x(from_s), rows_end, paused, bottom - rows_end, "var(--faint)", 0.13, 0)
    return shade


# ── lanes ─────────────────────────────────────────────────────────────────────


def _throughput(samples: Samples, axis: _Axis, nodes: list[str], y: float) -> tuple[str, float]:
    writes = [each.writes / samples.slice_s for each in samples.slices]
    both = [(each.writes + each.reads) / samples.slice_s for each in samples.slices]
    scale, ticks = _linear(both, "")
    areas = _area(axis, samples, both, scale, y, "var(--area2)") + _area(axis, samples, writes, scale, y, "var(--area)")
    legend = [("writes acknowledged", "var(--area)", 1.0), ("reads", "var(--area2)", 1.0)]
    legend.append(("the harness pauses all, to compare nodes", "var(--faint)", 0.3))
    return _frame("Answers per second", legend, y, ticks, scale) + areas, _LANE


def _latency(samples: Samples, axis: _Axis, nodes: list[str], y: float) -> tuple[str, float]:
    halves = [each.percentile_s(0.5) for each in samples.slices]
    slowest = [each.percentile_s(0.99) for each in samples.slices]
    known = [each for each in (*halves, *slowest) if each is not None] or [_LEAST_S]
    least, most = max(10.0 ** floor(log10(min(known))), _LEAST_S), 10.0 ** ceil(log10(max(known)))
    tens = max(round(log10(most / least)), 1)
    ticks = [(least * 10**nth, duration(least * 10**nth)) for nth in range(tens + 1)]

    def scale(value: float) -> float:
        return log10(max(value, least) / least) / tens

    lines = _line(axis, samples, halves, scale, y, "var(--quick)") + _line(axis, samples, slowest, scale, y, "var(--slow)")
    lines += _peak(axis, samples, slowest, scale, y, "", "var(--slow)")
    legend = [
        ("half of the requests took at most (p50)", "var(--quick)", 1.0),
        ("99 of 100 took at most (p99)", "var(--slow)", 1.0),
    ]
    return _frame("Latency, by when asked", legend, y, ticks, scale) + lines, _LANE


def _errors(samples: Samples, axis: _Axis, nodes: list[str], y: float) -> tuple[str, float]:
    """A row for each kind, whose marks are the darker the more of them there were."""
    totals = samples.whole().errors
    most = max((count for each in samples.slices for count in each.errors.values()), default=1)
    legend = [
        (
            f"{sum(totals.values()):,} in all: the darker, the more" if totals else "none",
            "var(--bad)" if totals else "none",
            1.0,
        )
    ]
    marks = [_text(_LEFT, y + 14, "Errors that users were told", "title") + _legend(_LEFT + 200, y + 14, legend)]
    for row, code in enumerate(sorted(totals, key=lambda code: (-totals[code], code))):
        at = y + _HEAD + _KIND * row
        marks.append(_text(_LEFT - 10, at + 13, code, "faint", end=True) + _rule(_LEFT, WIDTH - _RIGHT, at + _KIND))
        for nth, each in enumerate(samples.slices):
            if count := each.errors.get(code):
                x, width = _slice_x(axis, samples, nth), _slice_x(axis, samples, nth + 1) - _slice_x(axis, samples, nth)
                mark = _rect(x, at + 2, max(width, 4), _KIND - 4, "var(--bad)", 0.45 + 0.55 * count / most, 1)
                marks.append(f"<g><title>{count:,} {escape(code)}</title>{mark}</g>")
    return "".join(marks), _KIND * len(totals)


def _lag(samples: Samples, axis: _Axis, nodes: list[str], y: float) -> tuple[str, float]:
    lags = {node: [each.lag_s.get(node) for each in samples.slices] for node in nodes}
    scale, ticks = _linear([lag_s or 0.0 for lag in lags.values() for lag_s in lag], " s")
    colours = {node: COOL[nth % len(COOL)] for nth, node in enumerate(nodes)}
    lines = [_line(axis, samples, lags[node], scale, y, colours[node], bridged_s=_LOOKED_S) for node in nodes]
    lines += [_peak(axis, samples, lags[node], scale, y, f"{node} ", colours[node]) for node in nodes]
    legend = [(node, colours[node], 1.0) for node in nodes] + [("for so long it has lacked what others hold", "none", 1.0)]
    return _frame("Replication lag", legend, y, ticks, scale) + "".join(lines), _LANE


def _linear(values: Sequence[float], unit: str) -> tuple[Scale, list[tuple[float, str]]]:
    most = _nice(max(values, default=0.0) or 1.0)
    return (lambda value: value / most), [(0.0, "0"), (most / 2, f"{most / 2:,g}{unit}"), (most, f"{most:,g}{unit}")]


def _nice(value: float) -> float:
    """The least of 1, 2, 4, 6, 8 and 10 times a power of ten that is not below."""
    power = 10.0 ** floor(log10(value))
    return next(factor * power for factor in (1, 2, 4, 6, 8, 10) if factor * power >= value * (1 - 1e-9))


def duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


# ── marks ─────────────────────────────────────────────────────────────────────


def _frame(title: str, legend: Legend, y: float, ticks: Sequence[tuple[float, str]], scale: Scale) -> str:
    parts = [_text(_LEFT, y + 14, title, "title"), _legend(_LEFT + 200, y + 14, legend)]
    for value, text in ticks:
        at = _y(y, scale(value))
        parts += [_rule(_LEFT, WIDTH - _RIGHT, at), _text(_LEFT - 10, at + 4, text, "faint", end=True)]
    return "".join(parts)


def _y(top: float, share: float) -> float:
    return top + _HEAD + _LANE * (1 - min(max(share, 0.0), 1.0))


def _slice_x(axis: _Axis, samples: Samples, nth: float) -> float:
    return axis.x(samples.began_s + nth * samples.slice_s)


def _area(axis: _Axis, samples: Samples, values: Sequence[float], scale: Scale, y: float, colour: str) -> str:
    points = [f"{_slice_x(axis, samples, nth + 0.5):.1f},{_y(y, scale(value)):.1f}" for nth, value in enumerate(values)]
    if not points:
        return ""
    first, last = _slice_x(axis, samples, 0.5), _slice_x(axis, samples, len(values) - 0.5)
    return f'<path fill="{colour}" d="M{first:.1f},{_y(y, 0):g}L{"L".join(points)}L{last:.1f},{_y(y, 0):g}Z"/>'


def _line(
    axis: _Axis,
    samples: Samples,
    values: Sequence[float | None],
    scale: Scale,
    y: float,
    colour: str,
    bridged_s: float = _BRIDGED_S,
) -> str:
    path, last = [], -1
    for nth, value in enumerate(values):
        if value is not None:
            goes_on = last >= 0 and (nth - last) * samples.slice_s <= max(bridged_s, samples.slice_s)
            point = f"{_slice_x(axis, samples, nth + 0.5):.1f},{_y(y, scale(value)):.1f}"
            path.append(f"{'L' if goes_on else 'M'}{point}{'' if goes_on else 'h0'}")
            last = nth
    return f'<path class="line" stroke="{colour}" d="{"".join(path)}"/>' if path else ""


def _peak(axis: _Axis, samples: Samples, values: Sequence[float | None], scale: Scale, y: float, name: str, colour: str) -> str:
    known = [(value, nth) for nth, value in enumerate(values) if value]
    if not known:
        return ""
    value, nth = max(known)
    x, at = _slice_x(axis, samples, nth + 0.5), _y(y, scale(value))
    beyond = x > WIDTH - 120
    label = _text(x - 7 if beyond else x + 7, max(at + 4, y + _HEAD + 9), f"{name}{duration(value)}", "", end=beyond)
    return f'<circle cx="{x:.1f}" cy="{at:.1f}" r="3" fill="{colour}"/>{label}'


def _times(axis: _Axis, top: float, bottom: float) -> Iterator[str]:
    unit, per = ("min", 60.0) if axis.seconds >= 600 else ("s", 1.0)
    step = _nice(axis.seconds / per / 12) * per
    at_s = 0.0
    while at_s <= axis.seconds:
        x = axis.x(axis.began_s + at_s)
        yield f'<line class="rule" x1="{x:.1f}" x2="{x:.1f}" y1="{top:g}" y2="{bottom:g}"/>'
        yield _text(x, bottom + 17, f"{at_s / per:g} {unit}", "faint", middle=True)
        at_s += step


def _legend(x: float, y: float, entries: Legend) -> str:
    marks = []
    for text, colour, opacity in entries:
        if colour != "none":
            marks.append(_rect(x, y - 9, 10, 10, colour, opacity, 2))
            x += 15
        marks.append(_text(x, y, text, "faint"))
        x += _LETTER * len(text) + 16
    return "".join(marks)


def _rect(x: float, y: float, width: float, height: float, colour: str, opacity: float, round: float) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}" '
        f'rx="{round:g}" fill="{colour}" opacity="{opacity:g}"/>'
    )


def _rule(from_x: float, to_x: float, y: float) -> str:
    return f'<line class="rule" x1="{from_x:g}" x2="{to_x:g}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _text(x: float, y: float, text: str, kind: str, *, end: bool = False, middle: bool = False) -> str:
    anchor = ' text-anchor="end"' if end else ' text-anchor="middle"' if middle else ""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}"{anchor}>{escape(text)}</text>'
