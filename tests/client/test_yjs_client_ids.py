"""The Yjs client ids of mirrors: a later mirror uses the one that an earlier mirror left, and nobody else does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from shoal.client.connection import ClientIds, Ended, Place, StoreConnection
from shoal.client.store import Space, Store
from shoal.config import Config
from shoal.errors import Disconnected
from shoal.kinds.document.handle.document import Document
from shoal.node.node import Node
from shoal.protocol.requests import Update
from shoal.protocol.session import Wrapper
from shoal.storage.interface import MemoryStorage
from simulation.bounds import altered
from simulation.world.environment import SimulatedEnvironment

PLACE = Place("crew", "doc", "")


class Reconnecting(Wrapper):
    """A session that has had as many connections as the test says."""

    connections = 1

    async def call(self, request: Any, /, **options: Any) -> Any:
        return await self._session.call(request, **options)


class Bench:
    def __init__(self) -> None:
        self._simulated = SimulatedEnvironment(1)
        self._config = Config()
        self.node = Node(MemoryStorage(), config=self._config, environment=self._simulated.environment)
        self.session = Reconnecting(self.node.session())
        self.space = self.another()

    def another(self) -> Space:
        """The space in another store of the same node."""
        entropy = self._simulated.environment.entropy
        return Store(StoreConnection(self.session, self._config, "local", entropy), close=self.session.close).space("crew")

    async def edited(self, text: str = "x", name: str = "doc", **options: Any) -> int:
        """The client id of a mirror that edited and was closed."""
        async with await self.space.document(name, **options) as document:
            edit(document, text)
        return document.client_id


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    await made.node.stop()


def edit(document: Document, text: str) -> None:
    body = document.text("body")
    body += text


async def shown(bench: Bench, name: str = "doc") -> str:
    async with await bench.another().document(name) as document:
        return str(document.text("body"))


async def clients(bench: Bench) -> int:
    """How many clients the document has an entry for."""
    async with await bench.another().document("doc") as document:
        return document._mirror.content.doc.get_state()[0]


async def test_a_document_has_one_client_however_often_it_is_opened(bench: Bench) -> None:
    used = {await bench.edited(f"{number} ") for number in range(20)}
    assert len(used) == 1
    assert await clients(bench) == 1
    assert await shown(bench) == "".join(f"{number} " for number in range(20))


async def test_mirrors_that_are_open_at_once_have_an_id_each_and_leave_both(bench: Bench) -> None:
    for _ in range(5):
        first, second = await bench.space.document("doc"), await bench.space.document("doc")
        assert first.client_id != second.client_id
        edit(first, "a")
        edit(second, "b")
        await first.close()
        await second.close()
    assert await clients(bench) == 2
    assert sorted(await shown(bench)) == ["a"] * 5 + ["b"] * 5


async def test_another_store_document_and_author_have_ids_of_their_own(bench: Bench) -> None:
    used = [await bench.edited(), await bench.edited(name="other"), await bench.edited(author="ada")]
    async with await bench.another().document("doc") as document:
        used.append(document.client_id)
    assert len(set(used)) == 4
    assert await bench.edited() == used[0]
    assert await bench.edited(author="ada") == used[2]


@pytest.mark.answers("two-yjs-documents-share-a-client-id-and-diverge")
async def test_over_another_connection_there_is_another_id(bench: Bench) -> None:
    """The memory of a machine may have been copied meanwhile, and the copy would use the same."""
    first = await bench.edited()
    bench.session.connections += 1
    second = await bench.edited()
    assert second != first
    bench.session.connections -= 1
    assert await bench.edited() not in (first, second)


async def test_a_mirror_whose_connection_broke_while_it_opened_has_a_new_id(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await bench.edited("a")
    opened: list[int] = []
    sound = Document.open

    async def breaking(*args: Any, client_id: int, **options: Any) -> Document:
        opened.append(client_id)
        document = await sound(*args, client_id=client_id, **options)
        bench.session.connections += 1
        return document

    monkeypatch.setattr(Document, "open", breaking)
    second = await bench.edited("b")
    assert opened == [first, second]
    assert second != first
    assert await shown(bench) == "ab"


@pytest.mark.answers("two-yjs-documents-share-a-client-id-and-diverge")
async def test_an_id_whose_edits_end_elsewhere_is_not_used(bench: Bench) -> None:
    first = await bench.edited("a")
    stranger = await Document.open(bench.session, "crew", "doc", client_id=first, config=Config())
    edit(stranger, "b")
    await stranger.close()
    assert await bench.edited("c") != first
    assert await shown(bench) == "abc"


async def test_an_id_of_a_deleted_document_is_not_used(bench: Bench) -> None:
    first = await bench.edited("a")
    await (await bench.another().document("doc")).delete()
    assert await bench.edited("b") != first
    assert await shown(bench) == "b"


async def test_a_mirror_that_was_abandoned_or_was_present_leaves_no_id(bench: Bench) -> None:
    abandoned = await bench.space.document("doc")
    edit(abandoned, "a")
    await abandoned.abandon()
    present = await bench.space.document("doc")
    await present.presence.set({"doing": "reading"})
    edit(present, "b")
    await present.close()
    assert await bench.edited("c") not in (abandoned.client_id, present.client_id)


async def test_a_mirror_that_is_closed_by_two_at_once_leaves_one_id(bench: Bench) -> None:
    document = await bench.space.document("doc")
    edit(document, "a")
    await asyncio.gather(document.close(), document.close())
    first, second = await bench.space.document("doc"), await bench.space.document("doc")
    assert first.client_id == document.client_id
    assert second.client_id != document.client_id
    await first.close()
    await second.close()


async def test_unwritten_edits_are_sent_from_the_last_end(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole document would be sent otherwise, and may be larger than a request."""
    await bench.edited("x" * 10_000)
    sent: list[int] = []
    sound = bench.session.call

    async def call(request: Any, /, **options: Any) -> Any:
        if isinstance(request, Update):
            sent.append(len(request.update))
            if len(sent) == 1:
                raise Disconnected("nothing arrived")
        return await sound(request, **options)

    monkeypatch.setattr(bench.session, "call", call)
    await bench.edited("y")
    assert len(sent) == 2
    assert max(sent) < 1000
    assert await shown(bench) == "x" * 10_000 + "y"


async def test_a_bounded_number_of_ids_is_kept() -> None:
    with altered(document_client_ids_max=2):
        bench = Bench()
        first = [await bench.edited(name=f"d{number}") for number in range(3)]
        assert await bench.edited(name="d2") == first[2]
        assert await bench.edited(name="d1") == first[1]
        assert await bench.edited(name="d0") != first[0]
        await bench.node.stop()


async def test_the_place_at_which_none_was_left_for_longest_loses_its_ids() -> None:
    ids = ClientIds()
    for number in range(4):
        ids.leave(PLACE._replace(document=str(number % 2)), Ended(number, 1, 0, 1), ids_max=3)
    assert ids.take(PLACE._replace(document="0"), 1) is None
    assert ids.take(PLACE._replace(document="1"), 1) == Ended(3, 1, 0, 1)
    assert ids.take(PLACE._replace(document="1"), 1) == Ended(1, 1, 0, 1)
    assert ids.take(PLACE._replace(document="1"), 1) is None
    assert not ids._left


def test_ids_of_an_ended_connection_are_forgotten() -> None:
    ids = ClientIds()
    ids.leave(PLACE, Ended(1, 1, 0, 1), ids_max=3)
    assert ids.take(PLACE, 2) is None
    assert ids.take(PLACE, 1) is None
