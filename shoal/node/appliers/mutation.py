"""Mutations: which change to which object, and how each kind of change is applied.

Law: `apply` is the only way into an object's rows, for operations issued here
(`WriteContext.apply`), received from a peer, or folded again from the log. A change names its larger
bytes by hash; they travel beside it (`Blobs`), are stored once, as rows, and
`attached_of` finds them again.
"""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.crdt import deletion, schema
from shoal.crdt.document import compaction, document
from shoal.crdt.items import indexes, items
from shoal.crdt.rows import Rows, Stamp
from shoal.crdt.thread import (
    consumers,
    dag,
    journal,
    labels,
    notes,
    ownership,
    progress,
    pruning,
    queue,
    reductions,
    retention,
    status,
    step_log,
    trimming,
)
from shoal.crdt.values import budget, counter, ormap, orset, register
from shoal.errors import StoreCorrupt
from shoal.node.appliers import budgets, checkpoints, deletions, documents, journals, prunes, queues, scalars, schemas, steps
from shoal.node.appliers import indexes as index_changes
from shoal.node.appliers import items as item_changes
from shoal.node.appliers import labels as label_changes
from shoal.node.appliers.applier import Appliers
from shoal.node.blobs import NOTHING, Blobs
from shoal.storage.keys import Kind

Change = (
    dag.Save
    | dag.Move
    | labels.Release
    | notes.Annotate
    | notes.Cut
    | ownership.Claim
    | journal.Append
    | consumers.Ack
    | reductions.Reduce
    | progress.Reach
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
    | step_log.Change
    | status.Move
    | deletion.Delete
    | schema.Put
    | pruning.Prune
    | trimming.Trim
    | retention.Retain
)

_APPLIERS: Appliers = {
    **checkpoints.APPLIERS,
    **label_changes.APPLIERS,
    **journals.APPLIERS,
    **queues.APPLIERS,
    **documents.APPLIERS,
    **scalars.APPLIERS,
    **budgets.APPLIERS,
    **item_changes.APPLIERS,
    **index_changes.APPLIERS,
    **schemas.APPLIERS,
    **steps.APPLIERS,
    **deletions.APPLIERS,
    **prunes.APPLIERS,
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
    applier = _APPLIERS[type(change)]
    return kind is applier.kind or kind in applier.others


def names_content(change: Change) -> bool:
    """Whether it names bytes that travel beside it."""
    return _APPLIERS[type(change)].names_content


def apply(rows: Rows, stamp: Stamp, change: Change, attached: Blobs = NOTHING) -> Any:
    """Carry out a sound change; what is returned is for the handler that issues it."""
    return _APPLIERS[type(change)].apply(rows, stamp, change, attached)


def check(rows: Rows, stamp: Stamp, change: Change, attached: Blobs) -> Blobs:
    """Of another node's change: what came beside it, to be applied with it.

    Raises:
        BadOperation: the change is not what it says it is, or some of what it names is missing.
    """
    return _APPLIERS[type(change)].check(rows, stamp, change, attached)


def attached_of(rows: Rows, stamp: Stamp, change: Change) -> Blobs:
    """What travelled beside a change that was applied to `rows`.

    Raises:
        StoreCorrupt: a row that must be there is not, or does not hold what the log names by its hash.
    """
    return _APPLIERS[type(change)].attached_of(rows, stamp, change)
