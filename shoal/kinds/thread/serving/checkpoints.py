"""Read, inspect and verify a thread's stored checkpoints.

Reads of a thread's checkpoints.

Inspection of checkpoints: what they changed, and what their authors could see.

Law: an author could see the events of its own thread that come before its checkpoint in the
order of their times. Of other objects it could see what it recorded, and what the authors
of the checkpoint's ancestors recorded.

Verify stored checkpoints, page by page along first parents.

Laws:
- Nothing cached is trusted: every chunk is read and hashed, the hash and size of every value are computed
  from its chunks, and every id from the record.
- One page reads each chunk and each record once, however many of its checkpoints share them. So verifying a
  history costs what is stored, not the sum of the sizes of all states.
- Other requests get their turn between two checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from hashlib import sha256
from itertools import islice

from shoal.config import Config
from shoal.crdt.rows import Rows
from shoal.errors import InvalidInput, NotFound, Pruned, StoreCorrupt
from shoal.kinds.journal.serving.journals import shown_event
from shoal.kinds.journal.state import journal
from shoal.kinds.label import state as labels
from shoal.kinds.thread.serving.saves import absent, check_shown
from shoal.kinds.thread.serving.shapes import Reader, ShapeCache, Spot, appended, completed, corrupt, value_of
from shoal.kinds.thread.state import channel, dag, pruning
from shoal.kinds.thread.state import chunking as tree
from shoal.kinds.thread.state.channel import Recipe
from shoal.names import check_name
from shoal.node.handler import Checks, Readers, Scan, Scans, View, Writers
from shoal.node.naming import PAGE_BYTES_MAX, checkpoint_named, hexed, unhex
from shoal.node.turns import Steps, Stride
from shoal.protocol import requests
from shoal.protocol.base import FILTER_TERMS_MAX
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import Damage, Explain, Growth, History, Load, ReadDelta, ReadLabels, VerifyCheckpoints
from shoal.records import NamedTuple
from shoal.values.filtering import Filter

HISTORY_SCAN_MAX = 4096  # Checkpoints examined for one page of a filtered history.

_END_MS = 1 << 62


class Checkpoints:
    """The handler of `Load` and `History`; other handlers use `shown`."""

    def __init__(self, config: Config, cache: ShapeCache) -> None:
        self._config = config
        self._cache = cache
        self.checks: Checks = {}
        self.writers: Writers = {}
        self.readers: Readers = {Load: self._load}
        self.scans: Scans = {History: self._history}

    def _load(self, view: View, request: Load) -> requests.Checkpoint:
        """The checkpoint with an id or a label, or the newest of a branch, now or at a time.

        Raises:
            NotFound: no such checkpoint, label or channel, or the branch has none, or had none then.
            Pruned: the checkpoint was pruned.
            InvalidInput: more than one of an id, a label and a time is given.
            StoreCorrupt: a chunk is missing or does not match its hash.
        """
        rows = view.rows
        if sum(given is not None for given in (request.checkpoint, request.label, request.as_of_ms)) > 1:
            raise InvalidInput("give only one of a checkpoint's id, a label, or a time (as_of).")
        if request.checkpoint is not None:
            return self._loaded(
                rows,
                request,
                found_checkpoint(rows, request.thread, checkpoint_named(rows, request.thread, request.checkpoint)),
            )
        if request.label is not None:
            return self._loaded(rows, request, _labelled(rows, request.thread, request.label))
        heads = dag.heads(rows, request.branch)
        if not heads:
            raise NotFound(
                f"thread {request.thread!r} of space {request.space!r} has no checkpoint on branch {request.branch!r}. "
                "Save one first, or list the branches with heads()."
            )
        if request.as_of_ms is None:
            return self._loaded(rows, request, stored_checkpoint(rows, request.thread, heads[0].id))
        then = pruning.as_of(rows, request.branch, min(max(0, request.as_of_ms), _END_MS))
        if then is None:
            raise NotFound(f"branch {request.branch!r} of thread {request.thread!r} had no checkpoint then.")
        return self._loaded(rows, request, stored_checkpoint(rows, request.thread, then))

    def _loaded(self, rows: Rows, request: Load, found: dag.Checkpoint) -> requests.Checkpoint:
        # In the order in which they were saved.
        there = found.record.channels
        if request.channels is None:
            return self.shown(rows, request, found, there)
        if lacking := [name for name in request.channels if name not in there]:
            raise NotFound(
                f"checkpoint {found.id.hex()} has no channel {', '.join(map(repr, lacking))}; "
                f"it has {', '.join(map(repr, there)) or 'none'}."
            )
        return self.shown(rows, request, found, [name for name in there if name in request.channels])

    def _history(self, view: Callable[[], View], request: History) -> Scan:
        """A page of a branch's history, the newest first, along first parents, in steps.

        Raises:
            NotFound: `before` is not a checkpoint of this thread.
            InvalidInput, TooLarge: the filter is not legal.
            StoreCorrupt: a checkpoint is damaged, or missing though it was not pruned.
        """
        limit = min(max(1, request.limit), self._config.page_items_max)
        filter = Filter.of_fields(request.filter, terms_max=FILTER_TERMS_MAX)
        items: list[requests.Checkpoint] = []
        size, looked, last, stride = 0, 0, "", Stride.usual()
        rows = view().rows
        id = start = _newest(rows, request)
        while id is not None and (found := dag.shown(rows, id)) is not None:
            if len(items) == limit or size > PAGE_BYTES_MAX or looked == HISTORY_SCAN_MAX:
                return requests.Checkpoints(items, more=True, next=last)
            looked, last = looked + 1, found.id.hex()
            before = size
            if request.author in (None, found.record.author) and filter.matches(found.record.metadata):
                items.append(self.shown(rows, request, found, found.record.channels if request.channels else ()))
                size += sum(map(len, items[-1].channels.values())) + len(items[-1].metadata) + 200
            id = next(iter(found.record.parents), None)
            if stride.is_over(size - before or len(found.record.metadata)):
                yield
                rows = view().rows
        # Of a thread that was deleted meanwhile nothing is missing.
        if id is not None and (id == start or dag.shown(rows, start or b"") is not None):
            _check_end(rows, request.thread, id)
        return requests.Checkpoints(items, more=False, next=last)

    def shown(
        self, rows: Rows, request: Load | History | ReadLabels, found: dag.Checkpoint, names: Collection[str]
    ) -> requests.Checkpoint:
        """A checkpoint as clients get it, with the values of the channels `names` in the order of `names`.

        Raises:
            StoreCorrupt: the record does not match its id, or a value cannot be read.
        """
        record = found.record
        if dag.identify(record) != found.id:
            raise _lost(request.thread, found.id, "damaged: its id does not match what it holds")
        branch = record.branch
        if isinstance(request, History) or (isinstance(request, Load) and request.checkpoint is request.label is None):
            branch = request.branch
        return requests.Checkpoint(
            id=found.id.hex(),
            parents=[parent.hex() for parent in record.parents],
            branch=record.branch,
            heads=hexed(dag.heads(rows, branch)),
            wall_ms=found.wall_ms,
            schema=record.schema,
            schema_version=record.schema_version,
            metadata=record.metadata,
            channels=self._values(rows, Spot(request.space, request.thread, found.id), found, names),
            hashes={name: shown_hash(recipe) for name, recipe in record.channels.items()},
            author=record.author,
            label=record.label,
            setting=record.setting,
            seen=record.seen,
            readable_from=record.readable_from,
            secret=record.secret,
            nonce=record.nonce,
        )

    def _values(self, rows: Rows, spot: Spot, found: dag.Checkpoint, names: Collection[str]) -> dict[str, bytes]:
        if not names:
            return {}
        cached = self._cache.get(spot)
        shapes = completed(rows, found, cached, names)
        if shapes is not cached:
            self._cache.put(spot, shapes, has_secrets=bool(found.record.secret))
        return {name: value_of(shapes[name]) for name in names}


def shown_hash(recipe: Recipe) -> str:
    """The hash that clients see; equal for equal values only."""
    # A tiny value has no hash; its bytes serve as one.
    return (recipe.hash or recipe.header + recipe.tail).hex()


def _newest(rows: Rows, request: History) -> bytes | None:
    """The id of the checkpoint that a page begins with; None: there is none."""
    if request.before is None:
        heads = dag.heads(rows, request.branch)
        return heads[0].id if heads else None
    before = found_checkpoint(rows, request.thread, checkpoint_named(rows, request.thread, request.before))
    return next(iter(before.record.parents), None)


def _check_end(rows: Rows, thread: str, id: bytes) -> None:
    """Check that a history ends only at a pruned checkpoint.

    Raises:
        StoreCorrupt: the checkpoint at which it ends is missing, but was not pruned.
    """
    with suppress(Pruned):
        stored_checkpoint(rows, thread, id)


def found_checkpoint(rows: Rows, thread: str, id: bytes) -> dag.Checkpoint:
    """The checkpoint with an id that a request names.

    Raises:
        NotFound: the thread has none with this id; `Pruned` if it was pruned or may have been.
    """
    check_shown(rows, thread, id)
    found = dag.checkpoint(rows, id)
    if found is None:
        raise absent(rows, thread, id)
    return found


def _labelled(rows: Rows, thread: str, label: str) -> dag.Checkpoint:
    named = labels.entries(rows, check_name("label", label))
    if not named:
        raise NotFound(f"thread {thread!r} has no checkpoint with the label {label!r}. List them with labels().")
    return stored_checkpoint(rows, thread, named[0].id)


def stored_checkpoint(rows: Rows, thread: str, id: bytes) -> dag.Checkpoint:
    """A checkpoint that another row names.

    Raises:
        Pruned: it was pruned, or may have been.
        StoreCorrupt: it is missing, and the thread was never pruned.
    """
    if rows.get(dag.CHECKPOINT + id) is None and not pruning.ever_pruned(rows):
        raise _lost(thread, id, "missing")
    return found_checkpoint(rows, thread, id)


def _lost(thread: str, id: bytes, how: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"checkpoint {id.hex()} of thread {thread!r} is {how}. Run `shoal verify` to list all damage.",
        lost=(dag.CHECKPOINT + id,),
    )


ANCESTORS_READ_MAX = 64  # For what earlier authors recorded; handles record all of it again more often than that.


class Inspection:
    """The handler of `Explain` and `ReadDelta`."""

    def __init__(self, config: Config, checkpoints: Checkpoints) -> None:
        self._config = config
        self._checkpoints = checkpoints
        self.checks: Checks = {}
        self.writers: Writers = {}
        self.readers: Readers = {Explain: self._explain, ReadDelta: self._delta}

    def _delta(self, view: View, request: ReadDelta) -> requests.Delta:
        """Read a checkpoint's channels that differ from its first parent's; of lists that only grew, the new elements.

        Raises:
            NotFound: there is no such checkpoint, or its first parent was pruned.
            StoreCorrupt: a chunk is missing or does not match its hash.
        """
        rows = view.rows
        found = found_checkpoint(rows, request.thread, checkpoint_named(rows, request.thread, request.checkpoint))
        parents = found.record.parents
        parent = found_checkpoint(rows, request.thread, parents[0]) if parents else None
        reader, lists, names = Reader(rows), dict[str, Growth](), list[str]()
        for name, recipe in found.record.channels.items():
            old = None if parent is None else parent.record.channels.get(name)
            if old is not None and shown_hash(old) == shown_hash(recipe):
                continue
            more = None
            if parent is not None and old is not None and parent.record.schema == found.record.schema:
                more = appended(reader, parent, found, name)
            if more is None:
                names.append(name)
            else:
                lists[name] = Growth(*more)
        load = Load(request.space, request.thread, found.id.hex())
        return requests.Delta(self._checkpoints.shown(rows, load, found, names), lists)

    def _explain(self, view: View, request: Explain) -> requests.Explained:
        """The context that the author of a checkpoint could see: earlier checkpoints, events, its setting and bookmark.

        Raises:
            NotFound: there is no such checkpoint.
        """
        rows = view.rows
        found = found_checkpoint(rows, request.thread, checkpoint_named(rows, request.thread, request.checkpoint))
        limit = min(max(1, request.limit), self._config.page_items_max)
        line = list(islice(dag.ancestry(rows, found.id), max(ANCESTORS_READ_MAX, limit + 1)))
        said = line[:ANCESTORS_READ_MAX]
        seen = Bookmark()
        for older in said:
            seen.join(Bookmark.unpack(older.record.seen))
        shown = requests.History(request.space, request.thread, found.record.branch)
        return requests.Explained(
            checkpoint=self._checkpoints.shown(rows, shown, found, ()),
            setting=next((older.record.setting for older in said if older.record.setting), b""),
            seen=seen.pack() if len(seen) else b"",
            earlier=[self._checkpoints.shown(rows, shown, older, ()) for older in line[1 : limit + 1]],
            events=list(_events_before(rows, found.hlc, limit, PAGE_BYTES_MAX)),
        )


def _events_before(rows: Rows, hlc: int, limit: int, bytes_max: int) -> Iterator[requests.Event]:
    size = 0
    for event in journal.before(rows, hlc, limit):
        yield shown_event(event, b"")
        size += len(event.payload)
        if size > bytes_max:
            return


_STEP_CHECKPOINTS = 16  # Verified in one step; a checkpoint that shares its chunks with the one before takes about 0.1 ms.
_STEP_BYTES = 64 * 1024  # Of chunks read in one step; the last chunk may exceed it.
_RECIPE_BYTES = 200  # What a channel's recipe takes in memory.


class Verifying:
    """The handler of `VerifyCheckpoints`."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.checks: Checks = {}
        self.writers: Writers = {}
        self.readers: Readers = {}
        self.scans: Scans = {VerifyCheckpoints: self._verify}

    def _verify(self, view: Callable[[], View], request: VerifyCheckpoints) -> Scan:
        """Verify one checkpoint, or a page of a branch's history; damage is listed, not raised.

        Raises:
            NotFound: there is no such checkpoint or branch.
        """
        rows = view().rows
        id: bytes | None = _first(rows, request)
        limit = 1 if request.checkpoint is not None else min(max(1, request.limit), self._config.page_items_max)
        page = _Page(rows)
        checked = 0
        bytes_max = PAGE_BYTES_MAX
        while id is not None and checked < limit and page.bytes <= bytes_max and len(page.damage) <= limit:
            checked += 1
            known, pauses = len(page.damage), page.pauses
            found = yield from page.verify(id)
            if checked == 1:
                bytes_max += page.bytes  # The first one reads all that it shares with the others.
            page.rows = view().rows
            if page.pauses > pauses and page.rows.get(dag.CHECKPOINT + id) is None:
                del page.damage[known:]  # It was pruned meanwhile, or its thread deleted, and its chunks with it.
            parents = [] if found is None else found.record.parents
            # A parent that is not stored was pruned; a head that is not stored is missing.
            id = parents[0] if parents and page.rows.get(dag.CHECKPOINT + parents[0]) is not None else None
        going_on = "" if id is None or request.checkpoint is not None else id.hex()
        return requests.Verified(checked, page.damage, going_on)


def _first(rows: Rows, request: VerifyCheckpoints) -> bytes:
    if request.checkpoint is not None:
        id = checkpoint_named(rows, request.thread, request.checkpoint)
        if rows.get(dag.CHECKPOINT + id) is None:
            raise NotFound(f"thread {request.thread!r} has no checkpoint {request.checkpoint}.")
        return id
    if request.start:
        return unhex(request.start)
    heads = dag.heads(rows, request.branch)
    if not heads:
        raise NotFound(f"thread {request.thread!r} has no branch {request.branch!r}.")
    return heads[0].id


class _Part(NamedTuple):
    """The chunks below some digests."""

    bytes: int
    lost: int = 0  # Chunks and nodes that are missing or damaged.
    first: str = ""  # The first of them, and what is wrong with it.


class _Page:
    """Verifies checkpoints of one thread, in steps. `rows` may be replaced between two of them."""

    def __init__(self, rows: Rows) -> None:
        self.damage: list[Damage] = []
        self.pauses = 0  # Between steps.
        self._stride = Stride(_STEP_CHECKPOINTS, _STEP_BYTES)
        self.bytes = 0  # Of chunks and recipes that were read.
        self._reader = Reader(rows)
        self._parts: dict[tuple[bytes, int], _Part] = {}  # By digest and height in its tree.

    @property
    def rows(self) -> Rows:
        return self._reader.rows

    @rows.setter
    def rows(self, rows: Rows) -> None:
        self._reader.rows = rows

    def _pause(self) -> Steps[None]:
        self.pauses += 1
        yield

    def verify(self, id: bytes) -> Steps[dag.Checkpoint | None]:
        """Returns None if there is no such checkpoint that can be decoded: its parents are not known."""
        try:
            found = dag.checkpoint(self.rows, id)
        except StoreCorrupt as error:
            self.damage.append(Damage(id.hex(), "", error.message))
            return None
        if found is None:
            self.damage.append(Damage(id.hex(), "", "it is missing"))
            return None
        if self._stride.is_over(len(found.record.metadata), rows=0):  # It is packed again and hashed below.
            yield from self._pause()
        if dag.identify(found.record) != id:
            self.damage.append(Damage(id.hex(), "", "its id does not match its content"))
        self.bytes += _RECIPE_BYTES * len(found.record.channels)
        for name, recipe in found.record.channels.items():
            try:
                wrong = yield from self._wrong(name, recipe)
            except StoreCorrupt as error:  # A checkpoint that it is described against.
                self.damage.append(Damage(id.hex(), name, error.message))
            else:
                if wrong:
                    self.damage.append(Damage(id.hex(), name, corrupt(id, name, wrong).message))
            if self._stride.is_over(_RECIPE_BYTES, rows=0):
                yield from self._pause()
        if self._stride.is_over(0):
            yield from self._pause()
        return found

    def _wrong(self, name: str, recipe: channel.Recipe) -> Steps[str]:
        """The fault in a channel's value; empty if there is none."""
        outline = channel.outline_of(recipe, self._reader.recipes(name))
        if outline is None:
            return "a checkpoint that it builds on is missing"
        if channel.hash_of(recipe.header, outline.tops, outline.tail) != recipe.hash:
            return "its hash does not match"
        part = yield from self._sum(
            (digest, height) for height in range(len(outline.tops) - 1, -1, -1) for digest in outline.tops[height]
        )
        if part.lost:
            return part.first + (f", and {part.lost - 1} more" if part.lost > 1 else "")
        if len(recipe.header) + part.bytes + len(outline.tail) != recipe.size:
            return "its size does not match"
        return ""

    def _sum(self, digests: Iterable[tuple[bytes, int]]) -> Steps[_Part]:
        size = lost = 0
        first = ""
        for digest, height in digests:
            part = self._parts.get((digest, height))
            if part is None:
                part = self._parts[digest, height] = yield from self._read(digest, height)
            size, lost, first = size + part.bytes, lost + part.lost, first or part.first
        return _Part(size, lost, first)

    def _read(self, digest: bytes, height: int) -> Steps[_Part]:
        """A chunk, or a node and all that is below it."""
        try:
            stored = dag.chunk(self.rows, digest)
        except StoreCorrupt:  # The block that holds it is damaged; or it can be fetched, and then this is tried again.
            if dag.is_away(self.rows, digest):
                raise
            return _Part(0, 1, f"chunk {digest.hex()} is unreadable")
        if stored is None or sha256(stored).digest() != digest:
            return _Part(0, 1, f"chunk {digest.hex()} is {'missing' if stored is None else 'damaged'}")
        self.bytes += len(stored)
        if self._stride.is_over(len(stored), rows=0):
            yield from self._pause()
        if not height:
            return _Part(len(stored))
        return (yield from self._sum((child, height - 1) for child in tree.children(stored)))
