"""The record of a crew, and each change of it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from shoal.crew.declaration import (
    CrewRecord,
    Declared,
    Outcome,
    Taker,
    declared,
    drained,
    finished,
    from_channels,
    joined,
    left,
    moved,
    parted,
    raised,
    restarted,
    scaled,
    to_channels,
)
from shoal.errors import CrewConflict, InvalidInput, NotFound

MACHINE = Taker(capacity=4, versions={"a": 1})


def of(count: int = 2, version: int = 1, **others: Any) -> dict[str, Declared]:
    return {"a": Declared(count=count, initial=count, version=version, ttl=10.0, tries=3, **others)}


def recorded(**others: Any) -> CrewRecord:
    return declared(CrewRecord(**others), of(), agents_max=100)


def test_a_name_has_its_agent_and_its_number() -> None:
    assert parted("web-researcher-12") == ("web-researcher", 12)
    assert [parted(name) for name in ("a", "a-", "a-0", "a-01", "a--1", "-1", "a-x")] == [
        ("a", 0), ("a-", 0), ("a-0", 0), ("a-01", 0), ("a-", 1), ("-1", 0), ("a-x", 0)
    ]  # fmt: skip
    assert recorded().declared("a-3") is None
    assert recorded().declared("a--1") is None


def test_a_record_comes_back_from_its_channels() -> None:
    record = moved(joined(recorded(), "m", MACHINE, alive=set(), machines_max=9), "a-1", "m")
    record = raised(record, "a-2", "boom", version=1, anew=False)
    assert from_channels(to_channels(record), space="s") == record
    with pytest.raises(CrewConflict, match="has another content"):
        from_channels({"agents": 7}, space="s")


def test_the_same_declaration_again_changes_nothing() -> None:
    assert declared(recorded(), of(), agents_max=100) == recorded()


def test_another_content_under_the_same_version_is_refused_with_what_differs() -> None:
    with pytest.raises(CrewConflict, match=r"count is 2, here it is 5; labels is .* Give it a greater version"):
        declared(recorded(), of(5, labels=("gpu",)), agents_max=100)


def test_a_greater_version_replaces_and_an_older_one_changes_nothing() -> None:
    newer = declared(recorded(), of(5, version=2), agents_max=100)
    assert newer.agents["a"] == of(5, version=2)["a"]
    assert declared(newer, of(), agents_max=100) == newer


def test_a_count_that_was_scaled_outlives_programs_until_their_count_changes() -> None:
    record = scaled(recorded(), "a", 7, agents_max=100)
    assert declared(record, of(), agents_max=100).agents["a"].count == 7
    assert declared(record, of(version=2), agents_max=100).agents["a"].count == 7
    assert declared(record, of(3, version=2), agents_max=100).agents["a"].count == 3


def test_an_unknown_agent_and_too_many_agents_are_refused() -> None:
    with pytest.raises(NotFound, match="no agent 'b' is declared; those declared: a"):
        scaled(recorded(), "b", 1, agents_max=100)
    with pytest.raises(InvalidInput, match="would have 101 agents, and may have 100"):
        scaled(recorded(), "a", 101, agents_max=100)


def test_an_agent_fails_after_its_last_try_and_a_new_version_or_a_restart_begins_anew() -> None:
    record = recorded()
    for tries in (1, 2):
        record = raised(record, "a-1", "boom", version=1, anew=False)
        assert record.outcomes["a-1"] == Outcome(state="retrying", version=1, tries=tries, error="boom")
        assert "a-1" in record.wanted()
    assert raised(record, "a-1", "boom", version=1, anew=True).outcomes["a-1"].tries == 1
    record = raised(record, "a-1", "boom", version=1, anew=False)
    assert record.outcomes["a-1"].state == "failed"
    assert record.wanted() == ["a-2"]
    assert raised(record, "a-1", "again", version=1, anew=False) == record
    assert restarted(record, "a-1").wanted() == ["a-1", "a-2"]
    assert declared(record, of(version=2), agents_max=100).wanted() == ["a-1", "a-2"]


def test_an_end_of_an_older_version_does_not_count() -> None:
    record = declared(recorded(), of(version=2), agents_max=100)
    assert finished(record, "a-1", version=1) == record
    assert raised(record, "a-1", "boom", version=1, anew=False) == record
    assert finished(record, "a-1", version=2).wanted() == ["a-2"]


def test_an_agent_that_was_scaled_away_and_back_begins_anew() -> None:
    record = finished(recorded(), "a-2", version=1)
    record = scaled(scaled(record, "a", 1, agents_max=9), "a", 2, agents_max=9)
    assert record.wanted() == ["a-1", "a-2"]


def test_a_machine_that_joins_removes_the_dead_ones() -> None:
    record = recorded(machines={"dead": MACHINE, "other": MACHINE}, pins={"a-1": "dead", "a-2": "other"})
    record = joined(record, "m", MACHINE, alive={"other"}, machines_max=2)
    assert (sorted(record.machines), record.pins) == (["m", "other"], {"a-2": "other"})
    with pytest.raises(InvalidInput, match="2 machines run this crew already"):
        joined(record, "n", MACHINE, alive={"m", "other"}, machines_max=2)
    assert joined(record, "m", MACHINE, alive={"m", "other"}, machines_max=2) == record
    assert left(record, "other").pins == {}


def test_only_a_machine_that_can_run_an_agent_gets_it() -> None:
    record = recorded(machines={"m": MACHINE, "old": replace(MACHINE, versions={}), "full": replace(MACHINE, drained=True)})
    assert moved(record, "a-1", "m").pins == {"a-1": "m"}
    assert moved(moved(record, "a-1", "m"), "a-1", None).pins == {}
    with pytest.raises(NotFound, match="no machine 'x' runs this crew; those that do: full, m, old"):
        moved(record, "a-1", "x")
    with pytest.raises(NotFound, match="the crew has no agent 'a-9'; it has: a-1 to a-2"):
        moved(record, "a-9", "m")
    with pytest.raises(InvalidInput, match="its program does not have this agent"):
        moved(record, "a-1", "old")
    with pytest.raises(InvalidInput, match="it is drained"):
        moved(record, "a-1", "full")
    newer = declared(record, of(version=2), agents_max=9)
    with pytest.raises(InvalidInput, match="its program has version 1, and version 2 is declared"):
        moved(newer, "a-1", "m")


def test_a_machine_is_drained_and_takes_agents_again() -> None:
    record = recorded(machines={"m": MACHINE})
    assert drained(record, "m", is_drained=True).machines["m"].drained
    assert drained(drained(record, "m", is_drained=True), "m", is_drained=False) == record
    with pytest.raises(NotFound, match="no machine 'x'"):
        drained(record, "x", is_drained=True)
