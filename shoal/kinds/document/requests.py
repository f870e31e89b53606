"""Documents: updates, JSON, snapshots, conflicts."""

from __future__ import annotations

from hashlib import blake2b
from typing import Annotated, Literal

import msgspec
from msgspec import Struct, field

from shoal.errors import DocumentChanged, NotFound
from shoal.protocol.base import (
    Authors,
    Cli,
    Deleted,
    Elements,
    Http,
    Named,
    ObjectRead,
    ObjectWrite,
    Reply,
    Roots,
    Seconds,
    Value,
    always,
    operation,
)

__all__ = [
    "ANY",
    "Begin",
    "Beginning",
    "Begun",
    "Compact",
    "Compacted",
    "Conflicts",
    "DeleteDocument",
    "DocumentAuthor",
    "DocumentAuthors",
    "DocumentJson",
    "DocumentState",
    "Early",
    "Moment",
    "Overwritten",
    "Patch",
    "ReadAuthors",
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
"""As a generation: the current one."""


@operation(hearsay=("authors",), batch=True)
class Update(ObjectWrite["Updated"], array_like=True, frozen=True, tag="update"):
    """Apply a Yjs v1 update to a document."""

    document: str
    update: bytes
    roots: Roots[RootKind] = field(default_factory=dict)  # Root types that the update may be the first to use.
    authors: Authors = field(default_factory=dict)  # Yjs client id → author; the sender comes first.
    generation: int = ANY  # The generation of the document that was edited.
    beginning: bytes = b""  # The hash of the beginning that the editor shows. A node that lacks it answers NotReady.


class Updated(Reply, array_like=True, frozen=True, tag="updated"):
    """The update is part of the document, or was already."""


@operation(hearsay=("authors",))
class Updates(ObjectWrite["UpdatesTaken"], array_like=True, frozen=True, tag="updates"):
    """Apply Yjs v1 updates of clients that declare no roots, as one operation.

    Updates that depend on others that the node lacks are left out, and the reply names them. Any other error rejects
    all of them. The kind of an undeclared root is inferred from its use.
    """

    document: str
    updates: Elements[bytes]
    authors: Authors = field(default_factory=dict)  # Yjs client id → author; of those that inserted nothing none is kept.


class Early(Struct, array_like=True, frozen=True):
    """An update that was left out. It cannot be ready before the Yjs client `client` has reached `clock`."""

    index: int  # Among the updates of the request.
    client: int
    clock: int


class UpdatesTaken(Reply, array_like=True, frozen=True, tag="updates-taken"):
    """All updates of the request are part of the document, except those listed."""

    early: list[Early] = field(default_factory=list)  # The updates that were left out.


class Begin(ObjectWrite["Begun"], array_like=True, frozen=True, tag="begin"):
    """Give a document that was never written its first content, which is JSON text.

    If two nodes begin it concurrently, the contents are not added up: equal ones count once, and of
    different ones the same one counts on every node. Its conflicts list the lost values.
    """

    document: str
    content: bytes
    author: str = ""


class Begun(Reply, array_like=True, frozen=True, tag="begun"):
    """The answer to a beginning that was given or restored."""

    created: bool  # False if it had content, which is unchanged.


class Beginning(Struct, array_like=True, frozen=True):
    """A beginning of a document. Of several, the one with the least hash counts."""

    digest: bytes  # SHA-256; the Yjs client id of its content follows from it.
    roots: dict[str, RootKind]


@operation(hearsay=("author",))
class RestoreBeginning(ObjectWrite["Begun"], array_like=True, frozen=True, tag="restore-beginning"):
    """Give a node the beginning that a client has seen elsewhere; the reply says whether the node lacked it.

    It counts as if it had been replicated from the node that made it: of several beginnings the same one counts on
    every node.
    """

    document: str
    digest: bytes
    update: bytes  # A Yjs v1 update: the beginning's content, under its client id, without deletions.
    deletions: bytes  # A Yjs v1 update: the deletions of that content since.
    roots: Roots[RootKind]
    author: str = ""
    generation: int = ANY


@operation(
    frees=True,
    removes=always,
    http=Http(
        "DELETE",
        "/documents/{document}",
        "Delete a document on every node (no error if there is none)",
        errors=(DocumentChanged,),
    ),
    cli=Cli(
        "doc delete",
        "shoal doc delete plan --yes --url http://127.0.0.1:7400",
        shows="existed",
        help="Delete a document on every node, and print whether it existed. Clients that still edit it, also offline, "
        "get an error. It can be created again.",
        destroys="Delete document {document}",
    ),
)
class DeleteDocument(ObjectWrite[Deleted], array_like=True, frozen=True, tag="delete-document"):
    """Delete a document by ending its generation. Writes made without knowledge of the deletion are deleted too."""

    document: str
    expect: str | None = None  # The version that it must have (`document_version`); "" if it must not exist.


@operation(
    frees=True,
    action="admin",
    http=Http(
        "POST",
        "/documents/{document}/compact",
        "Replace a document's updates by one, without deleted content",
        errors=(NotFound,),
        example={"older_than_s": 3600},
    ),
    cli=Cli(
        "doc compact",
        "shoal doc compact plan --older-than 1d --url http://127.0.0.1:7400",
        shows="updates",
        help="Replace a document's updates by one, without deleted content, and print how many. Its content stays.",
        hides=("at_least",),
    ),
)
class Compact(ObjectWrite["Compacted"], array_like=True, frozen=True, tag="compact"):
    """Replace the oldest updates of a document by one, without deleted content.

    Raises NotFound if there is no such document.
    """

    document: str
    older_than_ms: Annotated[Seconds, Named("older_than_s")] = 0  # Only updates that are older.
    at_least: int = 1  # The minimal number of updates; if there are fewer, nothing is compacted.


class Compacted(Reply, array_like=True, frozen=True, tag="compacted"):
    """The result of a compaction."""

    updates: int  # How many updates were replaced by one.
    bytes: int  # The size of that one; 0 if there was nothing to do.
    more: bool = False  # Whether there are more to compact, for another request.


@operation(discloses=True)
class Patch(ObjectWrite["DocumentJson"], array_like=True, frozen=True, tag="patch"):
    """Apply a JSON Patch (RFC 6902; JSON text) as CRDT operations."""

    document: str
    patch: bytes
    author: str = ""
    expect: str | None = None  # As of `DeleteDocument`.


@operation(discloses=True)
class Replace(ObjectWrite["DocumentJson"], array_like=True, frozen=True, tag="replace"):
    """Edit a document in place, with small changes, until it equals this JSON text."""

    document: str
    content: bytes
    author: str = ""
    expect: str | None = None  # As of `DeleteDocument`.


class ReadDocument(ObjectRead["DocumentState"], array_like=True, frozen=True, tag="read-document"):
    """Read a document as a Yjs update. If it does not exist, it is empty."""

    document: str
    state: bytes = b"\x00"  # The caller's Yjs state vector: only updates that it lacks are sent.


class DocumentState(Reply, array_like=True, frozen=True, tag="document-state"):
    """The state of a document, or the part that the caller lacks."""

    update: bytes
    roots: dict[str, RootKind]
    authors: dict[int, str] = field(default_factory=dict)  # Yjs client id → author, as far as they were given.
    state: bytes = b"\x00"  # The document's Yjs state vector: that of a caller after applying this.
    generation: int = 0  # How often the document was deleted.
    beginnings: list[Beginning] | None = None  # All beginnings that the node knows; None from a node of an earlier version.


@operation(multi_read=True)
class ReadDocumentJson(ObjectRead["DocumentJson"], array_like=True, frozen=True, tag="read-document-json"):
    """Read a document as JSON.

    Raises NotFound if there is no such document.
    """

    document: str


class ReadMoment(ObjectRead["Moment"], array_like=True, frozen=True, tag="read-moment"):
    """Name the current state of a document, for `ReadDocumentAt`."""

    document: str


class Moment(Reply, array_like=True, frozen=True, tag="moment"):
    """A state of a document, which `ReadDocumentAt` can read later."""

    generation: int
    vector: bytes  # The partition's vector, packed.


class ReadDocumentAt(ObjectRead["DocumentJson"], array_like=True, frozen=True, tag="read-document-at"):
    """Read a document as it was at a `Moment`."""

    document: str
    generation: int
    vector: bytes


@operation(
    http=Http(
        "GET",
        "/documents/{document}/conflicts",
        "Values that concurrent assignments overwrote, latest first",
        errors=(NotFound,),
    ),
    cli=Cli(
        "doc conflicts",
        "shoal doc conflicts plan --data ./state",
        help="List values that concurrent assignments of one key overwrote, the latest first, with both authors.",
        rows="overwritten",
        columns=("wall_ms", "path", "lost", "lost_by", "stands", "stands_by"),
    ),
)
class ReadConflicts(ObjectRead["Conflicts"], array_like=True, frozen=True, tag="read-conflicts"):
    """List values of map keys that concurrent assignments overwrote."""

    document: str


class Overwritten(Struct, array_like=True, frozen=True):
    """A value that a concurrent assignment overwrote. Values are packed, and nil if deleted."""

    path: list[str]  # From the root on; "*" stands for an element of an array.
    lost: Value
    lost_by: str  # The author of the lost value; "" if none was given.
    stands: Value  # The current value.
    stands_by: str  # The author of the current value.
    wall_ms: int  # When the later of the two was written.


class Conflicts(Reply, array_like=True, frozen=True, tag="conflicts"):
    """The overwritten values of a document."""

    overwritten: Annotated[list[Overwritten], Named("conflicts")]  # The latest first; at most 256.
    more: bool


@operation(
    http=Http("GET", "/documents/{document}/authors", "The authors of a document's passages, by Yjs client"),
    cli=Cli(
        "doc authors",
        "shoal doc authors plan --url http://127.0.0.1:7400",
        help="List the authors of a document by the ids of their Yjs clients, also those who have left.",
        rows="authors",
    ),
)
class ReadAuthors(ObjectRead["DocumentAuthors"], array_like=True, frozen=True, tag="read-authors"):
    """List the authors of a document, also those who have left. Each passage of it names the Yjs client that inserted it."""

    document: str


class DocumentAuthor(Struct, array_like=True, frozen=True):
    """The author of all that a Yjs client inserted."""

    client: int  # The id of the Yjs client.
    author: str


class DocumentAuthors(Reply, array_like=True, frozen=True, tag="document-authors"):
    """The authors of a document that gave their names."""

    authors: list[DocumentAuthor]  # By client; at most 10,000.
    more: bool = False  # Whether there are more than that.


class DocumentJson(Reply, array_like=True, frozen=True, tag="document-json"):
    """The content of a document."""

    json: bytes


def document_version(json: bytes) -> str:
    """A document's version: a digest of its content as JSON with sorted keys, so that equal contents have equal versions."""
    content = msgspec.json.encode(msgspec.json.decode(json), order="sorted")
    return blake2b(content, digest_size=_VERSION_BYTES).hexdigest()
