"""Threads over storage: what a save decides, and how a checkpoint is put together again.

Law: a save's parent is what its caller last loaded or saved; only a caller without
a position continues from the branch's winner. `expect_head` passes if it is
the branch's only head on this replica. Deciding changes nothing but the
transaction.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from itertools import accumulate, islice
from typing import NamedTuple

from shoal.config import Config
from shoal.crdt import channel, journal, lineage
from shoal.crdt.channel import Recipe, Shape
from shoal.crdt.dot import VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import HeadMoved, InvalidInput, KeyReused, NotFound, StoreCorrupt, TooLarge
from shoal.node.decision import Decision
from shoal.node.mutation import Attached, implied_key, users_key
from shoal.node.transaction import Transaction
from shoal.protocol import requests
from shoal.protocol.requests import NO_HEAD

BRANCHES_MAX = 4096


class Spot(NamedTuple):
    """A checkpoint of a thread. Its id alone is no key: equal checkpoints of two threads have their own recipes."""

    space: str
    thread: str
    id: bytes


class ShapeCache:
    """The last serialised form of live threads; oldest dropped first, bounded by bytes.

    One memory comparison with it finds what a save shares with its parent.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._entries: OrderedDict[Spot, tuple[dict[str, Shape], int]] = OrderedDict()

    def get(self, spot: Spot) -> dict[str, Shape] | None:
        found = self._entries.get(spot)
        if found is None:
            return None
        self._entries.move_to_end(spot)
        return found[0]

    def put(self, spot: Spot, shapes: dict[str, Shape], *, replacing: Spot | None = None) -> None:
        for stale in (spot, replacing):
            if stale is not None and (found := self._entries.pop(stale, None)) is not None:
                self._bytes -= found[1]
        size = 0
        for shape in shapes.values():
            # A digest and its end cost about 100 bytes as Python objects; a shape about 300.
            size += len(shape.body) + 100 * len(shape.digests) + 300
        self._entries[spot] = shapes, size
        self._bytes += size
        while self._bytes > self._bytes_max and self._entries:
            self._bytes -= self._entries.popitem(last=False)[1][1]


class Threads:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._shapes = ShapeCache(config.checkpoint_cache_bytes)

    # ── writes ────────────────────────────────────────────────────────────────

    def save(self, transaction: Transaction, rows: Rows, stamp: Stamp, request: requests.Save, *, key: str | None) -> Decision:
        """
        Raises:
            HeadMoved: `expect_head` is not the branch's only head.
            NotFound: the parent is no checkpoint of this thread.
            TooLarge: too many channels.
        """
        if len(request.channels) > self._config.channels_max:
            raise TooLarge(
                f"a checkpoint holds at most {self._config.channels_max} channels; this one has {len(request.channels)}. "
                "Nothing was written."
            )
        parent = self._parent(rows, request)
        before = None if parent is None else Spot(request.space, request.thread, parent)
        base = None if before is None else self._shapes.get(before)
        recipes: dict[str, Recipe] = {}
        shapes: dict[str, Shape] = {}
        fresh: dict[bytes, bytes] = {}
        for name, packed in request.channels.items():
            drafted = channel.draft(packed, base.get(name) if base is not None else None, parent or b"")
            recipes[name], shapes[name] = drafted.recipe, drafted.shape
            # What a live thread adds is new but by chance; only a cold one may be saying it all again.
            if drafted.chunks:
                fresh.update(drafted.chunks if base is not None else _missing(rows, drafted.chunks))
        record = lineage.Record(
            parents=[] if parent is None else [parent],
            branch=request.branch,
            schema=request.schema,
            metadata=request.metadata,
            nonce=key.encode() if key is not None else stamp.pack_position(),
            channels=recipes,
        )
        id = lineage.identify(record)
        packed_record = lineage.encode_record(record)
        change = lineage.Save(id, sha256(packed_record).digest())
        heads = lineage.apply(rows, stamp, change, record=packed_record, chunks=fresh, decoded=record)
        saved = Spot(request.space, request.thread, id)
        transaction.when_written(lambda: self._shapes.put(saved, shapes, replacing=before))
        reply = requests.Saved(
            id=id.hex(),
            parents=[parent.hex() for parent in record.parents],
            branch=request.branch,
            heads=_hex(heads),
            wall_ms=stamp.wall_ms,
        )
        return Decision(change, Attached(packed_record, fresh), reply, id.hex())

    def _parent(self, rows: Rows, request: requests.Save) -> bytes | None:
        heads = lineage.heads(rows, request.branch)
        if request.expect_head is not None:
            expected = [] if request.expect_head == NO_HEAD else [_id(request.expect_head)]
            if [head.id for head in heads] != expected:
                wanted = f"its head to be {request.expect_head}" if expected else "it not to exist"
                found = f"its heads are {', '.join(_hex(heads))}" if heads else "it does not exist"
                raise HeadMoved(
                    f"branch {request.branch!r} of thread {request.thread!r}: you expected {wanted}; {found}. "
                    "Nothing was written. Load the branch again, and save on what you find.",
                    heads=_hex(heads),
                )
            return expected[0] if expected else None
        if request.parent is None:
            return heads[0].id if heads else None
        if request.parent == NO_HEAD:
            return None
        parent = _id(request.parent)
        if (
            self._shapes.get(Spot(request.space, request.thread, parent)) is None
            and lineage.packed_record(rows, parent) is None
        ):
            raise NotFound(f"thread {request.thread!r} has no checkpoint {request.parent} to save on. Nothing was written.")
        return parent

    def append(self, rows: Rows, stamp: Stamp, request: requests.Append, *, key: str | None) -> Decision:
        """`key` is that of the whole request: it makes the event one where the request went to two nodes.

        Raises:
            KeyReused: the key is there with another event.
        """
        digest = sha256(request.event).digest()
        if request.key is not None and (entry := journal.find(rows, request.key)) is not None:
            if entry.digest != digest:
                raise KeyReused(
                    f"key {request.key!r} is in the journal of {request.thread!r} with another event. Nothing was written. "
                    "Use a new key for a new event."
                )
            return Decision.nothing(requests.Appended(id=entry.position.hex(), appended=False))
        change = journal.Append(digest, request.key or implied_key(key, stamp.nth))
        journal.apply(rows, stamp, change, request.event)
        id = stamp.pack_position().hex()
        return Decision(change, Attached(request.event), requests.Appended(id=id, appended=True), id)

    # ── reads ─────────────────────────────────────────────────────────────────

    def load(self, rows: Rows, request: requests.Load) -> requests.Checkpoint:
        """
        Raises:
            NotFound: no such checkpoint, or the branch has none.
            StoreCorrupt: a chunk is missing or does not match its hash.
        """
        if request.checkpoint is not None:
            return self._reply(rows, request, self._found(rows, request.thread, _id(request.checkpoint)), channels=True)
        heads = lineage.heads(rows, request.branch)
        if not heads:
            raise NotFound(
                f"thread {request.thread!r} of space {request.space!r} has no checkpoint on branch {request.branch!r}. "
                "Save one first, or list the branches with heads()."
            )
        return self._reply(rows, request, self._found(rows, request.thread, heads[0].id), channels=True)

    def history(self, rows: Rows, request: requests.History) -> requests.Checkpoints:
        """
        Raises:
            NotFound: `before` is no checkpoint of this thread.
        """
        limit = min(max(1, request.limit), self._config.page_items_max)
        items: list[requests.Checkpoint] = []
        size = 0
        for found in islice(self._walk(rows, request), limit + 1):
            if len(items) == limit or size > self._config.page_bytes_max:
                return requests.Checkpoints(items, more=True)
            items.append(self._reply(rows, request, found, channels=request.channels))
            size += sum(map(len, items[-1].channels.values())) + len(items[-1].metadata) + 200
        return requests.Checkpoints(items, more=False)

    def _walk(self, rows: Rows, request: requests.History) -> Iterator[lineage.Checkpoint]:
        if request.before is not None:
            parents = self._found(rows, request.thread, _id(request.before)).record.parents
            return lineage.ancestry(rows, parents[0]) if parents else iter(())
        heads = lineage.heads(rows, request.branch)
        return lineage.ancestry(rows, heads[0].id) if heads else iter(())

    def heads(self, rows: Rows) -> requests.Branches:
        return requests.Branches({name: _hex(heads) for name, heads in lineage.branches(rows, BRANCHES_MAX).items()})

    def events(
        self, rows: Rows, request: requests.ReadJournal, vector: VersionVector, *, floor_hlc: int | None
    ) -> requests.Events:
        """
        Raises:
            InvalidValue: `after` is no cursor.
        """
        page = journal.read(
            rows,
            journal.Cursor.unpack(request.after),
            vector,
            floor_hlc=floor_hlc,
            limit=min(max(1, request.limit), self._config.page_items_max),
            bytes_max=self._config.page_bytes_max,
        )
        events = [
            requests.Event(event.position.hex(), users_key(event.key), event.wall_ms, event.payload, event.late, cursor.pack())
            for event, cursor in zip(page.events, page.cursors(), strict=True)
        ]
        return requests.Events(events, page.cursor.pack(), page.more)

    def _found(self, rows: Rows, thread: str, id: bytes) -> lineage.Checkpoint:
        found = lineage.checkpoint(rows, id)
        if found is None:
            raise NotFound(f"thread {thread!r} has no checkpoint {id.hex()}. List them with history().")
        return found

    def _reply(
        self, rows: Rows, request: requests.Load | requests.History, found: lineage.Checkpoint, *, channels: bool
    ) -> requests.Checkpoint:
        record = found.record
        return requests.Checkpoint(
            id=found.id.hex(),
            parents=[parent.hex() for parent in record.parents],
            branch=record.branch,
            heads=_hex(lineage.heads(rows, record.branch)),
            wall_ms=found.wall_ms,
            schema=record.schema,
            metadata=record.metadata,
            channels=self._values(rows, Spot(request.space, request.thread, found.id), found) if channels else {},
        )

    def _values(self, rows: Rows, spot: Spot, found: lineage.Checkpoint) -> dict[str, bytes]:
        shapes = self._shapes.get(spot)
        if shapes is None:
            shapes = assemble(rows, found)
            self._shapes.put(spot, shapes)
        # In the order in which they were saved.
        return {name: shapes[name].header + shapes[name].body for name in found.record.channels}


def assemble(rows: Rows, found: lineage.Checkpoint) -> dict[str, Shape]:
    """Put a checkpoint's values together from its chunks, each checked against its hash.

    Raises:
        StoreCorrupt: a chunk or a checkpoint it is described against is missing, or a hash does not hold.
    """
    records: dict[bytes, Mapping[str, Recipe]] = {}

    def of_base(name: str, id: bytes) -> Recipe | None:
        if id not in records:
            older = lineage.checkpoint(rows, id)
            records[id] = {} if older is None else older.record.channels
        return records[id].get(name)

    return {name: _shape(rows, found, name, partial(of_base, name)) for name in found.record.channels}


def _shape(rows: Rows, found: lineage.Checkpoint, name: str, of_base: Callable[[bytes], Recipe | None]) -> Shape:
    recipe = found.record.channels[name]
    digests = channel.digests_of(recipe, of_base)
    if digests is None:
        raise _corrupt(found, name, "a checkpoint that it builds on is missing")
    pieces = [_chunk(rows, found, name, digest) for digest in digests]
    body = b"".join(pieces) if pieces else channel.inline_of(recipe, of_base)
    if body is None:
        raise _corrupt(found, name, "the checkpoint that has its value is missing")
    ends = list(accumulate(map(len, pieces)))
    if channel.hash_of(recipe.header, body, digests) != recipe.hash:
        raise _corrupt(found, name, "its hash does not hold")
    # A recipe that only points at another checkpoint's adds nothing to the chain.
    points = bool(recipe.base) and not recipe.chunks
    home, depth = (recipe.base, recipe.depth - 1) if points else (b"", recipe.depth)
    return Shape(recipe.hash, recipe.header, body, ends, digests, home, depth)


def _chunk(rows: Rows, found: lineage.Checkpoint, name: str, digest: bytes) -> bytes:
    piece = lineage.chunk(rows, digest)
    if piece is None or sha256(piece).digest() != digest:
        raise _corrupt(found, name, f"chunk {digest.hex()} is {'missing' if piece is None else 'damaged'}")
    return piece


def _missing(rows: Rows, chunks: dict[bytes, bytes]) -> dict[bytes, bytes]:
    return {digest: piece for digest, piece in chunks.items() if lineage.chunk(rows, digest) is None}


def _corrupt(found: lineage.Checkpoint, name: str, why: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"channel {name!r} of checkpoint {found.id.hex()} cannot be read: {why}. "
        "Other checkpoints are not affected; run `shoal verify` to list all damage."
    )


def _id(text: str) -> bytes:
    try:
        id = bytes.fromhex(text)
    except ValueError:
        id = b""
    if len(id) != lineage.ID_BYTES:
        raise InvalidInput(f"a checkpoint id is 64 hex digits; got {text[:80]!r}. Nothing was written.")
    return id


def _hex(heads: list[lineage.Head]) -> list[str]:
    return [head.id.hex() for head in heads]
