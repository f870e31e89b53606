"""What a thread's handle asks of whatever session it stands on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest

from shoal.client.connection import Connection
from shoal.client.thread import Thread
from shoal.config import Config
from shoal.errors import HeadMoved, OutcomeUnknown
from shoal.node.node import Node
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import NO_HEAD, AnyReply, AnyRequest, Durability, Heads, Push, Save, Subscription
from shoal.protocol.session import Session
from shoal.storage.memory import MemoryStorage
from shoal.testing.environment import SimulatedEnvironment


class Recording:
    """A node's session that notes what it was asked, and can lose an answer."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.asked: list[AnyRequest] = []
        self.lose_answers = False
        self.stands_for: Session | None = None  # Another node's, that is asked instead.

    @property
    def bookmark(self) -> Bookmark:
        return self._session.bookmark

    @property
    def parents(self) -> list[str | None]:
        return [request.parent for request in self.asked if isinstance(request, Save)]

    async def call(
        self, request: AnyRequest, /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> AnyReply:
        self.asked.append(request)
        reply = await (self.stands_for or self._session).call(request, key=key, durability=durability, stale=stale)
        if self.lose_answers and isinstance(request, Save):
            raise OutcomeUnknown("the answer was lost")
        return reply

    def subscribe(self, subscription: Subscription, /) -> AbstractAsyncContextManager[AsyncIterator[Push]]:
        return self._session.subscribe(subscription)

    async def close(self) -> None:
        await self._session.close()


def node(seed: int) -> Node:
    return Node(MemoryStorage(), config=Config(), environment=SimulatedEnvironment(seed).environment)


@pytest.fixture
async def session() -> AsyncIterator[Recording]:
    one = node(1)
    yield Recording(one.session())
    await one.stop()


def thread(session: Session) -> Thread:
    environment = SimulatedEnvironment(9).environment
    return Thread(Connection(session, Config(), "local", environment.now_ms, environment.entropy), "crew", "t")


async def test_a_handle_without_a_position_asks_once_and_names_what_it_builds_on(session: Recording) -> None:
    first = await thread(session).save({"n": 0})
    later = thread(session)
    second = await later.save({"n": 1})
    await later.save({"n": 2})
    assert session.parents == [NO_HEAD, first.id, second.id]
    assert sum(isinstance(request, Heads) for request in session.asked) == 2


async def test_a_branch_that_is_not_there_yet_is_named_as_such(session: Recording) -> None:
    handle = thread(session)
    await handle.save({"n": 0})
    assert (await handle.save({"n": 1}, branch="what-if")).parents == ()
    assert session.parents == [NO_HEAD, NO_HEAD]


async def test_with_an_expected_head_nothing_is_asked_first(session: Recording) -> None:
    await thread(session).save({"n": 0}, expect_head=NO_HEAD)
    assert len(session.asked) == 1


async def test_a_save_of_unknown_outcome_is_repeated_on_the_same_parent(session: Recording) -> None:
    handle = thread(session)
    session.lose_answers = True
    with pytest.raises(OutcomeUnknown):
        await handle.save({"n": 0}, key="k")
    session.lose_answers = False
    await handle.save({"n": 0}, key="k")
    assert session.parents == [NO_HEAD, NO_HEAD]


async def test_a_refusal_is_no_answer_to_an_attempt_whose_outcome_is_unknown(session: Recording) -> None:
    """The first attempt was applied, and the node that is asked next knows only of another's save."""
    handle, other = thread(session), node(2)
    session.lose_answers = True
    with pytest.raises(OutcomeUnknown):
        await handle.save({"n": 0}, key="k")
    await other.session().call(Save("crew", "t", {"n": b"\x07"}), key="another's")
    session.lose_answers, session.stands_for = False, other.session()
    with pytest.raises(OutcomeUnknown, match="an earlier attempt") as unknown:
        await handle.save({"n": 0}, key="k")
    assert unknown.value.detail["key"] == "k"
    with pytest.raises(HeadMoved):
        await handle.save({"n": 0}, key="of its own")
    await other.stop()


async def test_one_save_that_reaches_two_nodes_is_one_checkpoint(session: Recording) -> None:
    await thread(session).save({"n": 0}, on_conflict="fork", key="k")
    [save] = [request for request in session.asked if isinstance(request, Save)]
    other = node(2)
    await other.session().call(Save("crew", "t", {"n": b"\x07"}), key="another's")
    there = await other.session().call(save, key="k")
    here = await session.call(save, key="k")
    assert there.id == here.id  # type: ignore[union-attr]
    await other.stop()
