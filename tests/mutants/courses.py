"""Bugs in the courses of budgets."""

from __future__ import annotations

import pytest

from shoal.kinds.budget import course
from shoal.kinds.budget.course import Courses
from shoal.kinds.budget.handler import Budgets
from shoal.kinds.budget.requests import BudgetPoint
from tests.mutants.mutant import Mutant


def what_peers_spend_is_not_noted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Budgets, "applied", lambda self, place, applied: None)


def a_course_forgets_its_oldest_point(patch: pytest.MonkeyPatch) -> None:
    def thinned(points: list[BudgetPoint]) -> list[BudgetPoint]:
        return points[-course.COURSE_POINTS_MAX :]

    patch.setattr(course, "thinned", thinned)


def a_point_is_of_when_its_change_was_made(patch: pytest.MonkeyPatch) -> None:
    """The amounts of the first change, at the time of the point."""
    first: dict[tuple[int, object], BudgetPoint] = {}
    sound_changed, sound_present, sound_note = Courses.changed, Courses._present, Courses._note

    def changed(self: Courses, target: object) -> None:
        if target not in self._due and not self._is_stopped:
            first[id(self), target] = sound_present(self, self._rows(target))  # type: ignore[arg-type]
        sound_changed(self, target)  # type: ignore[arg-type]

    def note(self: Courses) -> None:
        due = iter(list(self._due))
        with pytest.MonkeyPatch.context() as within:

            def present(_self: Courses, rows: object) -> BudgetPoint:
                now, was = sound_present(self, rows), first.pop((id(self), next(due)), None)  # type: ignore[arg-type]
                return now if was is None else BudgetPoint(now.at_ms, was.granted, was.spent)

            within.setattr(Courses, "_present", present)
            sound_note(self)

    patch.setattr(Courses, "changed", changed)
    patch.setattr(Courses, "_note", note)


MUTANTS = (
    Mutant(what_peers_spend_is_not_noted, "a node notes only its own changes of a budget", ("43",), profile="told"),
    Mutant(a_course_forgets_its_oldest_point, "a budget's course that is full loses its beginning", ("43",), profile="told"),
    Mutant(
        a_point_is_of_when_its_change_was_made,
        "a budget's point lacks what was spent after the first change",
        ("43",),
        profile="told",
    ),
)
