"""Labels of checkpoints, notes beside them, and who may write a thread."""

from __future__ import annotations

from msgspec import Struct

from shoal.crdt.thread.notes import Note as Note
from shoal.protocol.requests.base import ObjectRead, ObjectWrite, Reply
from shoal.protocol.requests.declared import operation
from shoal.protocol.requests.thread.threads import Checkpoint

__all__ = ["Annotate", "Annotated", "Claim", "Claimed", "Labelled", "Labels", "Note", "ReadLabels", "Unlabel", "Unlabelled"]


@operation(batch=True)
class Annotate(ObjectWrite["Annotated"], array_like=True, frozen=True, tag="annotate"):
    """Write notes beside a label, which need not be there yet."""

    thread: str
    label: str
    notes: list[Note]
    owner: str = ""  # See `Save.owner`.


class Annotated(Reply, array_like=True, frozen=True, tag="annotated"):
    id: str


@operation(batch=True)
class Unlabel(ObjectWrite["Unlabelled"], array_like=True, frozen=True, tag="unlabel"):
    """Take labels from the checkpoints that have them, and drop their notes.

    What is saved under one of them meanwhile, elsewhere, keeps it.
    """

    thread: str
    labels: list[str]
    owner: str = ""


class Unlabelled(Reply, array_like=True, frozen=True, tag="unlabelled"):
    count: int  # Of the labels that were there.


@operation(batch=True)
class Claim(ObjectWrite["Claimed"], array_like=True, frozen=True, tag="claim"):
    """Become the thread's owner, in place of whoever was."""

    thread: str


class Claimed(Reply, array_like=True, frozen=True, tag="claimed"):
    owner: str  # What the owner's writes carry from now on.


@operation(multi_read=True)
class ReadLabels(ObjectRead["Labels"], array_like=True, frozen=True, tag="read-labels"):
    """Labels in the order of their bytes, with what they name."""

    thread: str
    label: str | None = None  # This one alone.
    prefix: str = ""
    after: str | None = None  # Exclusive, in the direction of the listing.
    reverse: bool = False
    limit: int = 100
    channels: bool | list[str] = False  # All, or those of these that are there.
    notes: bool = False


class Labelled(Struct, array_like=True, frozen=True):
    label: str
    checkpoint: Checkpoint
    notes: list[Note] = []


class Labels(Reply, array_like=True, frozen=True, tag="labels"):
    items: list[Labelled]
    more: bool  # True if more follow; ask again with after=items[-1].label.
