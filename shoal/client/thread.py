"""A thread: one agent's line of work, as a handle.

Law: the handle has a position per branch, which is what it last loaded or saved
there; a save builds on it. A handle without a position builds on the branch's
winner, which it asks for and names, so that a save that is sent again to another
node builds on the same. So two handles that save on one checkpoint make a fork,
which both can see (`Checkpoint.forked`), and neither overwrites the other.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from shoal import values
from shoal.client.connection import Connection
from shoal.client.journal import Journal
from shoal.client.moments import moment
from shoal.errors import InvalidInput, InvalidValue, OutcomeUnknown
from shoal.names import check_name, check_names
from shoal.protocol import requests
from shoal.protocol.requests import Durability


class Checkpoint(Struct, frozen=True):
    """An immutable snapshot of a thread's channels."""

    id: str
    parents: tuple[str, ...]
    branch: str
    heads: tuple[str, ...]  # Of the branch when this was answered, the winner first.
    wall_ms: int
    schema: str
    schema_version: int
    _metadata: bytes
    _channels: Mapping[str, bytes] | None

    def __repr__(self) -> str:
        return f"Checkpoint({self.id!r}, branch={self.branch!r}, time={self.time.isoformat()!r})"

    @property
    def time(self) -> datetime:
        """When it was saved, by the clock of the node that did."""
        return moment(self.wall_ms)

    @property
    def forked(self) -> bool:
        """Whether the branch had more than one head."""
        return len(self.heads) > 1

    @property
    def metadata(self) -> dict[str, Any]:
        return dict(values.decode(self._metadata))

    @property
    def state(self) -> dict[str, Any]:
        """Channel name → value, decoded anew at each access: change it as you like.

        Raises:
            InvalidInput: this came from a history without states.
            InvalidValue: a value's type is not registered here.
        """
        if self._channels is None:
            raise InvalidInput(f"checkpoint {self.id} was listed without its state; load({self.id!r}) has it.")
        return {name: values.decode(packed) for name, packed in self._channels.items()}


class Thread:
    def __init__(self, connection: Connection, space: str, name: str) -> None:
        self._connection = connection
        self.space = check_name("space", space)
        self.name = check_name("thread", name)
        self.journal = Journal(connection, space, name)
        self._positions: dict[str, str] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def __repr__(self) -> str:
        return f"Thread({self.space!r}, {self.name!r})"

    async def save(
        self,
        state: Mapping[str, Any],
        *,
        metadata: Mapping[str, Any] | None = None,
        branch: str = "main",
        expect_head: str | None = None,
        key: str | None = None,
        durability: Durability | None = None,
    ) -> Checkpoint:
        """Save `state` (channel name → value) as a checkpoint, and build on it from now on.

        `expect_head` is the id that must be the branch's only head, or NO_HEAD for a
        branch that must not exist yet. `key` makes a repetition of this very save,
        by anyone, return the first one's checkpoint.

        Raises:
            InvalidValue: a value cannot be serialised; the message shows the line that registers its type.
            HeadMoved: `expect_head` does not hold.
            OutcomeUnknown: no answer came; the same save with the same key is safe.
        """
        channels = encode_channels(state)
        packed = encode_metadata(metadata)
        # One save of a handle at a time and per branch: the next builds on this one.
        async with self._turns[branch]:
            parent = None if expect_head is not None else await self._parent(branch)
            request = requests.Save(self.space, self.name, channels, packed, branch, parent, expect_head)
            try:
                saved = await self._connection.write(request, key=key, durability=durability)
            except OutcomeUnknown:
                if parent is not None:
                    self._positions[branch] = parent  # Who saves it again, with its key, means this very save.
                raise
            assert isinstance(saved, requests.Saved)
            self._positions[branch] = saved.id
        return Checkpoint(saved.id, tuple(saved.parents), branch, tuple(saved.heads), saved.wall_ms, "", 0, packed, channels)

    async def _parent(self, branch: str) -> str:
        """What a save builds on: the handle's position, or the branch's winner; NO_HEAD if there is none yet."""
        position = self._positions.get(branch)
        if position is not None:
            return position
        heads = (await self.heads()).get(branch)
        return heads[0] if heads else requests.NO_HEAD

    async def load(self, checkpoint: str | None = None, *, branch: str = "main", stale: bool = False) -> Checkpoint:
        """Load a checkpoint by id, or the branch's winner, and build on it from now on.

        `stale`: see `Store`. A save on what was loaded so stands beside what came after it, as a fork.

        Raises:
            NotFound: there is none.
            SessionBehind, BookmarkLost: the node lacks what this store has written or seen.
        """
        found = await self._connection.read(requests.Load(self.space, self.name, checkpoint, branch), stale=stale)
        assert isinstance(found, requests.Checkpoint)
        self._positions[found.branch] = found.id
        return _checkpoint(found, channels=True)

    async def history(
        self,
        *,
        branch: str = "main",
        before: str | None = None,
        limit: int | None = None,
        states: bool = False,
        stale: bool = False,
    ) -> AsyncIterator[Checkpoint]:
        """Checkpoints from the branch's winner (or strictly before `before`) back, newest first. `stale`: see `Store`."""
        while limit is None or limit > 0:
            asked = 100 if limit is None else min(limit, 100)
            request = requests.History(self.space, self.name, branch, before, asked, states)
            page = await self._connection.read(request, stale=stale)
            assert isinstance(page, requests.Checkpoints)
            for found in page.items:
                yield _checkpoint(found, channels=states)
            if not page.more or not page.items:
                return
            before = page.items[-1].id
            limit = None if limit is None else limit - len(page.items)

    async def heads(self, *, stale: bool = False) -> dict[str, list[str]]:
        """Branch name → ids of its heads, the winner first; more than one is a fork. `stale`: see `Store`."""
        found = await self._connection.read(requests.Heads(self.space, self.name), stale=stale)
        assert isinstance(found, requests.Branches)
        return found.branches


def encode_channels(state: Mapping[str, Any]) -> dict[str, bytes]:
    if type(state) is not dict and not isinstance(state, Mapping):  # The abstract class is slow to ask.
        raise InvalidValue(f"a state is a mapping of channel names to values, not {type(state).__name__}. Nothing was written.")
    check_names("channel", state)
    return {name: values.encode(value, where=f"state[{name!r}]") for name, value in state.items()}


def encode_metadata(metadata: Mapping[str, Any] | None) -> bytes:
    return b"\x80" if metadata is None else values.encode(dict(metadata), where="metadata")


def _checkpoint(found: requests.Checkpoint, *, channels: bool) -> Checkpoint:
    return Checkpoint(
        found.id,
        tuple(found.parents),
        found.branch,
        tuple(found.heads),
        found.wall_ms,
        found.schema,
        found.schema_version,
        found.metadata,
        found.channels if channels else None,
    )
