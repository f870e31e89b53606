"""Registers that are set on what was read."""

from __future__ import annotations

import asyncio

import pytest

from shoal import values
from shoal.crdt.rows import successor
from shoal.errors import RegisterChanged
from shoal.kinds.register import handler as registers
from shoal.node.writes.issuing import Outbound
from shoal.protocol import requests
from shoal.storage import keys
from shoal.values.work import NODES_MAX
from tests.node.conftest import Bench


async def test_a_set_that_expects_what_was_read_is_refused_once_it_is_not_so(bench: Bench) -> None:
    goal = bench.space.register("goal")
    read = await goal.read()
    assert (read.value, read.siblings, read.version) == (None, (), "")
    version = await goal.set("a", expect=read)
    assert (await goal.read()).version == version
    with pytest.raises(RegisterChanged, match="Nothing was written") as refused:
        await bench.space.register("goal").set("b", expect="")
    assert refused.value.detail["version"] == version
    assert await goal.set("b", expect=version) != version
    with pytest.raises(RegisterChanged):
        await goal.set("c", expect=version)
    assert await goal.siblings() == ["b"]


async def test_of_those_that_expect_the_same_at_one_node_one_is_taken(bench: Bench) -> None:
    handles = [bench.space.register("goal") for _ in range(8)]
    outcomes = await asyncio.gather(*(handle.set(n, expect="") for n, handle in enumerate(handles)), return_exceptions=True)
    assert sum(isinstance(outcome, RegisterChanged) for outcome in outcomes) == 7
    assert len(await bench.space.register("goal").siblings()) == 1


async def test_the_key_of_a_request_is_looked_up_before_what_it_expects(bench: Bench) -> None:
    session = bench.node.session()
    request = requests.Assign("crew", "goal", b"\x01", expect="")
    assert await session.call(request, key="k") == await session.call(request, key="k")


async def test_a_set_that_expects_siblings_replaces_them(bench: Bench) -> None:
    one, other = bench.space.register("goal"), bench.space.register("goal")
    await one.get()
    await other.get()
    await one.set("left")
    await other.set("right")
    seen = await bench.space.register("goal").read()
    assert seen.siblings == ("right", "left")
    await bench.space.register("goal").set("merged", expect=seen)
    assert await one.siblings() == ["merged"]


async def test_a_batch_is_refused_whole_where_a_register_is_not_as_expected(bench: Bench) -> None:
    await bench.space.register("{x}/r").set(1)
    with pytest.raises(RegisterChanged):
        async with bench.space.batch() as batch:
            batch.counter("{x}/n").add(1)
            batch.register("{x}/r").set(2, expect="")
    assert await bench.space.counter("{x}/n").value() == 0


async def test_sets_of_one_handle_that_are_under_way_at_once_replace_each_other(bench: Bench) -> None:
    goal = bench.space.register("goal")
    for start in range(0, 300, 100):
        await asyncio.gather(*(goal.set(n) for n in range(start, start + 100)))
    assert await bench.space.register("goal").siblings() == [299]
    await goal.set("then")
    assert await goal.siblings() == ["then"]


@pytest.mark.answers("hot-keys-in-a-yjs-map-grow-without-limit")
async def test_rows_of_registers_do_not_grow_with_sets(bench: Bench) -> None:
    handles = [bench.space.register(f"hot-{n}") for n in range(10)]
    remembered: list[int] = []
    for n in range(60):
        await asyncio.gather(*(handle.set(n) for handle in handles))
        kept = list(bench.storage.scan(keys.OBJECT, successor(keys.OBJECT)))
        values_of, histories = ([row for row in kept if row[0].endswith(b"H") is is_history] for is_history in (False, True))
        remembered.append(sum(len(value) for _, value in histories))
    assert (len(values_of), len(histories)) == (10, 10)
    assert sum(len(key) + len(value) for key, value in values_of) < 4096
    assert remembered[15:] == [remembered[15]] * 45


def test_values_are_compared_within_the_allowance(monkeypatch: pytest.MonkeyPatch) -> None:
    small, other = values.encode({"a": 1, "b": 2}), values.encode({"b": 2, "a": 1})
    assert registers.is_same(small, other)
    assert not registers.is_same(small, values.encode({"a": 1}))
    large = values.encode([1] * (NODES_MAX + 1))
    spelled: list[bytes] = []
    monkeypatch.setattr(registers, "canonical", spelled.append)
    assert registers.is_same(large, large)
    assert not registers.is_same(large, small)
    assert not registers.is_same(small, large)
    assert spelled == []  # 7.5 million numbers took 3 s and 720 MB.


async def test_a_large_value_can_be_compared_and_set(bench: Bench) -> None:
    large = [1] * (NODES_MAX + 1)
    register = bench.space.register("r")
    await register.set(large)
    assert await register.compare_and_set(large, "x") is not None
    with pytest.raises(RegisterChanged, match=r"is 'x', not a value of 1\d{5} bytes"):  # It was decoded, to show 80 characters.
        await register.compare_and_set(large, "y")
    assert await register.get() == "x"


async def test_a_history_says_who_set_what_before(bench: Bench) -> None:
    goal = bench.space.register("goal")
    assert await goal.history() == []
    await goal.set("Mars", by="ada")
    await goal.set("Venus")
    await goal.compare_and_set("Venus", "Moon", by="bo")
    past = await goal.history()
    assert [(each.value, each.by) for each in past] == [("Moon", "bo"), ("Venus", ""), ("Mars", "ada")]
    assert [each.id for each in past] == sorted((each.id for each in past), reverse=True)
    assert past[0].time >= past[1].time >= past[2].time


async def test_a_repeated_comparison_may_name_an_author(bench: Bench) -> None:
    goal = bench.space.register("goal")
    first = await goal.compare_and_set(None, "Mars", by="ada", key="k")
    assert await goal.compare_and_set(None, "Mars", by="ada", key="k") == first
    assert [(each.value, each.by) for each in await goal.history()] == [("Mars", "ada")]


async def test_a_history_is_bounded(bench: Bench) -> None:
    goal = bench.space.register("goal")
    for n in range(20):
        await goal.set(n)
    assert [each.value for each in await goal.history()] == list(range(19, 3, -1))


async def test_a_history_has_the_size_of_a_large_value(bench: Bench) -> None:
    goal = bench.space.register("goal")
    await goal.set("x" * 5000)
    await goal.set(None)
    none, large = await goal.history()
    assert (none.value, none.is_kept, none.size) == (None, True, 1)
    assert (large.value, large.is_kept, large.size) == (None, False, 5003)


async def test_a_repeated_set_is_in_the_history_once(bench: Bench) -> None:
    for _ in range(2):
        await bench.space.register("goal").set("a", key="k")
    assert len(await bench.space.register("goal").history()) == 1


async def test_a_refused_set_is_not_in_the_history(bench: Bench) -> None:
    goal = bench.space.register("goal")
    await goal.set("a")
    with pytest.raises(RegisterChanged):
        await goal.set("b", expect="")
    with pytest.raises(RegisterChanged):
        await goal.compare_and_set("b", "c")
    assert [each.value for each in await goal.history()] == ["a"]


async def test_a_deleted_value_is_in_no_history(bench: Bench) -> None:
    goal = bench.space.register("goal")
    await goal.set("secret", by="ada")
    await goal.delete()
    assert await goal.history() == []
    await goal.set("new")
    assert [each.value for each in await goal.history()] == ["new"]


async def test_a_history_survives_a_crash(bench: Bench) -> None:
    await bench.space.register("goal").set("a", by="ada")
    again = bench.crashed()
    assert [each.by for each in await again.space.register("goal").history()] == ["ada"]
    await again.node.stop()


async def test_a_key_of_a_map_has_no_history(bench: Bench) -> None:
    plan = bench.space.map("plan")
    await plan.set("goal", "a")
    await plan.set("goal", "b")
    await plan.remove("goal")
    assert await plan.len() == 0


async def test_an_older_peer_gets_no_noted_set(bench: Bench) -> None:
    goal = bench.space.register("goal")
    await goal.set("noted")
    bench.node._database.issuer.replicate(Outbound(lambda _: None, lambda _: None, spoken=lambda: 6))
    await goal.set("plain")
    assert await goal.get() == "plain"
    assert [each.value for each in await goal.history()] == ["noted"]
