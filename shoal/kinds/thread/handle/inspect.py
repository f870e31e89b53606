"""Checks of a thread's checkpoints, and explanations of them."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from shoal import values
from shoal.client.arguments import named
from shoal.client.connection import StoreConnection
from shoal.kinds.journal.flows.events import Event, shown_event
from shoal.kinds.thread.flows.checkpoint import Checkpoint, shown_checkpoint
from shoal.protocol import requests
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import Damage

_PAGE = 1000  # Checkpoints in one request, which reads each of their chunks once.


class Verified(Struct, frozen=True):
    """The result of `Thread.verify`."""

    checkpoints: int  # How many were checked.
    damage: tuple[Damage, ...]  # By checkpoint and channel; without a channel, the checkpoint's record is damaged.

    @property
    def sound(self) -> bool:
        """Whether no damage was found."""
        return not self.damage


class Why(Struct, frozen=True):
    """The information that the author of a checkpoint had."""

    checkpoint: Checkpoint
    setting: dict[str, Any]  # The author's configuration and dependencies; empty if they were not given.
    seen: str  # What the author had read of other partitions, as a bookmark for `Store.observe`.
    earlier: tuple[Checkpoint, ...]  # The checkpoints that it built on, newest first.
    events: tuple[Event, ...]  # The journal before it, newest first.

    @property
    def partitions(self) -> dict[int, int]:
        """Partition → the number of operations seen of the origins in the bookmark."""
        return {number: sum(vector.values()) for number, vector in Bookmark.parse(self.seen)}


@named
class ThreadInspection:
    """The part of a thread's handle for checks and explanations."""

    def __init__(self, connection: StoreConnection, space: str, thread: str) -> None:
        self._connection = connection
        self._space, self._thread = space, thread

    async def verify(self, checkpoint: str | None = None, *, branch: str = "main", stale: bool = False) -> Verified:
        """Let a node check what it has stored (chunks, values and ids) of one checkpoint, or of all on a branch.

        Only the node's own copy is checked; `shoal verify` checks a whole directory.

        Raises:
            NotFound: there is no such checkpoint or branch.
        """
        checked, damage, start = 0, list[Damage](), ""
        while True:
            request = requests.VerifyCheckpoints(self._space, self._thread, checkpoint, branch, start, _PAGE)
            page = await self._connection.read(request, stale=stale)
            checked, start = checked + page.checked, page.next
            damage += page.damage
            if not start:
                return Verified(checked, tuple(damage))

    async def why(self, checkpoint: str, *, limit: int = 20, stale: bool = False) -> Why:
        """Return the context of a checkpoint: its base, its author's setting and bookmark, and the journal before it.

        At most `limit` earlier checkpoints and as many events are returned. They may include some that another node
        issued shortly before and that had not arrived yet, but none that the author certainly had not seen.

        Raises:
            NotFound: there is no such checkpoint.
        """
        found = await self._connection.read(requests.Explain(self._space, self._thread, checkpoint, limit), stale=stale)
        return Why(
            shown_checkpoint(found.checkpoint, channels=False),
            dict(values.decode(found.setting)) if found.setting else {},
            Bookmark.unpack(found.seen).text(),
            tuple(shown_checkpoint(older, channels=False) for older in found.earlier),
            tuple(map(shown_event, found.events)),
        )
