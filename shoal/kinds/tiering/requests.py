"""Tiering of a space: its rule, and what one node has in the object store."""

from __future__ import annotations

from typing import Annotated

from shoal.errors import BackupUnreachable
from shoal.protocol.base import Http, Named, Natural, Read, Reply, Seconds, Shape, operation

__all__ = ["ReadTiering", "RunTiering", "TieringView", "TryTiering"]


@operation(family="thread", http=Http("GET", "/tiering", "Where a space's idle threads go, and what a node has there"))
class ReadTiering(Read["TieringView"], array_like=True, frozen=True, tag="read-tiering"):
    """Read a space's rule of tiering as the serving node knows it, and what that node has in the object store."""

    space: str


@operation(action="admin", family="cluster")  # The node writes to an address that the caller names.
class TryTiering(Read["TieringView"], array_like=True, frozen=True, tag="try-tiering"):
    """Find out whether the serving node may use an address, and can write, read and delete there. Nothing is recorded.

    With `idle_ms` or `files` it counts what such a rule would move.
    """

    space: str
    url: str
    idle_ms: int = 0
    files: bool = False


@operation(
    action="admin",
    family="thread",
    http=Http("POST", "/tiering/run", "Move a space's idle threads now", errors=(BackupUnreachable,), example={}),
)
class RunTiering(Read["TieringView"], array_like=True, frozen=True, tag="run-tiering"):
    """Move now, at the serving node, what is idle; delete what nothing needs; and bring back what is to come back."""

    space: str


class TieringView(Reply, array_like=True, frozen=True, tag="tiering-view"):
    """The rule of a space, and what one node has in the object store. Each node moves its own copy, to a place of its own."""

    space: str
    url: str = ""  # Where idle threads go; empty: nowhere. What is there comes back by itself.
    idle_ms: Annotated[Seconds, Named("idle_s")] = 0  # A thread is idle once nothing was written to it so long; 0: never.
    wall_ms: Annotated[int, Shape.MOMENT] = 0  # When it was set; 0: it never was.
    away_bytes: Natural = 0  # Of chunks of this space that are in the object store, as of the last look,
    packs: Natural = 0  # in so many objects.
    last_ms: Annotated[int, Shape.MOMENT] = 0  # When this node looked last; 0: not yet.
    moved_bytes: Natural = 0  # Moved by this node in this opening, of all spaces,
    fetched: Natural = 0  # and objects that it fetched,
    fetched_bytes: Natural = 0  # and their bytes,
    failed: Natural = 0  # and fetches that failed.
    trouble: str = ""  # Why something is not done, for people; else empty.
    idle_threads: Natural = 0  # Of a dry run: threads that the rule would move from this node now; at most 10,000 are counted,
    idle_bytes: Natural = 0  # and the bytes of their chunks that are here.
    files: bool = False  # Whether files go as soon as they are put, and stay there when they are read.
