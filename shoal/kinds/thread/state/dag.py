"""A thread's checkpoints: a DAG of immutable records, and the heads of its branches.

Laws:
- A checkpoint's id is a hash over its parents, branch, schema, metadata, channel
  contents and a nonce (the request's key, or else its operation's dot), so that a
  retry elsewhere makes the same checkpoint. The author's bookmark and setting are
  not hashed, because they may differ when the request is sent again.
- Every save and every move of a branch has a token: a checkpoint's id, or a hash of
  the move's request, so that a retry elsewhere has the same one. It supersedes the
  tokens that it names: a save its parents' on its branch, a move all that its
  replica knew. The heads of a branch are the tokens that nothing supersedes: a
  function of the set of operations, so their order does not matter. Heads that name
  more than one checkpoint are a fork; none is dropped but by a deletion of the branch that
  names it. A branch without heads does not exist, and has no row.
- If two operations have one token, the record and time of the one with the least dot
  count everywhere, and the tokens that either names are superseded. The other's record
  is kept, for peers that lack the operation.
- A save that is repeated after its checkpoint was pruned and swept makes no head: it is pruned as before, and swept again.

Rows:
    C id₃₂                dot₂₄ hlc₈ wall_ms₈ and the record
    R id₃₂ dot₂₄          the record of another operation that saved the same checkpoint
    B branch              the heads, greatest (HLC, id) first: hlc₈ id₃₂ each, a move's 0x80 ∣ hlc₈ id₃₂ token₃₂
    M token₃₂             dot₂₄ hlc₈ wall_ms₈ id₃₂ branch: a move
    A branch 0 wall_ms₈ token₃₂   id₃₂: where the branch was put when, and 0x01 if it was elsewhere before; no bytes for a save,
                         whose token it is. It goes with the checkpoint's record; that of a move, and row M, once it is old, too
    D digest₃₂            a chunk, or a node of the tree over a value's chunks
    T id₃₂                a pruned checkpoint: see `shoal.kinds.thread.state.pruning`
    W id₃₂                one that was swept: see there
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256

import msgspec

from shoal.crdt.dot import DOT_BYTES, Dot
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import StoreCorrupt
from shoal.kinds.label import state as labels
from shoal.kinds.thread.state.channel import Recipe
from shoal.records import NamedTuple

CHECKPOINT, TWIN, BRANCH, CHUNK, MOVE, WHEN, PRUNED, SWEPT = b"C", b"R", b"B", b"D", b"M", b"A", b"T", b"W"
ID_BYTES = 32
_STAMP_BYTES = DOT_BYTES + 16
_HEAD_BYTES = 8 + ID_BYTES
_MOVED = 1 << 63  # No HLC has this bit.
_ELSEWHERE = b"\x01"


class Save(msgspec.Struct, array_like=True, frozen=True, tag="save", gc=False):
    """The mutation: saves a checkpoint. Its record and new chunks are stored once, as rows; the log holds this."""

    id: bytes
    record: bytes  # SHA-256 of the record.
    over: list[bytes] = []  # Tokens that it supersedes. Kept here too, because a prune removes the record.


class Move(msgspec.Struct, array_like=True, frozen=True, tag="move"):
    """The mutation that makes a branch, or puts it elsewhere. Nothing is deleted."""

    token: bytes
    branch: str
    to: bytes  # A checkpoint of the thread.
    over: list[bytes] = []  # Tokens that it supersedes.


class Drop(msgspec.Struct, array_like=True, frozen=True, tag="drop"):
    """The mutation that deletes a branch, as far as its issuer knew it. Its checkpoints stay."""

    branch: str
    over: list[bytes]  # Tokens that it supersedes.


class Record(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A checkpoint as it is stored, without the chunks of its channels."""

    parents: list[bytes]
    branch: str
    schema: str
    schema_version: int
    metadata: bytes
    nonce: bytes
    channels: dict[str, Recipe]
    author: str = ""
    label: str = ""  # See `shoal.kinds.label.state`.
    setting: bytes = b""  # Packed map: the author's program, model and such.
    seen: bytes = b""  # Packed bookmark: the operations that the author had read.
    readable_from: int = 0  # The least version of its schema that can read it; 0: its own version.
    secret: list[str] = []  # JSON pointers to parts that must not be shown.


class RecordWithFiles(Record, array_like=True, frozen=True, gc=False):
    """A checkpoint whose values refer to files."""

    files: dict[str, bytes] = {}  # By channel: what `shoal.values.registry.packed_marks` makes of their hashes.


class Head(msgspec.Struct, frozen=True, order=True, gc=False):
    """A head of a branch. `token` is the save or move that made it, `id` the checkpoint."""

    hlc: int
    id: bytes
    token: bytes


class Checkpoint(NamedTuple):
    """A stored checkpoint, with the stamp of the save that counts."""

    id: bytes
    dot: Dot
    hlc: int
    wall_ms: int
    record: Record


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(RecordWithFiles)


def decode_record(packed: bytes) -> RecordWithFiles:
    """The record in these bytes.

    Raises:
        StoreCorrupt: these bytes are no record.
    """
    try:
        return _decoder.decode(packed)
    except ValueError as error:  # msgspec's own are ValueErrors, and so are those of text that is no UTF-8.
        raise StoreCorrupt(f"a checkpoint cannot be decoded ({error}). Run `shoal verify`.") from None


def with_files(record: Record, files: dict[str, bytes]) -> Record:
    """The record with the references of its channels. If there are none, it is the record of a thread without files."""
    return RecordWithFiles(*msgspec.structs.astuple(record), files) if files else record  # type: ignore[call-arg]


def encode_record(record: Record) -> bytes:
    """The record in its stored form, over which a save's `record` hash is taken: of a decoded one, the bytes that it was."""
    if isinstance(record, RecordWithFiles) and not record.files:
        record = Record(*msgspec.structs.astuple(record)[:-1])
    return _encoder.encode(record)


def identify(record: Record) -> bytes:
    """The checkpoint's id. It depends on the channels' contents, not on the recipes that describe them."""
    channels = record.channels.items()
    # A tiny value stands for itself, any other by its hash; they are told apart.
    contents = sorted([(name, recipe.hash, b"" if recipe.hash else recipe.header + recipe.tail) for name, recipe in channels])
    schema = record.schema, record.schema_version, record.readable_from, record.secret
    author = record.author, record.label
    return sha256(
        _encoder.encode((record.parents, record.branch, schema, record.metadata, record.nonce, contents, author))
    ).digest()


def apply(
    rows: Rows, stamp: Stamp, save: Save, /, *, record: bytes, chunks: Mapping[bytes, bytes], decoded: Record | None = None
) -> list[Head]:
    """Apply a save, and return the heads of its branch.

    `chunks` holds those that the record is the first to use; `decoded` is the record, if the caller has it.
    """
    key = CHECKPOINT + save.id
    stored = rows.get(key)
    decoded = decoded or decode_record(record)
    for digest, piece in chunks.items():
        rows.put(CHUNK + digest, piece)
    head = Head(stamp.hlc, save.id, save.id)
    first = stored is None and not _was_pruned(rows, save.id)
    if stored is None or stamp.dot < Dot.unpack(stored[:DOT_BYTES]):
        if stored is not None:
            rows.put(TWIN + save.id + stored[:DOT_BYTES], stored[_STAMP_BYTES:])
        rows.put(key, _pack_stamp(stamp) + record)
        if stored is not None:
            rows.delete(when_row(decoded.branch, _wall_ms(stored), save.id))
        rows.put(when_row(decoded.branch, stamp.wall_ms, save.id), b"")
        if decoded.label:
            labels.name(rows, decoded.label, labels.LabelEntry(stamp.hlc, save.id), first=first)
        return _move_heads(rows, decoded.branch, head, over=[*decoded.parents, *save.over], first=first)
    if not stored.startswith(stamp.dot.pack()):
        rows.put(TWIN + save.id + stamp.dot.pack(), record)
    return _supersede(rows, decoded.branch, save.over)


def _was_pruned(rows: Rows, id: bytes) -> bool:
    """Whether a checkpoint that comes was pruned before; if it was swept, it is marked once more.

    A directory that was set back has saved it again: it does not know what it has forgotten.
    """
    if rows.get(PRUNED) is None:
        return False  # None of the thread ever was.
    mark = rows.get(SWEPT + id)
    if mark is None:
        return is_pruned(rows, id)  # Its record was erased before it came here.
    rows.delete(SWEPT + id)
    rows.put(PRUNED + id, mark)
    return True


def twin(rows: Rows, id: bytes, dot: Dot) -> bytes | None:
    """The record with which an operation saved `id`, if another operation's counts; else None."""
    return rows.get(TWIN + id + dot.pack())


def apply_erased(rows: Rows, save: Save) -> None:
    """Apply a save whose record is gone: it is no head any more, and neither is any token that it superseded."""
    for branch in [key[1:].decode() for key, _ in rows.scan(BRANCH)] if save.over else ():
        _supersede(rows, branch, save.over)


def apply_move(rows: Rows, stamp: Stamp, move: Move) -> list[Head]:
    """Apply a move, and return the heads of its branch."""
    key = MOVE + move.token
    stored = rows.get(key)
    head = Head(stamp.hlc, move.to, move.token)
    if stored is None or stamp.dot < Dot.unpack(stored[:DOT_BYTES]):
        rows.put(key, _pack_stamp(stamp) + move.to + move.branch.encode())
        _put_when(rows, move.branch, stamp, move.token, move.to + (_ELSEWHERE if move.over else b""), before=stored)
        if stored is None and is_pruned(rows, move.to):
            # The prune did not know of this move: a node moves no branch to a checkpoint that it knows to be pruned.
            rows.delete(PRUNED + move.to)
        return _move_heads(rows, move.branch, head, over=move.over, first=stored is None)
    return _supersede(rows, move.branch, move.over)


def apply_drop(rows: Rows, _stamp: Stamp, drop: Drop) -> list[Head]:
    """Apply a deletion of a branch, and return the heads that it did not know: if there are any, the branch is still there."""
    return _supersede(rows, drop.branch, drop.over)


def token_of(branch: str, to: bytes, nonce: bytes) -> bytes:
    """The token of a move. `nonce` is the request's key, or else its operation's position."""
    return sha256(_encoder.encode(("move", branch, to, nonce))).digest()


def _pack_stamp(stamp: Stamp) -> bytes:
    return stamp.dot.pack() + stamp.hlc.to_bytes(8, "big") + stamp.wall_ms.to_bytes(8, "big")


def _put_when(rows: Rows, branch: str, stamp: Stamp, token: bytes, value: bytes, *, before: bytes | None) -> None:
    if before is not None:
        rows.delete(when_row(branch, _wall_ms(before), token))
    rows.put(when_row(branch, stamp.wall_ms, token), value)


def _wall_ms(stored: bytes) -> int:
    return int.from_bytes(stored[DOT_BYTES + 8 : _STAMP_BYTES], "big")


class Place(NamedTuple):
    """A row `A`: the checkpoint on which a branch was put."""

    id: bytes
    is_saved: bool  # By a save; else by a move.
    was_elsewhere: bool  # A move found the branch somewhere else: it did not make it.


def place(row: bytes, value: bytes) -> Place:
    """A branch's place, from its row."""
    return Place(value[:ID_BYTES] or row[-ID_BYTES:], not value, value[ID_BYTES:] == _ELSEWHERE)


class Moved(NamedTuple):
    """A move, as its row `M` has it."""

    token: bytes
    hlc: int
    wall_ms: int
    branch: str
    to: bytes

    @property
    def rows(self) -> tuple[bytes, bytes]:
        """The keys of its rows."""
        return MOVE + self.token, when_row(self.branch, self.wall_ms, self.token)


def moves(rows: Rows, *, after: bytes | None = None) -> Iterator[Moved]:
    """All moves of the thread by token, from strictly above one."""
    for key, packed in rows.scan(MOVE, after=None if after is None else MOVE + after):
        hlc, branch = int.from_bytes(packed[DOT_BYTES : DOT_BYTES + 8], "big"), packed[_STAMP_BYTES + ID_BYTES :].decode()
        yield Moved(key[1:], hlc, _wall_ms(packed), branch, moved_to(packed))


def when_row(branch: str, wall_ms: int, token: bytes) -> bytes:
    """The key of the row that says where a branch was put at a time."""
    # No name of a branch has a 0 byte.
    return WHEN + branch.encode() + b"\x00" + wall_ms.to_bytes(8, "big") + token


def _move_heads(rows: Rows, branch: str, head: Head, *, over: Sequence[bytes], first: bool) -> list[Head]:
    """Put a new head in the place of those that it supersedes. A known one only renews its HLC, if it is still a head."""
    row = BRANCH + branch.encode()
    packed = rows.get(row) or b""
    if first and len(packed) == _HEAD_BYTES and packed[8:] in over:  # Most saves: one head takes the place of another.
        rows.put(row, _pack_head(head))
        return [head]
    before = _unpack_heads(packed)
    gone = {head.token, *over}
    kept = [other for other in before if other.token not in gone]
    if first or any(other.token == head.token for other in before):
        kept.append(head)
    return _put_heads(rows, branch, kept)


def _supersede(rows: Rows, branch: str, over: Sequence[bytes]) -> list[Head]:
    before = heads(rows, branch)
    kept = [other for other in before if other.token not in over]
    return before if len(kept) == len(before) else _put_heads(rows, branch, kept)


def _put_heads(rows: Rows, branch: str, kept: list[Head]) -> list[Head]:
    if not kept:
        rows.delete(BRANCH + branch.encode())
        return kept
    if len(kept) > 1:
        kept.sort(reverse=True)
    rows.put(BRANCH + branch.encode(), b"".join(map(_pack_head, kept)))
    return kept


def heads(rows: Rows, branch: str) -> list[Head]:
    """The heads of a branch, the winner first; empty if there is no such branch."""
    return _unpack_heads(rows.get(BRANCH + branch.encode()) or b"")


def branches(rows: Rows, *, after: str = "", limit: int | None = None) -> dict[str, list[Head]]:
    """The branches by name, in byte order, and the heads of each: those above a name, at most `limit` (None: all)."""
    found = rows.scan(BRANCH, after=BRANCH + after.encode() if after else None, limit=limit)
    return {key[1:].decode(): _unpack_heads(packed) for key, packed in found}


def _pack_head(head: Head) -> bytes:
    if head.token == head.id:
        return head.hlc.to_bytes(8, "big") + head.id
    return (head.hlc | _MOVED).to_bytes(8, "big") + head.id + head.token


def _unpack_heads(packed: bytes) -> list[Head]:
    if len(packed) == _HEAD_BYTES:  # One that was saved: most branches of most threads.
        id = packed[8:]
        return [Head(int.from_bytes(packed[:8], "big"), id, id)]
    found, at = [], 0
    while at < len(packed):
        hlc, id = int.from_bytes(packed[at : at + 8], "big"), packed[at + 8 : at + 8 + ID_BYTES]
        at += 8 + ID_BYTES
        token = id
        if hlc & _MOVED:
            token = packed[at : at + ID_BYTES]
            at += ID_BYTES
        found.append(Head(hlc & ~_MOVED, id, token))
    return found


def checkpoint(rows: Rows, id: bytes) -> Checkpoint | None:
    """A stored checkpoint, pruned or not; None if its record is not here.

    Raises:
        StoreCorrupt: it cannot be decoded.
    """
    stored = rows.get(CHECKPOINT + id)
    if stored is None:
        return None
    try:
        return unpack(id, stored)
    except StoreCorrupt as error:
        raise StoreCorrupt(error.message, lost=(CHECKPOINT + id,)) from None


def unpack(id: bytes, stored: bytes) -> Checkpoint:
    """The checkpoint in a row `C`.

    Raises:
        StoreCorrupt: it cannot be decoded.
    """
    if len(stored) < _STAMP_BYTES:
        raise StoreCorrupt(f"checkpoint {id.hex()} is cut short. Run `shoal verify`.")
    return Checkpoint(
        id,
        Dot.unpack(stored[:DOT_BYTES]),
        int.from_bytes(stored[DOT_BYTES : DOT_BYTES + 8], "big"),
        int.from_bytes(stored[DOT_BYTES + 8 : _STAMP_BYTES], "big"),
        decode_record(stored[_STAMP_BYTES:]),
    )


class Lead(msgspec.Struct, frozen=True, gc=False):
    """A checkpoint without its channels: quick to read. Very many may be held: the garbage collector leaves them alone."""

    id: bytes
    hlc: int
    wall_ms: int
    parents: tuple[bytes, ...]
    branch: str
    label: str


class _Front(msgspec.Struct, array_like=True, frozen=True):
    """The first fields of a record."""

    parents: tuple[bytes, ...]
    branch: str
    schema: str
    schema_version: int
    metadata: bytes
    nonce: bytes
    channels: msgspec.Raw
    author: str = ""
    label: str = ""


_front = msgspec.msgpack.Decoder(_Front)


def leads(rows: Rows, *, after: bytes | None = None, limit: int | None = None) -> Iterator[Lead]:
    """All checkpoints whose records are stored, pruned ones too, by id; `after` is an id, exclusive.

    Raises:
        StoreCorrupt: one cannot be decoded.
    """
    start = None if after is None else CHECKPOINT + after
    for key, stored in rows.scan(CHECKPOINT, after=start, limit=limit):
        hlc, wall_ms = (int.from_bytes(stored[at : at + 8], "big") for at in (DOT_BYTES, DOT_BYTES + 8))
        try:
            front = _front.decode(stored[_STAMP_BYTES:])
        except ValueError as error:
            raise StoreCorrupt(f"checkpoint {key[1:].hex()} cannot be decoded ({error}). Run `shoal verify`.") from None
        yield Lead(key[1:], hlc, wall_ms, front.parents, front.branch, front.label)


def is_pruned(rows: Rows, id: bytes) -> bool:
    """Whether the checkpoint was pruned. Its record may still be here."""
    return rows.get(PRUNED + id) is not None


def shown(rows: Rows, id: bytes) -> Checkpoint | None:
    """As `checkpoint`, but None also if it was pruned."""
    return None if is_pruned(rows, id) else checkpoint(rows, id)


def moved_to(packed: bytes) -> bytes:
    """The checkpoint in a row `M`."""
    return packed[_STAMP_BYTES : _STAMP_BYTES + ID_BYTES]


def packed_record(rows: Rows, id: bytes) -> bytes | None:
    """The stored bytes of a record, as a replica sends them to others; None if they are not here."""
    stored = rows.get(CHECKPOINT + id)
    return None if stored is None else record_of(stored)


def record_of(stored: bytes) -> bytes:
    """The packed record in a row `C`."""
    return stored[_STAMP_BYTES:]


def chunk(rows: Rows, digest: bytes) -> bytes | None:
    """A chunk, or a node of the tree over chunks; None if it is not here."""
    return rows.get(CHUNK + digest)


def chunk_size(rows: Rows, digest: bytes) -> int | None:
    """The bytes of a chunk, or of a node of the tree, which is not read; None if it is not here."""
    return rows.size(CHUNK + digest)


def is_away(rows: Rows, digest: bytes) -> bool:
    """Whether a chunk that cannot be read is not damaged: its bytes can be fetched."""
    try:
        return chunk_size(rows, digest) is not None
    except StoreCorrupt:
        return False


def ancestry(rows: Rows, start: bytes) -> Iterator[Checkpoint]:
    """`start` and its ancestors along first parents, the newest first. It ends at a parent that was pruned.

    Raises:
        StoreCorrupt: a checkpoint cannot be decoded.
    """
    id: bytes | None = start
    while id is not None and (found := shown(rows, id)) is not None:
        yield found
        id = found.record.parents[0] if found.record.parents else None
