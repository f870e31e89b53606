"""The files of a thread: names, contents and chunks.

Laws:
- A *content* is a file's bytes as a list of chunks. Each chunk is in a thread once, however many contents have it.
- A name shows the version that was put last. A put or a deletion replaces the versions that its origin knew, so of two
  concurrent puts the later one is shown, and the other one's content stays until somebody writes the name again.
- Chunks come before the content that lists them, each batch of them as an operation of its own: an *upload*, which keeps its
  chunks until a content has them all, or until it is dropped.
- A content is *standing* while there is a put of it that no drop of its origin's past has named. Nothing new may build on a
  content that is not standing, nor on its chunks, unless the thread still refers to it. So once the drop is stable, the rows
  tell whether anything refers to it, and if nothing does they go, on every replica.

Rows, within the thread's; a content is SHA-256₃₂ of its bytes, then SHA-256₃₂ of its manifest:
    V                     the thread has had files
    Vc digest₃₂           a chunk, under its SHA-256
    Vh dot₂₄              an upload: wall_ms₈, then the digests₃₂ of its chunks
    Vi digest₃₂ dot₂₄     empty: the chunk is held by this upload
    Vl digest₃₂           the length₄ of the chunk
    Vm content₆₄          its manifest: digest₃₂ size₄ of each chunk, in order
    Vn name               msgpack [[position₃₄, wall_ms, content₆₄, size, media type], …]: the live versions, by position
    Vo content₆₄ name     empty: a live version under this name has this content
    Vs content₆₄          the dots₂₄ of its puts that were not dropped; no bytes: it is not standing
    Vx digest₃₂ content₆₄ empty: the content has this chunk
    Vz content₆₄          empty: no live version has this content
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import islice

import msgspec

from shoal.crdt.dot import DOT_BYTES
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import StoreCorrupt
from shoal.records import NamedTuple

FILES = b"V"
CHUNK, UPLOAD, HELD, LENGTH, MANIFEST, NAME = b"Vc", b"Vh", b"Vi", b"Vl", b"Vm", b"Vn"
OWNED, STANDING, USED, NAMELESS = b"Vo", b"Vs", b"Vx", b"Vz"
DIGEST_BYTES = 32
CONTENT_BYTES = 2 * DIGEST_BYTES
ENTRY_BYTES = DIGEST_BYTES + 4  # Of a manifest.
FILE_CHUNK_BYTES_MAX = 4 * 1024 * 1024
FILE_BATCH_BYTES = 2 * 1024 * 1024  # Of the chunks in one request, or one answer; the first may exceed it.
CHUNKS_MAX = 65_536  # Of one content: some 64 GiB, and a manifest that a request can carry.

HELD_MAX = 2 * CHUNKS_MAX  # Chunks of uploads that a put looks at, in one step. Uploads beyond them end by themselves.


class Upload(msgspec.Struct, array_like=True, frozen=True, tag="upload-chunks"):
    """A mutation: keeps chunks, whose bytes travel beside it, for a content that is to come."""

    digests: tuple[bytes, ...]


class Put(msgspec.Struct, array_like=True, frozen=True, tag="put-file"):
    """A mutation: gives a name a content. Its manifest travels beside it."""

    name: str
    content: bytes
    size: int
    media_type: str
    over: tuple[bytes, ...] = ()  # The positions of the versions that it replaces.
    uploads: tuple[bytes, ...] = ()  # The dots of those that are over now.
    chunks: tuple[bytes, ...] = ()  # The digests of those that travel beside it.


class Delete(msgspec.Struct, array_like=True, frozen=True, tag="delete-file"):
    """A mutation: removes versions of a name."""

    name: str
    over: tuple[bytes, ...]


class Drop(msgspec.Struct, array_like=True, frozen=True, tag="drop-contents"):
    """A mutation: ends uploads, and contents to which nothing in its issuer's rows refers."""

    contents: tuple[tuple[bytes, bytes], ...]  # Each with the dots of its puts that the issuer knew.
    digests: tuple[bytes, ...]  # Of their chunks, and of those of the uploads.
    uploads: tuple[bytes, ...] = ()


Change = Upload | Put | Delete | Drop


class Version(msgspec.Struct, array_like=True, frozen=True):
    """A version of a named file."""

    position: bytes
    wall_ms: int
    content: bytes
    size: int
    media_type: str

    @property
    def sha256(self) -> bytes:
        """The hash of its bytes."""
        return self.content[:DIGEST_BYTES]


class Chunk(NamedTuple):
    """An entry of a manifest."""

    digest: bytes
    size: int


_encoder = msgspec.msgpack.Encoder()
_versions = msgspec.msgpack.Decoder(list[Version])


def content_of(hash: bytes, manifest: bytes) -> bytes:
    """The content with this hash and manifest."""
    return hash + sha256(manifest).digest()


def pack_manifest(chunks: Iterable[Chunk]) -> bytes:
    """A manifest as it is stored."""
    return b"".join(chunk.digest + chunk.size.to_bytes(4, "big") for chunk in chunks)


def unpack_manifest(manifest: bytes) -> list[Chunk]:
    """The chunks of a manifest, in order."""
    starts = range(0, len(manifest) - ENTRY_BYTES + 1, ENTRY_BYTES)
    ends = [start + DIGEST_BYTES for start in starts]
    return [Chunk(manifest[end - DIGEST_BYTES : end], int.from_bytes(manifest[end : end + 4], "big")) for end in ends]


def is_manifest(manifest: bytes, size: int) -> bool:
    """Whether these bytes are a manifest of a content of this size."""
    chunks = unpack_manifest(manifest) if len(manifest) <= CHUNKS_MAX * ENTRY_BYTES else []
    is_whole = len(manifest) == len(chunks) * ENTRY_BYTES and all(chunk.size for chunk in chunks)
    return is_whole and sum(chunk.size for chunk in chunks) == size


# ── changes ───────────────────────────────────────────────────────────────────


_NO_CHUNKS: Mapping[bytes, bytes] = {}


def apply(
    rows: Rows, stamp: Stamp, change: Change, manifest: bytes | None = None, chunks: Mapping[bytes, bytes] = _NO_CHUNKS
) -> None:
    """Apply a mutation of any kind. `manifest`: that a put brings; None if it was swept before it came here."""
    match change:
        case Upload(digests):
            rows.put(FILES, b"")
            _keep(rows, chunks)
            dot = stamp.dot.pack()
            rows.put(UPLOAD + dot, stamp.wall_ms.to_bytes(8, "big") + b"".join(digests))
            for digest in digests:
                rows.put(HELD + digest + dot, b"")
        case Put():
            rows.put(FILES, b"")
            _keep(rows, chunks)
            _put(rows, stamp, change, manifest)
        case Delete(name, over):
            _set_versions(rows, name, [], over)
        case Drop(contents, _, uploads):
            for content, known in contents:
                _drop(rows, content, known)
            _end_uploads(rows, uploads)


def _keep(rows: Rows, chunks: Mapping[bytes, bytes]) -> None:
    for digest, chunk in chunks.items():
        rows.put(CHUNK + digest, chunk)
        rows.put(LENGTH + digest, len(chunk).to_bytes(4, "big"))


def _put(rows: Rows, stamp: Stamp, change: Put, manifest: bytes | None) -> None:
    if manifest is not None:
        standing = rows.get(STANDING + change.content)
        if standing is None:
            rows.put(MANIFEST + change.content, manifest)
            rows.put(NAMELESS + change.content, b"")
            for chunk in unpack_manifest(manifest):
                rows.put(USED + chunk.digest + change.content, b"")
        rows.put(STANDING + change.content, b"".join(sorted({stamp.dot.pack(), *_dots(standing or b"")})))
    version = Version(stamp.pack_position(), stamp.wall_ms, change.content, change.size, change.media_type)
    _set_versions(rows, change.name, [version], change.over)
    _end_uploads(rows, change.uploads)


def _set_versions(rows: Rows, name: str, added: list[Version], over: Collection[bytes]) -> None:
    before = versions(rows, name)
    after = sorted([*(each for each in before if each.position not in over), *added], key=lambda each: each.position)
    if after:
        rows.put(NAME + name.encode(), _encoder.encode(after))
    else:
        rows.delete(NAME + name.encode())
    named, were = {each.content for each in after}, {each.content for each in before}
    for content in named - were:
        rows.put(OWNED + content + name.encode(), b"")
        rows.delete(NAMELESS + content)
    for content in were - named:
        rows.delete(OWNED + content + name.encode())
        if not is_named(rows, content) and rows.get(STANDING + content) is not None:
            rows.put(NAMELESS + content, b"")


def _drop(rows: Rows, content: bytes, known: bytes) -> None:
    if (standing := rows.get(STANDING + content)) is not None:
        seen = _dots(known)
        rows.put(STANDING + content, b"".join([dot for dot in _dots(standing) if dot not in seen]))


def _end_uploads(rows: Rows, uploads: Iterable[bytes]) -> None:
    for dot in uploads:
        for digest in found.digests if (found := upload(rows, dot)) is not None else ():
            rows.delete(HELD + digest + dot)
        rows.delete(UPLOAD + dot)


def _dots(packed: bytes) -> list[bytes]:
    return [packed[at : at + DOT_BYTES] for at in range(0, len(packed), DOT_BYTES)]


# ── reads ─────────────────────────────────────────────────────────────────────


class Uploaded(NamedTuple):
    """An upload that is not over."""

    dot: bytes
    wall_ms: int
    digests: list[bytes]


def has_files(rows: Rows) -> bool:
    """Whether the thread has, or had, any file."""
    return rows.get(FILES) is not None


def versions(rows: Rows, name: str) -> list[Version]:
    """The live versions of a name; the last one is the file.

    Raises:
        StoreCorrupt: they cannot be decoded.
    """
    stored = rows.get(NAME + name.encode())
    return [] if stored is None else _unpack_versions(stored)


def _unpack_versions(stored: bytes) -> list[Version]:
    try:
        return _versions.decode(stored)
    except ValueError as error:
        raise StoreCorrupt(f"a file's name cannot be decoded ({error}). Run `shoal verify`.") from None


def names(rows: Rows, *, after: str = "", limit: int | None = None) -> Iterator[tuple[str, Version]]:
    """The files by name, in byte order, after a name."""
    for key, stored in rows.scan(NAME, after=NAME + after.encode() if after else None, limit=limit):
        yield key[len(NAME) :].decode(), _unpack_versions(stored)[-1]


def is_named(rows: Rows, content: bytes) -> bool:
    """Whether a live version has this content, or one that begins with these bytes, such as its hash."""
    return _any(rows, OWNED + content)


def contents(rows: Rows, hash: bytes) -> list[bytes]:
    """The contents with this hash, standing or not: one, unless they were cut in different ways."""
    return [key[len(STANDING) :] for key, _ in rows.scan(STANDING + hash)]


def standing(rows: Rows, content: bytes) -> bytes:
    """The dots of the puts of a content that were not dropped."""
    return rows.get(STANDING + content) or b""


def is_standing(rows: Rows, content: bytes) -> bool:
    """Whether something new may build on the content."""
    return bool(rows.get(STANDING + content))


def nameless(rows: Rows, *, after: bytes = b"", limit: int | None = None) -> list[bytes]:
    """The contents that no name shows, after one of them."""
    found = rows.scan(NAMELESS, after=NAMELESS + after if after else None, limit=limit)
    return [key[len(NAMELESS) :] for key, _ in found]


def manifest(rows: Rows, content: bytes) -> bytes | None:
    """The manifest of a content; None if it is not there."""
    return rows.get(MANIFEST + content)


def chunk(rows: Rows, digest: bytes) -> bytes | None:
    """A chunk by its digest."""
    return rows.get(CHUNK + digest)


def is_held(rows: Rows, digest: bytes) -> bool:
    """Whether a chunk is here. It is not read."""
    return rows.size(CHUNK + digest) is not None


def size_of(rows: Rows, digest: bytes) -> int | None:
    """The size of a chunk; None if it is not there. The chunk is not read."""
    stored = rows.get(LENGTH + digest)
    return None if stored is None else int.from_bytes(stored, "big")


def has_chunk(rows: Rows, digest: bytes) -> bool:
    """Whether a content may be built on this chunk: an upload holds it, or a standing content has it."""
    if _any(rows, HELD + digest):
        return True
    at = len(USED) + DIGEST_BYTES
    return any(is_standing(rows, key[at:]) for key, _ in rows.scan(USED + digest))


def is_listed(rows: Rows, digest: bytes) -> bool:
    """Whether a content that is here, standing or not, has this chunk."""
    at = len(USED) + DIGEST_BYTES
    return any(manifest(rows, key[at:]) is not None for key, _ in rows.scan(USED + digest))


def holders(rows: Rows, digests: Iterable[bytes]) -> list[Uploaded]:
    """The uploads that are not over and hold any of these chunks; not all of them, if there are more than one file needs."""
    at = len(HELD) + DIGEST_BYTES
    held = (key[at:] for digest in digests for key, _ in rows.scan(HELD + digest))
    dots = sorted(set(islice(held, HELD_MAX)))
    found: list[Uploaded] = []
    left = HELD_MAX
    for each in (upload(rows, dot) for dot in dots):
        if left <= 0:
            break
        if each is not None:
            found.append(each)
            left -= len(each.digests)
    return found


def upload(rows: Rows, dot: bytes) -> Uploaded | None:
    """An upload that is not over; None if it is, or never was."""
    stored = rows.get(UPLOAD + dot)
    return None if stored is None else _uploaded(dot, stored)


def uploads(rows: Rows, *, limit: int | None = None) -> list[Uploaded]:
    """The uploads that are not over."""
    return [_uploaded(key[len(UPLOAD) :], stored) for key, stored in rows.scan(UPLOAD, limit=limit)]


def _uploaded(dot: bytes, stored: bytes) -> Uploaded:
    digests = [stored[at : at + DIGEST_BYTES] for at in range(8, len(stored), DIGEST_BYTES)]
    return Uploaded(dot, int.from_bytes(stored[:8], "big"), digests)


def _any(rows: Rows, prefix: bytes) -> bool:
    return next(iter(rows.scan(prefix, limit=1)), None) is not None


# ── sweeping ──────────────────────────────────────────────────────────────────


class _Dropped(msgspec.Struct, array_like=True, frozen=True):
    contents: tuple[bytes, ...]
    digests: tuple[bytes, ...]


_dropped = msgspec.msgpack.Decoder(_Dropped)


def pack_dropped(change: Drop) -> bytes:
    """The contents and chunks that a drop leaves to be swept, as an entry of the queue of garbage names it."""
    return _encoder.encode(_Dropped(tuple(content for content, _ in change.contents), change.digests))


def unpack_dropped(ends: bytes) -> tuple[Sequence[bytes], Sequence[bytes]]:
    """The contents and the digests of chunks in such an entry.

    Raises:
        StoreCorrupt: it cannot be decoded.
    """
    try:
        found = _dropped.decode(ends)
    except ValueError as error:
        raise StoreCorrupt(f"an entry of garbage cannot be decoded ({error}). Run `shoal verify`.") from None
    return found.contents, found.digests


def is_over(rows: Rows, content: bytes) -> bool:
    """Whether a dropped content may go, if no value refers to it: no name shows it, and it was not put again."""
    return rows.get(STANDING + content) == b"" and not is_named(rows, content)


def rows_of(rows: Rows, content: bytes) -> list[bytes]:
    """The rows of a content but its chunks."""
    used = [USED + each.digest + content for each in unpack_manifest(manifest(rows, content) or b"")]
    return [MANIFEST + content, STANDING + content, NAMELESS + content, *dict.fromkeys(used)]


def chunk_rows(digest: bytes) -> list[bytes]:
    """The rows of a chunk."""
    return [CHUNK + digest, LENGTH + digest]


def is_unused(rows: Rows, digest: bytes) -> bool:
    """Whether no content has the chunk, and no upload holds it."""
    return not _any(rows, HELD + digest) and not _any(rows, USED + digest)


def _file(row: bytes) -> int:  # All but Vn name
    return len(row) if row.startswith(NAME) else 2


HIDDEN = {ord("V"): _file}
