from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack

from shoal.crdt.dot import Dot, Origin, VersionVector
from shoal.crdt.rows import Stamp
from shoal.errors import StoreCorrupt
from shoal.kinds.label import asks
from shoal.kinds.label import state as labels
from shoal.kinds.label.state import Annotate, Cut, LabelEntry, Note
from tests.support.asking import ANSWER, ASK, ERROR, NO_TASK, OUTPUT, question, write
from tests.support.examples import examples
from tests.support.rows import DictRows

ORIGIN = Origin(b"o" * 16)


def stamp(number: int) -> Stamp:
    return Stamp(Dot(ORIGIN, number), (1000 + number) << 16, 0, VersionVector())


class Thread:
    """A thread's rows; each write is a later operation."""

    def __init__(self) -> None:
        self.rows = DictRows()
        self.number = 0

    def note(self, label: str, *notes: Note, key: str | None = None) -> None:
        self.number += 1
        labels.apply_note(self.rows, stamp(self.number), Annotate(label, b"", key), labels.pack(list(notes)))

    def name(self, label: str) -> None:
        self.number += 1
        labels.name(self.rows, label, LabelEntry(self.number, label.encode().ljust(32, b"\0")[:32]), first=True)

    def cut(self, label: str) -> None:
        self.number += 1
        labels.cut(self.rows, stamp(self.number), Cut(label, labels.known(self.rows, label).pack()))

    def asked(self) -> list[str]:
        """By which tasks, and the same of rows that are looked at as they come."""
        watch = asks.Watch()
        for row, stored in self.rows.scan(b""):
            watch.take(row, stored)
        found = asks.open_asks(self.rows)
        assert watch.is_asking == asks.is_asking(self.rows) == bool(found)
        return [msgpack.decode(msgpack.decode(each.packed)[0].data)[2]["value"] for each in found]


def made(*notes: Note) -> Thread:
    thread = Thread()
    thread.name("/1")
    for note in notes:
        thread.note("/1", note)
    return thread


def test_a_task_asks_until_it_has_an_output() -> None:
    assert made(question("t", "a?")).asked() == ["a?"]
    assert made(question("t", "a?"), write("t", OUTPUT)).asked() == []
    assert made(question("t", "a?"), write("t", ("__no_writes__", 0))).asked() == []
    assert made(write("t", OUTPUT), question("t", "a?")).asked() == []


@pytest.mark.parametrize("control", [ANSWER, ERROR, ("__error_source_node__", 3)])
def test_no_answer_or_error_ends_a_question(control: tuple[str, int]) -> None:
    assert made(question("t", "a?"), write("t", control)).asked() == ["a?"]


def test_one_of_two_tasks_ends() -> None:
    assert made(question("a", "a?"), question("b", "b?"), write("a", OUTPUT)).asked() == ["b?"]


def test_a_later_question_takes_the_place_of_an_earlier_one() -> None:
    assert made(question("t", "a?"), question("u", "u?"), question("t", "b?")).asked() == ["b?", "u?"]


def test_an_answer_after_the_question_is_told() -> None:
    answer = write(NO_TASK, ANSWER, "yes")
    assert [each.is_answered for each in asks.open_asks(made(question("t"), answer).rows)] == [True]
    assert [each.is_answered for each in asks.open_asks(made(question("t"), answer, question("t")).rows)] == [False]
    assert made(question(NO_TASK)).asked() == []


def test_the_greatest_id_of_the_root_asks_and_no_other() -> None:
    thread = made(question("t", "a?"))
    thread.name("node:1/9")
    thread.note("node:1/9", question("u", "inner?"))
    assert thread.asked() == ["a?"]
    thread.note("/2", question("v", "b?"))
    assert thread.asked() == ["a?"]  # No checkpoint has that label yet.
    thread.name("/2")
    assert thread.asked() == ["b?"]
    thread.name("/3")
    assert thread.asked() == []


def test_notes_that_are_cut_ask_nothing() -> None:
    thread = made(question("t"))
    thread.cut("/1")
    assert thread.asked() == []


def test_a_request_at_two_nodes_asks_once() -> None:
    thread = made()
    thread.note("/1", question("t", "a?"), key="k")
    thread.note("/1", question("t", "b?"))
    thread.note("/1", question("t", "a?"), key="k")
    assert thread.asked() == ["b?"]


def test_the_time_of_a_question_is_that_of_its_note() -> None:
    assert [each.since_ms for each in asks.open_asks(made(question("t")).rows)] == [1002]


def test_damaged_rows_are_said_to_be() -> None:
    thread = made(question("t"))
    thread.rows.put(labels.notes_of("/1"), b"\xff")
    with pytest.raises(StoreCorrupt, match="cannot be decoded"):
        asks.open_asks(thread.rows)
    watch = asks.Watch()
    for row, stored in thread.rows.scan(b""):
        watch.take(row, stored)
    assert not watch.is_asking


ODD = [
    Note(b"", b""),
    Note(b"\xc1", b"__interrupt__"),
    Note(msgpack.encode(["t", -3]), b"__interrupt__"),
    Note(b"n", msgpack.encode(5)),
]
tasks = st.sampled_from(["t", "u", NO_TASK])
noted = st.builds(write, tasks, st.sampled_from([ASK, ANSWER, ERROR, OUTPUT, ("x", 1)]), st.just([b"v" * 2000]))


@given(
    st.lists(
        st.tuples(st.sampled_from(["/1", "/2", "n/1", "odd"]), st.lists(noted | st.sampled_from(ODD), max_size=3)), max_size=9
    )
)
@examples(300)
def test_a_thread_asks_as_its_notes_say(history: list[tuple[str, list[Note]]]) -> None:
    """Against a slow twin, which reads the notes as LangGraph gets them."""
    thread = Thread()
    for label, notes in history:
        if notes:
            thread.note(label, *notes)
        else:
            thread.name(label)
    named = [label for label, _ in labels.listed(thread.rows, "/")]
    ended, asking = set[str](), set[str]()
    for note in labels.read(thread.rows, named[-1]) if named else ():
        if note in ODD:
            continue
        task, channel = msgpack.decode(note.name)[0], msgpack.decode(note.value)[1]
        if channel == ASK[0]:
            asking.add(task)
        elif channel not in (ANSWER[0], ERROR[0]):
            ended.add(task)
    assert asks.is_asking(thread.rows) == bool(asking - ended - {NO_TASK})
    watch = asks.Watch()
    for row, stored in thread.rows.scan(b""):
        watch.take(row, stored)
    assert watch.is_asking == asks.is_asking(thread.rows)
