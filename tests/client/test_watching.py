"""A watch of the client, served by nodes that say what the test wants."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import shoal
from shoal.client.connection import StoreConnection
from shoal.client.watching import watched
from shoal.config import Config
from shoal.crdt.dot import Origin, VersionVector
from shoal.protocol.position import Position
from shoal.protocol.requests import Change, Push, Reset, Subscription, Watch, Watching

ORIGIN = Origin(b"o" * 16)
CONFIG = Config(request_timeout_s=30.0, reconnect_delay_s_max=0.001)


def at(sequence: int) -> Position:
    return Position({0: VersionVector({ORIGIN: sequence})})


def change(name: str) -> Change:
    return Change("crew", "counter", name, "add", "", 1, 1)


class Nodes:
    """Each subscription is served by the next node, which pushes its part and goes away."""

    def __init__(self, *parts: list[Push]) -> None:
        self._parts = iter(parts)
        self.asked: list[Position | None] = []  # Where each subscription began.

    @asynccontextmanager
    async def subscribe(self, subscription: Subscription, /) -> AsyncIterator[AsyncIterator[Push]]:
        assert isinstance(subscription, Watch)
        self.asked.append(Position.unpack(subscription.after) if subscription.after else None)
        yield self._pushed(next(self._parts))

    async def _pushed(self, part: list[Push]) -> AsyncIterator[Push]:
        for push in part:
            yield push


async def test_a_watcher_that_fell_behind_gets_one_reset() -> None:
    session: Any = Nodes([Watching(at(1).pack()), change("a"), Reset(at(7).pack(), "too slow"), change("b")], [change("c")])
    connection = StoreConnection(session, CONFIG, "local", bytes)
    names: list[str] = []
    resets: list[tuple[int, str, Position]] = []
    async with aclosing(watched(connection, "crew", kinds=[], prefix="", after=None, timeout=None)) as changes:
        while len(names) < 3:
            match await anext(changes):
                case shoal.Reset() as reset:
                    resets.append((len(names), reset.reason, Position.parse(reset.bookmark)))
                case told:
                    names.append(told.name)
    assert names == ["a", "b", "c"]
    assert resets == [(1, "too slow", at(7))]
    assert session.asked == [None, at(7)]
