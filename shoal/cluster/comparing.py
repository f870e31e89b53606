"""Comparisons with the other members: of this node's clock with theirs, and of the rows in a peer's snapshot.

Whether this node's clock agrees with those of the other members.

Nothing here reads a clock: times are arguments, in milliseconds. `steady_ms` is a clock that
nobody can set, and that means nothing elsewhere. Laws:

- A node's *lead* is its wall clock less its steady clock. It changes only if the wall clock is set, so what was once
  heard of a peer's clock stays true while there is no link, and a step of the own clock shows without a message.
- The knowledge of a peer's clock is an interval that holds it for certain, as wide as a round trip.
- A clock is wrong if a majority of all members, counted over the list of members, have clocks that are
  behind it by more than the bound, or ahead of it. Fewer prove nothing: either side may be wrong.

Whether the rows of a peer's snapshot are believed: its hashes are compared with those of the other owners.

    RootsRequest   →   Roots   →   is_believed

Laws:
- Equal operations make equal rows, so owners at one vector have the same roots: a hash of each table of a partition.
- A snapshot is believed once more than half of the other owners, its sender among them, have the same roots. Where there is
  one other owner, its word is all there is.
- For a learner it is also enough that all other owners were heard, and that each one without these roots is a learner at
  another vector, which knows less. An owner stands for what it holds: no single voice replaces that.
- An owner with other roots at the same vector contradicts. Then nothing but a majority is enough.
- Rows that may differ without a fault are left out, as the witness says, and never as the sender does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum

from msgspec import Struct

from shoal.cluster.operation import PARTITIONS
from shoal.errors import InvalidValue
from shoal.records import NamedTuple

NOT_HEARD = -1
_TIME_MS_MAX = 1 << 53


class Clock(Struct, array_like=True, frozen=True, tag=43):
    """The sender's clocks. One that echoes no stamp is answered at once, by one that does."""

    wall_ms: int
    steady_ms: int  # The receiver returns it as `echo_ms`.
    echo_ms: int = NOT_HEARD  # The receiver's steady clock, as it said on the current link,
    held_ms: int = 0  # so long ago.


class Leads(NamedTuple):
    """The leads with which a node's clock is not known to be wrong."""

    least: float
    most: float


ANY = Leads(float("-inf"), float("inf"))


class Clocks:
    """The clocks of a node's peers, as far as it knows them. Mutable."""

    def __init__(self, *, skew_ms_max: int) -> None:
        self._skew_ms_max = skew_ms_max
        self._stamps: dict[bytes, tuple[int, int]] = {}  # By peer: its last stamp on the current link, and when it came.
        self._leads: dict[bytes, tuple[int, int]] = {}  # By peer: between these is its wall clock less our steady clock.

    def began(self, peer: bytes) -> None:
        """A link from a peer begins: a stamp from an older one may be from before its machine was restarted."""
        self._stamps.pop(peer, None)

    def forget(self, peer: bytes) -> None:
        """Forget a node that is gone for good."""
        self._stamps.pop(peer, None)
        self._leads.pop(peer, None)

    def message(self, peer: bytes, *, wall_ms: int, steady_ms: int) -> Clock:
        """The message to a peer that is due now."""
        stamp, came_ms = self._stamps.get(peer, (NOT_HEARD, steady_ms))
        return Clock(wall_ms, steady_ms, stamp, steady_ms - came_ms)

    def heard(self, peer: bytes, clock: Clock, *, steady_ms: int) -> None:
        """Take what a peer told."""
        self._stamps[peer] = clock.steady_ms, steady_ms
        if 0 <= clock.echo_ms <= steady_ms:
            # Sent before it came, and after our stamp, which it echoes, had come there.
            least, most = clock.wall_ms - steady_ms, clock.wall_ms - clock.held_ms - clock.echo_ms
            if least <= most:
                self._leads[peer] = least, most

    def lead_of(self, peer: bytes) -> float | None:
        """The likeliest lead of a peer, over our steady clock."""
        known = self._leads.get(peer)
        return None if known is None else sum(known) / 2

    def differs(self, peer: bytes, lead: float) -> bool:
        """Whether a peer's clock is for certain further from one with this lead than the bound."""
        least, most = self._leads.get(peer, ANY)
        return lead < least - self._skew_ms_max or lead > most + self._skew_ms_max

    def allowed(self, peers: Collection[bytes], *, size: int) -> Leads:
        """The leads that no majority of `size` members contradicts; `peers` are those of them that were ever reached."""
        majority = size // 2 + 1
        known = [self._leads[peer] for peer in peers if peer in self._leads]
        if len(known) < majority:
            return ANY
        latest = sorted((least for least, _ in known), reverse=True)
        earliest = sorted(most for _, most in known)
        return Leads(latest[majority - 1] - self._skew_ms_max, earliest[majority - 1] + self._skew_ms_max)


def check_clock(clock: Clock) -> None:
    """
    Raises:
        InvalidValue: it holds times that no clock shows.
    """
    times = clock.wall_ms, clock.steady_ms, clock.echo_ms - NOT_HEARD, clock.held_ms
    if not all(0 <= time < _TIME_MS_MAX for time in times):
        raise InvalidValue("a peer tells an impossible time of its clock. Nothing was written.")


ROOT_BYTES = 32
MARK_BYTES = 16
GARBAGE_MAX = 16384  # Entries of one partition. With more a node is no witness until it has swept.
_BASE_BYTES_MAX = 1 << 20
_TABLES_MAX = 16


class RootsRequest(Struct, array_like=True, frozen=True, tag=48):
    """Asks an owner for the roots of a partition at a vector; answered by one `Roots`."""

    id: int
    partition: int
    vector: bytes  # Its root.
    base: bytes  # Packed: what has left the log of the snapshot's sender.
    forgotten: int  # The time of the last retirement that the sender has forgotten.


class Roots(Struct, array_like=True, frozen=True, tag=49):
    """The roots of a partition, without what may differ; none if the sender is at another vector."""

    id: int
    partition: int
    roots: list[bytes] = []
    base: bytes = b""  # What has left the log of the sender of this message,
    forgotten: int = 0  # and the last retirement that it has forgotten.
    forgotten_hlc: int = 0  # No origin that was retired by the request's `forgotten` has a later operation.
    garbage: list[bytes] = []  # A mark of each entry that waits to be swept.
    unsure: list[bytes] = []  # A mark of each object that is left out.


RootsMessage = RootsRequest | Roots


def check_roots(message: RootsMessage) -> None:
    """
    Raises:
        InvalidValue: it cannot be.
    """
    sound = 0 <= message.partition < PARTITIONS and len(message.base) <= _BASE_BYTES_MAX and 0 <= message.forgotten < 1 << 64
    if isinstance(message, RootsRequest):
        sound = sound and len(message.vector) == ROOT_BYTES
    else:
        marks = max(len(message.garbage), len(message.unsure)) <= 2 * GARBAGE_MAX
        sound = sound and marks and len(message.roots) <= _TABLES_MAX and 0 <= message.forgotten_hlc < 1 << 64
    if not sound:
        raise InvalidValue("a peer compares an impossible partition. Nothing was written.")


class Word(Enum):
    """The word of an owner about a snapshot."""

    SAME = "same"
    OTHER = "other"  # It has other rows, at the same vector.
    ELSEWHERE = "elsewhere"  # It is at another vector.


def is_believed(
    sender: bytes,
    words: Mapping[bytes, Word],
    *,
    owners: Collection[bytes],
    learners: Collection[bytes],
    needed: int,
    everyone: int,
    learns: bool,
) -> bool:
    """Whether a snapshot is believed; `learns`: this replica is a learner.

    `owners` are the other owners that were ever reached, `everyone` is the number of all of them, and `needed` more than half.
    """
    same = {sender, *(node for node, word in words.items() if word is Word.SAME)}.intersection(owners)
    if len(same.difference(learners)) >= needed:
        return True
    less = {node for node, word in words.items() if word is Word.ELSEWHERE and node in learners}
    return learns and len(owners) == everyone and same | less.intersection(owners) == set(owners)
