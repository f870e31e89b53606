"""The findings of `crash_everywhere`: the problems for each point where an agent was killed.

Law: a trial without problems ended like the run without a crash, with the same effects,
equally often, and the same contents of the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from shoal.records import NamedTuple

GROUPS_SHOWN_MAX = 20

Kind = Literal["twice", "lost", "differs", "raised", "unfinished"]


@dataclass(frozen=True, slots=True)
class Problem:
    """`twice` and `lost` are effects and journal events; `differs` is any other content of the store."""

    kind: Kind
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(frozen=True, slots=True)
class Point:
    """Where an agent can be killed. `number` counts from 0 within one life of the agent."""

    number: int
    moment: str  # "before save crew/planner was sent"
    where: str  # The agent's own line, "agent.py:31: await charge(order)"; empty if a background task of a handle passed it.

    def __str__(self) -> str:
        return f"{self.moment}   [{self.where}]" if self.where else self.moment


@dataclass(frozen=True, slots=True)
class Trial:
    """One run. `crashes` are the points where it was killed, one for each life except the last."""

    crashes: tuple[Point, ...]
    with_node: bool  # Whether its node lost power at the same moment.
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether the run had no problem."""
        return not self.problems


class CrashUnsafe(AssertionError):
    """An agent does not survive every crash; the text is the report."""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of `crash_everywhere`. `points` is the number of points in the run without a crash; `str()` is for people."""

    points: int
    trials: tuple[Trial, ...]

    @property
    def ok(self) -> bool:
        """Whether no trial had a problem."""
        return all(trial.ok for trial in self.trials)

    @property
    def bad(self) -> tuple[Trial, ...]:
        """The trials with problems."""
        return tuple(trial for trial in self.trials if not trial.ok)

    def raise_if_bad(self) -> None:
        """Raise if any trial had a problem.

        Raises:
            CrashUnsafe: one had. It is an AssertionError with the report as its text.
        """
        if not self.ok:
            raise CrashUnsafe(str(self))

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        verdict = "all ended like the run without a crash" if self.ok else f"{len(self.bad)} went wrong"
        yield f"{self.points} points where the agent can be killed, {len(self.trials)} runs: {verdict}."
        alike = groupby(_places(self.bad), key=lambda place: (place.victims, place.problems))
        for shown, ((victims, problems), places) in enumerate(alike):
            if shown == GROUPS_SHOWN_MAX:
                yield "\nThere is more: report.bad has all of it."
                return
            yield f"\nKilled {victims}"
            yield from (f"  {place.where}" for place in places)
            yield from (f"    → {problem}" for problem in problems)


class _Place(NamedTuple):
    where: str
    victims: str
    problems: tuple[Problem, ...]


def _places(trials: Iterable[Trial]) -> Iterator[_Place]:
    """One entry per place and outcome; usually the outcome does not depend on whether the node died too."""
    for where, here in groupby(trials, key=lambda trial: ", then ".join(map(str, trial.crashes))):
        for problems, alike in groupby(here, key=lambda trial: trial.problems):
            victims = " or ".join("together with its node" if trial.with_node else "alone" for trial in alike)
            yield _Place(where, victims, problems)
