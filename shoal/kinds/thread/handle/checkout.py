"""A thread's checkpoints as one handle works on them, and the checkpoint that its next save builds on.

Laws:
- The request of a save names its base, so that a save that is sent again to
  another node builds on the same checkpoint: see `bases`.
- If the node knows that the branch has moved on from that, the save is rejected
  (`HeadMoved`), unless it asks for a fork. If the node cannot know, both stay as
  heads (`Checkpoint.forked`). No writer overwrites a state that it has not seen.
- A change that commutes with the saves between is sent again on the new head, up to
  `SAVE_ATTEMPTS_MAX` times. A rejected attempt wrote nothing, so all attempts
  have the same key.
- A rejection says nothing about an earlier attempt: if the outcome of that one is unknown,
  it stays unknown.

The checkpoint that a handle's next save builds on, on each branch.

A restarted agent that saves without loading would replace a state that it never saw; so that has to be asked for
(`overwrite=True`).

Laws:
- A position is the checkpoint that the handle last loaded or saved. A save of a whole state builds on it.
  Without a position it builds on no checkpoint, and the node rejects it if the branch exists, so that no save
  replaces a state that its handle has not seen. With `overwrite` it builds on the winner.
- A change of parts without a position builds on the winner.
- If a branch has moved on, a change commutes with the saves between if a head descends
  from the position, and the channels that the change sets or removes are unchanged
  there. Then it builds on that head instead. Appending always commutes. A position
  that was not a head when it was loaded was chosen on purpose: the change builds on nothing else.
- A save of unknown outcome is sent again on the same base until the handle loads, because on
  any other base it could count twice.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from shoal.client.arguments import named_method
from shoal.client.connection import SAVE_ATTEMPTS_MAX, StoreConnection, contended
from shoal.errors import HeadMoved, InvalidInput, NotFound, OutcomeUnknown, Pruned, ShoalError, TooLarge
from shoal.kinds.thread.flows.checkpoints import Checkpoint, Provenance, ThreadCheckpoints, saved_checkpoint, shown_checkpoint
from shoal.kinds.thread.handle.declared import Declared, narrowed
from shoal.kinds.worklist.handle.worklist import Message, take_request
from shoal.names import check_name
from shoal.protocol import requests
from shoal.protocol.requests import NO_HEAD, CommonAncestor, Durability, Heads, Load, Save
from shoal.workflows.connection import as_wall_ms


class _Unsettled(Struct):
    """A save whose outcome is unknown."""

    key: str
    request: Save
    is_held: bool = True  # The next save builds on the same base.


class Bases:
    """The positions of one handle, which change with its loads and saves."""

    def __init__(self, connection: StoreConnection, space: str, thread: str) -> None:
        self._connection = connection
        self._space, self._thread = space, thread
        self._seen: dict[str, str] = {}
        self._chosen: set[str] = set()  # Branches whose position was not a head when it was loaded.
        self._unsettled: dict[str, _Unsettled] = {}

    def move(self, branch: str, id: str, *, is_head: bool = True) -> None:
        """Set the position: the handle has seen this checkpoint."""
        self._seen[branch] = id
        (self._chosen.discard if is_head else self._chosen.add)(branch)
        if branch in self._unsettled:
            self._unsettled[branch].is_held = False

    def position(self, branch: str) -> str | None:
        """The checkpoint that the handle last loaded or saved; None if it has done neither."""
        return self._seen.get(branch)

    def saved(self, branch: str, id: str) -> None:
        """Set the position after an acknowledged save."""
        self.move(branch, id)
        self._unsettled.pop(branch, None)

    def unknown(self, request: Save, key: str) -> None:
        """Remember a save that had no answer."""
        self._unsettled[request.branch] = _Unsettled(key, request, request.parent is not None)

    def unsettled(self, branch: str, key: str | None) -> Save | None:
        """The save that was sent under this key, if its outcome is unknown."""
        waiting = self._unsettled.get(branch)
        return waiting.request if waiting is not None and waiting.key == key else None

    def held(self, branch: str) -> str | None:
        """After a save of unknown outcome, its base, which the next save must have too; else None."""
        waiting = self._unsettled.get(branch)
        return waiting.request.parent if waiting is not None and waiting.is_held else None

    def forget(self, branch: str) -> None:
        """Forget the position on a branch that does not exist any more."""
        self._seen.pop(branch, None)
        self._chosen.discard(branch)
        if branch in self._unsettled:
            self._unsettled[branch].is_held = False

    def clear(self) -> None:
        """Forget all positions, because the thread does not exist any more."""
        self._seen.clear()
        self._chosen.clear()
        self._unsettled.clear()

    async def check_seen(self, branch: str) -> None:
        """Check that a save of a whole state could succeed.

        Raises:
            HeadMoved: the branch exists, and the handle has not seen it.
        """
        check_name("branch", branch)
        if branch not in self._seen and (heads := await self._heads(branch)):
            raise HeadMoved(
                f"branch {branch!r} of thread {self._thread!r} exists, and this handle has not seen it. Nothing was written. "
                "Load it first, or pass overwrite=True to replace its state.",
                heads=heads,
            )

    async def newest(self, branch: str) -> str:
        """The position, or the branch's winner; NO_HEAD if there is neither."""
        return self._seen.get(branch) or await self.winner(branch)

    async def winner(self, branch: str) -> str:
        """The branch's first head; NO_HEAD if it has none."""
        heads = await self._heads(branch)
        return heads[0] if heads else NO_HEAD

    async def basis(self, request: Save, *, overwrite: bool) -> str:
        """The base of a save that does not name one."""
        if overwrite:
            return await self.winner(request.branch)
        return await self.newest(request.branch) if request.delta else self._seen.get(request.branch, NO_HEAD)

    async def next_basis(self, request: Save, moved: HeadMoved, *, overwrite: bool) -> str:
        """The base on which to repeat a rejected save.

        Raises:
            HeadMoved: it does not commute with the saves between.
        """
        heads = await self._heads(request.branch)
        seen = self._seen.get(request.branch)
        if overwrite or seen is None or not heads:
            return heads[0] if heads else NO_HEAD
        if request.branch not in self._chosen:
            for head in heads:
                if await self._commutes(request, seen, head):
                    return head
        raise moved

    async def _heads(self, branch: str) -> list[str]:
        found = await self._connection.read(Heads(self._space, self._thread))
        return found.branches.get(branch, [])

    async def _commutes(self, request: Save, seen: str, head: str) -> bool:
        try:
            common = await self._connection.read(CommonAncestor(self._space, self._thread, [seen, head]))
            if common.id != seen:
                return False
            names = [*request.channels, *request.removed]
            if not names:
                return True
            before, after = await self._hashes(seen), await self._hashes(head)
        except (NotFound, Pruned, TooLarge):
            return False  # It cannot be decided.
        return all(before.get(name) == after.get(name) for name in names)

    async def _hashes(self, id: str) -> dict[str, str]:
        found = await self._connection.read(Load(self._space, self._thread, id, channels=[]))
        return found.hashes


class Checkout(ThreadCheckpoints):
    """The checkpoints of a thread for one handle, with the handle's positions and declared schema."""

    connection: StoreConnection

    def __init__(self, connection: StoreConnection, space: str, thread: str, provenance: Provenance) -> None:
        super().__init__(connection, space, thread, provenance)
        self.bases = Bases(connection, space, thread)
        self.turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # By branch: one save at a time.
        self.declared: Declared | None = None

    async def newest(self, branch: str) -> str:
        """The handle's position on the branch, or else the branch's winner; NO_HEAD if there is neither."""
        return await self.bases.newest(branch)

    def shown(self, found: requests.Checkpoint) -> requests.Checkpoint:
        """A checkpoint with its state, migrated to the declared schema, if one is declared."""
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
        `as_of`: the head that the branch had at that time, by the clocks of the nodes that moved it; a datetime with a
        time zone, or seconds since 1970.

        If it is loaded by id or label, the next save on `branch`, or else on the branch it was saved on, builds on it.
        `stale`: see `Store`.

        If the branch no longer exists, for example after a deletion of the thread, the handle's next save creates it again.

        Raises:
            NotFound: there is none, or it has no such channel.
            InvalidInput: more than one of an id, a label and `as_of` is given; or `as_of` has no time zone, or is not a time.
            SchemaTooNew, SchemaMismatch, MigrationFailed: the declared schema cannot read it. The handle does not move.
            SessionBehind, BookmarkLost: the node lacks operations that this store has written or seen.
        """
        if isinstance(channels, str):
            raise InvalidInput(f"channels must be a list of names; got the text {channels!r}.")
        named = None if channels is None else list(channels)
        asked = named if self.declared is None else None  # A migration needs all channels.
        request = requests.Load(
            self.space, self.thread, checkpoint, branch or "main", channels=asked, label=label, as_of_ms=as_wall_ms(as_of)
        )
        try:
            found = await self.connection.read(request, stale=stale)
        except NotFound:
            # With other arguments something else than the branch may be missing.
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
        """Save on the request's parent or, if it names none, on the handle's position.

        `take`: messages of the inbox to take in the same operation. `carry`: the state comes from an instance of a
        model, which knows only its own fields.
        """
        # One save at a time per handle and branch, because the next one builds on this one.
        self.connection.check_home()
        turn = self.turns[request.branch]
        await turn.acquire()
        try:
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
        finally:
            turn.release()

    async def commit(self, request: requests.Save, key: str | None, durability: Durability | None) -> requests.Saved:
        """Send a save under the declared schema, if one is declared; the handle moves to the new checkpoint."""
        claimed = request if self.declared is None else await self.declared.claimed(request, carry=False)
        return await self._sent(claimed, key, durability)

    async def move(self, request: requests.Move, key: str | None, durability: Durability | None) -> requests.Moved:
        """Move a branch, and the handle with it."""
        self.connection.check_home()
        async with self.turns[request.branch]:
            moved = await self.connection.write(request, key=key, durability=durability)
            self.bases.move(request.branch, moved.to)
        return moved

    async def delete(
        self, request: requests.DeleteBranch, key: str | None, durability: Durability | None
    ) -> requests.BranchDeleted:
        """Delete a branch; the handle has no position on it any more."""
        async with self.turns[request.branch]:
            deleted = await self.connection.write(request, key=key, durability=durability)
            self.bases.forget(request.branch)
        return deleted

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
        except HeadMoved as moved:
            if key is not None and self.bases.unsettled(request.branch, key) is not None:
                raise OutcomeUnknown(
                    f"an earlier attempt under the key {key} may or may not be applied, and the branch has moved on "
                    f"({moved.message.rstrip('.')}). Send it again with this key later, or load the current state.",
                    **{**moved.detail, "key": key},
                ) from None
            raise
        except ShoalError as error:
            if error.written == "unknown":
                self.bases.unknown(request, str(error.detail.get("key", key)))
            raise
        saved = reply.replies[-1] if isinstance(reply, requests.BatchReply) else reply
        assert isinstance(saved, requests.Saved)
        self.bases.saved(request.branch, saved.id)
        if self.declared is not None:
            self.declared.settled(saved.id, request)
        return saved


def crowded(moved: HeadMoved, connection: StoreConnection) -> HeadMoved:
    """The error for a save that was rejected at every attempt because others came first."""
    attempts = SAVE_ATTEMPTS_MAX
    return HeadMoved(f"another save came first at each of {attempts} attempts: {moved.message}", **moved.detail)
