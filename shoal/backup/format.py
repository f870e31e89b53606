"""The objects of a backup, byte for byte: packs of operations and of rows, and the numbered manifests that name them.

Laws:
- Objects are immutable. A pack is named by its SHA-256, a manifest by its number; each manifest holds the hash of the last.
- Only what a manifest names counts. What it says of a partition follows from the packs that it names: all operations up to its
  vector are in them, or in a base whose rows they made.
- A base holds everything that was in the backup of its partition before, so bases of a partition are in one order.
- Packs that replace others hold the same, in their place: no moment changes. A pack goes without a substitute only if no
  restore to a moment from `since` on reads it.
- Nothing here is read without a check: a pack against its name, a part of it against its index, a manifest against the next.

docs/BACKUP.md has the same as tables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Annotated, TypeVar

import msgspec

from shoal.crdt.dot import HORIZON, NOTHING_SEEN, Origin, VersionVector, belongs, wall_ms_of
from shoal.errors import BackupDamaged
from shoal.records import NamedTuple

FORMAT = 1
MANIFESTS, SEGMENTS, BASES, VERIFIED, KEYS = "manifests/", "segments/", "bases/", "verified/", "keys/"
CLUSTERS = "clusters/"
"""The beginnings of the names of all objects."""

WHOLE_EVERY = 64  # Manifests: the first of so many says everything again, so that no more have to be read.
LEFT_TOLD_MS = 2 * 24 * 3600 * 1000  # So long whole manifests tell of packs that are named no more; they are deleted by then.
_NUMBER_DIGITS = 16

DIRECTORY_BYTES = 8  # Of its directory's id, at the end of an origin.

# A bucket may hold anything. Within these bounds every number can be shown as a date, added to others and sent to clients.
PARTITIONS = 1024  # Of this format, and of the store.
TIME_MS_END = 1 << 47
Time = Annotated[int, msgspec.Meta(ge=0, lt=TIME_MS_END)]  # In milliseconds since 1970.
Hlc = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Size = Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Name = Annotated[str, msgspec.Meta(pattern=f"^({SEGMENTS}|{BASES})[0-9A-Za-z]{{1,64}}$")]  # Of a pack, and of no other file.
KeysName = Annotated[str, msgspec.Meta(pattern=f"^({KEYS}[0-9a-f]{{1,64}})?$")]
Number = Annotated[int, msgspec.Meta(ge=0, lt=PARTITIONS)]

T = TypeVar("T")


class Entry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An operation in a segment."""

    origin: bytes
    sequence: Count
    hlc: Hlc
    chain: bytes  # The chain hash of its origin's log after it.
    content: bytes  # msgpack [the operation, the bytes beside it].


class Part(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A part of a pack, about one partition: operations in their order, or rows of a base."""

    partition: Number
    start: Size  # Where its bytes begin in the pack.
    size: Size
    digest: bytes  # SHA-256 of them.
    first_hlc: Hlc = 0  # Of its operations.
    last_hlc: Hlc = 0
    spans: list[tuple[bytes, Count, Count]] = []  # By origin: the first and the last sequence. No operation between is missing.


class Pack(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A pack, as a manifest names it."""

    name: Name  # It ends with the pack's SHA-256, in hex.
    size: Size
    index: Size  # Where its index begins: msgpack, a list of `Part`.
    digest: bytes  # SHA-256 of the index.
    made_ms: Time
    first_hlc: Hlc  # Of its operations; 0 for rows.
    last_hlc: Hlc
    operations: Count
    sealed: KeysName = ""  # The object that has the keys under which its content is sealed; empty: it is plain.

    @property
    def first_ms(self) -> int:
        """The wall time of its first operation."""
        return wall_ms_of(self.first_hlc)

    @property
    def last_ms(self) -> int:
        """The wall time of its last operation."""
        return wall_ms_of(self.last_hlc)


class Base(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The rows of a partition, which all operations up to its vector made."""

    partition: Number
    hlc: Hlc  # The time of the last of these operations.
    vector: bytes  # As clients see it: with the time of the last retirement.
    pieces: list[tuple[Name, Count]]  # The name of the pack, and the number of the part in it; in the order of the rows.
    size: Size
    # From this time up to that of the base no moment is whole: what it covers is not in segments. 0: this is the first moment.
    # `ERASED`: what is before is sealed under keys that are gone.
    lacks_from: Hlc = 0


ERASED = 1  # As `Base.lacks_from`.


class Reached(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How far the backup of a partition reaches."""

    partition: Number
    origins: list[
        tuple[bytes, Count, Hlc]
    ]  # By origin: the last sequence, and its time. Zeros: the time of the last retirement.
    since: Count  # The bytes of its operations after its last base.


class Manifest(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The additions to a backup; a whole one says everything that is in it."""

    format: int
    cluster: bytes  # The identity of the backup's cluster.
    number: Count  # From 1.
    previous: bytes  # SHA-256 of the manifest before it; empty for the first.
    node: bytes  # The node that wrote it.
    made_ms: Time
    through_ms: Time  # Everything that the node held by then is in the backup.
    whole: bool
    segments: list[Pack] = []
    bases: list[Base] = []
    packs: list[Pack] = []  # Those that hold bases.
    reached: list[Reached] = []  # Of the partitions in which that has changed.
    # Packs that are named no more, and since when. Segments in the same manifest take the place of the first of them: what
    # they hold. A whole one says those whose objects may still be there.
    gone: list[tuple[Name, Time]] = []
    since: Hlc = 0  # No moment before this is promised: what only those need is gone.


def manifest_name(number: int) -> str:
    """The name of a manifest's object: names are in the order of the numbers."""
    return f"{MANIFESTS}{number:0{_NUMBER_DIGITS}}"


def number_in(name: str) -> int | None:
    """The number in the name of a manifest's object; None if it is none."""
    text = name.removeprefix(MANIFESTS)
    return int(text) if len(text) == _NUMBER_DIGITS and text.isascii() and text.isdigit() else None


def is_whole(number: int) -> bool:
    """Whether the manifest of this number says everything."""
    return number % WHOLE_EVERY == 1


def whole_before(number: int) -> int:
    """The number of the last manifest up to this one that says everything."""
    return number - (number - 1) % WHOLE_EVERY


encode = msgspec.msgpack.Encoder().encode
_manifests = msgspec.msgpack.Decoder(Manifest)
_indexes = msgspec.msgpack.Decoder(list[Part])
_entries = msgspec.msgpack.Decoder(list[Entry])
_contents = msgspec.msgpack.Decoder(tuple[bytes, bytes])


def _decoded(decoder: msgspec.msgpack.Decoder[T], packed: bytes, what: str) -> T:
    try:
        return decoder.decode(packed)
    except ValueError as error:
        raise damaged(f"{what} cannot be decoded ({error})") from None


def read_manifest(packed: bytes, number: int) -> Manifest:
    """The manifest in these bytes.

    Raises:
        BackupDamaged: they are none of this number, or of a newer format.
    """
    found = _decoded(_manifests, packed, f"manifest {number}")
    if found.format != FORMAT:
        raise damaged(f"manifest {number} has format {found.format}, and this version reads {FORMAT}")
    if found.number != number or found.whole != is_whole(number):
        raise damaged(f"manifest {number} says that it is manifest {found.number}")
    return found


def read_index(packed: bytes, pack: Pack) -> list[Part]:
    """The index of a pack.

    Raises:
        BackupDamaged: these bytes are another one, or it is malformed.
    """
    if sha256(packed).digest() != pack.digest:
        raise damaged(f"the index of {pack.name} does not match its hash")
    return _decoded(_indexes, packed, f"the index of {pack.name}")


def read_part(content: bytes, part: Part, pack: Pack) -> bytes:
    """These bytes, which are a part of a pack.

    Raises:
        BackupDamaged: they are not.
    """
    if sha256(content).digest() != part.digest:
        raise damaged(f"a part of {pack.name} does not match its hash")
    return content


def read_entries(packed: bytes, what: str) -> list[Entry]:
    """The operations of a part."""
    return _decoded(_entries, packed, what)


def read_content(packed: bytes, what: str) -> tuple[bytes, bytes]:
    """The operation, and the bytes beside it."""
    return _decoded(_contents, packed, what)


class Packing:
    """A pack in the making. Its parts are added in the order of their partitions."""

    def __init__(self, kind: str, salt: bytes = b"", sealed: str = "") -> None:
        """`salt` makes the name another one than that of all other packs, whatever they hold; `sealed` as in `Pack`."""
        self._sealed = sealed
        self._kind = kind
        self._chunks = [salt]
        self.parts: list[Part] = []
        self.size = len(salt)
        self._operations = 0

    def add_operations(self, partition: int, entries: Sequence[Entry]) -> None:
        """Add operations of a partition, in a causal order."""
        spans: dict[bytes, tuple[int, int]] = {}
        for entry in entries:
            first, _ = spans.get(entry.origin, (entry.sequence, 0))
            spans[entry.origin] = first, entry.sequence
        times = [entry.hlc for entry in entries]
        self._operations += len(entries)
        self._add(partition, encode(entries), min(times), max(times), [(o, *span) for o, span in sorted(spans.items())])

    def add_rows(self, partition: int, rows: Sequence[tuple[bytes, bytes]] | Sequence[bytes]) -> int:
        """Add rows of a base, in their order, or runs of them that are sealed. Returns the number of the part."""
        self._add(partition, encode(rows), 0, 0, [])
        return len(self.parts) - 1

    def add_part(self, part: Part, content: bytes) -> None:
        """Add a part of another pack as it is."""
        self.parts.append(msgspec.structs.replace(part, start=self.size))
        self._chunks.append(content)
        self.size += len(content)

    def _add(self, partition: int, content: bytes, first: int, last: int, spans: list[tuple[bytes, int, int]]) -> None:
        part = Part(partition, self.size, len(content), sha256(content).digest(), first, last, spans)
        self.parts.append(part)
        self._chunks.append(content)
        self.size += len(content)

    def finish(self, *, made_ms: int) -> tuple[Pack, bytes]:
        """The pack, and the bytes of its object."""
        index = encode(self.parts)
        content = b"".join([*self._chunks, index])
        timed = [part for part in self.parts if part.last_hlc]
        pack = Pack(
            name=f"{self._kind}{sha256(content).hexdigest()}",
            size=len(content),
            index=self.size,
            digest=sha256(index).digest(),
            made_ms=made_ms,
            first_hlc=min((part.first_hlc for part in timed), default=0),
            last_hlc=max((part.last_hlc for part in timed), default=0),
            operations=self._operations,
            sealed=self._sealed,
        )
        return pack, content


class Catalogue:
    """Everything that the manifests of a backup name, up to one of them. Mutable."""

    def __init__(self) -> None:
        self.head: Manifest | None = None
        self.digest = b""  # SHA-256 of the head.
        self.segments: dict[str, Pack] = {}
        self.packs: dict[str, Pack] = {}  # Those of bases.
        self.bases: dict[int, list[Base]] = {}  # By partition, the oldest first.
        self.reached: dict[int, Reached] = {}
        self.left: dict[str, int] = {}  # Packs that are named no more, and since when.
        self.since = 0
        self._vectors: dict[int, VersionVector] = {}  # Of `reached`, as far as they were asked for.

    @property
    def number(self) -> int:
        """That of the last manifest; 0: there is none."""
        return 0 if self.head is None else self.head.number

    @property
    def size(self) -> int:
        """The bytes of all packs."""
        return sum(pack.size for pack in (*self.segments.values(), *self.packs.values()))

    def vector(self, partition: int) -> VersionVector:
        """The operations of a partition that are in the backup."""
        found = self._vectors.get(partition)
        if found is None:
            reached = self.reached.get(partition)
            found = NOTHING_SEEN if reached is None else vector_of(reached)
            self._vectors[partition] = found
        return found

    def take(self, manifest: Manifest, packed: bytes) -> None:
        """Take the next manifest, or a whole one to begin with.

        Raises:
            BackupDamaged: it does not follow from the one before it, or names what cannot be.
        """
        if self.head is not None:
            if manifest.number != self.number + 1 or manifest.previous != self.digest:
                raise damaged(f"manifest {manifest.number} does not follow from manifest {self.number}")
            if manifest.cluster != self.head.cluster:
                raise damaged(f"manifest {manifest.number} is of another cluster than those before it")
        elif not manifest.whole:
            raise damaged(f"manifest {manifest.number} cannot be the first that is read")
        if manifest.whole:  # It says the same again, and what it leaves out is gone.
            self.segments, self.packs, self.bases, self.reached, self._vectors = {}, {}, {}, {}, {}
            self.left = {}
        self._merge(manifest)
        self.head, self.digest = manifest, sha256(packed).digest()

    def _merge(self, manifest: Manifest) -> None:
        gone = dict(manifest.gone)
        new = {pack.name: pack for pack in manifest.segments}
        if any(name in self.segments for name in gone):
            before, self.segments = self.segments, {}
            for name, pack in before.items():
                if name in gone:
                    self.segments.update(new)  # In the place of the first.
                else:
                    self.segments[name] = pack
        self.segments.update(new)
        self.packs.update({pack.name: pack for pack in manifest.packs})
        if any(name in self.packs for name in gone):
            self._forget_bases(gone.keys())
        for base in manifest.bases:
            self.bases.setdefault(base.partition, []).append(base)
            self.bases[base.partition].sort(key=lambda each: each.hlc)  # One that replaces another has its time.
        for reached in manifest.reached:
            self.reached[reached.partition] = reached
            self._vectors.pop(reached.partition, None)
        for name in gone:
            self.packs.pop(name, None)
        self.left.update(gone)
        self.since = max(self.since, manifest.since)

    def _forget_bases(self, gone: Collection[str]) -> None:
        for number, bases in list(self.bases.items()):
            self.bases[number] = [base for base in bases if not any(piece in gone for piece, _ in base.pieces)]

    def whole(self, manifest: Manifest) -> Manifest:
        """The whole manifest that says this one, and everything before it."""
        after = Catalogue()
        after.segments, after.packs, after.reached = dict(self.segments), dict(self.packs), dict(self.reached)
        after.bases = {number: list(bases) for number, bases in self.bases.items()}
        after.left, after.since = dict(self.left), self.since
        after._merge(manifest)
        return msgspec.structs.replace(
            manifest,
            whole=True,
            segments=list(after.segments.values()),
            packs=list(after.packs.values()),
            bases=[base for bases in after.bases.values() for base in bases],
            reached=[reached for _, reached in sorted(after.reached.items())],
            gone=[(name, ms) for name, ms in after.left.items() if ms > manifest.made_ms - LEFT_TOLD_MS],
            since=after.since,
        )


class Moment(NamedTuple):
    """The needs of a restore to a moment: of each partition a base, or none; then all later operations up to the moment."""

    hlc: int  # All operations up to this time.
    bases: dict[int, Base]
    segments: list[Pack]


def moment_of(catalogue: Catalogue, hlc: int, partitions: Iterable[int] | None = None) -> Moment:
    """The least that a restore to this time needs; `partitions`: of these alone."""
    wanted = None if partitions is None else frozenset(partitions)
    bases: dict[int, Base] = {}
    for number, found in catalogue.bases.items():
        early = [base for base in found if base.hlc <= hlc]
        if early and (wanted is None or number in wanted):
            bases[number] = early[-1]
    segments = [pack for pack in catalogue.segments.values() if pack.first_hlc <= hlc]
    return Moment(hlc, bases, segments)


def incomplete(catalogue: Catalogue, hlc: int, partitions: Iterable[int] | None = None) -> Base | None:
    """A base that covers what a restore to this time would lack; None: the moment is whole."""
    wanted = catalogue.bases if partitions is None else partitions
    bases = (base for number in wanted for base in catalogue.bases.get(number, ()))
    return max((base for base in bases if base.lacks_from <= hlc < base.hlc), key=lambda base: base.hlc, default=None)


def gap(reached: Reached | None, held: Mapping[Origin, int]) -> int | None:
    """A time from which on operations may be that are held and not in the backup; None: there are none. `held`: by origin.

    An operation is later than those that its origin issued before it, and the first of an origin later than those of earlier
    openings of its directory.
    """
    if reached is None:
        return 0 if held else None
    known = {origin: (sequence, hlc) for origin, sequence, hlc in reached.origins if origin != HORIZON}
    least = min((hlc for _, hlc in known.values()), default=0)
    times: list[int] = []
    for origin, sequence in held.items():
        before, hlc = known.get(origin, (0, 0))
        if before >= sequence:
            continue
        earlier = [time for other, (_, time) in known.items() if belongs(Origin(other), origin[-DIRECTORY_BYTES:])]
        times.append(hlc if before else max(earlier, default=least))
    return min(times, default=None)


def uncovered(part: Part, base: VersionVector) -> bool:
    """Whether some of a part's operations are not covered by a base. It covers origins by the time when it retired them."""
    return part.last_hlc >= base[HORIZON] and any(base[Origin(origin)] < last for origin, _, last in part.spans)


def names_of(listed: Iterable[str]) -> Iterator[int]:
    """The numbers of the manifests among these names."""
    return (number for name in listed if (number := number_in(name)) is not None)


def vector_of(reached: Reached) -> VersionVector:
    """The operations of a partition that are in the backup."""
    return VersionVector((Origin(origin), sequence) for origin, sequence, _ in reached.origins)


def unpacked_vector(packed: bytes) -> VersionVector:
    """A vector in a manifest.

    Raises:
        BackupDamaged: it is malformed.
    """
    try:
        return VersionVector.unpack(packed)
    except ValueError:
        raise damaged("a vector in a manifest cannot be read") from None


def damaged(why: str) -> BackupDamaged:
    """The error for something in a bucket that is not what a manifest says."""
    return BackupDamaged(
        f"the backup is damaged: {why}. Nothing was changed. Run `shoal backup verify URL` to see what can be restored; an "
        "earlier moment may be whole."
    )
