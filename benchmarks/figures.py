"""A figure: what was measured, several times, and what it was meant to be.

Law: the median counts, and a target is met or missed by it; the extremes are shown beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, NamedTuple


class Target(NamedTuple):
    bound: Literal["≥", "≤", "="]
    value: float

    def met(self, value: float) -> bool:
        match self.bound:
            case "≥":
                return value >= self.value
            case "≤":
                return value <= self.value
            case "=":
                return value == self.value


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    unit: str
    samples: tuple[float, ...]
    target: Target | None = None
    worst: bool = False  # The greatest sample is judged, not the median.

    @property
    def value(self) -> float:
        return max(self.samples) if self.worst else median(self.samples)

    @property
    def met(self) -> bool | None:
        return None if self.target is None else self.target.met(self.value)


@dataclass(frozen=True, slots=True)
class Section:
    """Figures that belong together, and how they were measured."""

    title: str
    method: str
    figures: list[Figure]


@dataclass(frozen=True, slots=True)
class Measured:
    """A section with the day on which it was measured, and what is known of the machine."""

    section: Section
    date: str
    facts: dict[str, str]


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure: all figures of a run share it."""

    repeats: int
    seconds: float  # Of one measurement.
    crashes: int  # Of each kind.
    threads: int  # In a store of many.


class Benchmark(NamedTuple):
    name: str
    run: Callable[[Effort], Section]


def quantile(ordered: Sequence[float], share: float) -> float:
    """Of sorted samples, the one below which `share` of them lie."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
