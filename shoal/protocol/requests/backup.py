"""The backup of a cluster: where its nodes ship to, and how far that is.

A declaration is not a write of an object: it has no idempotency key. The same one that is made again changes nothing.
"""

from __future__ import annotations

from typing import Literal

from msgspec import field

from shoal.errors import BackupConflict, BackupUnreachable, NoQuorum, OutcomeUnknown, RegisterChanged
from shoal.protocol.base import Read, Reply
from shoal.protocol.declared import Http, Natural, operation

__all__ = ["BackupView", "DeclareBackup", "ReadBackup"]


@operation(family="cluster", http=Http("GET", "/cluster/backup", "Where the cluster is backed up, and how far"))
class ReadBackup(Read["BackupView"], array_like=True, frozen=True, tag="read-backup"):
    """Read where the nodes of this cluster ship to, and how far the serving node knows that to be."""


@operation(
    action="admin",
    family="cluster",
    http=Http(
        "POST",
        "/cluster/backup",
        "Declare where the cluster is backed up",
        errors=(BackupConflict, BackupUnreachable, NoQuorum, OutcomeUnknown, RegisterChanged),
        example={"url": "file:///mnt/backup/prod"},
    ),
)
class DeclareBackup(Read["BackupView"], array_like=True, frozen=True, tag="declare-backup"):
    """Have all nodes of this cluster ship to a bucket from now on. The place is empty, or holds the backup of this cluster."""

    url: str  # s3://BUCKET/PREFIX, gs://…, az://… or file:///DIR; empty: ship nowhere any more. What is there stays.
    keep_ms: Natural | None = None  # For how long each moment can be restored, at least a day; 0: for ever. Null: as before.


class BackupView(Reply, array_like=True, frozen=True, tag="backup-view"):
    """The backup of a cluster, as the serving node knows it."""

    url: str  # Empty: there is none.
    cluster: str  # The identity of the cluster in its backups, in hex; empty: there was never one.
    state: Literal["none", "current", "behind", "failing"]  # `behind`: something waits to be shipped. `failing`: see `trouble`.
    trouble: str = ""  # Why the serving node does not ship, and what to do; else empty.
    covered_ms: int = 0  # Everything that the serving node held at this moment is in the bucket; 0: that is not known yet.
    lag_ms: int = 0  # The recovery point: how long ago that was, or since when nothing is known; 0 only if all is there now.
    manifest: int = 0  # The number of the last manifest that it has read,
    manifest_ms: int = 0  # and when that was written.
    bytes: int = 0  # Of all objects that count.
    objects: int = 0  # Of these.
    earliest_ms: int = 0  # The first moment to which the backup can be restored; 0: there is none.
    shipped: int = 0  # Operations that the serving node shipped, in this opening,
    shipped_bytes: int = 0  # and bytes that it put.
    verified_ms: int = 0  # When `shoal backup verify` last restored it and found it sound; 0: never.
    skipped: list[str] = field(default_factory=list)  # Partitions that could not be shipped at the last attempt, and why.
    keep_ms: int = 0  # For how long each moment can be restored; 0: for ever.
    begun_ms: int = 0  # When it was first declared at this place, by the bucket's clock; 0: that is not known yet.
