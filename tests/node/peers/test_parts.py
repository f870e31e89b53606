"""A change of many elements is applied as several of a few: the rows are those that it makes as one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cluster import operation
from shoal.cluster.messages import Shipment
from shoal.cluster.operation import CHAIN_START, Body
from shoal.crdt.applier import NOTHING
from shoal.crdt.dot import COUNTER_BITS, NOTHING_SEEN, Dot, Origin
from shoal.crdt.rows import Rows, Stamp
from shoal.kinds.items import state as items
from shoal.kinds.map import state as ormap
from shoal.kinds.register import state as register
from shoal.kinds.set import state as orset
from shoal.kinds.set.state import Named
from shoal.kinds.worklist import state as queue
from shoal.node import mutation
from shoal.node.handler import Target
from shoal.node.mutation import Mutation
from shoal.node.peers import delivering, incoming
from shoal.node.transaction import pack_blobs
from shoal.storage.keys import Kind
from shoal.values import work
from shoal.values.work import Allowance
from simulation.world.environment import START_MS
from simulation.world.fleet import Fleet
from tests.crdt.values import test_ormap, test_orset
from tests.node.wiretap import take
from tests.support.causal import Apply
from tests.support.examples import examples
from tests.support.rows import DictRows
from tests.support.samples import chooser
from tests.support.turns import Turns

LIAR = Origin(b"l" * 16)
MANY = 100
NAMED = tuple(Named(b"%04d" % nth) for nth in range(MANY))


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "CHANGES_STEP_MAX", 10)
    monkeypatch.setattr(incoming, "_ELEMENTS_PER_CHANGE", 1)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet("a", join="b:1") as fleet:
        yield fleet


def sent(kind: Kind, *changes: Any) -> Shipment:
    """One operation of the liar."""
    number = Target(kind, "crew", "n").partition
    payload = mutation.encode([Mutation(kind, "crew", "n", each) for each in changes])
    packed = operation.encode(Body(START_MS << COUNTER_BITS, START_MS, [], None, payload))
    dot = Dot(LIAR, 1)
    chain = operation.chain(CHAIN_START, number, dot, packed)
    return Shipment(number, *dot, chain, packed, pack_blobs([NOTHING] * len(changes)))


# ── the same rows ─────────────────────────────────────────────────────────────


def in_parts(whole: Apply) -> Apply:
    """Applies a change as one, and compares what it makes in parts of one element."""

    def apply(rows: Rows, stamp: Stamp, change: Any) -> None:
        parted, parts = deepcopy(rows), mutation._APPLIERS[type(change)].parts
        assert parts is not None
        whole(rows, stamp, change)
        for part in parts(change, 1):
            assert mutation.elements(part) <= 1 or not isinstance(change, orset.Alter | ormap.Alter)
            whole(parted, stamp, part)
        assert list(parted.scan(b"")) == list(rows.scan(b""))

    return apply


@examples(100)
@given(st.data())
def test_a_set_altered_in_parts_is_the_same(data: st.DataObject) -> None:
    test_orset.check(chooser(data), in_parts(test_orset.apply))


@examples(100)
@given(st.data())
def test_a_map_altered_in_parts_is_the_same(data: st.DataObject) -> None:
    test_ormap.check(chooser(data), in_parts(test_ormap.apply))


def test_a_worklist_filled_in_parts_is_the_same() -> None:
    stamp = Stamp(Dot(LIAR, 1), START_MS << COUNTER_BITS, START_MS, NOTHING_SEEN)
    change = queue.Enqueue("w", "ada", [queue.Item(f"k{nth % 3}" if nth % 2 else None, bytes([nth])) for nth in range(9)])
    in_parts(lambda rows, stamp, change: queue.apply_enqueue(rows, stamp, change))(DictRows(), stamp, change)


def refreshing(nth: int) -> items.Refreshed:
    return items.Refreshed((), f"k{nth:04d}", ((LIAR, 1),), 1 << 40)


LONG = [
    (Kind.SET, orset.Alter(NAMED), (orset, "_store")),
    (Kind.SET, orset.Alter(remove=NAMED), (orset, "_store")),
    (Kind.MAP, ormap.Alter("k", NAMED), (orset, "_store")),
    (Kind.MAP, ormap.Remove("k", (), (), NAMED), (orset, "_store")),
    (Kind.ITEMS, items.Refresh(tuple(map(refreshing, range(MANY)))), (items, "_store")),
    (Kind.THREAD, queue.Enqueue("w", "", [queue.Item(None, b"\x01")] * MANY), (queue, "_store")),
    (Kind.ITEMS, items.Expire(tuple(items.Delete((), f"k{nth:04d}", ()) for nth in range(MANY))), (items, "_store")),
]


@pytest.mark.parametrize(("kind", "change", "work"), LONG)
async def test_many_elements_are_applied_in_steps(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, kind: Kind, change: Any, work: tuple[Any, str]
) -> None:
    turns = Turns(monkeypatch, *work, lambda *_: 1)
    assert await take(fleet["a"], [sent(kind, change)]) == []
    assert (turns.all, turns.most) == (MANY, 10)


async def test_changes_of_some_elements_each_are_applied_in_steps(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(monkeypatch, orset, "_store", lambda *_: 1)
    changes = [orset.Alter(NAMED[first : first + 4]) for first in range(0, MANY, 4)]
    assert await take(fleet["a"], [sent(Kind.SET, *changes)]) == []
    assert (turns.all, turns.most) == (MANY, 8)


async def test_changes_of_many_bytes_are_applied_in_steps(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(monkeypatch, register, "store", lambda *_: 1)
    changes = [register.Assign(b"\xc4\xff" + bytes(255), ())] * 8
    monkeypatch.setattr(incoming, "_BYTES_PER_CHANGE", 50)
    assert await take(fleet["a"], [sent(Kind.REGISTER, *changes)]) == []
    assert (turns.all, turns.most) == (8, 2)


async def test_an_operation_not_held_decoded_is_applied_in_steps(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivering, "PEER_DECODED_BYTES_MAX", 0)
    turns = Turns(monkeypatch, orset, "_store", lambda *_: 1)
    assert await take(fleet["a"], [sent(Kind.SET, orset.Alter(NAMED))]) == []
    assert (turns.all, turns.most) == (MANY, 10)


async def test_a_bad_part_spoils_all(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = (*map(refreshing, range(MANY - 1)), items.Refreshed((), "\x00", (), 1))
    [trouble] = await take(fleet["a"], [sent(Kind.ITEMS, items.Refresh(bad))])
    assert "key" in trouble.message
    assert fleet["a"].node._database.partitions.vectors() == {}


# ── counting ──────────────────────────────────────────────────────────────────


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Turns:
    """The lists and maps that are entered while values are counted: each element of a set is one, with one in it."""
    monkeypatch.setattr(operation, "PARTS_MAX", 4 * MANY)
    monkeypatch.setattr(operation, "PARTS_STEP_MAX", 20)
    monkeypatch.setattr(delivering, "PEER_LOOK_BYTES_MAX", 10)
    return Turns(monkeypatch, Allowance, "_enter", lambda *_: 1)


@pytest.mark.parametrize(("elements", "is_beyond"), [(NAMED, False), (NAMED * 2, True)])
async def test_values_are_counted_in_steps_and_once(
    fleet: Fleet, counted: Turns, elements: tuple[Named, ...], is_beyond: bool
) -> None:
    troubles = await take(fleet["a"], [sent(Kind.SET, orset.Alter(elements))])
    assert ["its changes hold more than" in each.message for each in troubles] == [True] * is_beyond
    assert counted.most <= 20
    assert MANY < counted.all < 4 * MANY


def test_counting_ends_where_the_allowance_does() -> None:
    packed = b"\xdd" + (1000).to_bytes(4, "big") + b"\x90" * 1000
    steps = work.counting(packed, 100, 10)
    with pytest.raises(StopIteration) as done:
        for _ in range(12):
            next(steps)
    assert done.value.value is False


def _exhausted(steps: Iterator[None]) -> int:
    return sum(1 for _ in steps)


@pytest.mark.parametrize(
    "wrap", [lambda packed: packed, lambda packed: b"\xc9" + len(packed).to_bytes(4, "big") + b"\x01" + packed]
)
def test_counting_takes_so_many_values_at_a_time(wrap: Callable[[bytes], bytes]) -> None:
    packed = wrap(b"\xdd" + (1000).to_bytes(4, "big") + b"\x90" * 1000)
    assert 95 <= _exhausted(Allowance().charging_packed(packed, 10)) <= 105
    assert work.has_at_most(packed, 1002)
