"""Changes of a thread's files: their chunks and manifests travel beside them.

Law: bytes that are missing were swept after a drop, and the log names that drop as long as it has the change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256

from shoal.crdt.applier import Applier, Appliers, Blobs, Effects, Erased, Sweep, What, bare, is_gone
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation, StoreCorrupt
from shoal.kinds import Kind
from shoal.kinds.file import state as files
from shoal.names import check_name

_TYPE_CHARACTERS_MAX = 255


def _apply(rows: Rows, stamp: Stamp, change: files.Upload | files.Put, attached: Blobs) -> None:
    files.apply(rows, stamp, change, None if is_gone(attached) else attached.content, attached.chunks)


def _check_upload(_rows: Rows, _stamp: Stamp, change: files.Upload, attached: Blobs) -> Blobs:
    if not change.digests or not _are(change.digests, files.DIGEST_BYTES):
        raise BadOperation("an upload of a file names no chunks", reason="content")
    _check_chunks(change.digests, attached)
    return attached


def _check_put(rows: Rows, _stamp: Stamp, change: files.Put, attached: Blobs) -> Blobs:
    check_name("file", change.name)
    is_sound = (
        len(change.content) == files.CONTENT_BYTES and change.size >= 0 and len(change.media_type) <= _TYPE_CHARACTERS_MAX
    )
    if not is_sound or not _are(change.over, 34) or not _are(change.uploads, 24) or not _are(change.chunks, files.DIGEST_BYTES):
        raise BadOperation("a put of a file names no content", reason="content")
    _check_chunks(change.chunks, attached)
    if is_gone(attached):
        return attached
    if not files.is_manifest(attached.content, change.size) or not change.content.endswith(sha256(attached.content).digest()):
        raise BadOperation("the manifest of a file does not match its content", reason="content")
    for entry in () if attached.erased else files.unpack_manifest(attached.content):
        found = attached.chunks.get(entry.digest)
        if (files.size_of(rows, entry.digest) if found is None else len(found)) != entry.size:
            raise BadOperation(f"chunk {entry.digest.hex()} of a file is missing, or has another size", reason="content")
    return attached


def _check_chunks(named: Iterable[bytes], attached: Blobs) -> None:
    if attached.chunks.keys() - set(named) or (set(named) - attached.chunks.keys() and not attached.erased):
        raise BadOperation("the chunks that came with a file are not those that it names", reason="content")


def _check_delete(_stamp: Stamp, change: files.Delete) -> None:
    check_name("file", change.name)
    if not _are(change.over, 34):
        raise BadOperation("a deletion of a file names no versions", reason="content")


def _check_drop(_stamp: Stamp, change: files.Drop) -> None:
    contents = [content for content, _ in change.contents]
    is_sound = _are(contents, files.CONTENT_BYTES) and all(len(dots) % 24 == 0 for _, dots in change.contents)
    if not is_sound or not _are(change.digests, files.DIGEST_BYTES) or not _are(change.uploads, 24):
        raise BadOperation("a drop of files names no contents", reason="content")


def _are(parts: Iterable[bytes], size: int) -> bool:
    return all(len(part) == size for part in parts)


def _chunks_of(rows: Rows, digests: Iterable[bytes]) -> Mapping[bytes, bytes]:
    found = {digest: chunk for digest in digests if (chunk := files.chunk(rows, digest)) is not None}
    for digest, chunk in found.items():
        if sha256(chunk).digest() != digest:
            raise StoreCorrupt(f"chunk {digest.hex()} of a file is damaged. Run `shoal verify`.")
    return found


def _uploaded(rows: Rows, _stamp: Stamp, change: files.Upload) -> Blobs:
    found = _chunks_of(rows, change.digests)
    return Blobs(b"", found, len(found) < len(set(change.digests)))


def _put(rows: Rows, _stamp: Stamp, change: files.Put) -> Blobs:
    found, manifest = _chunks_of(rows, change.chunks), files.manifest(rows, change.content)
    if manifest is not None and not change.content.endswith(sha256(manifest).digest()):
        raise StoreCorrupt(f"the manifest of file {change.name!r} is damaged. Run `shoal verify`.")
    return Blobs(manifest or b"", found, manifest is None or len(found) < len(set(change.chunks)))


def _upload_is_erased(rows: Rows, _stamp: Stamp, change: files.Upload, erased: Erased) -> bool:
    return all(digest in erased.chunks or files.is_held(rows, digest) for digest in change.digests)


def _put_is_erased(rows: Rows, _stamp: Stamp, change: files.Put, erased: Erased) -> bool:
    is_there = files.manifest(rows, change.content) is not None
    missing = [digest for digest in change.chunks if not files.is_held(rows, digest)]
    return (is_there or change.content in erased.contents) and erased.chunks.issuperset(missing)


def _erases(change: files.Drop, erased: Erased) -> None:
    erased.contents.update(content for content, _ in change.contents)
    erased.chunks.update(change.digests)


def _named(_name: str, _stamp: Stamp, change: files.Put | files.Delete) -> str:
    return change.name


_KEPT = Effects(files=True)

APPLIERS: Appliers = {
    files.Upload: Applier(
        Kind.THREAD,
        _apply,
        _check_upload,
        _uploaded,
        effects=_KEPT._replace(erased_by=_upload_is_erased),
        since=lambda _: 7,
    ),
    files.Put: Applier(
        Kind.THREAD,
        _apply,
        _check_put,
        _put,
        id_of=_named,
        effects=_KEPT._replace(erased_by=_put_is_erased),
        since=lambda _: 7,
    ),
    files.Delete: bare(Kind.THREAD, files.apply, _check_delete, _named, effects=_KEPT, since=lambda _: 7),
    files.Drop: bare(
        Kind.THREAD,
        files.apply,
        _check_drop,
        effects=Effects(sweeps=Sweep(What.FILES, lambda _stamp, drop: files.pack_dropped(drop)), erases=_erases),
        since=lambda _: 7,
    ),
}
