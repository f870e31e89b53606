"""Files over storage: chunks are kept, contents proved and named, and what nothing refers to is dropped.

Laws:
- A name gets a content only after this node has seen its chunks, as they came or as they are stored, and found their hash and
  sizes to be those that were claimed.
- Chunks that come in the order of their file are hashed as they come, and not read again for the put.
- A put that waits for chunks that are not here goes on from there: what was read before is not read again.
- A read of chunks needs one pack in memory at a time: it answers with the chunks before one that is away.
- A put that brings all of its chunks is answered by these alone; any other takes the right to read (`shoal.access.grants`).
- A chunk that is missing although a content has it is damage, which is fetched from a peer; only what nothing has
  any more was deleted.
- A chunk counts as there only if a content may be built on it (`shoal.kinds.file.state`): what will be swept is sent again.
- A value may refer to a file only if the thread has it: a write that refers to one that it lost, or never had, is rejected.
- A content is dropped only once this node has found that nothing refers to it, whoever asks: a write that refers to one that
  was dropped looks through the thread.
- A reference is looked for in each row of the thread that holds values. Pruned checkpoints and trimmed events do not count.
- It is looked for in steps, also for a write: that is decided once the look is over, if the row that was found refers still.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

from msgspec import Struct, structs

from shoal.config import Config
from shoal.crdt.applier import Blobs
from shoal.crdt.rows import Rows
from shoal.errors import FileIncomplete, InvalidInput, NotFound, StoreCorrupt, TooLarge, Unsupported
from shoal.kinds.file import state as files
from shoal.kinds.file.proven import digest_of, hashed_once, said
from shoal.kinds.file.requests import carries_all
from shoal.kinds.thread.state import dag
from shoal.names import check_name, check_path
from shoal.node.catalog import Recent
from shoal.node.handler import Checks, Maintainers, Piece, Readers, Target, Upkeep, View, WriteContext, Writers
from shoal.node.naming import check_size, of_hex
from shoal.node.turns import Steps, Stride
from shoal.protocol.requests import (
    ChunksFound,
    ChunksKept,
    ChunksRead,
    DeleteFile,
    DropFiles,
    FileDeleted,
    FileInfo,
    FileList,
    FilesDropped,
    FileShown,
    FileStored,
    FindChunks,
    KeepChunks,
    ListFiles,
    NameFile,
    ObjectWrite,
    PutFile,
    ReadChunks,
    ReadFile,
    RemoveFile,
    SweepFiles,
)
from shoal.storage import large
from shoal.values.registry import mentioned, mentioned_in, packed_marks

TYPE_CHARACTERS_MAX = 255
REPEATED_BYTES_MAX = 4 * 1024**3  # Of a file, that repeat chunks of it: a put hashes them all, and no upload paid for them.
DROPPED_MAX = 64  # Contents, or uploads, in one operation that drops them.
REFERENCES_MAX = 4096  # Files to which one write refers: each is looked up as it is decided.
_PROVED_MAX = 1024
_MOVED_BYTES = 16 * 1024 * 1024
_CHUNK_COST = 4096  # Reading a chunk takes as long as hashing so many bytes, at least.
_COMING = b""  # In the place of a content: which one the chunks are of is not known yet.
REQUEST_CHUNKS_MAX = 1024  # Chunks in one request: clients send some, of half a megabyte or more. Each is three rows.
REQUEST_BYTES_MAX = 2 * files.FILE_CHUNK_BYTES_MAX  # Of those: clients send one chunk, or some of `FILE_BATCH_BYTES` together.
LAYING = frozenset({KeepChunks, NameFile})
"""Writes whose chunks are laid down before them (`laid_by`)."""
_OWN = frozenset({KeepChunks, NameFile, RemoveFile, DropFiles})
# The tables of a thread whose rows hold values: checkpoints, events, entries, consumers, notes, steps, moves of its status.
_HOLDING = (b"C", b"E", b"I", b"K", b"P", b"S", b"U", b"W", b"X")


class _Course:
    """Chunks in an order, as they were seen."""

    def __init__(self) -> None:
        self.count = 0
        self.whole = sha256()  # Of their bytes.
        self._manifest = sha256()  # Of the manifest that lists them.

    def add(self, digest: bytes, chunk: bytes) -> None:
        self.count += 1
        self.whole.update(chunk)
        self._manifest.update(files.pack_manifest([files.Chunk(digest, len(chunk))]))

    def begins(self, manifest: bytes) -> bool:
        """Whether a content with this manifest begins with these chunks."""
        return sha256(manifest[: self.count * files.ENTRY_BYTES]).digest() == self._manifest.digest()


class Files:
    """The handler of files. `give_back` is called after every `_MOVED_BYTES` that went through."""

    def __init__(self, config: Config, give_back: Callable[[], None]) -> None:
        self._config = config
        self._give_back = give_back
        self._moved = 0
        self._proved: Recent[tuple[str, str, bytes]] = Recent(_PROVED_MAX)  # Contents whose bytes were read, and are right.
        self._courses: dict[tuple[str, str, bytes], _Course] = {}  # By thread, of chunks that come, and of puts that wait.
        self._loose: Recent[tuple[str, str, bytes]] = Recent(
            _PROVED_MAX
        )  # Contents that are to be dropped: nothing refers to them.
        self.checks: Checks = {
            KeepChunks: self._check_chunks,
            PutFile: self._check_put,
            NameFile: self._check_put,
            DeleteFile: _check_name,
            RemoveFile: _check_name,
            SweepFiles: _check_drop,
            DropFiles: _check_drop,
        }
        self.writers: Writers = {KeepChunks: self._keep, NameFile: self._name, RemoveFile: _remove, DropFiles: self._drop}
        self.readers: Readers = {FindChunks: self._find, ReadFile: _read, ReadChunks: self._read_chunks, ListFiles: self._list}
        self.maintenance: Maintainers = {PutFile: self._put, DeleteFile: self._delete, SweepFiles: self._sweep}

    # ── checks ────────────────────────────────────────────────────────────────

    def _check_chunks(self, request: KeepChunks | PutFile | NameFile) -> None:
        check_name("thread", request.thread)
        check_size(self._config, sum(map(len, request.chunks)), "the chunks of a request")
        size = sum(map(len, request.chunks))
        if len(request.chunks) > REQUEST_CHUNKS_MAX or size > REQUEST_BYTES_MAX:
            raise TooLarge(
                f"a request brings at most {REQUEST_CHUNKS_MAX} chunks of a file, and {REQUEST_BYTES_MAX} bytes; this one has "
                f"{len(request.chunks)} with {size} bytes. Nothing was written. Send them in several requests."
            )
        for chunk in request.chunks:
            if not 0 < len(chunk) <= files.FILE_CHUNK_BYTES_MAX:
                most = files.FILE_CHUNK_BYTES_MAX
                raise TooLarge(f"a chunk of a file has 1 to {most} bytes; this one has {len(chunk)}. Nothing was written.")
        if type(request) is KeepChunks and not request.chunks:
            raise InvalidInput("there are no chunks to keep. Nothing was written.")

    def _check_put(self, request: PutFile | NameFile) -> None:
        self._check_chunks(request)
        check_path(request.name)
        of_hex(request.sha256, files.DIGEST_BYTES, "the sha256 of a file is")
        check_type(request.media_type)
        if len(request.manifest) > files.CHUNKS_MAX * files.ENTRY_BYTES:
            raise TooLarge(f"a file has at most {files.CHUNKS_MAX} chunks. Nothing was written. Store it as several files.")
        if not files.is_manifest(request.manifest, request.size):
            raise InvalidInput(f"the chunks of file {request.name!r} do not add up to its size. Nothing was written.")
        distinct = sum({entry.digest: entry.size for entry in files.unpack_manifest(request.manifest)}.values())
        if request.size - distinct > max(REPEATED_BYTES_MAX, distinct):
            raise TooLarge(
                f"file {request.name!r} repeats {request.size - distinct} bytes of its own chunks. A put reads at most "
                f"{REPEATED_BYTES_MAX} again, or as many as it has others. Nothing was written. Compress it, and store that."
            )

    # ── writes ────────────────────────────────────────────────────────────────

    def _put(self, rows: Callable[[], Rows], request: PutFile) -> Upkeep:
        """Prove a content, chunk by chunk, and name it.

        Raises:
            FileIncomplete: chunks of it are not there.
            InvalidInput: its bytes have another hash.
        """
        content, sent = files.content_of(bytes.fromhex(request.sha256), request.manifest), _by_digest(request.chunks)
        _check_carried(request, sent)
        if not files.is_standing(rows(), content):
            if said(request.manifest) != content[: files.DIGEST_BYTES]:
                yield from self._prove(rows, request, content, sent)
            self._proved.put((request.space, request.thread, content))
        stored: FileStored = yield Piece(NameFile(*structs.astuple(request)))
        return stored

    def _prove(self, rows: Callable[[], Rows], request: PutFile, content: bytes, sent: Mapping[bytes, bytes]) -> Steps[None]:
        entries = files.unpack_manifest(request.manifest)
        proof = (request.space, request.thread, content)
        course = self._courses.pop(proof, None) or self._courses.pop((*proof[:2], _COMING), None)
        if course is None or not course.begins(request.manifest):
            course = _Course()
        for entry in entries[course.count :]:
            try:
                chunk = sent.get(entry.digest) or files.chunk(rows(), entry.digest)
                if chunk is None and files.has_chunk(rows(), entry.digest):
                    raise _missing(request, entry.digest)
            except StoreCorrupt:  # It is fetched, and the put is made again: from here on.
                self._remember(proof, course)
                raise
            if chunk is None or len(chunk) != entry.size:
                raise _incomplete(request)
            course.add(entry.digest, chunk)
            if self._passes(max(entry.size, _CHUNK_COST)):
                yield None
        if (found := course.whole.hexdigest()) != request.sha256:
            raise InvalidInput(
                f"the content of file {request.name!r} has SHA-256 {found}, and {request.sha256} was claimed. "
                "The file was not stored. Read the source again, and put it once more."
            )

    def _remember(self, proof: tuple[str, str, bytes], course: _Course) -> None:
        if len(self._courses) >= _PROVED_MAX:
            del self._courses[next(iter(self._courses))]
        self._courses[proof] = course

    def _passes(self, size: int) -> bool:
        """Count bytes that pass; whether a step is over with them."""
        before, self._moved = self._moved, self._moved + size
        if self._moved >= _MOVED_BYTES:
            self._moved = 0
            self._give_back()
            return True
        return self._moved // files.FILE_BATCH_BYTES > before // files.FILE_BATCH_BYTES

    def _keep(self, context: WriteContext, request: KeepChunks) -> ChunksKept:
        chunks = _by_digest(request.chunks)
        change = files.Upload(tuple(chunks))
        _check_known(context, change)
        context.apply(change, Blobs(b"", chunks))
        coming = [each for each in chunks.items() if said(each[1]) is None]
        if coming:
            thread = (request.space, request.thread, _COMING)
            course = self._courses.pop(thread, None) or _Course()
            for digest, chunk in coming:
                course.add(digest, chunk)
            self._remember(thread, course)
        kept = sum(map(len, request.chunks))
        self._passes(kept)
        return ChunksKept(kept)

    def _name(self, context: WriteContext, request: NameFile) -> FileStored:
        rows, sent = context.rows, _by_digest(request.chunks)
        _check_carried(request, sent)
        content = files.content_of(bytes.fromhex(request.sha256), request.manifest)
        if (request.space, request.thread, content) not in self._proved and not files.is_standing(rows, content):
            raise Unsupported(f"file {request.name!r} is not proved at this node. Nothing was written. Put it with PutFile.")
        digests = {entry.digest: entry.size for entry in files.unpack_manifest(request.manifest)}
        for digest, size in digests.items():
            if digest not in sent and (not files.has_chunk(rows, digest) or files.size_of(rows, digest) != size):
                raise _incomplete(request)
        before = files.versions(rows, request.name)
        held = files.holders(rows, digests)
        over = tuple(each.dot for each in held if digests.keys() >= set(each.digests))
        own = {digest: chunk for digest, chunk in sent.items() if digest in digests}
        positions = tuple(each.position for each in before)
        change = files.Put(request.name, content, request.size, request.media_type, positions, over, tuple(own))
        stamp = context.stamp
        _check_known(context, change)
        context.apply(change, Blobs(request.manifest, own))
        return FileStored(FileInfo(request.name, request.sha256, request.size, request.media_type, stamp.wall_ms), bool(before))

    def _drop(self, context: WriteContext, request: DropFiles) -> FilesDropped:
        rows = context.rows
        contents = [
            content
            for content in request.contents
            if (request.space, request.thread, content) in self._loose
            and files.manifest(rows, content) is not None
            and not files.is_named(rows, content)
        ]
        uploads = [found for dot in request.uploads if (found := files.upload(rows, dot)) is not None]
        digests = [
            entry.digest for content in contents for entry in files.unpack_manifest(files.manifest(rows, content) or b"")
        ]
        digests += [digest for upload in uploads for digest in upload.digests]
        if contents or uploads:
            known = tuple((content, files.standing(rows, content)) for content in contents)
            context.apply(files.Drop(known, tuple(dict.fromkeys(digests)), tuple(upload.dot for upload in uploads)))
        for content in contents:
            self._loose.drop((request.space, request.thread, content))
        return FilesDropped(len(contents), len(uploads))

    def _delete(self, rows: Callable[[], Rows], request: DeleteFile) -> Upkeep:
        """Remove a name, and drop its contents if nothing else refers to them."""
        contents = [version.content for version in files.versions(rows(), request.name)]
        reply: FileDeleted = yield Piece(RemoveFile(request.space, request.thread, request.name))
        yield from self._dropped(rows, SweepFiles(request.space, request.thread, contents), "the file's name is removed")
        return reply

    def _sweep(self, rows: Callable[[], Rows], request: SweepFiles) -> Upkeep:
        return (yield from self._dropped(rows, request))

    def _dropped(
        self, rows: Callable[[], Rows], request: SweepFiles, done: str = ""
    ) -> Generator[Piece | None, Any, FilesDropped]:
        here = rows()
        loose = [each for each in request.contents if not files.is_named(here, each) and files.manifest(here, each) is not None]
        kept = (yield from referred(rows, {content[: files.DIGEST_BYTES] for content in loose})) if loose else set()
        gone = [content for content in loose if content[: files.DIGEST_BYTES] not in kept]
        dots = [each.dot for each in files.uploads(rows()) if each.wall_ms < request.uploads_before]
        total = FilesDropped(0, 0)
        while gone or dots:
            some, gone = gone[:DROPPED_MAX], gone[DROPPED_MAX:]
            ended, dots = dots[:DROPPED_MAX], dots[DROPPED_MAX:]
            for content in some:
                self._loose.put((request.space, request.thread, content))
            dropped: FilesDropped = yield Piece(DropFiles(request.space, request.thread, some, ended), done)
            total = FilesDropped(total.contents + dropped.contents, total.uploads + dropped.uploads)
        return total

    # ── reads ─────────────────────────────────────────────────────────────────

    def _find(self, view: View, request: FindChunks) -> ChunksFound:
        missing = [
            at
            for at, digest in enumerate(request.digests)
            if len(digest) != files.DIGEST_BYTES or not files.has_chunk(view.rows, digest)
        ]
        return ChunksFound(missing, self._config.request_bytes_max)

    def _read_chunks(self, view: View, request: ReadChunks) -> ChunksRead:
        found: list[bytes] = []
        size = 0
        for digest in request.digests:
            if found and size + (files.size_of(view.rows, digest) or 0) > files.FILE_BATCH_BYTES:
                break
            try:
                chunk = files.chunk(view.rows, digest)
            except StoreCorrupt:
                if found:
                    break  # It is first in the next request, which fetches it: none needs more than one pack in memory.
                raise
            if chunk is None and files.is_listed(view.rows, digest):
                raise _missing(request, digest)
            if chunk is None:
                raise NotFound(f"thread {request.thread!r} has no chunk {digest.hex()[:80]}: the file was deleted meanwhile.")
            if large.digest_of(chunk) != digest:
                raise StoreCorrupt(
                    f"a chunk of a file of thread {request.thread!r} is damaged. Run `shoal verify`.",
                    lost=(files.CHUNK + digest,),
                )
            found.append(chunk)
            size += len(chunk)
        self._passes(size)
        return ChunksRead(found)

    def _list(self, view: View, request: ListFiles) -> FileList:
        limit = min(request.limit, self._config.page_items_max)
        found = [_info(name, version) for name, version in files.names(view.rows, after=request.after, limit=limit + 1)]
        return FileList(found[:limit], len(found) > limit)


def check_type(type: str) -> None:
    """Check that a media type can stand in a header.

    Raises:
        InvalidInput: it cannot. Nothing was written.
    """
    if not 0 < len(type) <= TYPE_CHARACTERS_MAX or not type.isascii() or not type.isprintable() or type.count("/") != 1:
        raise InvalidInput(f"a file's type is a media type such as image/png; got {type[:80]!r}. Nothing was written.")


def _check_name(request: DeleteFile | RemoveFile) -> None:
    check_name("thread", request.thread)
    check_name("file", request.name)


def _check_drop(request: SweepFiles | DropFiles) -> None:
    check_name("thread", request.thread)
    uploads = request.uploads if type(request) is DropFiles else []
    if any(len(content) != files.CONTENT_BYTES for content in request.contents) or any(len(dot) != 24 for dot in uploads):
        raise InvalidInput("these name no contents or uploads of files. Nothing was written.")


def _check_known(context: WriteContext, change: files.Change) -> None:
    if not context.is_known_to_peers(change):
        raise Unsupported(
            "a node of an older version is among the peers, which knows no files. Nothing was written. Update it."
        )


def _check_carried(request: PutFile | NameFile, sent: Mapping[bytes, bytes]) -> None:
    """Of a put that is to bring all of its chunks none is looked for: whoever may not read learns of no other one."""
    if carries_all(request) and not sent.keys() >= {entry.digest for entry in files.unpack_manifest(request.manifest)}:
        raise _incomplete(request)


def _by_digest(chunks: Iterable[bytes]) -> Mapping[bytes, bytes]:
    return {digest_of(chunk): chunk for chunk in chunks}


@contextmanager
def laid_by(write: ObjectWrite[Any]) -> Iterator[Sequence[bytes]]:
    """The chunks that a write of `LAYING` brings, hashed once within. They are to be on the disk before it is decided."""
    assert isinstance(write, KeepChunks | NameFile)
    with hashed_once(write.chunks):
        yield write.chunks


def _incomplete(request: PutFile | NameFile) -> FileIncomplete:
    return FileIncomplete(
        f"thread {request.thread!r} lacks chunks of file {request.name!r}. The file was not stored. Send the chunks that "
        "FindChunks names, and then the file again."
    )


def _missing(request: PutFile | ReadChunks, digest: bytes) -> StoreCorrupt:
    """The error for a chunk that is not here, and on which something is built: a peer may have it."""
    return StoreCorrupt(
        f"a chunk of a file of thread {request.thread!r} is missing. Run `shoal verify`.", lost=(files.CHUNK + digest,)
    )


def _remove(context: WriteContext, request: RemoveFile) -> FileDeleted:
    before = files.versions(context.rows, request.name)
    if before:
        context.apply(files.Delete(request.name, tuple(each.position for each in before)))
    return FileDeleted(bool(before))


def _read(view: View, request: ReadFile) -> FileShown:
    rows = view.rows
    if request.name:
        found = files.versions(rows, check_name("file", request.name))
        if not found:
            raise NotFound(f"thread {request.thread!r} of space {request.space!r} has no file {request.name!r}.")
        version = found[-1]
        manifest = files.manifest(rows, version.content)
    else:
        hash = of_hex(request.sha256, files.DIGEST_BYTES, "the sha256 of a file is")
        held = [(each, kept) for each in files.contents(rows, hash) if (kept := files.manifest(rows, each)) is not None]
        if not held:
            raise NotFound(f"thread {request.thread!r} of space {request.space!r} has no file with SHA-256 {request.sha256}.")
        content, manifest = held[0]
        size = sum(entry.size for entry in files.unpack_manifest(manifest))
        version = files.Version(b"", 0, content, size, "application/octet-stream")
    if manifest is None:
        raise StoreCorrupt(
            f"the content of file {request.name!r} of thread {request.thread!r} is missing. Run `shoal verify`.",
            lost=(files.MANIFEST + version.content,),
        )
    return FileShown(_info(request.name, version), manifest)


def _info(name: str, version: files.Version) -> FileInfo:
    return FileInfo(name, version.sha256.hex(), version.size, version.media_type, version.wall_ms)


# ── references ────────────────────────────────────────────────────────────────


class Unsure(Exception):
    """A write refers to contents that were dropped: `referred` tells whether the thread still refers to them."""

    def __init__(self, target: Target, hashes: set[bytes]) -> None:
        super().__init__()
        self.target = target
        self.hashes = hashes


Referring = Mapping[tuple[Target, bytes], bytes]
"""By thread and hash, a row that refers to a content that was dropped; no bytes: none does."""


def referred(rows: Callable[[], Rows], hashes: set[bytes]) -> Steps[dict[bytes, bytes]]:
    """Those of these hashes to which a value in the thread refers, each with the row of such a value."""
    found: dict[bytes, bytes] = {}
    stride = Stride.usual()
    for table in _HOLDING:
        after: bytes | None = None
        is_over = False
        while not is_over and found.keys() != hashes:
            here = rows()
            is_over = True
            for key, value in here.scan(table, after=after):
                after = key
                if (here_in := mentioned(value) & hashes) and not _is_pruned(here, key):
                    found.update(dict.fromkeys(here_in, key))
                if stride.is_over(len(value)):
                    is_over = False
                    break
            yield
    return found


def _is_pruned(rows: Rows, key: bytes) -> bool:
    return key.startswith(dag.CHECKPOINT) and dag.is_pruned(rows, key[len(dag.CHECKPOINT) :])


def check_references(rows: Rows, target: Target, write: Struct, referring: Referring) -> None:
    """Check that the files to which the values of a write refer are the thread's.

    Raises:
        NotFound: one is not. Nothing was written.
        TooLarge: they are too many.
        Unsure: some were dropped, and `referring` does not say, or no longer rightly, that the thread refers to them.
    """
    if type(write) in _OWN:
        return  # A file's bytes may hold anything.
    hashes = mentioned_in(write)
    if len(hashes) > REFERENCES_MAX:
        raise TooLarge(
            f"one write refers to at most {REFERENCES_MAX} files; this one refers to {len(hashes)}. Nothing was written. "
            "Divide it, or keep the references in several channels, and save those that change."
        )
    unsure: set[bytes] = set()
    for hash in sorted(hashes):
        held = files.contents(rows, hash)
        if any(files.is_standing(rows, each) for each in held):
            continue
        row = referring.get((target, hash)) if held else b""
        if row == b"":
            raise NotFound(
                f"a value refers to a file with SHA-256 {hash.hex()}, which thread {target.name!r} does not have. "
                "Nothing was written. Put the file into this thread with put_file, and store the reference that it returns."
            )
        if row is None or hash not in mentioned(rows.get(row) or b"") or _is_pruned(rows, row):
            unsure.add(hash)
    if unsure:
        raise Unsure(target, unsure)


def channels_with_files(before: Mapping[str, bytes], save: Any, names: Iterable[str]) -> dict[str, bytes]:
    """The references in each channel of a new checkpoint, as its record keeps them. `before`: those of its parent."""
    found: dict[str, bytes] = {}
    for name in names:
        whole, added = save.channels.get(name), save.appended.get(name)
        hashes = mentioned(before.get(name, b"")) if whole is None else mentioned(whole)
        if added is not None:
            hashes |= mentioned(added)
        if hashes:
            found[name] = packed_marks(hashes)
    return found
