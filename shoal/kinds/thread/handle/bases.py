"""The checkpoint that a handle's next save builds on, on each branch.

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

from msgspec import Struct

from shoal.client.connection import StoreConnection
from shoal.errors import HeadMoved, NotFound, Pruned, TooLarge
from shoal.names import check_name
from shoal.protocol.requests import NO_HEAD, CommonAncestor, Heads, Load, Save


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
