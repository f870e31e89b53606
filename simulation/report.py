"""What a person is told of runs: a failure with its time line, and the figures of a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from simulation.execution import Outcome, in_order
from simulation.plan import Plan, to_json

VIOLATIONS_SHOWN = 10
TIMELINE_SHOWN = 400


class Figures:
    """Of the runs of a batch so far."""

    def __init__(self) -> None:
        self.runs = 0
        self.virtual_s = 0.0
        self.real_s = 0.0  # Of one core: the sum over all processes.
        self.events = 0
        self.fired: Counter[str] = Counter()
        self.broken: Counter[str] = Counter()
        self.failed: list[str] = []

    def add(self, name: str, outcome: Outcome) -> None:
        self.runs += 1
        self.virtual_s += outcome.virtual_s
        self.real_s += outcome.real_s
        self.events += outcome.events
        self.fired += outcome.fired
        self.broken.update(outcome.broken)
        if outcome.violations:
            self.failed.append(name)

    def lines(self) -> Iterator[str]:
        speed = self.virtual_s / self.real_s if self.real_s else 0.0
        yield f"{self.runs:,} runs, {self.virtual_s:,.0f} virtual seconds, {speed:,.0f} of them per real second and core"
        yield f"{self.events:,} events in the traces"
        yield f"fired: {counted(self.fired)}"
        yield f"violated: {counted(self.broken)}"
        if self.failed:
            yield f"failed: {' '.join(self.failed)}"


class Failure(NamedTuple):
    """A run that broke something, and the smallest plan known to break it too."""

    name: str
    options: str  # With which it is replayed.
    outcome: Outcome
    smallest: Outcome

    def lines(self) -> Iterator[str]:
        yield f"FAILED: {self.name}"
        yield f"  again:   python -m simulation replay {self.name}{self.options} --timeline"
        yield f"  smaller: python -m simulation shrink {self.name}{self.options} --save NAME"
        yield from violations(self.outcome)
        if self.smallest.plan != self.outcome.plan:
            before, after = size_of(self.outcome.plan), size_of(self.smallest.plan)
            yield f"shrunken from {before} events to {after}; it breaks:"
            yield from violations(self.smallest)
        yield to_json(self.smallest.plan).decode().rstrip()
        yield from timeline(self.smallest)


def violations(outcome: Outcome) -> Iterator[str]:
    for violation in outcome.violations[:VIOLATIONS_SHOWN]:
        yield f"  invariant {violation.invariant}: {violation.text}"
    if len(outcome.violations) > VIOLATIONS_SHOWN:
        yield f"  and {len(outcome.violations) - VIOLATIONS_SHOWN} more"


def timeline(outcome: Outcome) -> Iterator[str]:
    """Faults, requests, answers and violations, in order; of a long run the end."""
    left_out = len(outcome.timeline) - TIMELINE_SHOWN
    yield "   seconds  who      what"
    if left_out > 0:
        yield f"            ({left_out} earlier lines are left out)"
    yield from outcome.timeline[-TIMELINE_SHOWN:]


def size_of(plan: Plan) -> int:
    return len(in_order(plan))


def counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())) or "none"
