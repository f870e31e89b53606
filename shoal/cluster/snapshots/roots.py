"""Whether the rows of a peer's snapshot are believed: its hashes are compared with those of the other owners.

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


def check(message: RootsMessage) -> None:
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
