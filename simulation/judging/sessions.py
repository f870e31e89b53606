"""Session guarantees, across nodes: invariant 7, over what each session did and was shown.

Laws (Terry et al., "Session guarantees for weakly consistent replicated data", 1994):
- Read your writes: a read shows what its session had been told is written.
- Monotonic reads: a read shows all that earlier reads of its session showed.
- A session that let go of a partition begins anew there: from then on it is
  owed what it is shown and told from then on, and nothing older.

What a read shows of a thread is its heads and all that they descend from, so
that a checkpoint that became one side of a fork is shown all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from shoal.cluster.operation import partition_of
from simulation.judging.checkers import InvariantViolated, named
from simulation.judging.found import Found
from simulation.judging.history import Acknowledged, History, Invoked, LetGo, Place, Shown
from simulation.workload.random_agents import SPACE

Parents = Mapping[str, Mapping[str, list[str]]]
"""Thread → checkpoint id → ids."""


def check_sessions(history: History, found: Found) -> None:
    """`found` knows what each checkpoint descends from.

    Raises:
        InvariantViolated: a session was shown less than it had seen or written; each loss is told once.
    """
    audit = _Audit(history, found.parents)
    for event in history.events:
        match event:
            case Acknowledged(again=False):
                audit.acknowledged(history.writes[event.number], event)
            case Shown():
                audit.shown(event)
            case LetGo():
                audit.let_go(event)
    if audit.broken:
        raise InvariantViolated("7", "a session was shown less than it had seen or written", audit.broken)


@dataclass(slots=True)
class _Owed:
    """What the next read of an object has to show its session."""

    ids: set[str] = field(default_factory=set)
    numbers: set[int] = field(default_factory=set)
    value: int = 0
    shown: set[int] = field(default_factory=set)  # Events, by the reads so far.


class _Audit:
    def __init__(self, history: History, parents: Parents) -> None:
        self.broken: list[str] = []
        self._history = history
        self._parents = parents
        self._owed: dict[tuple[str, Place], _Owed] = {}

    def acknowledged(self, write: Invoked, told: Acknowledged) -> None:
        if not write.session:
            return
        owed = self._of(write.session, write.place)
        match write.kind:
            case "save":
                owed.ids.add(told.id)
            case "append" | "edit" | "assign":
                owed.numbers.add(write.number)
            case "add":
                self._add(owed, write, told)

    def _add(self, owed: _Owed, write: Invoked, told: Acknowledged) -> None:
        if self._lacks(write.place, told.value, owed.value + self._history.amount(write.number)):
            self._break(write, told.node, f"add {write.number} made it {told.value}, and it was {owed.value} before")
        owed.value = told.value

    def shown(self, shown: Shown) -> None:
        owed = self._of(shown.session, shown.place)
        match shown.kind:
            case "save":
                missing: Iterable[object] = self._uncovered(shown, owed.ids)
                owed.ids = set(shown.ids)
            case "add":
                missing = [owed.value] if self._lacks(shown.place, shown.value, owed.value) else []
                owed.value = shown.value
            case "assign":
                missing = [each for each in sorted(owed.numbers) if not self._history.is_held(shown.place, each, shown.numbers)]
                owed.numbers = set(shown.numbers)
            case "append" | "edit":
                visible = set(shown.numbers) if shown.whole else owed.shown | set(shown.numbers)
                missing = sorted(owed.numbers - visible)
                owed.numbers, owed.shown = set(visible), visible
        for what in missing:
            self._break(shown, shown.node, f"the read did not show {str(what)[:16]}, which it had seen or written")

    def _lacks(self, place: Place, value: int, owed: int) -> bool:
        """Whether a counter's value does not hold all that another does."""
        here, there = self._history.adds_in(place, value), self._history.adds_in(place, owed)
        if here is None or there is None:
            return value < owed
        return not there.keys() <= here.keys()

    def let_go(self, choice: LetGo) -> None:
        partition = partition_of(SPACE, choice.name)
        for session, place in list(self._owed):
            if session == choice.session and partition_of(SPACE, place.name) == partition:
                del self._owed[session, place]

    def _uncovered(self, shown: Shown, owed: set[str]) -> list[str]:
        """Of the checkpoints that are owed, those that no shown head descends from."""
        parents = self._parents.get(shown.name, {})
        left, seen, next_ids = set(owed), set[str](), list(shown.ids)
        while left and next_ids:
            id = next_ids.pop()
            if id not in seen:
                seen.add(id)
                left.discard(id)
                next_ids += parents.get(id, [])
        return sorted(left)

    def _of(self, session: str, place: Place) -> _Owed:
        return self._owed.setdefault((session, place), _Owed())

    def _break(self, at: Invoked | Shown, node: str, what: str) -> None:
        where = f" on {node}" if node else ""
        self.broken.append(f"{at.session}, {at.kind} of {named(at.place)}{where}: {what}")
