"""A node as it knows itself at one moment, and a row of the table of conditions.

Laws:
- A condition is a pure function of one observation: it reads no clock, no disk and no other node.
- What is not known is said (`Unknown`), and never counts as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType

from shoal.protocol.requests import ClusterView, MembersView, NodeStatus
from shoal.protocol.requests.status import Severity
from shoal.records import NamedTuple

_NOTHING: Mapping[str, int] = MappingProxyType({})


class Volume(NamedTuple):
    """The file system of a directory."""

    free: int  # Bytes that this process may still write.
    size: int  # Bytes in all.


class Use(NamedTuple):
    """How much of a bound is used."""

    used: int
    bound: int
    what: str  # Such as "keys of the quorum register".


class Signals(NamedTuple):
    """Facts that the status does not tell: sampled every few seconds."""

    volume: Volume | None = None  # None: that is not known.
    full_ms: int | None = None  # When it will be full; None: nobody can say, or far away.
    sync_s: float = 0.0  # The longest sync since the last sample, in seconds,
    lag_s: float = 0.0  # and how long the oldest write that is not durable waits.
    waiting: Mapping[str, int] = _NOTHING  # Space → requests that wait for their turn.
    slow: Mapping[str, int] = _NOTHING  # Space → subscribers that were cut off in the last seconds: they read too slowly.
    expired: int = 0  # Tokens that had run out and were shown in the last seconds.
    uses: Mapping[str, Use] = MappingProxyType({})  # Of each bound, by its name.


class Observation(NamedTuple):
    """One node at one moment."""

    now_ms: int
    version: str  # Of Shoal, at this node.
    address: str  # By which its peers reach it.
    status: NodeStatus
    cluster: ClusterView
    members: MembersView
    failed: str = ""  # Why its storage rejects writes.
    outside: bool = False  # It is no member of its cluster.
    apart: bool = False  # Its directory is a member's, and was opened without the others: it knows nothing of them.
    second: str = ""  # All other members refuse it as a second node at its address: why.
    clock_wrong: str = ""  # A majority contradict its clock: by how much, and what to do.
    signals: Signals = Signals()
    ended: Collection[str] = ()  # The tasks that last as long as the node, and that a bug has ended.


class Finding(NamedTuple):
    """A condition is true."""

    says: str
    about: str = ""


class Unknown(NamedTuple):
    """Whether a condition is true is not known."""

    why: str


Found = Iterator[Finding | Unknown]


class Condition(NamedTuple):
    """A row of the table."""

    name: str
    severity: Severity
    lasts: str  # So long it stands before somebody is told, as Prometheus writes times; "0s": at once.
    title: str  # In a few words.
    means: str
    mends: str  # `{about}` is what the finding is about.
    page: str
    noticed: str  # How, for people.
    look: Callable[[Observation], Found]
    passes: bool = False  # It is about what happened in the last seconds: an alert counts how often it began.
