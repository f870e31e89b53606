"""A thread's branches: where they are, what puts them elsewhere, what lies between, and how they are joined.

Law: nothing here deletes. Who moves or joins a branch builds on where it is then; who
compares or lists stays where it was.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from shoal import values
from shoal.client.arguments import named
from shoal.client.connection import Connection
from shoal.client.thread.bases import Positions
from shoal.client.thread.provenance import Author
from shoal.client.thread.schema import Declared
from shoal.errors import NotFound
from shoal.protocol import requests
from shoal.protocol.requests import Durability
from shoal.schemas.pointers import hidden
from shoal.values.difference import Change, channel_differences
from shoal.workflows.checkpoint import Checkpoint, encode_channels, encode_metadata, is_id
from shoal.workflows.merging import Resolver, merged


class Branch(Struct, frozen=True):
    name: str
    heads: tuple[str, ...]  # The winner first.

    @property
    def head(self) -> str:
        """The winner: what a handle without a position builds on."""
        return self.heads[0]

    @property
    def forked(self) -> bool:
        return len(self.heads) > 1


class Difference(Struct, frozen=True):
    """The changes from the checkpoint `before` to the checkpoint `after`."""

    before: str
    after: str
    channels: dict[str, list[Change]]  # Those that differ.


class Sides(NamedTuple):
    """What a merge joins."""

    base_id: str | None  # The nearest common ancestor; None: they have none.
    ordered: tuple[str, ...]  # The oldest first, the same on every node.
    base: dict[str, Any]
    states: list[dict[str, Any]]  # In that order.
    schema: str  # Of all; empty if they differ.
    schema_version: int
    readable_from: int
    secret: list[str]


@named
class ThreadBranches:
    """What a `Thread` offers of its branches."""

    space: str
    name: str
    _connection: Connection
    _author: Author
    _positions: Positions
    _turns: defaultdict[str, asyncio.Lock]
    _declared: Declared | None

    if TYPE_CHECKING:

        async def load(self, checkpoint: str | None = None, *, branch: str | None = None) -> Checkpoint: ...
        async def _save(self, request: requests.Save, key: str | None, durability: Durability | None) -> Checkpoint: ...
        async def _whole(self, id: str) -> requests.Checkpoint: ...

    async def heads(self, *, stale: bool = False) -> dict[str, list[str]]:
        """Branch name → ids of its heads, the winner first; more than one is a fork. `stale`: see `Store`."""
        found = await self._connection.read(requests.Heads(self.space, self.name), stale=stale)
        return found.branches

    async def branches(self, *, stale: bool = False) -> list[Branch]:
        """By name. `stale`: see `Store`."""
        return [Branch(name, tuple(ids)) for name, ids in sorted((await self.heads(stale=stale)).items())]

    async def branch(
        self, name: str, *, at: str | None = None, key: str | None = None, durability: Durability | None = None
    ) -> Branch:
        """Create a branch at a checkpoint of this thread: `at`, or the handle's position on "main".

        Raises:
            BranchTaken: there is one of this name, elsewhere.
            NotFound: the thread has no such checkpoint.
        """
        return await self._move(requests.Move(self.space, self.name, name, at or await self._here(), True), key, durability)

    async def rollback(
        self,
        to: str,
        *,
        branch: str = "main",
        reason: str = "",
        by: str = "",
        key: str | None = None,
        durability: Durability | None = None,
    ) -> Branch:
        """Move a branch to a checkpoint of this thread, and the handle with it.

        Nothing is deleted, and the journal records it. Other handles' saves are refused
        until they load; one that was made meanwhile on a node that did not know stays as
        a second head.

        Raises:
            NotFound: the thread has no such checkpoint, or no such branch.
        """
        return await self._move(
            requests.Move(self.space, self.name, branch, to, False, reason, by or self._author.name), key, durability
        )

    async def diff(
        self, before: str, after: str | None = None, *, branch: str = "main", reveal: bool = False, stale: bool = False
    ) -> Difference:
        """What changed from one checkpoint to another, per channel and path.

        Of secret fields it shows that they changed, and with `reveal` how.

        Both are ids, or names of branches; `after` is by default the winner of `branch`.
        Only channels whose hashes differ are read.

        Raises:
            NotFound: there is no such checkpoint or branch.
        """
        first = await self._peek(before, stale=stale)
        second = await self._peek(after or branch, stale=stale)
        names = [name for name in {**first.hashes, **second.hashes} if first.hashes.get(name) != second.hashes.get(name)]
        sides = [await self._channels_of(found, [n for n in names if n in found.hashes], stale) for found in (first, second)]
        changes = channel_differences(*sides)
        return Difference(first.id, second.id, changes if reveal else _hidden(changes, {*first.secret, *second.secret}))

    async def _peek(self, place: str, *, stale: bool = False) -> requests.Checkpoint:
        """A checkpoint by its id or a branch's name, without its channels. The handle stays where it is."""
        id, branch = (place, "main") if is_id(place) else (None, place)
        return await self._connection.read(requests.Load(self.space, self.name, id, branch, []), stale=stale)

    async def _channels_of(self, found: requests.Checkpoint, names: list[str], stale: bool = False) -> dict[str, Any]:
        if not names:
            return {}
        whole = await self._connection.read(requests.Load(self.space, self.name, found.id, found.branch, names), stale=stale)
        return {name: values.decode_channel(packed, whole.schema) for name, packed in whole.channels.items()}

    async def merge(
        self,
        heads: Sequence[str] | None = None,
        resolver: Resolver | None = None,
        *,
        branch: str = "main",
        metadata: Mapping[str, Any] | None = None,
        key: str | None = None,
        durability: Durability | None = None,
    ) -> Checkpoint:
        """Merge all heads of a branch, or the given checkpoints, into one checkpoint on the branch,
        and move the handle to it.

        Per channel: what one side left as their nearest common ancestor has it takes the
        other's; lists that grew on both sides keep both; the rest is for
        `resolver(channel, base, sides)`. With nothing to join it loads what is there.

        Where all sides were saved under one version of a schema, so is this; what is secret in one stays so.

        Raises:
            MergeConflict: sides do not fit together, and there is no resolver.
            HeadMoved: the branch moved meanwhile; merge again.
            NotFound: there is no such branch or checkpoint.
        """
        there = (await self.heads()).get(branch, [])
        wanted = self._wanted(heads, there, branch)
        if len(wanted) == 1 or await self._joined_already(there, wanted):
            return await self.load(wanted[0], branch=branch)
        sides = await self._sides(wanted)
        state = await merged(sides.base, sides.states, resolver)
        parent = next((id for id in there if id in sides.ordered), sides.ordered[0])
        request = requests.Save(
            self.space,
            self.name,
            encode_channels(state),
            encode_metadata(metadata),
            branch,
            parent,
            schema=sides.schema,
            schema_version=sides.schema_version,
            readable_from=sides.readable_from,
            secret=sides.secret,
            merged=[id for id in sides.ordered if id != parent],
        )
        return await self._save(request, key, durability)

    async def sides(self, heads: Sequence[str] | None = None, *, branch: str = "main") -> Sides:
        """What a `merge` with the same arguments would join.

        Raises:
            NotFound: there is no such branch or checkpoint.
        """
        return await self._sides(self._wanted(heads, (await self.heads()).get(branch, []), branch))

    def _wanted(self, heads: Sequence[str] | None, there: Sequence[str], branch: str) -> list[str]:
        wanted = list(dict.fromkeys([*there[:1], *heads] if heads is not None else there))
        if not wanted:
            raise NotFound(f"thread {self.name!r} has no branch {branch!r} to merge. Nothing was written.")
        return wanted

    async def _sides(self, wanted: list[str]) -> Sides:
        asked = await self._connection.read(requests.CommonAncestor(self.space, self.name, wanted))
        base = None if asked.id is None else await self._whole(asked.id)
        found = [await self._whole(id) for id in asked.ordered]
        claims = {(side.schema, side.schema_version) for side in found}
        schema, version = claims.pop() if len(claims) == 1 else ("", 0)
        return Sides(
            asked.id,
            tuple(asked.ordered),
            {} if base is None else self._state_of(base),
            [self._state_of(side) for side in found],
            schema,
            version,
            max(side.readable_from for side in found) if schema else 0,
            sorted({pointer for side in found for pointer in side.secret}),
        )

    async def _joined_already(self, there: Sequence[str], wanted: list[str]) -> bool:
        """Whether the branch's only head is a merge of the others: who asks again has not had the answer."""
        return list(there) == wanted[:1] and set(wanted[1:]) <= set((await self._peek(wanted[0])).parents)

    def _state_of(self, found: requests.Checkpoint) -> dict[str, Any]:
        shown = found if self._declared is None else self._declared.shown(found)
        return {name: values.decode_channel(packed, shown.schema) for name, packed in shown.channels.items()}

    async def _here(self) -> str:
        parent = await self._positions.newest("main")
        if parent == requests.NO_HEAD:
            raise NotFound(f"thread {self.name!r} has no checkpoint to branch at. Nothing was written. Save one first.")
        return parent

    async def _move(self, request: requests.Move, key: str | None, durability: Durability | None) -> Branch:
        async with self._turns[request.branch]:
            moved = await self._connection.write(request, key=key, durability=durability)
            self._positions.move(request.branch, moved.to)
        return Branch(moved.branch, tuple(moved.heads))


def _hidden(changes: dict[str, list[Change]], secret: set[str]) -> dict[str, list[Change]]:
    """The changes, without what is secret."""

    def shown(name: str, change: Change) -> Change:
        before, after = (hidden(secret, name, change.path, value) for value in (change.before, change.after))
        return replace(change, before=before, after=after)

    return {name: [shown(name, change) for change in found] for name, found in changes.items()}
