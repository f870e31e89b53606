"""Each checker accepts what is sound, and refuses the one thing it is for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import pytest

from shoal.cluster import operation
from shoal.cluster.operation import Tip, partition_of
from shoal.config import Config
from shoal.crdt.dot import Dot, Origin, VersionVector
from shoal.errors import StoreCorrupt
from shoal.kinds.journal.state.journal import Cursor
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from simulation.judging import checkers
from simulation.judging.checkers import DotLedger, InvariantViolated
from simulation.judging.found import DAMAGED, Found
from simulation.judging.history import (
    Acknowledged,
    Event,
    Failed,
    History,
    Invoked,
    Opened,
    Resent,
    SeenCursor,
    SeenId,
    SeenValue,
    Shown,
    amount,
    read_line,
    to_line,
)
from simulation.workload.random_agents import SPACE

ORIGIN = Origin(bytes(16))

SAVED: list[Event] = [Invoked(1, "save", "a"), Acknowledged(1, "id-1"), SeenId("save", "a", "id-1")]


def found(**held: object) -> Found:
    return Found(**held)  # type: ignore[arg-type]


def refuses(invariant: str, check: Callable[[], None]) -> None:
    with pytest.raises(InvariantViolated) as caught:
        check()
    assert caught.value.invariant == invariant


def test_an_event_survives_the_pipe() -> None:
    for event in [*SAVED, SeenCursor("a", b"\x00\xff"), Failed(1, "unknown", "storage-full"), Shown("s", "edit", "d")]:
        assert read_line(to_line(event)) == event


def test_an_acknowledged_save_must_be_there() -> None:
    checkers.check_found(History(SAVED), found(threads={"a": {"id-1": 1}}))
    refuses("3", lambda: checkers.check_acknowledged(History(SAVED), found(threads={"a": {}})))


def test_an_acknowledged_save_must_hold_what_was_saved() -> None:
    refuses("3", lambda: checkers.check_acknowledged(History(SAVED), found(threads={"a": {"id-1": 2}})))


def test_an_event_that_was_sent_again_may_be_listed_under_a_lesser_dot_and_under_no_other() -> None:
    told, lesser, greater = ("f" * 16 + dot * 16 + "0" * 20 for dot in ("22", "11", "33"))
    history = History([Invoked(1, "append", "a"), Acknowledged(1, told)])
    checkers.check_acknowledged(history, found(journals={"a": {lesser: 1}}))
    refuses("3", lambda: checkers.check_acknowledged(history, found(journals={"a": {greater: 1}})))
    refuses("3", lambda: checkers.check_acknowledged(history, found(journals={"a": {lesser: 2}})))


def test_an_acknowledged_assignment_is_in_the_history() -> None:
    history = History([Invoked(4, "assign", "r"), Acknowledged(4), Invoked(5, "assign", "r")])
    checkers.check_remembered(history, found(histories={"r": [5, 4]}))
    checkers.check_remembered(history, found(histories={"r": [5] * 16}))
    refuses("3", lambda: checkers.check_remembered(history, found(histories={"r": [5]})))
    refuses("10", lambda: checkers.check_remembered(history, found(histories={"r": [4, 6]})))


def test_an_acknowledged_assignment_may_be_overtaken_and_not_undone() -> None:
    history = History([Invoked(4, "assign", "r"), Acknowledged(4), Invoked(5, "assign", "r")])
    checkers.check_acknowledged(history, found(registers={"r": [5]}))
    refuses("3", lambda: checkers.check_acknowledged(history, found(registers={"r": [3]})))


def shared(number: int, *over: int) -> list[Event]:
    """An assignment to a register with several writers, by one that had seen `over`."""
    return [Invoked(number, "assign", "r", over=list(over)), Acknowledged(number)]


def test_an_assignment_to_a_shared_register_stands_until_one_that_has_seen_it() -> None:
    history = History([*shared(1), *shared(2), *shared(3, 1)])
    checkers.check_acknowledged(history, found(registers={"r": [3, 2]}))
    refuses("3", lambda: checkers.check_acknowledged(history, found(registers={"r": [3]})))


def test_a_value_that_a_shared_register_showed_stands_until_one_that_has_seen_it() -> None:
    history = History([Invoked(1, "assign", "r", over=[]), Shown("s", "assign", "r", numbers=[1]), *shared(2)])
    checkers.check_seen(history, found(registers={"r": [2, 1]}))
    refuses("3a", lambda: checkers.check_seen(history, found(registers={"r": [2]})))


def test_an_assignment_that_was_refused_has_replaced_nothing() -> None:
    history = History([*shared(1), Invoked(2, "assign", "r", over=[1]), Failed(2, "no", "overloaded")])
    refuses("3", lambda: checkers.check_acknowledged(history, found()))


@pytest.mark.answers("acknowledged-writes-survive")
def test_an_empty_register_after_an_acknowledged_assignment_is_not_explained_by_one_that_is_not_there() -> None:
    history = History([*shared(5), Invoked(6, "assign", "r", over=[5]), Failed(6, "unknown", "outcome-unknown")])
    checkers.check_acknowledged(history, found(registers={"r": [6]}))
    refuses("3", lambda: checkers.check_acknowledged(history, found(registers={"r": []})))


def test_an_assignment_may_be_replaced_by_what_was_replaced_itself() -> None:
    history = History([*shared(1), *shared(2, 1), *shared(3, 2)])
    checkers.check_acknowledged(history, found(registers={"r": [3]}))
    refuses("3", lambda: checkers.check_acknowledged(History([*history.events, *shared(4)]), found(registers={"r": [4]})))


def test_of_the_events_of_one_key_one_must_be_there() -> None:
    history = History(
        [Invoked(1, "append", "a", key="k"), Acknowledged(1), Invoked(2, "append", "a", key="k"), Acknowledged(2)]
    )
    checkers.check_acknowledged(history, found(journals={"a": {"x": 2}}))
    refuses("3", lambda: checkers.check_acknowledged(history, found(journals={"a": {}})))


def test_an_acknowledged_edit_must_be_there() -> None:
    history = History([Invoked(4, "edit", "d"), Acknowledged(4)])
    checkers.check_acknowledged(history, found(documents={"d": [4]}))
    refuses("3", lambda: checkers.check_acknowledged(history, found(documents={"d": []})))


def test_shown_writes_must_be_there() -> None:
    history = History([Invoked(1, "append", "a"), SeenId("append", "a", "e-1")])
    checkers.check_seen(history, found(journals={"a": {"e-1": 1}}))
    refuses("3a", lambda: checkers.check_seen(history, found()))


def test_an_entry_that_was_shown_must_be_there() -> None:
    history = History([Shown("s", "edit", "d", numbers=[4])])
    checkers.check_seen(history, found(documents={"d": [4]}))
    refuses("3a", lambda: checkers.check_seen(history, found(documents={"d": [5]})))


def test_a_counter_never_falls_below_what_was_shown() -> None:
    history = History([SeenValue("add", "c", 10)])
    checkers.check_seen(history, found(counters={"c": 10}))
    refuses("3a", lambda: checkers.check_seen(history, found(counters={"c": 9})))


@pytest.mark.parametrize("outcomes", [[], [2], [3], [2, 3]])
def test_a_counter_may_hold_any_of_the_unknown_adds(outcomes: list[int]) -> None:
    history = History([Invoked(1, "add", "c"), Acknowledged(1), Invoked(2, "add", "c"), Invoked(3, "add", "c")])
    checkers.check_counters(history, found(counters={"c": amount(1) + sum(map(amount, outcomes))}))


@pytest.mark.parametrize("value", [0, amount(1) - 1, amount(1) + 1, amount(1) + amount(2) + 1])
def test_a_counter_may_hold_nothing_else(value: int) -> None:
    history = History([Invoked(1, "add", "c"), Acknowledged(1), Invoked(2, "add", "c")])
    refuses("5", lambda: checkers.check_counters(history, found(counters={"c": value})))


def test_an_add_that_was_refused_does_not_count() -> None:
    history = History([Invoked(2, "add", "c"), Failed(2, "no", "overloaded")])
    refuses("5", lambda: checkers.check_counters(history, found(counters={"c": amount(2)})))


def adds(*outcomes: Event | None) -> History:
    """The nth add, from 1 on, adds the nth power of four, and comes to this; None: nobody knows."""
    events: list[Event] = []
    for number, outcome in enumerate(outcomes, 1):
        events += [Invoked(number, "add", "c", by=4**number), *([] if outcome is None else [outcome])]
    return History(events)


def test_of_adds_with_amounts_of_their_own_each_is_judged_by_itself() -> None:
    history = adds(Acknowledged(1), None, Failed(3, "no", "overloaded"))
    for value in (4, 4 + 16):
        checkers.check_counters(history, found(counters={"c": value}))
    for value in (16, 0, 4 + 4, 4 + 64, 4 + 1, 4 + 16 + 16, -4):
        refuses("5", partial(checkers.check_counters, history, found(counters={"c": value})))


@pytest.mark.answers("applying-commutes")
def test_a_lost_add_does_not_hide_behind_one_of_unknown_outcome() -> None:
    history = adds(Acknowledged(1), None)
    refuses("5", lambda: checkers.check_counters(history, found(counters={"c": 16})))


@pytest.mark.answers("applying-commutes")
def test_an_add_that_counted_twice_does_not_hide_behind_one_of_unknown_outcome() -> None:
    history = adds(Acknowledged(1), None, None)
    refuses("5", lambda: checkers.check_counters(history, found(counters={"c": 8})))


def test_an_add_that_was_shown_must_be_there_whatever_else_is() -> None:
    history = History([*adds(None, None).events, SeenValue("add", "c", 4)])
    checkers.check_seen(history, found(counters={"c": 4 + 16}))
    refuses("3a", lambda: checkers.check_seen(history, found(counters={"c": 16})))


@pytest.mark.parametrize(("value", "adds_up"), [(5, True), (7, True), (0, False), (12, False)])
def test_of_the_adds_of_one_key_one_counts(value: int, adds_up: bool) -> None:
    keyed: list[Event] = [Invoked(1, "add", "c", key="k", by=5), Acknowledged(1), Invoked(2, "add", "c", key="k", by=7)]

    def check() -> None:
        checkers.check_counters(History(keyed), found(counters={"c": value}))

    check() if adds_up else refuses("5", check)


def test_a_write_that_was_sent_again_is_refused_only_if_every_attempt_was() -> None:
    attempts: list[Event] = [Invoked(1, "save", "a"), Resent(1), Failed(1, "no", "overloaded")]
    there = found(threads={"a": {"id": 1}})
    checkers.check_refused(History(attempts), there)
    refuses("13", lambda: checkers.check_refused(History([*attempts, Failed(1, "no", "overloaded")]), there))
    checkers.check_refused(History([*attempts, Failed(1, "unknown", "outcome-unknown")]), there)
    checkers.check_refused(History([*attempts, Acknowledged(1, "id", again=True)]), there)


def test_a_write_refused_with_nothing_written_must_not_be_there() -> None:
    events: list[Event] = [Invoked(1, "save", "a"), Failed(1, "no", "overloaded")]
    checkers.check_refused(History(events), found())
    refuses("13", lambda: checkers.check_refused(History(events), found(threads={"a": {"id": 1}})))


def test_a_write_of_unknown_outcome_may_be_there() -> None:
    history = History([Invoked(1, "save", "a"), Failed(1, "unknown", "storage-full")])
    checkers.check_found(history, found(threads={"a": {"id": 1}}))
    checkers.check_found(history, found())


@pytest.mark.parametrize(
    "held",
    [
        {"threads": {"a": {"x": 9}}},
        {"threads": {"b": {"x": 1}}},
        {"threads": {"a": {"x": 1, "y": 1}}},
        {"threads": {"a": {"x": DAMAGED}}},
        {"journals": {"a": {"x": 1}}},
    ],
    ids=["unwritten", "elsewhere", "twice", "damaged", "of another kind"],
)
def test_a_never_written_checkpoint_is_refused(held: dict[str, object]) -> None:
    refuses("6", lambda: checkers.check_nothing_invented(History(SAVED), found(**held)))


def test_two_openings_may_not_share_an_origin() -> None:
    checkers.check_openings(History([Opened("aa"), Opened("bb")]))
    refuses("1", lambda: checkers.check_openings(History([Opened("aa"), Opened("bb"), Opened("aa")])))


# ── over rows ─────────────────────────────────────────────────────────────────


def store(sequences: Iterable[int], *, tip: int, partition: int = 3, body: bytes = b"body") -> MemoryStorage:
    rows = {keys.log(partition, Dot(ORIGIN, sequence)): body for sequence in sequences}
    return MemoryStorage({**rows, keys.vector(partition, ORIGIN): Tip(tip, 1, operation.CHAIN_START).pack()})


def test_a_vector_covers_what_the_log_holds() -> None:
    checkers.check_vectors(History(), store([1, 2, 3], tip=3))


@pytest.mark.parametrize(("sequences", "tip"), [([1, 3], 3), ([1, 2], 3), ([1, 2, 3], 2), ([], 1)])
def test_a_vector_with_a_hole_or_another_end_is_refused(sequences: list[int], tip: int) -> None:
    refuses("2", lambda: checkers.check_vectors(History(), store(sequences, tip=tip)))


def test_a_vector_that_a_reader_was_told_must_be_durable() -> None:
    told = History([SeenCursor("a", Cursor(VersionVector({ORIGIN: 2})).pack())])
    partition = partition_of(SPACE, "a")
    checkers.check_vectors(told, store([1, 2], tip=2, partition=partition))
    refuses("2", lambda: checkers.check_vectors(told, store([1], tip=1, partition=partition)))


def test_a_dot_that_comes_back_with_another_payload_is_refused() -> None:
    dots = DotLedger()
    dots.check(store([1, 2], tip=2))
    dots.check(store([1], tip=1))
    refuses("1", lambda: dots.check(store([1, 2], tip=2, body=b"another")))


def test_a_state_that_no_operation_made_is_refused() -> None:
    rows = {keys.object_rows(3, keys.Kind.COUNTER, "crew", "n") + b"T": b"\x07"}
    refuses("4", lambda: checkers.check_fold(MemoryStorage(rows), Config()))


def test_damage_that_is_refused_or_harmless_is_noticed() -> None:
    def refused() -> MemoryStorage:
        raise StoreCorrupt("a checksum does not hold")

    checkers.check_damage_noticed({b"X": b"1"}, refused, config=Config())
    checkers.check_damage_noticed({b"X": b"1"}, lambda: MemoryStorage({b"X": b"1"}), config=Config())


def test_damage_that_is_served_is_refused() -> None:
    lost = MemoryStorage()
    refuses("10", lambda: checkers.check_damage_noticed({b"X": b"1"}, lambda: lost, config=Config()))
