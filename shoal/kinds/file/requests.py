"""Files of a thread: their names, contents and chunks. `shoal.kinds.file.handle` makes files of these."""

from __future__ import annotations

import msgspec
from msgspec import Struct, field

from shoal.kinds.file.proven import digest_of
from shoal.kinds.file.state import ENTRY_BYTES
from shoal.protocol.base import (
    Elements,
    Http,
    Maintenance,
    Natural,
    ObjectRead,
    ObjectWrite,
    Positive,
    Reply,
    Time,
    Would,
    always,
    operation,
)

__all__ = [
    "SPACE_FILES",
    "ChunksFound",
    "ChunksKept",
    "ChunksRead",
    "DeleteFile",
    "DropFiles",
    "FileDeleted",
    "FileInfo",
    "FileList",
    "FileShown",
    "FileStored",
    "FilesDropped",
    "FindChunks",
    "KeepChunks",
    "ListFiles",
    "NameFile",
    "PutFile",
    "ReadChunks",
    "ReadFile",
    "RemoveFile",
    "SweepFiles",
    "carries_all",
]


SPACE_FILES = ".files"
"""The thread that holds the files of a space."""


class FileInfo(Struct, array_like=True, frozen=True):
    """A file."""

    name: str
    sha256: str  # Of its content: 64 hex digits.
    size: int  # In bytes.
    media_type: str  # Such as image/png.
    stored: Time  # When it was put.


@operation(foretells=True)
class FindChunks(ObjectRead["ChunksFound"], array_like=True, frozen=True, tag="find-chunks"):
    """Find which chunks a thread has, so that only the others are sent."""

    thread: str
    digests: Elements[bytes]  # SHA-256 of each.


class ChunksFound(Reply, array_like=True, frozen=True, tag="chunks-found"):
    """The chunks that are not there, and how large a request may be in which they are sent."""

    missing: list[int]  # Their places in the request.
    bytes_max: int  # Of one request to this node.


@operation(recognised=lambda request: [request.space, request.thread, *map(digest_of, request.chunks)])
class KeepChunks(ObjectWrite["ChunksKept"], array_like=True, frozen=True, tag="keep-chunks"):
    """Store chunks of a file that is being put. They are kept for a day, or as long as a file has them."""

    thread: str
    chunks: Elements[bytes]


class ChunksKept(Reply, array_like=True, frozen=True, tag="chunks-kept"):
    """The chunks are stored."""

    bytes: int


@operation(action="write", family="thread")
class PutFile(Maintenance["FileStored"], array_like=True, frozen=True, tag="put-file"):
    """Give a name a content whose chunks are there. The node reads them, and refuses a content of another hash."""

    thread: str
    name: str
    sha256: str  # Of the whole content: 64 hex digits.
    size: Natural
    media_type: str
    manifest: bytes  # SHA-256₃₂ and size₄ of each chunk, in order.
    chunks: Elements[bytes] = field(default_factory=list)  # Those that were not sent before.


@operation(family="thread")
class NameFile(ObjectWrite["FileStored"], array_like=True, frozen=True, tag="name-file"):
    """Give a name a content that this node has proved. `PutFile` makes it."""

    thread: str
    name: str
    sha256: str
    size: Natural
    media_type: str
    manifest: bytes
    chunks: Elements[bytes] = field(default_factory=list)


def carries_all(request: PutFile | NameFile) -> bool:
    """Whether a put brings each chunk of its manifest: then its answer says nothing of what the thread has."""
    return len(request.chunks) * ENTRY_BYTES >= len(request.manifest)


class FileStored(Reply, array_like=True, frozen=True, tag="file-stored"):
    """The file, as it is stored."""

    file: FileInfo
    replaced: bool  # Whether the name had a file.


@operation(
    action="write",
    http=(
        Http("DELETE", "/threads/{thread}/files/{name}", "Delete a file of a thread"),
        Http("DELETE", "/files/{name}", "Delete a file of a space", sets={"thread": SPACE_FILES}),
    ),
    would=Would(
        lambda request: (ListFiles(request.space, request.thread),),
        lambda request, before, found: FileDeleted(
            (before is not None and before.existed) or any(file.name == request.name for file in found.files)
        ),
        lambda read, reply: msgspec.structs.replace(read, after=reply.files[-1].name) if reply.more else None,
    ),
)
class DeleteFile(Maintenance["FileDeleted"], array_like=True, frozen=True, tag="delete-file"):
    """Delete a file by its name. Its bytes go as soon as no checkpoint, event or step of the thread refers to it."""

    thread: str
    name: str


@operation(frees=True, removes=always)
class RemoveFile(ObjectWrite["FileDeleted"], array_like=True, frozen=True, tag="remove-file"):
    """Remove a name of a file. `DeleteFile` makes it."""

    thread: str
    name: str


class FileDeleted(Reply, array_like=True, frozen=True, tag="file-deleted"):
    """Whether there was such a file."""

    existed: bool


@operation()
class ReadFile(ObjectRead["FileShown"], array_like=True, frozen=True, tag="read-file"):
    """Read what a file is made of: by its name, or by the hash of its content, which a reference has."""

    thread: str
    name: str = ""
    sha256: str = ""


class FileShown(Reply, array_like=True, frozen=True, tag="file-shown"):
    """A file, and its chunks."""

    file: FileInfo
    manifest: bytes  # SHA-256₃₂ and size₄ of each chunk, in order.


@operation(discloses=True)
class ReadChunks(ObjectRead["ChunksRead"], array_like=True, frozen=True, tag="read-chunks"):
    """Read chunks by their digests, from the first one on, as many as fit an answer."""

    thread: str
    digests: Elements[bytes]


class ChunksRead(Reply, array_like=True, frozen=True, tag="chunks-read"):
    """Chunks, in the order of the request; fewer than asked for, but at least one."""

    chunks: list[bytes]


@operation(
    multi_read=True,
    http=(
        Http("GET", "/threads/{thread}/files", "A page of a thread's files, by name", ops=("files",)),
        Http("GET", "/files", "A page of a space's files, by name", sets={"thread": SPACE_FILES}),
    ),
)
class ListFiles(ObjectRead["FileList"], array_like=True, frozen=True, tag="list-files"):
    """List the files of a thread by name, in byte order."""

    thread: str
    after: str = ""  # A file's name.
    limit: Positive = 1000


class FileList(Reply, array_like=True, frozen=True, tag="file-list"):
    """A page of files."""

    files: list[FileInfo]  # In byte order of their names.
    more: bool  # Ask again with `after`.


@operation(action="write")
class SweepFiles(Maintenance["FilesDropped"], array_like=True, frozen=True, tag="sweep-files"):
    """Drop those of these contents to which nothing refers, and uploads that were made before a time."""

    thread: str
    contents: Elements[bytes] = field(default_factory=list)  # SHA-256₃₂ of the content and of its manifest.
    uploads_before: Time = 0


@operation(frees=True)
class DropFiles(ObjectWrite["FilesDropped"], array_like=True, frozen=True, tag="drop-files"):
    """Drop these contents and uploads. `SweepFiles` makes it. What somebody refers to stays."""

    thread: str
    contents: Elements[bytes] = field(default_factory=list)
    uploads: Elements[bytes] = field(default_factory=list)  # Origin₁₆ and sequence₈ of each.


class FilesDropped(Reply, array_like=True, frozen=True, tag="files-dropped"):
    """Counts of the contents and uploads that were dropped."""

    contents: int
    uploads: int
