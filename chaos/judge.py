"""The verdict: every promise that a trial's evidence shows broken, and the figures.

Laws:
- A violation is a promise broken: it fails the trial. A figure is only shown,
  beside the bound that it is held against.
- Every node is held against the whole history: what was acknowledged anywhere
  must be everywhere, once the nodes were given time.
- Nothing here looks at the nodes: the same evidence gives the same verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from statistics import median
from typing import NamedTuple

from chaos.evidence import Evidence
from chaos.faults import Kill
from chaos.ledger import Kind, broken_anywhere, broken_by
from simulation.judging import checkers
from simulation.judging.checkers import InvariantViolated
from simulation.judging.found import Found
from simulation.judging.history import Failed, History, LetGo, Refused
from simulation.judging.replicas import check_replicas
from simulation.judging.sessions import check_sessions

BACK_S_MAX = 3.0
"""An agent whose node was killed is at work again within this time."""

TO_BE_EXPECTED = frozenset(
    ("session-behind", "overloaded", "no-quorum", "shutting-down", "disconnected", "outcome-unknown", "unavailable")
)
"""What a client may be told while nodes are away. Any other error is a promise broken, but for those that a fault names, and
those below."""

OF_DEEDS: Mapping[Kind, frozenset[str]] = {
    "step": frozenset(("step-unresolved", "unreachable")),
    "spend": frozenset(("budget-exhausted", "rights-elsewhere")),
    "save": frozenset(("unreachable", "pruned")),  # The base that was loaded is gone once the node has caught up.
}
"""What a worker may be told of what it does, by the kind of that."""

_EACH_NODE: tuple[Callable[[History, Found], None], ...] = (
    checkers.check_nothing_invented,
    checkers.check_acknowledged,
    checkers.check_counters,
    checkers.check_refused,
)


class Violation(NamedTuple):
    invariant: str  # Its number in docs/VERIFICATION.md.
    what: str
    node: str  # Empty: it is about all of them.
    culprit: str  # Object, write, session.


class Figure(NamedTuple):
    name: str
    value: str
    bound: str = ""
    met: bool = True


class Verdict(NamedTuple):
    violations: list[Violation]
    figures: list[Figure]
    not_run: str = ""  # Why there is nothing to judge.

    @property
    def kept(self) -> bool:
        return not (self.violations or self.not_run)


def judge(history: History, evidence: Evidence) -> Verdict:
    violations = list(
        chain(
            (Violation("9", "the trial ended before its time", "", trouble) for trouble in evidence.trouble),
            _troubled(evidence),
            (Violation("4", "a store is damaged", node, text) for node, texts in evidence.damage.items() for text in texts),
            (Violation("4", "directories differ", "", text) for text in evidence.unequal),
            _on_each_node(history, evidence),
            _over_all(history, evidence.founds),
            _deeds(evidence),
            _unequal(evidence),
            _unexpected(history, evidence),
        )
    )
    return Verdict(violations, _figures(history, evidence), evidence.not_run)


def _troubled(evidence: Evidence) -> Iterator[Violation]:
    for nth, recovery in enumerate(evidence.recoveries, 1):
        if recovery.strike.trouble:
            yield Violation("1", "a fault was not withstood", recovery.strike.node, f"strike {nth}: {recovery.strike.trouble}")


def _deeds(evidence: Evidence) -> Iterator[Violation]:
    for node, held in evidence.holdings.items():
        for broken in broken_by(evidence.deeds, held):
            yield Violation(broken.invariant, broken.what, node, broken.culprit)
    for broken in broken_anywhere(evidence.deeds, evidence.holdings):
        yield Violation(broken.invariant, broken.what, "", broken.culprit)


def _on_each_node(history: History, evidence: Evidence) -> Iterator[Violation]:
    # Where disks are lost, what only one node had may be gone, though it was shown.
    checks = _EACH_NODE if evidence.options.loses_disks else (*_EACH_NODE, checkers.check_seen)
    for node, found in evidence.founds.items():
        for check in checks:
            yield from _violations(lambda check=check, found=found: check(history, found), node)  # type: ignore[misc]


def _over_all(history: History, founds: Mapping[str, Found]) -> Iterator[Violation]:
    if founds:
        yield from _violations(lambda: check_replicas(founds), "")
        yield from _violations(lambda: check_sessions(history, _lineage(founds)), "")


def _violations(check: Callable[[], None], node: str) -> Iterator[Violation]:
    try:
        check()
    except InvariantViolated as violated:
        for culprit in violated.culprits:
            yield Violation(violated.invariant, violated.what, node, culprit)


def _lineage(founds: Mapping[str, Found]) -> Found:
    """What any node knows of what descends from what: a checkpoint that one node lost is told of as lost, once."""
    joined = Found()
    for found in founds.values():
        for thread, parents in found.parents.items():
            joined.parents.setdefault(thread, {}).update(parents)
    return joined


def _unequal(evidence: Evidence) -> Iterator[Violation]:
    for nth, recovery in enumerate(evidence.recoveries, 1):
        if recovery.equal_s is None:
            yield Violation("4", "the nodes did not become equal", recovery.strike.node, f"after strike {nth}")
    if evidence.founds and evidence.equal_s is None:
        yield Violation("4", "the nodes did not become equal", "", "at the end")


def _unexpected(history: History, evidence: Evidence) -> Iterator[Violation]:
    """Errors that no fault explains."""
    expected = TO_BE_EXPECTED | evidence.options.told
    for deed in evidence.deeds:
        if deed.code and deed.code not in expected | OF_DEEDS.get(deed.kind, frozenset()):
            yield Violation("9", "a request was refused for no reason", "", f"{deed.kind} of {deed.name}: {deed.code}")
    for event in history.events:
        if isinstance(event, Failed | Refused | LetGo) and event.code not in expected:
            who = f"write {event.number}" if isinstance(event, Failed) else f"{event.session}, {event.name}"
            node = "" if isinstance(event, LetGo) else event.node
            yield Violation("9", "a request was refused for no reason", node, f"{who}: {event.code}")


# ── figures ───────────────────────────────────────────────────────────────────


def _figures(history: History, evidence: Evidence) -> list[Figure]:
    recoveries = evidence.recoveries
    back_s = [each for recovery in recoveries if recovery.strike.fault == Kill.name for each in recovery.back_s]
    done = [deed for deed in evidence.deeds if deed.outcome == "yes"]
    return [
        Figure("strikes", _counted(Counter(recovery.strike.fault for recovery in recoveries))),
        *(Figure("skipped", f"{name}: {why}") for name, why in evidence.skipped.items()),
        Figure("learners admitted", f"{evidence.learners:,}"),
        Figure("writes acknowledged", f"{len(history.acknowledged):,}", ""),
        Figure("writes of unknown outcome", f"{len(history.unknown):,}"),
        Figure("deeds acknowledged, effects included", _counted(Counter(deed.kind for deed in done))),
        Figure("deeds of unknown outcome", f"{sum(deed.outcome == 'unknown' for deed in evidence.deeds):,}"),
        Figure("errors told to workers", _counted(Counter(deed.code for deed in evidence.deeds if deed.code))),
        Figure("errors told to agents", _counted(_errors(history))),
        _behind(history, evidence),
        _spread("agents back at work after a kill", back_s, bound_s=BACK_S_MAX),
        _spread("ready after the fault", [each.strike.over_s - each.strike.lifted_s for each in recoveries]),
        _spread("caught up after the return", [recovery.healed_s for recovery in recoveries]),
        _spread("equal once writes paused", [recovery.equal_s for recovery in recoveries]),
        Figure("writes per second, acknowledged", f"{len(history.acknowledged) / max(evidence.seconds, 1e-9):,.0f}"),
    ]


def _errors(history: History) -> Counter[str]:
    return Counter(event.code for event in history.events if isinstance(event, Failed | Refused))


def _behind(history: History, evidence: Evidence) -> Figure:
    """With one node down, a quorum holds all that a session has seen, if it writes with `quorum`."""
    count = sum(isinstance(event, LetGo) for event in history.events)
    quorate = evidence.options.durability in ("quorum", "all")
    return Figure("sessions behind, gone on with stale=True", f"{count:,}", "0" if quorate else "", not (quorate and count))


def _spread(name: str, values_s: list[float | None], *, bound_s: float | None = None) -> Figure:
    known = sorted(value for value in values_s if value is not None)
    never = len(values_s) - len(known)
    text = f"{median(known):.2f} s median, {known[-1]:.2f} s at most ({len(known)})" if known else "none"
    text += f", {never} never" if never else ""
    met = not never and (bound_s is None or not known or known[-1] <= bound_s)
    return Figure(name, text, "" if bound_s is None else f"{bound_s:g} s", met)


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items())) or "none"
