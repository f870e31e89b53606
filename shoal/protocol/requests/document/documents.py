"""Documents."""

from __future__ import annotations

from hashlib import blake2b
from typing import Literal

import msgspec
from msgspec import Struct, field

from shoal.protocol.requests.base import ObjectRead, ObjectWrite, Reply
from shoal.protocol.requests.declared import operation
from shoal.protocol.requests.thread.threads import Deleted

__all__ = [
    "ANY",
    "Begin",
    "Beginning",
    "Begun",
    "Compact",
    "Compacted",
    "Conflicts",
    "DeleteDocument",
    "DocumentJson",
    "DocumentState",
    "Early",
    "Moment",
    "Overwritten",
    "Patch",
    "ReadConflicts",
    "ReadDocument",
    "ReadDocumentAt",
    "ReadDocumentJson",
    "ReadMoment",
    "Replace",
    "RestoreBeginning",
    "RootKind",
    "Update",
    "Updated",
    "Updates",
    "UpdatesTaken",
    "document_version",
]

RootKind = Literal["map", "array", "text", "xml"]
_VERSION_BYTES = 16
ANY = -1
"""A generation: whichever is the current one."""


@operation(batch=True)
class Update(ObjectWrite["Updated"], array_like=True, frozen=True, tag="update"):
    """Apply a Yjs v1 update to a document."""

    document: str
    update: bytes
    roots: dict[str, RootKind] = field(default_factory=dict)  # Root types that the update may be the first to use.
    authors: dict[int, str] = field(default_factory=dict)  # Who edits under a Yjs client id; the sender comes first.
    generation: int = ANY  # Of the document: the one that was edited.
    beginning: bytes = b""  # The hash of the beginning that the editor shows; a node that lacks it answers NotReady.


class Updated(Reply, array_like=True, frozen=True, tag="updated"):
    pass


class Updates(ObjectWrite["UpdatesTaken"], array_like=True, frozen=True, tag="updates"):
    """Apply Yjs v1 updates of clients that declare no roots, as one operation.

    Those that depend on what the node lacks are left out, and the reply names them. Any other error refuses all of
    them. What a root is that nobody declared is inferred from its use.
    """

    document: str
    updates: list[bytes]


class Early(Struct, array_like=True, frozen=True):
    """An update that was left out. It cannot be ready before the Yjs client `client` has reached `clock`."""

    index: int  # Among the updates of the request.
    client: int
    clock: int


class UpdatesTaken(Reply, array_like=True, frozen=True, tag="updates-taken"):
    early: list[Early] = field(default_factory=list)  # None of the others is missing from the document.


class Begin(ObjectWrite["Begun"], array_like=True, frozen=True, tag="begin"):
    """Give a document that nobody has written its first content, JSON text.

    Two that are begun at once, at two nodes, are not added up: equal ones are one, and of
    different ones the same one counts everywhere; what was lost is among the conflicts.
    """

    document: str
    content: bytes
    author: str = ""


class Begun(Reply, array_like=True, frozen=True, tag="begun"):
    created: bool  # False: it had content already, and was left as it is.


class Beginning(Struct, array_like=True, frozen=True):
    """A beginning of a document. Of several the one with the least hash counts."""

    digest: bytes  # SHA-256; the Yjs client id of its content follows from it.
    roots: dict[str, RootKind]


class RestoreBeginning(ObjectWrite["Begun"], array_like=True, frozen=True, tag="restore-beginning"):
    """Give a node the beginning that a client has seen elsewhere; the reply says whether the node lacked it.

    It counts as if the node that made it had sent it: of several beginnings one counts, everywhere.
    """

    document: str
    digest: bytes
    update: bytes  # A Yjs v1 update: the beginning's content, under its client id, without deletions.
    deletions: bytes  # A Yjs v1 update: what was deleted of that content since.
    roots: dict[str, RootKind]
    author: str = ""
    generation: int = ANY


class DeleteDocument(ObjectWrite[Deleted], array_like=True, frozen=True, tag="delete-document"):
    """End a document's generation: what was not written with knowledge of this is gone, or dies."""

    document: str
    expect: str | None = None  # The version that it must have (`document_version`); "": it must not be there.


class Compact(ObjectWrite["Compacted"], array_like=True, frozen=True, tag="compact"):
    """Make the oldest updates of a document one, without what was deleted.

    Raises NotFound if there is no such document.
    """

    document: str
    older_than_ms: int = 0  # Only updates that are older.
    at_least: int = 1  # Updates; where fewer would go all stay as they are.


class Compacted(Reply, array_like=True, frozen=True, tag="compacted"):
    updates: int  # That are part of the merged one from now on.
    bytes: int  # Of the merged one; 0 if there was nothing to do.
    more: bool = False  # There are more that could be, by another request.


class Patch(ObjectWrite["DocumentJson"], array_like=True, frozen=True, tag="patch"):
    """Apply a JSON Patch (RFC 6902; JSON text) as CRDT operations."""

    document: str
    patch: bytes
    author: str = ""
    expect: str | None = None  # As of `DeleteDocument`.


class Replace(ObjectWrite["DocumentJson"], array_like=True, frozen=True, tag="replace"):
    """Edit a document in place until it is this JSON text, by a small change."""

    document: str
    content: bytes
    author: str = ""
    expect: str | None = None  # As of `DeleteDocument`.


class ReadDocument(ObjectRead["DocumentState"], array_like=True, frozen=True, tag="read-document"):
    """Read a document as a Yjs update. If it does not exist, it is empty."""

    document: str
    state: bytes = b"\x00"  # The caller's Yjs state vector: only what it lacks is sent.


class DocumentState(Reply, array_like=True, frozen=True, tag="document-state"):
    update: bytes
    roots: dict[str, RootKind]
    authors: dict[int, str] = field(default_factory=dict)  # By Yjs client id, of those who said who they are.
    state: bytes = b"\x00"  # The document's Yjs state vector: that of a caller which has applied this.
    generation: int = 0  # How often it was deleted.
    beginnings: list[Beginning] | None = None  # All that the node knows; None: a node of an earlier version.


@operation(multi_read=True)
class ReadDocumentJson(ObjectRead["DocumentJson"], array_like=True, frozen=True, tag="read-document-json"):
    """Read a document as JSON.

    Raises NotFound if there is no such document.
    """

    document: str


class ReadMoment(ObjectRead["Moment"], array_like=True, frozen=True, tag="read-moment"):
    """Name a document as it is."""

    document: str


class Moment(Reply, array_like=True, frozen=True, tag="moment"):
    generation: int
    vector: bytes  # Of the partition, packed.


class ReadDocumentAt(ObjectRead["DocumentJson"], array_like=True, frozen=True, tag="read-document-at"):
    """A document as it was at a moment."""

    document: str
    generation: int
    vector: bytes


class ReadConflicts(ObjectRead["Conflicts"], array_like=True, frozen=True, tag="read-conflicts"):
    """What concurrent sets of one key of a map lost."""

    document: str


class Overwritten(Struct, array_like=True, frozen=True):
    """Values are packed, and nil if deleted."""

    path: list[str]  # From the root on; "*" is some element of an array.
    lost: bytes
    lost_by: str  # "" where nobody said.
    stands: bytes  # What is there now.
    stands_by: str  # Who overwrote it.
    wall_ms: int  # When the later of the two was written.


class Conflicts(Reply, array_like=True, frozen=True, tag="conflicts"):
    overwritten: list[Overwritten]  # Latest first; no more than `document_conflicts_max`.
    more: bool


class DocumentJson(Reply, array_like=True, frozen=True, tag="document-json"):
    json: bytes


def document_version(json: bytes) -> str:
    """A document's version: a digest of its content as JSON, whatever the order of keys. Equal content has equal versions."""
    content = msgspec.json.encode(msgspec.json.decode(json), order="sorted")
    return blake2b(content, digest_size=_VERSION_BYTES).hexdigest()
