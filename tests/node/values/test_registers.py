"""Registers that are set on what was read."""

from __future__ import annotations

import asyncio

import pytest

from shoal import values
from shoal.crdt.rows import successor
from shoal.errors import RegisterChanged
from shoal.kinds.register import handler as registers
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
    for n in range(60):
        await asyncio.gather(*(handle.set(n) for handle in handles))
    kept = list(bench.storage.scan(keys.OBJECT, successor(keys.OBJECT)))
    assert len(kept) == 10
    assert sum(len(key) + len(value) for key, value in kept) < 4096


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
