"""What requests do to a stream, as the protocol has it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from shoal.errors import Conflict, InvalidInput, InvalidValue, NotFound, Overloaded
from shoal.workflows.streams.decisions import (
    Append,
    Create,
    Delete,
    Hold,
    LetGo,
    Moment,
    Outcome,
    ProducerHeaders,
    StreamGone,
    absence,
    messages,
    shown,
)
from shoal.workflows.streams.record import BEGINNING, Fork, Offset, Producer, State

NOW = Moment(now_ms=1_000_000, touched_ms=0, record=7, from_ms=5)
TEXT = State(3, "text/plain", BEGINNING, Offset(2, 1, 5), written_ms=999_000)
JSON = replace(TEXT, content_type="application/json")


def append(state: State | None, body: bytes = b"x", *, moment: Moment = NOW, **fields: Any) -> Outcome:
    given = {"content_type": None if state is None else state.content_type, **fields}
    return Append("s", body=body, **given).decide(state, moment)


def of(id: str, epoch: int, sequence: int) -> ProducerHeaders:
    return ProducerHeaders(id, epoch, sequence)


def test_an_append_moves_the_end() -> None:
    outcome = append(TEXT)
    assert (outcome.status, outcome.entry, outcome.data, outcome.error) == (204, b"x", 3, None)
    assert outcome.state is not None
    assert outcome.state.written_ms == NOW.now_ms


def test_an_append_at_a_node_whose_clock_is_behind_ends_nothing_earlier() -> None:
    after = append(TEXT, moment=NOW._replace(now_ms=5)).state
    assert after is not None
    assert after.written_ms == TEXT.written_ms


@pytest.mark.parametrize(
    ("state", "fields", "status", "kind"),
    [
        (None, {"content_type": "text/plain"}, 404, NotFound),
        (replace(TEXT, deleted=True), {}, 404, NotFound),
        (replace(TEXT, gone=True), {}, 410, StreamGone),
        (TEXT, {"content_type": None}, 400, InvalidInput),
        (TEXT, {"content_type": "text/html"}, 409, Conflict),
        (TEXT, {"body": b""}, 400, InvalidInput),
        (replace(TEXT, closed=True), {}, 409, Conflict),
        (JSON, {"body": b"[]"}, 400, InvalidValue),
        (JSON, {"body": b"{"}, 400, InvalidValue),
        (JSON, {"body": b'"\xff"'}, 400, InvalidValue),
        (replace(TEXT, sequence="2"), {"sequence": "10"}, 409, Conflict),
        (replace(TEXT, sequence="2"), {"sequence": "2"}, 409, Conflict),
    ],
)
def test_a_refused_append_changes_nothing(state: State | None, fields: dict[str, Any], status: int, kind: type) -> None:
    outcome = append(state, **fields)
    assert (outcome.status, type(outcome.error)) == (status, kind)
    assert (outcome.state, outcome.entry) == (None, None)


@pytest.mark.parametrize("body", [b"[" * 5000, b'{"a":1}x', b"", b"nul"])
def test_values_without_a_json_form_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidValue):
        messages(body)


def test_messages_keep_their_text() -> None:
    assert messages(b' [ {"a": 1.0}, [1,2] ,"x"]') == [b'{"a": 1.0}', b"[1,2]", b'"x"']
    assert messages(b" 7 ") == [b"7"]
    assert shown([b"1,2", b"[3]"], is_json=True) == b"[1,2,[3]]"
    assert shown([b"ab", b"c"], is_json=False) == b"abc"


@pytest.mark.parametrize(
    ("mark", "status", "headers"),
    [
        (of("p", 1, 5), 204, {"Producer-Epoch": "1", "Producer-Seq": "5"}),
        (of("p", 1, 2), 204, {"Producer-Epoch": "1", "Producer-Seq": "5"}),
        (of("p", 1, 6), 200, {"Producer-Epoch": "1", "Producer-Seq": "6"}),
        (of("p", 1, 8), 409, {"Producer-Expected-Seq": "6", "Producer-Received-Seq": "8"}),
        (of("p", 0, 6), 403, {"Producer-Epoch": "1"}),
        (of("p", 2, 0), 200, {"Producer-Epoch": "2", "Producer-Seq": "0"}),
        (of("p", 2, 1), 400, {}),
        (of("q", 9, 0), 200, {"Producer-Epoch": "9", "Producer-Seq": "0"}),
        (of("q", 0, 3), 409, {"Producer-Expected-Seq": "0", "Producer-Received-Seq": "3"}),
    ],
)
def test_a_producer_appends_each_sequence_once(mark: ProducerHeaders, status: int, headers: dict[str, str]) -> None:
    outcome = append(replace(TEXT, producers={"p": Producer(1, 5, 0)}), producer=mark)
    assert outcome.status == status
    assert {name: text for name, text in outcome.headers.items() if name.startswith("Producer")} == headers
    assert (outcome.entry is not None) == (status == 200)


def test_a_repeated_append_counts_also_after_the_stream_was_closed() -> None:
    closed = replace(TEXT, closed=True, closed_by=("p", 0, 2), producers={"p": Producer(0, 2, 0)})
    assert append(closed, producer=of("p", 0, 1)).status == 204
    assert append(closed, closes=True, producer=of("p", 0, 2)).status == 204
    assert append(closed, producer=of("p", 0, 3)).status == 409
    assert append(closed, b"", closes=True).status == 204


def test_a_producer_that_was_silent_for_an_hour_makes_room() -> None:
    full = replace(TEXT, producers={"a": Producer(0, 0, 1), "b": Producer(0, 0, NOW.now_ms)})
    refused = append(full, producer=of("c", 0, 0), producers_max=2)
    assert (refused.status, type(refused.error), refused.state) == (429, Overloaded, None)
    later = NOW._replace(now_ms=3_600_001)
    accepted = append(full, producer=of("c", 0, 0), producers_max=2, moment=later).state
    assert accepted is not None
    assert set(accepted.producers) == {"b", "c"}
    assert append(accepted, producer=of("a", 0, 1), moment=later).status == 409, "it begins a new epoch"


def test_producers_without_end_reach_no_bound() -> None:
    state: State | None = TEXT
    for hour in range(300):
        moment = NOW._replace(now_ms=NOW.now_ms + hour * 3_600_000)
        state = append(state, producer=of(f"process-{hour}", 0, 0), producers_max=2, moment=moment).state
        assert state is not None
        assert len(state.producers) <= 2


def test_a_stream_is_created_once() -> None:
    made = Create("s", "text/plain", ttl_s=60, body=b"hello").decide(None, NOW)
    assert (made.status, made.entry, made.data, made.created) == (201, b"hello", 1, True)
    assert made.state is not None
    assert made.state.incarnation == NOW.record
    assert Create("s", "TEXT/plain; charset=utf-8", ttl_s=60).decide(made.state, NOW).status == 200
    for other in (Create("s", "text/html", ttl_s=60), Create("s", "text/plain"), Create("s", "text/plain", 60, closed=True)):
        refused = other.decide(made.state, NOW)
        assert (refused.status, refused.state) == (409, None)


def test_a_stream_expires_unless_it_is_read_or_written() -> None:
    lasting = replace(TEXT, ttl_s=2, written_ms=10_000)
    assert absence(lasting, 11_999, 0) is None
    assert isinstance(absence(lasting, 12_000, 0), NotFound)
    assert absence(lasting, 12_000, 11_000) is None
    assert isinstance(absence(replace(lasting, forks=["f"]), 12_000, 0), StreamGone)
    fixed = replace(TEXT, expires_ms=12_000)
    assert isinstance(absence(fixed, 12_000, 11_999), NotFound)
    again = Create("s", "text/html").decide(replace(TEXT, expires_ms=5), NOW)
    assert (again.status, again.data) == (201, 0)


def test_a_source_lasts_until_its_last_fork_ends() -> None:
    first = Hold("s", TEXT.incarnation).decide(TEXT, NOW)
    second = Hold("s", TEXT.incarnation).decide(first.state, NOW._replace(record=8))
    assert second.state is not None
    assert second.state.forks == [first.mark, second.mark] == ["7", "8"]
    gone = Delete("s").decide(second.state, NOW).state
    assert gone is not None
    assert (gone.gone, gone.deleted) == (True, False)
    assert Create("s", "text/plain").decide(gone, NOW).status == 409
    assert Hold("s", TEXT.incarnation).decide(gone, NOW).status == 409
    one = LetGo("s", first.mark).decide(gone, NOW).state
    assert one is not None
    assert (one.deleted, LetGo("s", first.mark).decide(one, NOW).state) == (False, None)
    none = LetGo("s", second.mark).decide(one, NOW).state
    assert none is not None
    assert none.deleted


def test_a_source_that_was_created_again_is_not_forked_as_the_one_before() -> None:
    refused = Hold("s", TEXT.incarnation - 1).decide(TEXT, NOW)
    assert (refused.status, type(refused.error), refused.state) == (409, Conflict, None)


def test_the_end_of_a_fork_names_its_source() -> None:
    fork = Fork("source", 0, BEGINNING, mark="3")
    assert Delete("s").decide(replace(TEXT, fork=fork), NOW).released == fork
    kept = Delete("s").decide(replace(TEXT, fork=fork, forks=["x"]), NOW)
    assert kept.released is None
    assert kept.state is not None
    assert LetGo("s", "x").decide(kept.state, NOW).released == fork


def test_forks_are_bounded() -> None:
    refused = Hold("s", TEXT.incarnation, forks_max=1).decide(replace(TEXT, forks=["g"]), NOW)
    assert (refused.status, refused.state) == (429, None)
    assert Hold("s", TEXT.incarnation, forks_max=1).decide(TEXT, NOW).error is None


def test_a_deletion_for_expiry_spares_a_stream_that_has_not_expired() -> None:
    assert Delete("s", expired_only=True).decide(TEXT, NOW).state is None
    ended = Delete("s", expired_only=True).decide(replace(TEXT, expires_ms=1), NOW).state
    assert ended is not None
    assert ended.deleted
