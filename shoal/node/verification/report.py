"""The report of a verification, and the places that it names. All checks share them.

The integrity check of one object, without its log.

- Every chunk of a thread matches its hash, and each channel of each checkpoint can be assembled
  from chunks, with its size and hash; a checkpoint's record matches its id.
- So does every chunk of a file; the list of a file's chunks matches its own hash, and all of them are there.
- A document's snapshot, with the updates after it, equals the document that all its updates build, merged or not. A
  compaction shows what the updates show that it covers, if they are all still there.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256

from shoal.cluster import operation
from shoal.config import Config
from shoal.crdt import deletion
from shoal.crdt.dot import Dot
from shoal.errors import ShoalError, StoreCorrupt
from shoal.kinds.document.serving.opening import ROOTS_MAX
from shoal.kinds.document.state import compaction, document
from shoal.kinds.document.state.live import LiveDocument
from shoal.kinds.file import state as files
from shoal.kinds.thread.state import channel, dag
from shoal.kinds.thread.state import chunking as tree
from shoal.node.collection.entries import split
from shoal.node.transaction import ObjectRows, Transaction
from shoal.records import NamedTuple
from shoal.storage import cold, keys
from shoal.storage.interface import Storage
from shoal.storage.keys import Kind

PROBLEMS_LISTED_MAX = 100


@dataclass(slots=True)
class Report:
    """The counts and findings of a verification."""

    partitions: int = 0  # Without empty ones.
    operations: int = 0  # In the log.
    truncated: int = 0  # Operations that have left it.
    folded: int = 0  # Partitions whose log is whole, so that all their rows were made again from it.
    objects: int = 0
    checkpoints: int = 0
    chunks: int = 0  # Of checkpoints and of files, that are here.
    away: int = 0  # Chunks in an object store, which were not read.
    files: int = 0  # Different contents.
    problem_count: int = 0
    problems: list[str] = field(default_factory=list)  # The first `PROBLEMS_LISTED_MAX`.
    statements: int = 0  # Signed ones, given or kept by nodes.
    rows: int = 0  # Times that a partition's rows were those that a statement covers.
    uncompared: list[str] = field(default_factory=list)  # What given statements say of rows, and was not compared.
    trusted: list[str] = field(default_factory=list)  # What could not be folded or compared, and whose word it rests on.

    @property
    def sound(self) -> bool:
        """Whether no problem was found. What is `trusted` or `uncompared` may be wrong all the same."""
        return self.problem_count == 0

    def problem(self, text: str) -> None:
        """Count a problem, and list it unless `PROBLEMS_LISTED_MAX` are listed."""
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_LISTED_MAX:
            self.problems.append(text)


class Logged(NamedTuple):
    """An operation of the log, decoded."""

    partition: int
    hlc: int
    dot: Dot
    body: operation.Body


class ObjectPlace(NamedTuple):
    """Names an object, with its partition: the arguments of `keys.object_rows`."""

    partition: int
    kind: Kind
    space: str
    name: str


class Object(NamedTuple):
    """One generation of an object in storage."""

    storage: Storage
    place: ObjectPlace
    generation: int

    @property
    def rows(self) -> ObjectRows:
        """The stored rows, in a transaction of their own that is never written."""
        return ObjectRows(Transaction(self.storage), keys.object_rows(*self.place) + deletion.prefix(self.generation))


def reason(error: Exception) -> str:
    """An error as the report shows it."""
    return error.message if isinstance(error, ShoalError) else repr(error)


def text_of(place: ObjectPlace) -> str:
    """The object's kind, name and space, for people."""
    return f"{place.kind.label} {place.name!r} of space {place.space!r}"


def is_damaged(place: ObjectPlace, row: bytes, value: bytes) -> bool:
    """Whether a stored row shows by itself that it was altered: chunks and checkpoints of a thread have a hash as their key."""
    _, key = split(row)
    if place.kind is not Kind.THREAD or not key.startswith((dag.CHUNK, dag.CHECKPOINT)):
        return False
    if key.startswith(dag.CHUNK):
        return sha256(value).digest() != key[1:]
    try:
        return dag.identify(dag.unpack(key[1:], value).record) != key[1:]
    except StoreCorrupt:
        return True


def check_object(found: Object, rows: dict[bytes, bytes], report: Report, config: Config) -> None:
    """Add an object's flaws to the report. `rows` are all of its stored rows, also of ended generations."""
    own = {key: value for row, value in rows.items() for of, key in [split(row)] if of == found.generation}
    try:
        if found.place.kind is Kind.THREAD:
            _check_thread(found.place, found.rows, own, report)
        elif found.place.kind is Kind.DOCUMENT:
            _check_document(found, config)
    except Exception as error:  # Damaged rows can raise anything.
        report.problem(f"{text_of(found.place)}: {reason(error)}")


def _check_thread(place: ObjectPlace, object_rows: ObjectRows, rows: dict[bytes, bytes], report: Report) -> None:
    for row, value in rows.items():
        if row.startswith(dag.CHUNK) and cold.stub_of(object_rows.key(row), value) is not None:
            report.away += 1
        elif row.startswith(dag.CHUNK):
            report.chunks += 1
            if sha256(value).digest() != row[1:]:
                report.problem(f"{text_of(place)}: chunk {row[1:].hex()} is damaged")
    _check_files(place, object_rows.key(b""), rows, report)
    recipes = {
        row[1:]: found.record
        for row in rows
        if row.startswith(dag.CHECKPOINT) and (found := dag.checkpoint(object_rows, row[1:])) is not None
    }
    chunks = _Chunks(rows, object_rows.key(b""))
    for id, record in recipes.items():
        if dag.PRUNED + id in rows:
            continue
        report.checkpoints += 1
        if dag.identify(record) != id:
            report.problem(f"{text_of(place)}: checkpoint {id.hex()} does not match its id")
        for name, recipe in record.channels.items():

            def of_base(base: bytes, name: str = name) -> channel.Recipe | None:
                return recipes[base].channels.get(name) if base in recipes else None

            outline = channel.outline_of(recipe, of_base)
            size = None if outline is None else chunks.size(outline.tops)
            if outline is None or size is None:
                report.problem(f"{text_of(place)}: channel {name!r} of checkpoint {id.hex()} misses chunks")
            elif (
                channel.hash_of(recipe.header, outline.tops, outline.tail) != recipe.hash
                or len(recipe.header) + size + len(outline.tail) != recipe.size
            ):
                report.problem(f"{text_of(place)}: channel {name!r} of checkpoint {id.hex()} does not match its hash")


def _check_files(place: ObjectPlace, prefix: bytes, rows: dict[bytes, bytes], report: Report) -> None:
    """Chunks have their hashes, and every content has all of its chunks. `prefix`: of the keys of the rows."""

    def size_of(digest: bytes) -> int:
        row = files.CHUNK + digest
        return cold.size_of(prefix + row, rows.get(row, b""))

    for row, value in rows.items():
        if row.startswith(files.CHUNK):
            if cold.stub_of(prefix + row, value) is not None:
                report.away += 1
                continue
            report.chunks += 1
            if sha256(value).digest() != row[len(files.CHUNK) :]:
                report.problem(f"{text_of(place)}: chunk {row[len(files.CHUNK) :].hex()} of a file is damaged")
        elif row.startswith(files.MANIFEST):
            content = row[len(files.MANIFEST) :]
            if files.content_of(content[: files.DIGEST_BYTES], value) != content:
                report.problem(f"{text_of(place)}: the list of chunks of file {content[: files.DIGEST_BYTES].hex()} is damaged")
                continue
            report.files += 1
            lacks = [each for each in files.unpack_manifest(value) if size_of(each.digest) != each.size]
            if lacks:
                report.problem(
                    f"{text_of(place)}: file {content[: files.DIGEST_BYTES].hex()} misses {len(lacks)} chunks, "
                    f"such as {lacks[0].digest.hex()}"
                )


def unreadable(rows: dict[bytes, bytes]) -> list[bytes]:
    """The ids of the checkpoints of a thread, given its rows, that were not pruned but lack a chunk or a base."""
    records = {row[1:]: dag.unpack(row[1:], stored).record for row, stored in rows.items() if row.startswith(dag.CHECKPOINT)}
    chunks = _Chunks(rows)

    def is_whole(name: str, recipe: channel.Recipe) -> bool:
        def of_base(base: bytes) -> channel.Recipe | None:
            return records[base].channels.get(name) if base in records else None

        outline = channel.outline_of(recipe, of_base)
        return outline is not None and chunks.size(outline.tops) is not None

    shown = [(id, record) for id, record in sorted(records.items()) if dag.PRUNED + id not in rows]
    return [id for id, record in shown if not all(is_whole(name, recipe) for name, recipe in record.channels.items())]


class _Chunks:
    """The number of bytes below the tops of a tree. Each node is read once, because trees share nodes."""

    def __init__(self, rows: dict[bytes, bytes], prefix: bytes = b"") -> None:
        self._rows = rows
        self._prefix = prefix  # Of their keys in storage.
        self._sizes: dict[tuple[bytes, int], int | None] = {}

    def size(self, tops: tree.Tops) -> int | None:
        """The size of the value; None if a chunk or a node is missing."""
        return _sum(self._below(digest, height) for height, level in enumerate(tops) for digest in level)

    def _below(self, digest: bytes, height: int) -> int | None:
        if (digest, height) not in self._sizes:
            stored = self._rows.get(dag.CHUNK + digest)
            if stored is None or height == 0:
                key = self._prefix + dag.CHUNK + digest
                self._sizes[digest, height] = None if stored is None else cold.size_of(key, stored)
            else:
                self._sizes[digest, height] = _sum(self._below(child, height - 1) for child in tree.children(stored))
        return self._sizes[digest, height]


def _sum(sizes: Iterable[int | None]) -> int | None:
    total = 0
    for size in sizes:
        if size is None:
            return None
        total += size
    return total


def _check_document(found: Object, config: Config) -> None:
    rows = found.rows
    if compaction.has_gap(rows):
        return  # A part of it has not arrived yet.
    roots = document.roots(rows)

    def built(*folded: bytes, after: bytes | None = None) -> LiveDocument:
        return LiveDocument(
            bytes_max=config.document_bytes_max,
            roots_max=ROOTS_MAX,
            updates=[*folded, *(update for _, update in document.updates(rows, after=after)), document.withdrawn(rows)],
            roots=roots,
        )

    merged = [each.merged for each in compaction.standing(rows)]
    whole = built(*merged)
    snapshot = document.Snapshot.unpack(found.storage.get(keys.snapshot(*found.place)))
    if snapshot is not None and built(snapshot.update, after=snapshot.position).canonical() != whole.canonical():
        raise ShoalError("its snapshot differs from what its updates build")
    if not merged:
        return
    with suppress(StoreCorrupt):  # The updates that a compaction covers may be swept.
        unmerged = built()
        if unmerged.extent() == whole.extent() and unmerged.canonical() != whole.canonical():
            raise ShoalError("its compaction shows something else than the updates that it covers")
