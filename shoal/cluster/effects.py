"""What `shoal.cluster.replication` asks its caller to do, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shoal.cluster.delivery import Arrival
from shoal.cluster.messages import Message, Want


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


Effect = Send | Apply | Read | SetBack
