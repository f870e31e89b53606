"""What a thread's handle asks of whatever session it stands on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from shoal.client.connection import StoreConnection
from shoal.config import Config
from shoal.errors import HeadMoved, OutcomeUnknown, ShoalError, StorageFull
from shoal.kinds.thread.handle.thread import Thread
from shoal.node.node import Node
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import (
    NO_HEAD,
    AnyRequest,
    Durability,
    Heads,
    Push,
    Request,
    Save,
    Subscription,
)
from shoal.protocol.session import Session
from shoal.storage.interface import MemoryStorage
from simulation.bounds import altered
from simulation.world.environment import SimulatedEnvironment


class Recording:
    """A node's session that notes what it was asked, and can lose an answer."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.asked: list[AnyRequest] = []
        self.lose_answers = False
        self.rivals = 0  # So many saves are each preceded by another's.
        self.loss: type[ShoalError] = OutcomeUnknown
        self.stands_for: Session | None = None  # Another node's, that is asked instead.

    @property
    def bookmark(self) -> Bookmark:
        return self._session.bookmark

    @property
    def connections(self) -> int:
        return self._session.connections

    @property
    def parents(self) -> list[str | None]:
        return [request.parent for request in self.asked if isinstance(request, Save)]

    async def call(
        self, request: Request[Any], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> Any:
        self.asked.append(request)
        if isinstance(request, Save) and self.rivals:
            self.rivals -= 1
            await self._session.call(Save("crew", "t", {}, delta=True, appended={"log": b"\x91\xa1r"}))
        reply = await (self.stands_for or self._session).call(request, key=key, durability=durability, stale=stale)
        if self.lose_answers and isinstance(request, Save):
            raise self.loss("the answer was lost")
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


def thread(session: Session, config: Config | None = None) -> Thread:
    environment = SimulatedEnvironment(9).environment
    return Thread(StoreConnection(session, config or Config(), "local", environment.entropy), "crew", "t")


async def test_a_handle_without_a_position_asks_once_and_names_what_it_builds_on(session: Recording) -> None:
    first = await thread(session).save({"n": 0})
    later = thread(session)
    second = await later.update({"n": 1})
    await later.save({"n": 2})
    assert session.parents == [NO_HEAD, first.id, second.id]
    assert sum(isinstance(request, Heads) for request in session.asked) == 1


async def test_a_whole_state_of_a_handle_without_a_position_builds_on_nothing_and_asks_nothing(session: Recording) -> None:
    await thread(session).save({"n": 0})
    with pytest.raises(HeadMoved):
        await thread(session).save({"n": 1})
    assert session.parents == [NO_HEAD, NO_HEAD]
    assert len(session.asked) == 2


async def test_retries_have_the_same_key_and_write_once(session: Recording) -> None:
    handle = thread(session)
    session.rivals = 3
    made = await handle.append("log", "mine", key="k")
    assert (await thread(session).append("log", "mine", key="k")).id == made.id
    assert (await handle.load()).state == {"log": ["r", "r", "r", "mine"]}


async def test_attempts_are_bounded(session: Recording) -> None:
    session.rivals = 3
    with altered(save_attempts_max=3), pytest.raises(HeadMoved, match="another save came first at each of 3 attempts"):
        await thread(session).append("log", "mine")
    assert (await thread(session).load()).state == {"log": ["r", "r", "r"]}


@pytest.mark.answers("restarted-agent-replaces-an-unloaded-state")
async def test_an_append_of_unknown_outcome_is_not_made_of_what_came_after(session: Recording) -> None:
    """It may be there: made of another head it could count twice."""
    handle, other = thread(session), thread(session)
    await handle.append("log", "a")
    session.lose_answers = True
    with pytest.raises(OutcomeUnknown):
        await handle.append("log", "b", key="k")
    session.lose_answers = False
    await other.append("log", "c")
    with pytest.raises(HeadMoved):
        await handle.append("log", "b", key="another")
    await handle.append("log", "b", key="k")
    assert (await other.load()).state == {"log": ["a", "b", "c"]}


async def test_a_first_save_of_unknown_outcome_does_not_replace_what_came_meanwhile(session: Recording) -> None:
    handle = thread(session)
    session.lose_answers = True
    with pytest.raises(OutcomeUnknown):
        await handle.save({"log": []}, key="k")
    session.lose_answers = False
    await thread(session).append("log", "a")
    await handle.save({"log": []}, key="k")
    with pytest.raises(HeadMoved):
        await handle.save({"log": []})
    await handle.load()
    await handle.save({"log": []})


async def test_a_modification_of_unknown_outcome_is_sent_again_under_its_key(session: Recording) -> None:
    """As it was: its function is not called anew."""
    handle = thread(session)
    session.lose_answers = True
    with pytest.raises(OutcomeUnknown):
        await handle.modify(lambda state: {"n": state.get("n", 0) + 1}, key="k")
    session.lose_answers = False
    made = await handle.modify(lambda state: {"n": 1 // 0}, key="k")
    assert made.state == {"n": 1}
    assert [checkpoint.id async for checkpoint in handle.history()] == [made.id]


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


@pytest.mark.answers("unknown-outcomes-are-told", note="what fails after something was written says so")
@pytest.mark.parametrize("loss", [OutcomeUnknown, StorageFull])
async def test_a_refusal_is_no_answer_to_an_attempt_whose_outcome_is_unknown(
    session: Recording, loss: type[ShoalError]
) -> None:
    """The first attempt was applied, and the node that is asked next knows only of another's save."""
    handle, other = thread(session), node(2)
    session.lose_answers, session.loss = True, loss
    with pytest.raises(loss):
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
    assert there.id == here.id
    await other.stop()
