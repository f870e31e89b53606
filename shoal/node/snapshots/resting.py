"""Holds the taking of snapshots back while others write here.

Where nodes and clients share processors, most of a join's cost is the joining node's, so it has to rest, and not only its
senders.

Laws:
- While the store takes writes that are not of a snapshot, work on snapshots takes a fifth of the loop's time at most: after it,
  nothing is asked for until four times as long has passed as it took. There is no rest if no such write was made lately.
- Time is that of the wall, so where nodes and clients share processors, work takes longer, and the rests grow.
- A rest ends at most `_REST_S_MAX` after the work that caused it, however long that took.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shoal.cluster.snapshots.taking import Snapshots
from shoal.storage.commit import GroupCommit

_RESTS = 4  # After some work, so many times as long as it took.
_REST_S_MAX = 1.0
_LATELY_S = 0.1  # The node writes its own records now and then: such a write costs a join next to nothing.


class Rests:
    """The rests of one node. `writes` counts the writes made of snapshots, which are no reason to rest."""

    def __init__(self, snapshots: Snapshots, commit: GroupCommit, now: Callable[[], float]) -> None:
        self.writes = 0
        self._snapshots = snapshots
        self._commit = commit
        self._now = now
        self._others = commit.written  # Writes that are not of a snapshot, when work ended last,
        self._lately_until = 0.0  # and until when they count.
        self._began: float | None = None

    @contextmanager
    def work(self) -> Iterator[None]:
        """Work on a snapshot while the context is open, without awaiting. Work within work counts once."""
        if self._began is not None:
            yield
            return
        self._began = self._now()
        try:
            yield
        finally:
            now, began, self._began = self._now(), self._began, None
            self._rest(now, now - began)

    def _rest(self, now: float, worked_s: float) -> None:
        others = self._commit.written - self.writes
        if others > self._others:
            self._others, self._lately_until = others, now + _LATELY_S
        if now < self._lately_until:
            rest_s = self._snapshots.rests_for(now) + _RESTS * worked_s
            self._snapshots.rest(now + min(rest_s, _REST_S_MAX))
