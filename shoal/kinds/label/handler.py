"""Labels, notes and owners over storage: their writes, and pages of labels; and the questions of graphs in notes.

The questions of a graph as people read them: what is asked, and the id under which LangGraph takes the answer.

Laws:
- A question is told however its bytes are: what cannot be shown is said to be so, and never an error.
- Of a value above `DECODED_MAX` only the beginning of a text is shown, so that looking at a thread stays cheap.
- Nothing is built of the bytes of a graph: an object is shown by its class and its fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from hashlib import sha256
from typing import Any

from shoal.config import Config
from shoal.crdt.applier import Blobs
from shoal.crdt.rows import Rows
from shoal.errors import InvalidInput, ShoalError, TooLarge
from shoal.kinds.label import state as labels
from shoal.kinds.label.asks import Ask
from shoal.kinds.thread.serving.checkpoints import Checkpoints, found_checkpoint
from shoal.kinds.thread.serving.ownership import check_owner
from shoal.kinds.thread.state import dag
from shoal.names import NAME_BYTES_MAX, check_key, check_name
from shoal.node.handler import Checks, Readers, View, WriteContext, Writers
from shoal.node.naming import PAGE_BYTES_MAX, check_size
from shoal.protocol import requests
from shoal.protocol.requests import (
    Annotate,
    Annotated,
    Claim,
    Claimed,
    Labelled,
    Question,
    ReadLabels,
    Unlabel,
    Unlabelled,
)
from shoal.values.codec import LANGGRAPH, LANGGRAPH_FILE, decode_channel

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


DECODED_MAX = 16 * 1024  # Bytes of the questions of one task, packed.
SHOWN_MAX, CHARS_MAX = 4, 600  # Questions of a thread, and characters of one.
_ID = re.compile(rb"\xa2id\xd9\x20([0-9a-f]{32})")  # A field of an interrupt, as LangGraph's serialiser packs it.
_TEXT = re.compile(rb"\xa9Interrupt.{0,5}?\xa5value(?:\xd9.|\xda..|\xdb....)", re.DOTALL)  # The same, before a long text.
_HEAD = 256  # Bytes in which that is looked for.


def questions(asks: Sequence[Ask]) -> list[Question]:
    """The first `SHOWN_MAX` questions of a thread."""
    found: list[Question] = []
    for ask in asks:
        for id, says in _asked(ask):
            if len(found) == SHOWN_MAX:
                return found
            found.append(Question(id, _cut(says), ask.since_ms, ask.is_answered))
    return found


def _asked(ask: Ask) -> Iterator[tuple[str, str]]:
    if ask.kind == LANGGRAPH_FILE:
        yield "", "a value above 1 MiB, which is not shown here"
    elif ask.kind != "msgpack":
        yield "", "a value that only its graph can read" if "+" in ask.kind else f"a value of the kind {ask.kind}"
    elif len(ask.packed) > DECODED_MAX:
        yield _long(ask.packed)
    else:
        try:
            value = decode_channel(ask.packed, LANGGRAPH)
        except ShoalError:
            yield "", "a value that cannot be shown"
            return
        for each in value if isinstance(value, list | tuple) else [value]:
            yield _interrupt(each)


def _long(packed: bytes) -> tuple[str, str]:
    ids = _ID.findall(packed)
    head = _TEXT.search(packed[:_HEAD])
    if head is None:
        return ids[-1].decode() if ids else "", f"a value of {len(packed):,} bytes, which is not shown here"
    begun = packed[head.end() : head.end() + 4 * CHARS_MAX].decode(errors="ignore")
    return ids[-1].decode() if ids else "", begun


def _interrupt(told: Any) -> tuple[str, str]:
    match told:
        case {"class": str(name), "value": {"value": value, **rest}} if name.endswith("Interrupt"):
            id = rest.get("id", "")
            return id if isinstance(id, str) else "", _text(value)
    return "", _text(told)


def _text(value: Any) -> str:
    if isinstance(value, dict) and value and all(isinstance(name, str) for name in value):
        return ", ".join(f"{name}: {_plain(each)}" for name, each in value.items())
    return _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):  # Keys that are no text, or halves of surrogate pairs.
        return repr(value)


def _cut(text: str) -> str:
    text = text.encode(errors="replace").decode()  # Half of a surrogate pair cannot be sent.
    return text if len(text) <= CHARS_MAX else text[: CHARS_MAX - 1] + "…"
