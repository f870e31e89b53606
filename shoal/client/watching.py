"""What changes in a space: `async for change in space.watch():`.

    async for change in space.watch(after=bookmark):
        if isinstance(change, shoal.Reset):
            ...                                  # read the state again
        else:
            ...                                  # change.kind, change.name, change.what
        bookmark = change.bookmark               # where to go on, also with another node or process

Laws:
- Each durable change comes once, and after what it depends on; the ones that came while
  nobody was connected too, from whatever node answers next.
- Whoever falls behind too far is told once, by a Reset, and goes on from there: what waits is bounded, here and on the node.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from typing import get_args

from msgspec import Struct

from shoal.client.connection import Connection
from shoal.client.moments import moment
from shoal.client.retrying import delays, is_transient, paused
from shoal.errors import InvalidInput, ShoalError
from shoal.protocol import requests
from shoal.protocol.position import Position
from shoal.protocol.requests import ObjectKind


class Change(Struct, frozen=True):
    """One change that is durable. `what` is its kind: "save", "append", "update", …"""

    space: str
    kind: ObjectKind
    name: str
    what: str
    id: str  # Of the checkpoint, event or item; else empty.
    hlc: int
    wall_ms: int
    _position: Position

    @property
    def time(self) -> datetime:
        """By the clock of the node that made it."""
        return moment(self.wall_ms)

    @property
    def bookmark(self) -> str:
        """To go on after this change: `space.watch(after=…)`."""
        return self._position.text()


class Reset(Struct, frozen=True):
    """Some changes are not told: read the state again."""

    reason: str
    _position: Position

    @property
    def bookmark(self) -> str:
        """To go on after what is not told: read only once you have this."""
        return self._position.text()


async def watched(
    connection: Connection, space: str, *, kinds: Sequence[ObjectKind], prefix: str, after: str | None
) -> AsyncGenerator[Change | Reset, None]:
    """
    Raises:
        InvalidInput: there is no such kind of object.
        InvalidValue: `after` is no bookmark of a watch.
        Disconnected: no node could be reached for `request_timeout_s`. Go on later, after the last bookmark.
    """
    check_kinds(kinds)
    position = None if after is None else Position.parse(after)
    pauses = delays(connection.config)
    while True:
        packed = b"" if position is None else position.pack()
        try:
            async with connection.session.subscribe(requests.Watch(space, None, prefix, list(kinds), packed)) as pushes:
                async for push in pushes:
                    pauses = delays(connection.config)
                    match push:
                        case requests.Watching():
                            position = Position.unpack(push.position)
                        case requests.Reset():
                            position = Position.unpack(push.position)
                            yield Reset(push.reason, position.copy())
                        case requests.Change():
                            position = Position() if position is None else position
                            position.note(push)
                            yield _change(push, position.copy())
        except ShoalError as error:
            # A node that goes away is left for another one, which goes on where this one was.
            if not is_transient(error) or not await paused(pauses, error):
                raise


def check_kinds(kinds: Sequence[str]) -> None:
    """
    Raises:
        InvalidInput: there is no such kind of object.
    """
    known = get_args(ObjectKind)
    if isinstance(kinds, str) or not set(kinds) <= set(known):
        raise InvalidInput(f"kinds is a list of some of {', '.join(known)}; got {kinds!r}.")


def _change(push: requests.Change, position: Position) -> Change:
    return Change(push.space, push.kind, push.name, push.what, push.id, push.hlc, push.wall_ms, position)
