"""Changes in a space, `async for change in space.watch():`, and its data subjects, `space.subjects`.

Changes in a space: `async for change in space.watch():`.

    async for change in space.watch(after=bookmark):
        if isinstance(change, shoal.Reset):
            ...                                  # read the state again
        else:
            ...                                  # change.kind, change.name, change.what
        bookmark = change.bookmark               # where to continue, also with another node or process

Laws:
- Each durable change comes once, and after the changes that it depends on, including changes made while
  no node was connected.
- A watcher that falls too far behind receives one Reset and continues from there: the queue of changes is bounded, here
  and on the node.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from shoal.client.arguments import named
from shoal.client.connection import StoreConnection, StreamTimer, resumed
from shoal.errors import Disconnected
from shoal.protocol import requests
from shoal.protocol.position import Position
from shoal.protocol.requests import Durability, ObjectKind
from shoal.workflows import subjects
from shoal.workflows.connection import moment
from shoal.workflows.spaces import check_kinds
from shoal.workflows.subjects import SubjectKind, SubjectReport, SubjectTag


class Change(Struct, frozen=True):
    """One durable change. `what` is its kind: "save", "append", "update", …"""

    space: str
    kind: ObjectKind
    name: str
    what: str
    id: str  # The id of the checkpoint, event, queue entry, key or item; empty if the object as a whole changed.
    hlc: int
    wall_ms: int
    _position: Position

    @property
    def time(self) -> datetime:
        """When the change was made, by the clock of the node that made it."""
        return moment(self.wall_ms)

    @property
    def bookmark(self) -> str:
        """Resumes after this change: `space.watch(after=…)`."""
        return self._position.text()


class Reset(Struct, frozen=True):
    """Some changes were left out: read the state again."""

    reason: str
    _position: Position

    @property
    def bookmark(self) -> str:
        """Resumes after the changes left out. Read the state only after you received this."""
        return self._position.text()


async def watched(
    connection: StoreConnection,
    space: str,
    *,
    kinds: Sequence[ObjectKind],
    prefix: str,
    after: str | None,
    timeout: float | None,  # noqa: ASYNC109
) -> AsyncGenerator[Change | Reset, None]:
    """Yield every durable change in this space once, in causal order, from now on or after a change's `bookmark`
    (`Space.watch`).
    """
    check_kinds(kinds)
    watch = requests.Watch(space, None, prefix, list(kinds))
    position = None if after is None else Position.parse(after)
    async with aclosing(pushed(connection, watch, position, timeout=timeout)) as pushes:
        async for push, reached in pushes:
            yield Reset(push.reason, reached) if isinstance(push, requests.Reset) else _change(push, reached)


def pushed(
    connection: StoreConnection,
    watch: requests.Watch,
    position: Position | None = None,
    *,
    is_about: Callable[[requests.Change], bool] = lambda _: True,
    timeout: float | None = None,
) -> AsyncGenerator[tuple[requests.Change | requests.Reset, Position], None]:
    """Yield the changes after `position`, or from now on, each with the position after it.

    `is_about`: only changes for which it is true.
    """

    async def attempt(timer: StreamTimer) -> AsyncGenerator[tuple[requests.Change | requests.Reset, Position], None]:
        nonlocal position
        packed = b"" if position is None else position.pack()
        async with connection.session.subscribe(replace(watch, after=packed)) as pushes:
            if position is not None:
                timer.served()
            async for push in pushes:
                match push:
                    case requests.Watching():
                        position = Position.unpack(push.position)
                        timer.served()
                    case requests.Reset():
                        position = Position.unpack(push.position)
                        yield push, position.copy()
                    case requests.Change():
                        position = Position() if position is None else position
                        position.note(push)
                        if is_about(push):
                            yield push, position.copy()
        raise Disconnected("the node ended the watch. Nothing was written. Watch again with after= the last bookmark.")

    return resumed(connection.config, attempt, timeout=timeout, closed=connection.closed.is_set)


def _change(push: requests.Change, position: Position) -> Change:
    return Change(push.space, push.kind, push.name, push.what, push.id, push.hlc, push.wall_ms, position)


@named
class Subjects:
    """Which objects of a space carry data about which person, so that all of it can be found and erased.

    Tag an object before it is written for the first time: then nothing is stored that no erasure finds.
    """

    def __init__(self, connection: StoreConnection, space: str) -> None:
        self._connection = connection
        self._space = space

    async def tag(
        self, subject: str, kind: SubjectKind, name: str, part: str = "", *, durability: Durability | None = None
    ) -> bool:
        """Tag an object, which need not exist yet. False if it is tagged already.

        `kind`: thread, document, items, map, set, counter, register, budget, or event. `name` is the object's; of items the
        labels of their namespace, joined by periods; of an event its thread's. `part`: the key of an item or of a map's entry,
        a member of a set as JSON, or an event's id; empty for the whole object.

        Raises:
            InvalidInput, InvalidName: there is no such kind, it has no parts, or a name is not legal.
        """
        found = [SubjectTag(kind, name, part)]
        return bool(await subjects.write_tag(self._connection, self._space, subject, found, durability=durability))

    async def untag(
        self, subject: str, kind: SubjectKind, name: str, part: str = "", *, durability: Durability | None = None
    ) -> bool:
        """Remove a tag; the object stays. False if there was none.

        Raises:
            InvalidInput, InvalidName: as `tag`.
        """
        found = [SubjectTag(kind, name, part)]
        return bool(await subjects.write_tag(self._connection, self._space, subject, found, remove=True, durability=durability))

    async def find(self, subject: str) -> list[SubjectTag]:
        """The objects that are tagged with a subject."""
        return await subjects.find(self._connection, self._space, subject)

    async def erase(self, subject: str, *, durability: Durability | None = None) -> SubjectReport:
        """Delete all that is tagged with a subject, on every node, and then its tags. This cannot be undone.

        The report says what became of each object. What was tagged meanwhile, or at a node that was away, is found when it is
        erased again.
        """
        report, _ = await subjects.erase(self._connection, self._space, subject, durability=durability)
        return report
