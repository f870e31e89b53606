"""Mutations: which change to which object, and how each kind of change is applied.

Law: `apply` is the only way into an object's rows, for operations issued here,
received from a peer, or folded again from the log. A change names its larger
bytes by hash; they travel beside it (`Attached`), are stored once, as rows, and
`attached_of` finds them again.
"""

from __future__ import annotations

import msgspec

from shoal.crdt import (
    budget,
    compaction,
    consumers,
    counter,
    deletion,
    document,
    indexes,
    items,
    journal,
    labels,
    ledger,
    lineage,
    notes,
    ormap,
    orset,
    ownership,
    places,
    pruning,
    queue,
    reductions,
    register,
    retention,
    schema,
    standing,
    trimming,
)
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import StoreCorrupt
from shoal.node.attached import Attached
from shoal.node.changes import budgets, checkpoints, deletions, documents, journals, prunes, queues, scalars, schemas, steps
from shoal.node.changes import indexes as index_changes
from shoal.node.changes import items as item_changes
from shoal.node.changes import labels as label_changes
from shoal.node.changes.handling import Handlings
from shoal.storage.keys import Kind

Change = (
    lineage.Save
    | lineage.Move
    | labels.Release
    | notes.Annotate
    | notes.Cut
    | ownership.Claim
    | journal.Append
    | consumers.Ack
    | reductions.Reduce
    | places.Reach
    | queue.Enqueue
    | queue.Dequeue
    | queue.Purge
    | document.Update
    | compaction.Compact
    | counter.Add
    | register.Assign
    | orset.Alter
    | budget.Change
    | ormap.Change
    | items.Put
    | items.Delete
    | items.Refresh
    | items.Expire
    | indexes.Declare
    | indexes.Drop
    | ledger.Change
    | standing.Move
    | deletion.Delete
    | schema.Put
    | pruning.Prune
    | trimming.Trim
    | retention.Retain
)

_HANDLINGS: Handlings = {
    **checkpoints.HANDLINGS,
    **label_changes.HANDLINGS,
    **journals.HANDLINGS,
    **queues.HANDLINGS,
    **documents.HANDLINGS,
    **scalars.HANDLINGS,
    **budgets.HANDLINGS,
    **item_changes.HANDLINGS,
    **index_changes.HANDLINGS,
    **schemas.HANDLINGS,
    **steps.HANDLINGS,
    **deletions.HANDLINGS,
    **prunes.HANDLINGS,
}


class Mutation(msgspec.Struct, array_like=True, frozen=True):
    kind: int
    space: str
    name: str
    change: Change
    generation: int = 0  # Of the object: the one that the issuer knew as the current one.


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Mutation])


def encode(mutations: list[Mutation]) -> bytes:
    return _encoder.encode(mutations)


def decode(payload: bytes) -> list[Mutation]:
    """
    Raises:
        StoreCorrupt: the payload of a stored operation cannot be read.
    """
    try:
        return _decoder.decode(payload)
    except ValueError as error:  # msgspec's own are ValueErrors, and so are those of text that is no UTF-8.
        raise StoreCorrupt(f"an operation in the log cannot be decoded ({error}). Run `shoal verify`.") from None


def takes(kind: Kind, change: Change) -> bool:
    """Whether objects of this kind take this change."""
    handling = _HANDLINGS[type(change)]
    return kind is handling.kind or kind in handling.others


def names_content(change: Change) -> bool:
    """Whether it names bytes that travel beside it."""
    return _HANDLINGS[type(change)].names_content


def apply(rows: Rows, stamp: Stamp, change: Change, attached: Attached) -> None:
    _HANDLINGS[type(change)].apply(rows, stamp, change, attached)


def receive(rows: Rows, stamp: Stamp, change: Change, attached: Attached) -> None:
    """Apply another node's change, once what came beside it is what the change names.

    Raises:
        BadOperation: it is not, or some of it is missing.
    """
    _HANDLINGS[type(change)].receive(rows, stamp, change, attached)


def attached_of(rows: Rows, stamp: Stamp, change: Change) -> Attached:
    """What travelled beside a change that was applied to `rows`.

    Raises:
        StoreCorrupt: a row that must be there is not, or does not hold what the log names by its hash.
    """
    return _HANDLINGS[type(change)].attached_of(rows, stamp, change)
