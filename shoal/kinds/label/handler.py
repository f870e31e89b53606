"""Labels, notes and owners over storage: their writes, and pages of labels."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from hashlib import sha256

from shoal.config import Config
from shoal.crdt.applier import Blobs
from shoal.crdt.rows import Rows
from shoal.errors import InvalidInput, TooLarge
from shoal.kinds.label import state as labels
from shoal.kinds.thread.serving.checkpoints import Checkpoints, found_checkpoint
from shoal.kinds.thread.serving.ownership import check_owner
from shoal.kinds.thread.state import dag
from shoal.names import NAME_BYTES_MAX, check_key, check_name
from shoal.node.handler import Checks, Readers, View, WriteContext, Writers
from shoal.node.naming import PAGE_BYTES_MAX, check_size
from shoal.protocol import requests
from shoal.protocol.requests import Annotate, Annotated, Claim, Claimed, Labelled, ReadLabels, Unlabel, Unlabelled

NOTE_NAME_BYTES_MAX = 1024  # The name of one note.


class Labels:
    """The handler of labels, notes and claims of ownership."""

    def __init__(self, config: Config, checkpoints: Checkpoints) -> None:
        self._config = config
        self._checkpoints = checkpoints
        self.checks: Checks = {Annotate: self._check_notes, Unlabel: self._check_labels, Claim: _check_thread}
        self.writers: Writers = {Annotate: _annotate, Unlabel: _unlabel, Claim: _claim}
        self.readers: Readers = {ReadLabels: self._read}

    def _check_notes(self, request: Annotate) -> None:
        _check_thread(request)
        check_key("label", request.label, NAME_BYTES_MAX)
        if not request.notes:
            raise InvalidInput("there are no notes to write. Nothing was written.")
        longest = max(len(note.name) for note in request.notes)
        if longest > NOTE_NAME_BYTES_MAX:
            raise TooLarge(f"a note's name has at most {NOTE_NAME_BYTES_MAX} bytes; got {longest}. Nothing was written.")
        check_size(self._config, sum(len(note.name) + len(note.value) for note in request.notes), "notes")

    def _check_labels(self, request: Unlabel) -> None:
        _check_thread(request)
        if len(request.labels) > self._config.batch_writes_max:
            raise TooLarge(
                f"at most {self._config.batch_writes_max} labels can be removed at once; got {len(request.labels)}. "
                "Nothing was written."
            )
        for label in request.labels:
            check_name("label", label)

    def _read(self, view: View, request: ReadLabels) -> requests.Labels:
        """A page of labels with their checkpoints.

        Raises:
            InvalidName: `label` is not legal.
        """
        limit = min(max(1, request.limit), self._config.page_items_max)
        items: list[Labelled] = []
        size = 0
        for label, id in _selected(view.rows, request, limit + 1):
            if len(items) == limit or size > PAGE_BYTES_MAX:
                return requests.Labels(items, more=True)
            found = found_checkpoint(view.rows, request.thread, id)
            shown = self._checkpoints.shown(view.rows, request, found, _wanted(request, found))
            beside = labels.read(view.rows, label) if request.notes else []
            items.append(Labelled(label, shown, beside))
            size += sum(map(len, shown.channels.values())) + len(shown.metadata) + 200
            size += sum(len(note.name) + len(note.value) + 50 for note in beside)
        return requests.Labels(items, more=False)


def _check_thread(request: Annotate | Unlabel | Claim) -> None:
    check_name("thread", request.thread)


def _wanted(request: ReadLabels, found: dag.Checkpoint) -> Collection[str]:
    there = found.record.channels
    if isinstance(request.channels, bool):
        return there if request.channels else ()
    return [name for name in there if name in request.channels]


def _selected(rows: Rows, request: ReadLabels, limit: int) -> Iterator[tuple[str, bytes]]:
    if request.label is not None:
        named = labels.entries(rows, check_name("label", request.label))
        return iter([(request.label, entry.id) for entry in named[:1]])
    return labels.listed(rows, request.prefix, after=request.after, reverse=request.reverse, limit=limit)


def _annotate(context: WriteContext, request: Annotate) -> Annotated:
    """Write notes beside a label.

    Raises:
        OwnerSuperseded: another writer has claimed the thread.
    """
    check_owner(context.rows, request)
    content = labels.pack(request.notes)
    change = labels.Annotate(request.label, sha256(content).digest(), context.implied_key)
    id = context.stamp.pack_position().hex()
    context.apply(change, Blobs(content))
    return Annotated(id)


def _unlabel(context: WriteContext, request: Unlabel) -> Unlabelled:
    """Remove labels and their notes.

    Raises:
        OwnerSuperseded: another writer has claimed the thread.
    """
    check_owner(context.rows, request)
    count = 0
    for label in request.labels:
        ids = [entry.id for entry in labels.entries(context.rows, label)]
        count += bool(ids)
        if ids:
            context.apply(labels.Release(label, ids))
        if known := labels.known(context.rows, label):
            context.apply(labels.Cut(label, known.pack()))
    return Unlabelled(count)


def _claim(context: WriteContext, request: Claim) -> Claimed:
    # If one request went to two nodes, both claims have the same token and are one claim.
    source = (context.implied_key or "").encode() or context.stamp.pack_position()
    claim = labels.TakeOwnership(sha256(source).digest()[:16])
    context.apply(claim)
    return Claimed(claim.token.hex())
