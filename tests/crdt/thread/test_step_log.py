"""Ledgers: one intent, one result, everything else visible, whatever the order."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.crdt.dot import Dot, VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import StoreCorrupt
from shoal.kinds.step import state as step_log
from shoal.kinds.step.state import Decide, End, Intend, Progress, Result
from tests.support.causal import Choose, Operation, Replica, check_converges, origin
from tests.support.examples import examples
from tests.support.rows import DictRows
from tests.support.samples import chooser, fails_for_some_seed

Change = tuple[step_log.Change, bytes]  # A change as it travels, its content beside it.

STEPS = ("a", "b")
ATTEMPTS = ("x", "y", "z")


def apply(rows: Rows, stamp: Stamp, made: Change) -> None:
    step_log.apply_step(rows, stamp, *made)


def digest(content: bytes) -> bytes:
    return sha256(content).digest() if content else b""


def decide(choose: Choose) -> Callable[[Replica, list[Replica]], list[Change]]:
    def change(replica: Replica) -> Change:
        step, content = STEPS[choose(2)], bytes([choose(2)])
        entry = step_log.find(replica.rows, step)
        if entry is None or choose(3) == 0:
            arguments = (b"", content)[choose(2)]
            takes = tuple(known.id for known in entry.open_attempts) if entry is not None and choose(2) else ()
            name = f"{step}-{choose(2)}"
            return Intend(step, name, ATTEMPTS[choose(3)], digest(arguments), takes=takes), arguments
        attempt = entry.attempts[choose(len(entry.attempts))].id
        match choose(4):
            case 0:
                return Progress(step, attempt, content), b""
            case 1:
                return End(step, attempt, ("error", "withdrawn")[choose(2)], content), b""
            case 2:
                there = tuple(known.id for known in entry.attempts)
                key = (None, "k", "l")[choose(3)]
                return Decide(step, there, ("retry", "abandon")[choose(2)], key=key), b""
            case _:
                return Result(step, ("", attempt)[choose(2)], digest(content)), content

    return lambda replica, _all: [change(replica)]


def twin(operations: list[Operation], step: str) -> dict[str, Any] | None:
    """What a step is, from all its changes at once."""
    made = [(stamp, change) for operation in operations for stamp, (change, _) in operation.stamped() if change.step == step]
    made.sort(key=lambda pair: (pair[0].dot, pair[0].nth))
    if not made:
        return None
    intents = [pair for pair in made if isinstance(pair[1], Intend)]
    attempts = {change.attempt for _, change in intents}
    results: dict[bytes, str] = {}
    decisions: dict[object, tuple[bytes, Decide]] = {}
    for number, (stamp, change) in enumerate(made):
        if isinstance(change, Result):
            results.setdefault(change.digest, change.attempt)
        if isinstance(change, Decide):
            decisions.setdefault(number if change.key is None else change.key, (stamp.pack_position(), change))
    ended = {change.attempt for _, change in made if isinstance(change, End)} | set(results.values())
    ended |= {taken for _, change in intents for taken in change.takes}
    ended |= {attempt for _, change in decisions.values() for attempt in change.attempts}
    last = max(decisions.values(), key=lambda decided: decided[0], default=None)
    state = "done" if results else "abandoned" if last and last[1].kind == "abandon" else "open" if attempts - ended else None
    return {
        "name": intents[0][1].name,
        "first": intents[0][0].pack_position(),
        "attempts": attempts,
        "results": list(results),
        "open": attempts - ended,
        "state": state,
    }


def check(choose: Choose) -> None:
    replica = check_converges(choose, apply, decide(choose))[0]
    listed = list(step_log.listing(replica.rows, only_open=False))
    opened = {step for _, step in step_log.listing(replica.rows, only_open=True)}
    assert listed == sorted(listed)
    for step in STEPS:
        expected, entry = twin(replica.applied, step), step_log.find(replica.rows, step)
        if expected is None or entry is None:
            assert expected is None
            assert entry is None
            continue
        assert entry.first.name == expected["name"]
        assert (expected["first"], step) in listed
        assert {known.id for known in entry.attempts} == expected["attempts"]
        assert [result.digest for result in entry.results] == expected["results"]
        assert {known.id for known in entry.open_attempts} == expected["open"]
        assert expected["state"] in (None, entry.state)
        assert (entry.state in ("failed", "ready")) == (expected["state"] is None)
        assert (step in opened) == (entry.state == "open")
        assert all(step_log.content(replica.rows, step, result.digest) for result in entry.results)


@examples(60)
@given(st.data())
def test_replicas_agree_on_every_step_in_any_order_packet_and_repetition(data: st.DataObject) -> None:
    check(chooser(data))


def ranked_by_clock(claim: Any) -> bytes:
    return bytes(claim.position)


def first_to_arrive_counts(results: list[step_log.Outcome], new: step_log.Outcome) -> list[step_log.Outcome]:
    return [*results, new]


def last_progress_to_arrive_counts(progress: list[step_log.Reached], new: step_log.Reached) -> list[step_log.Reached]:
    others = [reached for reached in progress if reached.attempt != new.attempt]
    return sorted([*others, new], key=lambda reached: reached.attempt)


def a_decision_has_no_key(decisions: list[step_log.Decision], new: step_log.Decision) -> list[step_log.Decision]:
    return sorted([*decisions, new], key=step_log._rank)


@pytest.mark.parametrize(
    ("function", "bug"),
    [
        ("_rank", ranked_by_clock),
        ("_with_result", first_to_arrive_counts),
        ("_with_progress", last_progress_to_arrive_counts),
        ("_with_decision", a_decision_has_no_key),
    ],
)
def test_the_check_finds_a_planted_bug(monkeypatch: pytest.MonkeyPatch, function: str, bug: Callable[..., Any]) -> None:
    monkeypatch.setattr(step_log, function, bug)
    assert fails_for_some_seed(check)


def stamp(sequence: int) -> Stamp:
    return Stamp(Dot(origin(1), sequence), sequence, 1000 + sequence, VersionVector())


def test_a_result_settles_a_step_that_was_abandoned() -> None:
    rows = DictRows()
    step_log.apply_step(rows, stamp(1), Intend("k", "charge", "x"))
    step_log.apply_step(rows, stamp(2), Decide("k", ("x",), "abandon", by="ana"))
    entry = step_log.apply_step(rows, stamp(3), Result("k", "x", digest(b"r")), b"r")
    assert entry.state == "done"


@pytest.mark.parametrize("order", [1, -1])
def test_the_progress_at_the_greatest_position_counts(order: int) -> None:
    rows = DictRows()
    for sequence in (1, 2)[::order]:
        entry = step_log.apply_step(rows, stamp(sequence), Progress("k", "x", bytes([sequence])))
    assert [reached.progress for reached in entry.progress] == [b"\x02"]


@pytest.mark.parametrize("order", [1, -1])
def test_a_decision_that_came_twice_is_one(order: int) -> None:
    rows = DictRows()
    for sequence in (1, 2)[::order]:
        entry = step_log.apply_step(rows, stamp(sequence), Decide("k", ("x",), "retry", by=f"by {sequence}", key="request"))
    assert [decision.by for decision in entry.decisions] == ["by 1"]


def test_a_result_that_was_not_kept_leaves_it_open() -> None:
    rows = DictRows()
    step_log.apply_step(rows, stamp(1), Intend("k", "charge", "x"))
    assert step_log.apply_step(rows, stamp(2), End("k", "x", "unkept")).state == "open"
    assert step_log.apply_step(rows, stamp(3), End("k", "x", "withdrawn")).state == "ready"


def test_a_step_that_was_given_free_counts_its_failures_anew() -> None:
    rows = DictRows()
    step_log.apply_step(rows, stamp(1), Intend("k", "charge", "x"))
    failed = step_log.apply_step(rows, stamp(2), End("k", "x", "error", b"e"))
    assert (failed.state, len(failed.failures)) == ("failed", 1)
    free = step_log.apply_step(rows, stamp(3), Decide("k", ("x",), "retry"))
    assert (free.state, free.failures) == ("ready", [])


def test_a_step_can_be_abandoned_again_after_a_change_of_mind() -> None:
    rows = DictRows()
    step_log.apply_step(rows, stamp(1), Intend("k", "charge", "x"))
    for number, kind in enumerate(("abandon", "retry", "abandon")):
        entry = step_log.apply_step(rows, stamp(2 + number), Decide("k", ("x",), kind))  # type: ignore[arg-type]
    assert entry.state == "abandoned"


def test_undecodable_and_missing_rows_are_reported() -> None:
    rows = DictRows()
    step_log.apply_step(rows, stamp(1), Intend("k", "charge", "x", digest(b"a")), b"a")
    with pytest.raises(StoreCorrupt, match="is missing from the step log"):
        step_log.content(rows, "k", digest(b"b"))
    rows.put(step_log.ENTRY + b"k", b"\xc1")
    with pytest.raises(StoreCorrupt, match="cannot be decoded"):
        step_log.find(rows, "k")
