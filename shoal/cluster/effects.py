"""The effects that `shoal.cluster.replication` asks its caller to carry out, in order."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.cluster.delivery import Arrival
from shoal.cluster.messages import Message, Want
from shoal.crdt.dot import VersionVector
from shoal.records import NamedTuple


class Send(NamedTuple):
    """Send a message to these peers."""

    peers: Sequence[bytes]
    message: Message


class Apply(NamedTuple):
    """Store `ready`, in this order; compare `again` with the operations stored under the same dots."""

    peer: bytes
    ready: list[Arrival]
    again: list[Arrival]


class Read(NamedTuple):
    """Answer a peer's Want from the log."""

    peer: bytes
    want: Want


class SetBack(NamedTuple):
    """Record that this node's directory was set back, as `peer` says, so that it is a learner: `Replication.learning`."""

    peer: bytes


class Reset(NamedTuple):
    """Take a snapshot of a partition from this peer, whose log no longer has what this node lacks."""

    peer: bytes
    partition: int
    base: VersionVector  # What has left its log.


Effect = Send | Apply | Read | SetBack | Reset
