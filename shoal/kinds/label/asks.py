"""The questions of a graph that stopped at LangGraph's `interrupt()`, found in the notes that its saver writes.

Laws:
- A thread asks what the checkpoint asks that a graph continues: of all labels of the root's namespace (`ROOT`), the one with
  the greatest id. Questions at another checkpoint are none: nobody waits for their answers.
- A task asks if it wrote a question and no output since the checkpoint. An answer alone does not end that: the step that got
  it may have died. These are LangGraph's own rules (`langgraph.pregel._task_status`).
- A note that is no pending write of a saver asks nothing, whatever its bytes are.
- Notes read in the order of their rows give the same as the rows themselves, so that a snapshot is looked at as it comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

import msgspec

from shoal.crdt.dot import wall_ms_of
from shoal.crdt.rows import Rows
from shoal.errors import StoreCorrupt
from shoal.kinds.label import state as labels
from shoal.records import NamedTuple

ROOT = "/"
"""The labels begin with it of the checkpoints that a graph continues from: LangGraph's empty namespace, and its end."""
_QUESTION, _ANSWER = "__interrupt__", "__resume__"
_CONTROL = frozenset({_QUESTION, _ANSWER, "__error__", "__error_source_node__"})  # Channels that are no output.
_NO_TASK = "00000000-0000-0000-0000-000000000000"  # Under which LangGraph writes the input of a run.
_MARK = _QUESTION.encode()


class _Light(msgspec.Struct, array_like=True, frozen=True):
    """A note whose value is not copied."""

    name: memoryview
    value: memoryview


class _Write(msgspec.Struct, array_like=True, frozen=True):
    """A pending write, as the saver packs it."""

    task_path: str
    channel: str
    kind: str
    value: memoryview


class Ask(NamedTuple):
    """A question of a task."""

    kind: str  # The serialiser's name of the form of `packed`.
    packed: bytes  # The interrupts, as LangGraph's serialiser packed them.
    since_ms: int
    is_answered: bool = False  # An answer was written after it, and the task has not ended.


class _News(NamedTuple):
    """The news that one note has of its task: it asks, it was answered, or it has an output."""

    task: str
    channel: str
    ask: Ask | None = None


_encode = msgspec.msgpack.encode
_decode_notes = msgspec.msgpack.Decoder(list[_Light]).decode
_decode_name = msgspec.msgpack.Decoder(tuple[str, int]).decode
_decode_write = msgspec.msgpack.Decoder(_Write).decode


def may_ask(label: str, content: bytes) -> bool:
    """Whether packed notes beside a label may have a question that counts. It looks at the bytes alone."""
    return label.startswith(ROOT) and _MARK in content


def asked_at(rows: Rows) -> str | None:
    """The label of the checkpoint that a graph continues; None: there is none."""
    return next((label for label, _ in labels.listed(rows, ROOT, reverse=True, limit=1)), None)


def open_asks(rows: Rows) -> list[Ask]:
    """The questions of a thread, in the order in which it was asked first.

    Raises:
        StoreCorrupt: a row cannot be decoded.
    """
    try:
        label = asked_at(rows)
        return [] if label is None else _open(_marked(labels.written(rows, label)))
    except ValueError as damage:
        raise StoreCorrupt(f"notes of the thread cannot be decoded ({damage}). Run `shoal verify`.") from None


def is_asking(rows: Rows) -> bool:
    """Whether the thread asks anything. Raises as `open_asks`."""
    return bool(open_asks(rows))


def is_touched(rows: Rows, label: str) -> bool | None:
    """Whether a checkpoint that gets a label may change what the thread asks: there are notes for it already.

    None: it cannot; False: only if the thread asks something now.
    """
    if not label.startswith(ROOT):
        return None
    return next(iter(rows.scan(labels.notes_of(label), limit=1)), None) is not None


class Watch:
    """Looks at the rows of a thread as they come, in the order of their keys: `take` each, then `is_asking`."""

    def __init__(self) -> None:
        self._prefix: bytes | None = None  # Of the notes of the label that counts.
        self._rows: list[tuple[bytes, bytes]] = []

    def take(self, row: bytes, stored: bytes) -> bool:
        """Note a row, whose key is within the thread's. Returns whether it may change what the thread asks."""
        if row.startswith(labels.LABEL + ROOT.encode()):
            label = row[len(labels.LABEL) :]
            self._prefix, self._rows = labels.NOTES + len(label).to_bytes(2, "big") + label, []
            return False
        if self._prefix is None or not row.startswith(self._prefix):
            return False
        self._rows.append((row, stored if row == self._prefix else _lightened(stored)))
        return True

    @property
    def is_asking(self) -> bool:
        """Whether the rows so far ask anything. Damaged ones ask nothing."""
        with suppress(ValueError):
            return self._prefix is not None and bool(_open(_marked(labels.written_in(self._rows, self._prefix))))
        return False


def _lightened(stored: bytes) -> bytes:
    """A row of notes without the values of its pending writes: the same is asked."""
    end = 2 + int.from_bytes(stored[:2], "big")
    light = []
    with suppress(ValueError):
        for note in _decode_notes(stored[end:]):
            with suppress(ValueError):
                light.append((note.name, _encode(msgspec.structs.replace(_decode_write(note.value), value=b""))))
    return stored[:end] + _encode(light)


def _marked(written: Iterable[labels.Written]) -> Iterator[tuple[int, _News]]:
    for each in written:
        for mark in _marks(each):
            yield each.hlc, mark


def _marks(written: labels.Written) -> Iterator[_News]:
    try:
        notes = _decode_notes(written.content)
    except ValueError:  # msgspec's own are ValueErrors too.
        return
    for note in notes:
        try:
            (task, _), write = _decode_name(note.name), _decode_write(note.value)
        except ValueError:
            continue
        asks = write.channel == _QUESTION
        yield _News(task, write.channel, Ask(write.kind, bytes(write.value), wall_ms_of(written.hlc)) if asks else None)


def _open(marks: Iterable[tuple[int, _News]]) -> list[Ask]:
    asked: dict[str, tuple[int, Ask]] = {}
    ended: set[str] = set()
    answered = 0
    for hlc, mark in marks:
        if mark.task == _NO_TASK:
            answered = hlc if mark.channel == _ANSWER else answered
        elif mark.ask is not None:
            asked[mark.task] = hlc, mark.ask
        elif mark.channel not in _CONTROL:
            ended.add(mark.task)
    return [ask._replace(is_answered=hlc < answered) for task, (hlc, ask) in asked.items() if task not in ended]
