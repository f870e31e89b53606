"""Reads of a thread's checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress

from shoal.config import Config
from shoal.crdt.rows import Rows
from shoal.errors import InvalidInput, NotFound, Pruned, StoreCorrupt
from shoal.kinds.label.state import labels
from shoal.kinds.thread.serving.presence import absent, check_shown
from shoal.kinds.thread.serving.shapes import ShapeCache, Spot, completed, value_of
from shoal.kinds.thread.state import ancestry, dag, pruning
from shoal.kinds.thread.state.channel import Recipe
from shoal.names import check_name
from shoal.node.handler import Checks, Readers, Scan, Scans, View, Writers
from shoal.node.naming import checkpoint_named, hexed
from shoal.node.turns import Stride
from shoal.protocol import requests
from shoal.protocol.requests import History, Load, ReadLabels
from shoal.values.filtering import Filter

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
        then = ancestry.as_of(rows, request.branch, min(max(0, request.as_of_ms), _END_MS))
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
        filter = Filter.of_fields(request.filter, terms_max=self._config.filter_terms_max)
        items: list[requests.Checkpoint] = []
        size, looked, last, stride = 0, 0, "", Stride.of(self._config)
        rows = view().rows
        id = start = _newest(rows, request)
        while id is not None and (found := dag.shown(rows, id)) is not None:
            if len(items) == limit or size > self._config.page_bytes_max or looked == self._config.history_scan_max:
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
