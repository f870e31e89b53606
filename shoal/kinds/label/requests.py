"""Labels of checkpoints, notes beside them, and the ownership of a thread."""

from __future__ import annotations

import typing

from msgspec import Struct

from shoal.errors import NotFound
from shoal.kinds.label.state import Note
from shoal.kinds.thread.requests import Checkpoint
from shoal.protocol.base import (
    ChannelNames,
    Cli,
    Elements,
    Http,
    Named,
    Notes,
    ObjectRead,
    ObjectWrite,
    Part,
    Positive,
    Reply,
    Shape,
    Would,
    operation,
)

__all__ = ["Annotate", "Annotated", "Claim", "Claimed", "Labelled", "Labels", "Note", "ReadLabels", "Unlabel", "Unlabelled"]


@operation(batch=True, drives=True)
class Annotate(ObjectWrite["Annotated"], array_like=True, frozen=True, tag="annotate"):
    """Write notes beside a label, which need not exist yet."""

    thread: str
    label: str
    notes: Notes[Note]
    owner: str = ""  # See `Save.owner`.


class Annotated(Reply, array_like=True, frozen=True, tag="annotated"):
    """The notes are written; `id` is the operation's position."""

    id: str


@operation(
    frees=True,
    batch=True,
    http=Http(
        "DELETE",
        "/threads/{thread}/labels/{label}",
        "Remove a label; its checkpoint stays",
        errors=(NotFound,),
        parts=(Part({"label": str}, ("labels",), lambda label: ([label],)),),
    ),
    would=Would(
        lambda request: [ReadLabels(request.space, request.thread, label) for label in request.labels],
        lambda _, before, found: Unlabelled((before.count if before else 0) + len(found.items)),
    ),
    cli=Cli(
        "unlabel",
        "shoal unlabel researcher-1 best --yes --data ./state --space crew",
        shows="count",
        help="Remove labels of a thread, and print how many there were. Their checkpoints stay.",
        destroys="Remove these labels of thread {thread}",
    ),
)
class Unlabel(ObjectWrite["Unlabelled"], array_like=True, frozen=True, tag="unlabel"):
    """Remove labels from their checkpoints, and delete their notes.

    A checkpoint that another node saves concurrently under one of them keeps it.
    """

    thread: str
    labels: Elements[str]
    owner: typing.Annotated[str, Shape.INTERNAL] = ""


class Unlabelled(Reply, array_like=True, frozen=True, tag="unlabelled"):
    """The result of removing labels."""

    count: int  # How many of the labels existed.


@operation(batch=True)
class Claim(ObjectWrite["Claimed"], array_like=True, frozen=True, tag="claim"):
    """Become the thread's owner, in place of the previous one."""

    thread: str


class Claimed(Reply, array_like=True, frozen=True, tag="claimed"):
    """The caller owns the thread."""

    owner: str  # The token that the owner's writes carry from now on.


@operation(
    multi_read=True,
    http=Http("GET", "/threads/{thread}/labels", "Labels, and their checkpoints"),
    cli=Cli(
        "labels",
        "shoal labels researcher-1 --data ./state --space crew",
        help="List a thread's labels, with their checkpoints.",
        rows="items",
        place="label",
        columns=("label", "checkpoint.id"),
        hides=("label", "reverse"),
    ),
)
class ReadLabels(ObjectRead["Labels"], array_like=True, frozen=True, tag="read-labels"):
    """List labels in byte order, with their checkpoints."""

    thread: str
    label: str | None = None  # Only this one.
    prefix: str = ""
    after: str | None = None  # Exclusive, in the direction of the listing.
    reverse: bool = False  # In the opposite order.
    limit: Positive = 100
    # True for all channels, or the names of channels, of which the existing ones are read.
    channels: typing.Annotated[bool | ChannelNames, Shape.INTERNAL] = False
    notes: typing.Annotated[bool, Shape.INTERNAL] = False


class Labelled(Struct, array_like=True, frozen=True):
    """A label and its checkpoint."""

    label: str
    checkpoint: Checkpoint
    notes: typing.Annotated[list[Note], Shape.INTERNAL] = []


class Labels(Reply, array_like=True, frozen=True, tag="labels"):
    """A page of labels."""

    items: typing.Annotated[list[Labelled], Named("labels")]
    more: bool  # Ask again with after=items[-1].label.
