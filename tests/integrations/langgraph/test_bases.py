"""What the saver remembers of live threads, and what it then sends of a list that has grown."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint

from shoal.client.connection import StoreConnection
from shoal.client.store import Store
from shoal.config import Config
from shoal.errors import StoreCorrupt
from shoal.integrations.langgraph import ShoalSaver
from shoal.integrations.langgraph import writes as bases_module
from shoal.integrations.langgraph.encoding import Place, added_elements
from shoal.integrations.langgraph.writes import LIST_BYTES_MIN, Base, Bases
from shoal.node.node import Node
from shoal.protocol import requests
from shoal.storage.interface import MemoryStorage
from simulation.world.environment import SimulatedEnvironment

PLACE = Place("t", "")
BASE = Base("id", {}, frozenset())
pack = msgspec.msgpack.encode
WORDS = ["word " * 30 + str(number) for number in range(40)]
LISTS = st.lists(st.integers(-(2**63), 2**64 - 1) | st.text(), max_size=40)


class Distant:
    """A session as one over the network, which can begin nothing at once."""

    def __init__(self, session: Any) -> None:
        self.bookmark = session.bookmark
        self.connections = session.connections
        self.sent: list[requests.Save] = []
        self.appends_fail = False
        self._session = session

    async def call(self, request: Any, /, **options: Any) -> Any:
        if isinstance(request, requests.Save):
            self.sent.append(request)
            if self.appends_fail and request.appended:
                raise StoreCorrupt("a list cannot be read")
        return await self._session.call(request, **options)

    def subscribe(self, subscription: Any, /) -> Any:
        return self._session.subscribe(subscription)

    async def close(self) -> None:
        await self._session.close()


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    settings, environment = Config(), SimulatedEnvironment(1).environment
    node = Node(MemoryStorage(), config=settings, environment=environment)
    yield Store(StoreConnection(Distant(node.session()), settings, "local", environment.entropy), close=node.stop)
    await node.stop()


@pytest.fixture
async def saver(store: Store) -> ShoalSaver:
    return ShoalSaver(store)


@pytest.fixture
def distant(store: Store) -> Any:
    return store.connection.session


def config(id: str | None = None) -> RunnableConfig:
    return {"configurable": {"thread_id": "t", "checkpoint_ns": "", **({} if id is None else {"checkpoint_id": id})}}


async def put(saver: ShoalSaver, number: int, **values: Any) -> None:
    id = f"{number:04}"
    versions = dict.fromkeys(values, id)
    made = {**empty_checkpoint(), "id": id, "channel_values": values, "channel_versions": versions}
    parent = f"{number - 1:04}" if number else None
    await saver.aput(config(parent), made, {}, versions)  # type: ignore[arg-type]


async def state(saver: ShoalSaver) -> dict[str, Any]:
    found = await saver.aget_tuple(config())
    assert found is not None
    return found.checkpoint["channel_values"]


# ── what is sent ──────────────────────────────────────────────────────────────


async def test_of_a_list_that_has_grown_the_added_elements_are_sent(saver: ShoalSaver, distant: Distant) -> None:
    await put(saver, 0, said=WORDS[:20], step=0)
    await put(saver, 1, said=WORDS[:22], step=1)
    request = distant.sent[-1]
    assert request.appended == {"said": pack(WORDS[20:22])}
    assert list(request.channels) == ["step"]
    assert await state(saver) == {"said": WORDS[:22], "step": 1}


async def test_a_channel_that_others_were_put_beside_is_still_known(saver: ShoalSaver, distant: Distant) -> None:
    await put(saver, 0, said=WORDS[:20])
    made = {**empty_checkpoint(), "id": "0001", "channel_values": {"said": WORDS[:20], "step": 1}}
    made["channel_versions"] = {"said": "0000", "step": "0001"}
    await saver.aput(config("0000"), made, {}, {"step": "0001"})  # type: ignore[arg-type]
    await put(saver, 2, said=WORDS[:21], step=2)
    assert distant.sent[-1].appended == {"said": pack(WORDS[20:21])}


@pytest.mark.parametrize("other", [WORDS[1:25], WORDS[:19], "text", None, {"a": WORDS}, ["x", *WORDS]])
async def test_any_other_value_is_sent_whole(saver: ShoalSaver, distant: Distant, other: Any) -> None:
    await put(saver, 0, said=WORDS[:20])
    await put(saver, 1, said=other)
    assert not distant.sent[-1].appended
    assert await state(saver) == {"said": other}


async def test_a_process_that_reads_first_sends_only_what_it_adds(store: Store, saver: ShoalSaver, distant: Distant) -> None:
    await put(saver, 0, said=WORDS[:20])
    other = ShoalSaver(store)
    await state(other)
    await put(other, 1, said=WORDS[:21])
    assert distant.sent[-1].appended == {"said": pack(WORDS[20:21])}
    assert await state(saver) == {"said": WORDS[:21]}


async def test_a_checkpoint_that_another_process_put_again_has_lists_of_its_own(
    store: Store, saver: ShoalSaver, distant: Distant
) -> None:
    await put(saver, 0, said=WORDS[:20])
    await put(ShoalSaver(store), 0, said=WORDS[:10])
    assert [found.checkpoint["channel_values"]["said"] async for found in saver.alist(config())] == [WORDS[:10]]
    await put(saver, 1, said=WORDS[:21])
    assert await state(saver) == {"said": WORDS[:21]}


async def test_a_list_that_cannot_be_extended_is_sent_whole(saver: ShoalSaver, distant: Distant) -> None:
    await put(saver, 0, said=WORDS[:20])
    distant.appends_fail = True
    await put(saver, 1, said=WORDS[:21])
    assert [list(sent.channels) for sent in distant.sent] == [["said"], [], ["said"]]
    assert await state(saver) == {"said": WORDS[:21]}


@pytest.mark.answers("whole-history-is-stored-again-at-each-step")
@pytest.mark.parametrize("seed", range(5))
async def test_a_list_is_read_again_after_any_change(saver: ShoalSaver, distant: Distant, seed: int) -> None:
    draw = random.Random(seed)
    said: list[Any] = []
    for number in range(40):
        match draw.randrange(8):
            case 0 if said:
                said = said[: draw.randrange(len(said))]
            case 1 if said:
                said = [*said]
                said[draw.randrange(len(said))] = "edited"
            case 2:
                said = [*said, *draw.choices(WORDS, k=30)]
            case _:
                said = [*said, draw.choice(WORDS)]
        await put(saver, number, said=said, step=number)
        assert await state(saver) == {"said": said, "step": number}, (seed, number)
    assert any(sent.appended for sent in distant.sent), seed


@pytest.mark.parametrize("seed", range(5))
async def test_readers_see_the_puts_of_several_processes(store: Store, distant: Distant, seed: int) -> None:
    draw = random.Random(seed)
    savers = [ShoalSaver(store) for _ in range(2)]
    there: dict[str, list[Any]] = {}
    for number in range(60):
        saver, id = draw.choice(savers), f"{draw.randrange(4):04}"  # Ids repeat, so checkpoints are put again.
        if draw.random() < 0.4:
            assert {found.config["configurable"]["checkpoint_id"] async for found in saver.alist(config())} == set(there)
        parent = draw.choice([None, *there])
        said = [*(there[parent] if parent else WORDS[:10]), draw.choice(WORDS)]
        made = {**empty_checkpoint(), "id": id, "channel_values": {"said": said}, "channel_versions": {"said": str(number)}}
        await saver.aput(config(parent), made, {}, {"said": str(number)})  # type: ignore[arg-type]
        there[id] = said
        found = await ShoalSaver(store).aget_tuple(config(id))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"said": said}, (seed, number)
    assert any(sent.appended for sent in distant.sent), seed


@given(LISTS, LISTS)
def test_added_elements_are_those_after_the_first_list(first: list[Any], then: list[Any]) -> None:
    assert added_elements(pack(first), pack(first + then)) == pack(then)
    if then[: len(first)] != first:
        assert added_elements(pack(first), pack(then)) is None


@pytest.mark.parametrize("count", [0, 15, 16, 65_535, 65_536])
def test_a_header_of_any_length_is_understood(count: int) -> None:
    first = [1] * count
    assert added_elements(pack(first), pack([*first, "x", "y"])) == pack(["x", "y"])
    assert added_elements(pack([]), pack(first)) == pack(first)


# ── what is remembered ────────────────────────────────────────────────────────


def long_list(fill: str) -> bytes:
    return pack([fill * LIST_BYTES_MIN])


def test_beyond_the_bound_the_oldest_lists_are_forgotten_and_their_checkpoints_stay() -> None:
    bases = Bases(lists_bytes_max=3 * LIST_BYTES_MIN)
    for number in range(4):
        bases.put(PLACE, str(number), BASE, packed={"a": long_list("x")})
    assert [bool(bases.lists(PLACE, str(number), BASE)) for number in range(4)] == [False, False, True, True]
    assert all(bases.get(PLACE, str(number)) for number in range(4))


def test_a_list_larger_than_the_bound_is_not_kept() -> None:
    bases = Bases(lists_bytes_max=LIST_BYTES_MIN)
    bases.put(PLACE, "1", BASE, packed={"a": long_list("x")})
    assert not bases.lists(PLACE, "1", BASE)


def test_short_lists_and_other_values_are_not_kept() -> None:
    bases = Bases(lists_bytes_max=100 * LIST_BYTES_MIN)
    bases.put(PLACE, "1", BASE, packed={"short": pack([1]), "text": pack("x" * 5000), "long": long_list("x")})
    assert list(bases.lists(PLACE, "1", BASE)) == ["long"]


def test_replaced_and_forgotten_changes_leave_with_their_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bases_module, "BASES_MAX", 2)
    bases = Bases(lists_bytes_max=3 * LIST_BYTES_MIN)
    for round in range(20):  # More than the bound holds, unless each is dropped.
        bases.put(PLACE, f"{round}-1", BASE, packed={"a": long_list("x")})
        bases.put(PLACE, f"{round}-2", BASE, replacing=f"{round}-1", packed={"a": long_list("y")})
        assert bases.get(PLACE, f"{round}-1") is None
        assert not bases.lists(PLACE, f"{round}-1", BASE)
        assert bases.lists(PLACE, f"{round}-2", BASE)
        bases.put(PLACE, f"{round}-2", BASE, packed={"a": long_list("z")})
        bases.forget(PLACE, f"{round}-2")
        assert not bases.lists(PLACE, f"{round}-2", BASE)
    for number in range(3):
        bases.put(PLACE, str(number), BASE, packed={"a": long_list("x")})
    assert bases.get(PLACE, "0") is None
    assert not bases.lists(PLACE, "0", BASE)
    bases.forget_thread("t")
    assert bases.get(PLACE, "2") is None
    assert not bases.lists(PLACE, "2", BASE)
