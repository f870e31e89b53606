"""Session guarantees: each break of one is found, and nothing else is."""

from __future__ import annotations

import pytest

from simulation.judging.checkers import InvariantViolated
from simulation.judging.found import Found
from simulation.judging.history import Acknowledged, Event, History, Invoked, LetGo, Place, Shown, WriteKind, amount
from simulation.judging.sessions import check_sessions

LINE = Found(parents={"a": {"one": [], "two": ["one"], "three": ["two"], "fork": ["one"]}})


def written(number: int, kind: WriteKind, *, id: str = "", value: int = 0) -> list[Event]:
    return [Invoked(number, kind, "a", "a"), Acknowledged(number, id, value, "n1")]


def culprits(*events: Event | list[Event]) -> list[str]:
    flat = [event for item in events for event in (item if isinstance(item, list) else [item])]
    try:
        check_sessions(History(flat), LINE)
    except InvariantViolated as violated:
        return violated.culprits
    return []


def heads(*ids: str) -> Shown:
    return Shown("a", "save", "a", ids=list(ids), node="n2")


def numbers(kind: WriteKind, *shown: int, whole: bool = True) -> Shown:
    return Shown("a", kind, "a", numbers=list(shown), whole=whole, node="n2")


def total(value: int) -> Shown:
    return Shown("a", "add", "a", value=value, node="n2")


def test_a_read_that_shows_the_own_checkpoint_or_one_below_which_it_is_will_do() -> None:
    saved = written(1, "save", id="two")
    assert culprits(saved, heads("two")) == []
    assert culprits(saved, heads("three")) == []
    assert culprits(saved, heads("fork", "two")) == []


@pytest.mark.answers("session-guarantees")
def test_a_read_that_does_not_show_the_own_checkpoint_is_found_with_its_node() -> None:
    [culprit] = culprits(written(1, "save", id="two"), heads("fork"))
    assert culprit.startswith("a, save of thread a in space trial on n2")
    assert "two" in culprit


def test_a_checkpoint_that_was_shown_must_be_shown_again() -> None:
    assert culprits(heads("three"), heads("two"))
    assert culprits(heads("two"), heads("three")) == []


@pytest.mark.parametrize("kind", ["append", "edit"])
def test_an_own_entry_must_be_shown(kind: WriteKind) -> None:
    assert culprits(written(4, kind), numbers(kind, 4, 5)) == []
    assert culprits(written(4, kind), numbers(kind, 5))


@pytest.mark.parametrize("kind", ["append", "edit"])
def test_an_entry_that_was_shown_must_be_shown_again(kind: WriteKind) -> None:
    assert culprits(numbers(kind, 4), numbers(kind, 4, 5)) == []
    assert culprits(numbers(kind, 4), numbers(kind, 5))


def test_a_reader_with_a_cursor_need_not_be_shown_an_event_twice_and_must_be_shown_each_once() -> None:
    assert culprits(numbers("append", 1), numbers("append", 2, whole=False), numbers("append", 1, 2)) == []
    assert culprits(numbers("append", 1), written(2, "append"), numbers("append", 3, whole=False))


def test_a_counter_that_falls_is_found() -> None:
    assert culprits(total(5), total(5), total(6)) == []
    assert culprits(total(5), total(4))


def test_an_add_that_does_not_count_on_top_of_what_was_seen_is_found() -> None:
    assert culprits(total(5), written(1, "add", value=5 + amount(1))) == []
    assert culprits(total(5), written(1, "add", value=5))


def test_an_add_that_is_no_longer_shown_is_found_though_the_counter_has_grown() -> None:
    begun: list[Event] = [Invoked(1, "add", "a", by=4), Invoked(2, "add", "a", by=16)]
    assert culprits(begun, total(4), total(4 + 16)) == []
    assert culprits(begun, total(4), total(16))


def test_a_register_that_goes_back_is_found() -> None:
    assert culprits(written(4, "assign"), numbers("assign", 4, 2), numbers("assign", 5)) == []
    assert culprits(written(4, "assign"), numbers("assign", 3))
    assert culprits(numbers("assign", 5), numbers("assign", 4))


def test_a_shared_register_shows_what_was_seen_until_one_that_has_seen_it_replaces_it() -> None:
    first: list[Event] = [Invoked(1, "assign", "a", "a", over=[]), Acknowledged(1)]
    assert culprits(first, Invoked(2, "assign", "a", "another", over=[1]), numbers("assign", 2)) == []
    assert culprits(first, Invoked(2, "assign", "a", "another", over=[]), numbers("assign", 2))


def test_news_of_a_write_spares_its_own_session() -> None:
    assert culprits(Invoked(1, "append", "a", "a"), Acknowledged(1, again=True), numbers("append")) == []


def test_a_session_that_let_go_is_owed_nothing_older() -> None:
    let_go = LetGo("a", "a", "session-behind")
    assert culprits(total(5), let_go, total(4)) == []
    assert culprits(total(5), let_go, total(4), total(3))
    assert culprits(written(1, "save", id="two"), let_go, heads("fork")) == []


def test_letting_go_of_one_partition_lets_go_of_no_other() -> None:
    assert culprits(total(5), LetGo("a", "elsewhere", "session-behind"), total(4))
    assert culprits(total(5), LetGo("another", "a", "session-behind"), total(4))


def test_sessions_are_owed_nothing_that_others_saw() -> None:
    assert culprits(total(5), Shown("another", "add", "a", value=1)) == []


def test_shown_values_must_be_there_in_the_end() -> None:
    history = History([heads("two"), numbers("append", 3), numbers("assign", 4, 2), total(7)])
    assert history.seen_ids[Place("save", "a")] == {"two"}
    assert history.seen_numbers[Place("append", "a")] == {3}
    assert history.seen_values == {Place("assign", "a"): 4, Place("add", "a"): 7}
