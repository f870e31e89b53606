"""A mirror whose node is gone with the document's beginning, and which goes on with another node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from shoal import values
from shoal.cluster import messages
from shoal.cluster.messages import Push as PeerPush
from shoal.cluster.messages import Supply
from shoal.config import Config
from shoal.errors import NotFound, ReadOnly
from shoal.kinds.document.handle.content import Beginnings
from shoal.kinds.document.handle.document import Document
from shoal.kinds.document.state import genesis
from shoal.protocol import requests
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import Beginning, DocumentState, Durability, Push, Request, Subscription
from simulation.world.fleet import Fleet
from tests.support.pacing import LOOK_S, TURNS

pytestmark = pytest.mark.virtual_time

SPACE, NAME = "crew", "d"
CONTENTS: list[dict[str, Any]] = sorted(
    ({"t": "one", "m": {"k": 1, "mine": 1}}, {"t": "other", "l": [2], "m": {"k": 2, "theirs": 2}}),
    key=lambda content: genesis.begin(content, 0).digest,
)
COUNTS, LOSES = CONTENTS


class Roaming:
    """A client's session that moves on to the node that the test names."""

    def __init__(self) -> None:
        self.bookmark = Bookmark()
        self.connections = 0
        self.writes: list[Request[Any]] = []
        self.refusal: ReadOnly | None = None

    def move(self, fleet: Fleet, name: str) -> None:
        self._at = fleet[name].node.session(self.bookmark)
        self.connections += 1

    async def call(
        self, request: Request[Any], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> Any:
        self.writes.append(request)
        if self.refusal is not None:
            raise self.refusal
        return await self._at.call(request, key=key, durability=durability, stale=stale)

    def subscribe(self, subscription: Subscription, /) -> AbstractAsyncContextManager[AsyncIterator[Push]]:
        return self._at.subscribe(subscription)

    async def close(self) -> None:
        pass


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    """Of two nodes that cannot hear each other."""
    async with Fleet("ab") as fleet:
        await fleet.isolate("a")
        yield fleet


async def begin(fleet: Fleet, name: str, content: dict[str, Any]) -> None:
    await fleet[name].node.session().call(requests.Begin(SPACE, NAME, json.dumps(content).encode()))


async def mirrored(fleet: Fleet, session: Roaming, client_id: int = 7) -> Document:
    session.move(fleet, "a")
    config = Config(request_timeout_s=30, reconnect_delay_s_max=0.01)
    return await Document.open(session, SPACE, NAME, client_id=client_id, config=config)


async def shown(fleet: Fleet) -> Any:
    """What node b shows, without empty roots."""
    try:
        reply = await fleet["b"].node.session().call(requests.ReadDocumentJson(SPACE, NAME))
    except NotFound:
        return {}
    assert isinstance(reply, requests.DocumentJson)
    return {name: value for name, value in json.loads(reply.json).items() if value}


def filled(document: Document) -> dict[str, Any]:
    return {name: value for name, value in document.to_py().items() if value}


async def move_to_b(fleet: Fleet, session: Roaming) -> None:
    """Node a dies with its disk, and the client goes on with b."""
    session.move(fleet, "b")
    await fleet.crash("a")


async def never_mixed(fleet: Fleet, document: Document, content: dict[str, Any]) -> None:
    """Return once the mirror and node b both show this; until then the mirror shows one of the two beginnings."""
    turns = 0
    async with asyncio.timeout(30):
        while not filled(document) == await shown(fleet) == content:
            assert filled(document) in CONTENTS
            turns += 1
            await asyncio.sleep(0 if turns % TURNS else LOOK_S)


@pytest.mark.answers("seed-40661", "only-copy-of-a-beginning-is-lost")
@pytest.mark.parametrize("seen", CONTENTS)
async def test_a_mirror_never_shows_two_beginnings_as_one(fleet: Fleet, seen: dict[str, Any]) -> None:
    session = Roaming()
    await begin(fleet, "a", seen)
    await begin(fleet, "b", LOSES if seen is COUNTS else COUNTS)
    document = await mirrored(fleet, session)
    await move_to_b(fleet, session)
    await never_mixed(fleet, document, COUNTS)
    conflicts = await fleet["b"].node.session().call(requests.ReadConflicts(SPACE, NAME))
    assert isinstance(conflicts, requests.Conflicts)
    [lost] = conflicts.overwritten
    assert (lost.path, values.decode(lost.lost)) == ([], LOSES)
    await document.close()


@pytest.mark.answers("seed-40661")
@pytest.mark.parametrize("seen", CONTENTS)
async def test_an_edit_that_waited_is_written_beside_the_beginning_that_counts(fleet: Fleet, seen: dict[str, Any]) -> None:
    session = Roaming()
    await begin(fleet, "a", seen)
    await begin(fleet, "b", LOSES if seen is COUNTS else COUNTS)
    document = await mirrored(fleet, session)
    await move_to_b(fleet, session)
    document.map("m")["note"] = 3
    await document.flush()
    assert await shown(fleet) == {**COUNTS, "m": {**COUNTS["m"], "note": 3}}
    async with asyncio.timeout(30):
        while filled(document) != await shown(fleet):
            await asyncio.sleep(LOOK_S)
    await document.close()


@pytest.mark.answers("seed-70085")
async def test_a_beginning_that_lost_and_that_the_next_node_never_had_stops_no_edit(fleet: Fleet) -> None:
    """Its roots are of other kinds there. What the mirror has of it is deleted, and shows nothing."""
    contents: list[dict[str, Any]] = [{"r": [1]}, {"r": {"k": 1}}]
    lost, counts = sorted(contents, key=lambda content: genesis.begin(content, 0).digest, reverse=True)
    fleet.spoil = lambda source, target, message: None if source == "a" and _brings(message) else message
    await begin(fleet, "a", lost)
    await begin(fleet, "b", counts)
    fleet.link_all("a")
    session = Roaming()
    document = await mirrored(fleet, session)
    async with asyncio.timeout(30):
        while filled(document) != counts:
            await asyncio.sleep(LOOK_S)
    await move_to_b(fleet, session)
    document.map("m")["note"] = 3
    await document.flush()
    assert await shown(fleet) == filled(document) == {**counts, "m": {"note": 3}}
    await document.close()


def _brings(message: bytes) -> bool:
    return isinstance(messages.decode(message), PeerPush | Supply)


@pytest.mark.answers("restored-beginning-shows-deleted-parts")
async def test_deleted_parts_of_a_restored_beginning_stay_deleted(fleet: Fleet) -> None:
    session = Roaming()
    await begin(fleet, "a", COUNTS)
    await begin(fleet, "b", LOSES)
    document = await mirrored(fleet, session)
    del document.map("m")["k"]
    del document.text("t")[:1]
    await document.flush()
    left = filled(document)
    await move_to_b(fleet, session)
    async with asyncio.timeout(30):
        while await shown(fleet) != left:
            await asyncio.sleep(LOOK_S)
    assert filled(document) == left
    await document.close()


async def test_a_beginning_that_the_next_node_lacks_is_restored_as_one(fleet: Fleet) -> None:
    session = Roaming()
    await begin(fleet, "a", LOSES)
    document = await mirrored(fleet, session)
    await move_to_b(fleet, session)
    async with asyncio.timeout(30):
        while await shown(fleet) != LOSES:
            await asyncio.sleep(LOOK_S)
    begun = await fleet["b"].node.session().call(requests.Begin(SPACE, NAME, json.dumps(COUNTS).encode()))
    assert begun == requests.Begun(created=False)
    assert filled(document) == LOSES
    await document.close()


async def test_a_mirror_takes_nothing_while_its_beginning_cannot_be_restored(fleet: Fleet) -> None:
    session = Roaming()
    await begin(fleet, "a", LOSES)
    await begin(fleet, "b", COUNTS)
    document = await mirrored(fleet, session)
    session.refusal = ReadOnly("the disk is full")
    await move_to_b(fleet, session)
    async with asyncio.timeout(30):
        while not session.writes:
            await asyncio.sleep(LOOK_S)
    assert filled(document) == LOSES
    session.refusal = None
    await never_mixed(fleet, document, COUNTS)
    await document.close()


async def test_a_node_that_has_lost_nothing_is_written_nothing(fleet: Fleet) -> None:
    session = Roaming()
    await begin(fleet, "a", LOSES)
    document = await mirrored(fleet, session)
    fleet.link_all("a")
    await fleet.converged()
    before = len(session.writes)
    await move_to_b(fleet, session)
    document.map("m")["note"] = 3
    await document.flush()
    assert not any(isinstance(write, requests.RestoreBeginning) for write in session.writes[before:])
    await document.close()


NO_CONTENT: Any = None


def test_a_node_that_names_no_beginnings_is_not_asked_to_take_any() -> None:
    known = Beginnings(NO_CONTENT)
    earlier = DocumentState(b"\x00\x00", {})
    assert not known.is_lacked_by(earlier)
    known.learn([Beginning(bytes(32), {})])
    assert not known.is_lacked_by(earlier)
    assert known.is_lacked_by(DocumentState(b"\x00\x00", {}, beginnings=[]))
    assert not known.is_lacked_by(DocumentState(b"\x00\x00", {}, beginnings=[Beginning(bytes(32), {})]))


def test_of_several_beginnings_that_with_the_least_hash_is_shown() -> None:
    known = Beginnings(NO_CONTENT)
    known.learn([Beginning(b"\x02" * 32, {}), Beginning(b"\x01" * 32, {}), Beginning(b"\x03" * 32, {})])
    assert known.shown == b"\x01" * 32
