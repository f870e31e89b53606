"""A section's figures as a drawing: bars of the medians, with the least and the greatest, a group for each unit.

Law: the same figures give the same bytes.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import matplotlib as mpl

from benchmarks.figures import Figure, Section

mpl.use("svg")
from matplotlib import pyplot

_INCHES, _BAR_INCHES, _GROUP_INCHES = 9.0, 0.24, 0.75
_NAME = 58  # Characters of a figure's name.
_OURS, _TARGET = "#2f6f8f", "#c2452d"
_STYLE = {"svg.fonttype": "none", "svg.hashsalt": "shoal", "font.family": "sans-serif", "font.size": 8}


def svg(section: Section) -> str:
    groups: dict[str, list[Figure]] = {}
    for figure in section.figures:
        groups.setdefault(figure.unit, []).append(figure)
    heights = [len(figures) * _BAR_INCHES + _GROUP_INCHES for figures in groups.values()]
    with mpl.rc_context(_STYLE):
        drawing, axes = pyplot.subplots(
            len(groups), figsize=(_INCHES, sum(heights)), height_ratios=heights, squeeze=False, layout="constrained"
        )
        for (unit, figures), axis in zip(groups.items(), axes.flat, strict=True):
            _bars(axis, unit, figures)
        written = io.StringIO()
        drawing.savefig(written, format="svg", metadata={"Date": None, "Title": section.title})
        pyplot.close(drawing)
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines()) + "\n"


def _bars(axis: pyplot.Axes, unit: str, figures: Sequence[Figure]) -> None:
    places = range(len(figures))
    medians = [figure.value for figure in figures]
    spread = [
        [max(0.0, figure.value - min(figure.samples)) for figure in figures],
        [max(0.0, max(figure.samples) - figure.value) for figure in figures],
    ]
    axis.barh(places, medians, xerr=spread, height=0.62, color=_OURS, error_kw={"elinewidth": 0.8, "capsize": 2})
    for place, figure in zip(places, figures, strict=True):
        if figure.target is not None:
            axis.plot([figure.target.value] * 2, [place - 0.42, place + 0.42], color=_TARGET, linewidth=1.4)
    axis.set_yticks(places, [_short(figure.name) for figure in figures])
    axis.invert_yaxis()
    axis.set_xlim(left=0)
    axis.set_xlabel(f"{unit or 'count'} (red: the target)" if any(figure.target for figure in figures) else unit or "count")
    axis.spines[["top", "right"]].set_visible(False)


def _short(name: str) -> str:
    plain = name.replace("`", "").replace("$", r"\$")
    return plain if len(plain) <= _NAME else plain[: _NAME - 1] + "…"
