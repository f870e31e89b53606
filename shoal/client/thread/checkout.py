"""A thread's checkpoints as one handle works on them: it remembers what its next save builds on.

Laws:
- What a save builds on is named in its request, so that a save that is sent again to
  another node builds on the same: see `bases`.
- If the node knows that the branch has moved on from that, the save is rejected
  (`HeadMoved`), unless it asks for a fork; where the node cannot know, both stay as
  heads (`Checkpoint.forked`). No writer overwrites what it has not seen.
- A change that commutes with what came between is sent again on the new head, up to
  `save_attempts_max` times. An attempt that was refused wrote nothing, so all attempts
  have the same key.
- A refusal says nothing of an earlier attempt: if that one's outcome is unknown, the
  refusal is not taken for its answer.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime

from msgspec.structs import replace

from shoal.client.arguments import named_method
from shoal.client.connection import StoreConnection
from shoal.client.retrying import contended
from shoal.client.thread.bases import Bases
from shoal.client.thread.declared import Declared, narrowed
from shoal.client.thread.inbox import Message, take_request
from shoal.errors import HeadMoved, InvalidInput, NotFound, OutcomeUnknown
from shoal.protocol import requests
from shoal.protocol.requests import Durability
from shoal.workflows.checkpoint import Checkpoint, saved_checkpoint, shown_checkpoint
from shoal.workflows.checkpoints import ThreadCheckpoints
from shoal.workflows.moments import as_wall_ms
from shoal.workflows.provenance import Provenance


class Checkout(ThreadCheckpoints):
    """One per handle. Mutable."""

    connection: StoreConnection

    def __init__(self, connection: StoreConnection, space: str, thread: str, provenance: Provenance) -> None:
        super().__init__(connection, space, thread, provenance)
        self.bases = Bases(connection, space, thread)
        self.turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # By branch: one save at a time.
        self.declared: Declared | None = None

    async def newest(self, branch: str) -> str:
        return await self.bases.newest(branch)

    def shown(self, found: requests.Checkpoint) -> requests.Checkpoint:
        return found if self.declared is None else self.declared.shown(found)

    @named_method
    async def load(
        self,
        checkpoint: str | None = None,
        *,
        branch: str | None = None,
        label: str | None = None,
        channels: Iterable[str] | None = None,
        as_of: datetime | float | None = None,
        stale: bool = False,
    ) -> Checkpoint:
        """Load a checkpoint by id or label, or the winner of `branch` ("main"), and move the handle to it.

        With `channels` its state has, and the node reads, only those.
        `as_of`: where the branch was at that time, by the clocks of the nodes that put it there; a datetime with a time zone,
        or seconds since 1970.

        If it is loaded by id or label, the next save in `branch`, or else in the branch it was saved on, builds on it.
        `stale`: see `Store`.

        If the branch no longer exists, for example after a deletion of the thread, the handle's next save creates it again.

        Raises:
            NotFound: there is none, or it has no such channel.
            InvalidInput: `as_of` has no time zone, or is no time.
            SchemaTooNew, SchemaMismatch, MigrationFailed: the declared schema cannot read it. The handle stays where it was.
            SessionBehind, BookmarkLost: the node lacks what this store has written or seen.
        """
        if isinstance(channels, str):
            raise InvalidInput(f"channels must be a list of names; got the text {channels!r}.")
        named = None if channels is None else list(channels)
        asked = named if self.declared is None else None  # To migrate a part, one needs the whole.
        request = requests.Load(
            self.space, self.thread, checkpoint, branch or "main", channels=asked, label=label, as_of_ms=as_wall_ms(as_of)
        )
        try:
            found = await self.connection.read(request, stale=stale)
        except NotFound:
            # Otherwise it need not be the branch that is missing.
            if not stale and all(asked is None for asked in (checkpoint, label, as_of, channels)):
                self.bases.forget(branch or "main")
            raise
        if self.declared is not None:
            found = narrowed(self.declared.loaded(found), named)
        on = branch or (found.branch if checkpoint is not None or label is not None else "main")
        self.bases.move(on, found.id, is_head=found.id in found.heads)
        return shown_checkpoint(found, channels=True)

    async def save(
        self,
        request: requests.Save,
        key: str | None,
        durability: Durability | None,
        take: Sequence[Message] = (),
        *,
        carry: bool = False,
        overwrite: bool = False,
    ) -> Checkpoint:
        """Save on the request's parent or, if it names none, on what the handle has seen.

        `carry`: the state comes from an instance of a model, which knows only its own fields.
        """
        # One save of a handle at a time and per branch: the next builds on this one.
        async with self.turns[request.branch]:
            if request.parent is not None or request.expect_head is not None:
                return await self._attempt(request, key, durability, take, carry)
            anew = overwrite and self.bases.unsettled(request.branch, key) is None
            held = None if anew else self.bases.held(request.branch)
            if held is not None:
                return await self._attempt(replace(request, parent=held), key, durability, take, carry)
            basis = await self.bases.basis(request, overwrite=overwrite)
            pauses = contended(self.connection)
            while True:
                try:
                    return await self._attempt(replace(request, parent=basis), key, durability, take, carry)
                except HeadMoved as moved:
                    if request.fork or not (request.delta or overwrite):
                        raise
                    if (pause := next(pauses, None)) is None:
                        raise crowded(moved, self.connection) from None
                    await asyncio.sleep(pause)
                    basis = await self.bases.next_basis(request, moved, overwrite=overwrite)

    async def commit(self, request: requests.Save, key: str | None, durability: Durability | None) -> requests.Saved:
        claimed = request if self.declared is None else await self.declared.claimed(request, carry=False)
        return await self._sent(claimed, key, durability)

    async def move(self, request: requests.Move, key: str | None, durability: Durability | None) -> requests.Moved:
        """Put a branch elsewhere, and the handle with it."""
        async with self.turns[request.branch]:
            moved = await self.connection.write(request, key=key, durability=durability)
            self.bases.move(request.branch, moved.to)
        return moved

    async def _attempt(
        self, request: requests.Save, key: str | None, durability: Durability | None, take: Sequence[Message], carry: bool
    ) -> Checkpoint:
        if self.declared is not None:
            request = await self.declared.claimed(request, carry=carry)
        signed = self.provenance.signed(request)
        saved = await self._sent(signed, key, durability, take)
        self.provenance.noted(signed, saved)
        return saved_checkpoint(saved, signed)

    async def _sent(
        self, request: requests.Save, key: str | None, durability: Durability | None, take: Sequence[Message] = ()
    ) -> requests.Saved:
        whole: requests.Save | requests.Batch = request
        if take:
            takes = [take_request(self.space, self.thread, message, by=request.author) for message in take]
            whole = requests.Batch([*takes, request])
        try:
            reply = await self.connection.write(whole, key=key, durability=durability)
        except OutcomeUnknown as unknown:
            self.bases.unknown(request, str(unknown.detail.get("key", key)))
            raise
        except HeadMoved as moved:
            if key is not None and self.bases.unsettled(request.branch, key) is not None:
                raise OutcomeUnknown(
                    f"an earlier attempt under the key {key} may or may not be applied, and the branch has moved on "
                    f"({moved.message.rstrip('.')}). Send it again with this key later, or load the current state.",
                    **{**moved.detail, "key": key},
                ) from None
            raise
        saved = reply.replies[-1] if isinstance(reply, requests.BatchReply) else reply
        assert isinstance(saved, requests.Saved)
        self.bases.saved(request.branch, saved.id)
        if self.declared is not None:
            self.declared.settled(saved.id, request)
        return saved


def crowded(moved: HeadMoved, connection: StoreConnection) -> HeadMoved:
    """The error for a save that lost against others at every attempt."""
    attempts = connection.config.save_attempts_max
    return HeadMoved(f"another save came first at each of {attempts} attempts: {moved.message}", **moved.detail)
