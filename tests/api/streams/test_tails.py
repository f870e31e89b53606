"""Readers that wait at the end of a stream, whose watch fails or whose node stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

from shoal.api.streams.reading import Tails
from shoal.config import Config
from shoal.errors import Overloaded
from shoal.protocol.session import Session, Wrapper


class Failing(Wrapper):
    """A session whose watch fails as long as `fails`, and else shows nothing."""

    fails = True

    def __init__(self) -> None:
        super().__init__(cast("Session", None))

    def subscribe(self, request: Any, /, **_: Any) -> AbstractAsyncContextManager[AsyncIterator[Any]]:
        return self._watched()

    @asynccontextmanager
    async def _watched(self) -> AsyncIterator[AsyncIterator[Any]]:
        if self.fails:
            raise Overloaded("too many watches. Nothing was written.", retry_after_s=1.0)
        yield self._nothing()

    async def _nothing(self) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield

    async def close(self) -> None:
        pass


def tails_of(session: Failing) -> Tails:
    return Tails(lambda: cast("Session", session), Config())


async def test_a_watch_that_failed_is_not_that_of_the_next_reader() -> None:
    session = Failing()
    tails = tails_of(session)
    with tails.at("crew", "s") as failed:
        await failed.begun()
        assert not await failed.moved(failed.version, 60.0)
        session.fails = False
        with tails.at("crew", "s") as tail:
            await tail.begun()
            assert not tail.is_over
            with tails.at("crew", "s") as same:
                assert same is tail
    with tails.at("crew", "s") as later:
        assert later is not tail


async def test_a_reader_that_comes_while_the_node_stops_does_not_wait() -> None:
    session = Failing()
    session.fails = False
    tails = tails_of(session)
    tails.wake()
    async with asyncio.timeout(20):
        with tails.at("crew", "s") as tail:
            await tail.begun()
            assert not await tail.moved(tail.version, 60.0)


async def test_changes_before_a_reader_waits_are_not_missed() -> None:
    session = Failing()
    session.fails = False
    with tails_of(session).at("crew", "s") as tail:
        await tail.begun()
        looked_at = tail.version
        tail.nudge()  # Between its look at the stream and its wait.
        assert await tail.moved(looked_at, 1.0)
