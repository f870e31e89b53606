"""Contexts of W3C Trace Context as text, and the field of a frame that carries them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, Struct

from shoal.protocol import tracing
from shoal.protocol.frames import CallFrame, decode_caller_frames, encode_call, messages
from shoal.protocol.requests import ReadCounter
from shoal.protocol.tracing import (
    TRACE_CHARS_MAX,
    TRACED_COMMITS_MAX,
    TRACESTATE_CHARS_MAX,
    Carried,
    Commit,
    Commits,
    carried_in,
    carried_of,
)

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
READ = ReadCounter("crew", "tokens")


class OldCallFrame(Struct, array_like=True, frozen=True, tag=0):
    """As nodes of the version before know it."""

    id: int
    key: str | None
    durability: str
    request: Raw
    stale: bool = False
    until_ms: int = 0


def only(frame: bytes) -> bytes:
    [message] = messages([frame], bytes_max=1 << 20)
    return message


def test_a_legal_context_is_read_as_it_is() -> None:
    assert carried_of(PARENT, "a=b") == Carried(PARENT, "a=b")
    assert carried_in(PARENT) == Carried(PARENT)
    assert carried_in(f"{PARENT} a=b,c=d") == Carried(PARENT, "a=b,c=d")
    assert Carried(PARENT, "a=b").text == f"{PARENT} a=b"
    assert Carried(PARENT).is_sampled
    assert not Carried(PARENT[:-2] + "02").is_sampled


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    assert carried_of("42" + PARENT[2:] + "-new") == Carried("42" + PARENT[2:])
    assert carried_of("42" + PARENT[2:] + "new") is None
    assert carried_of("42" + PARENT[2:] + "-" + "x" * 1000) is None


def test_a_long_or_unprintable_tracestate_is_dropped_alone() -> None:
    assert carried_of(PARENT, "x" * TRACESTATE_CHARS_MAX) == Carried(PARENT, "x" * TRACESTATE_CHARS_MAX)
    assert carried_of(PARENT, "x" * (TRACESTATE_CHARS_MAX + 1)) == Carried(PARENT)
    assert carried_of(PARENT, "a=\n") == Carried(PARENT)


@given(st.text(max_size=80) | st.binary(max_size=80).map(lambda raw: raw.decode("latin-1")))
def test_any_text_is_a_bounded_context_or_none(text: str) -> None:
    for found in (carried_of(text, text), carried_in(text), carried_of(PARENT, text), carried_in(f"{PARENT} {text}")):
        assert found is None or (len(found.text) <= TRACE_CHARS_MAX and found.text.isprintable())


def test_a_field_that_is_too_long_is_none() -> None:
    assert carried_in(PARENT + " " + "x" * TRACESTATE_CHARS_MAX) is not None
    assert carried_in(PARENT + " " + "x" * (TRACESTATE_CHARS_MAX + 1)) is None


@pytest.mark.parametrize("manner", [{}, {"stale": True}, {"until_ms": 7}, {"stale": True, "until_ms": 7}])
def test_a_frame_carries_a_trace(manner: dict[str, Any]) -> None:
    [frame] = decode_caller_frames(only(encode_call(3, READ, key="k", trace=PARENT, **manner)))
    assert isinstance(frame, CallFrame)
    expected = (3, "k", manner.get("stale", False), manner.get("until_ms", 0), PARENT)
    assert (frame.id, frame.key, frame.stale, frame.until_ms, frame.trace) == expected


def test_a_node_of_the_version_before_reads_a_frame_with_a_trace() -> None:
    [frame] = msgspec.msgpack.decode(only(encode_call(3, READ, stale=True, until_ms=7, trace=PARENT)), type=list[OldCallFrame])
    assert (frame.id, frame.stale, frame.until_ms) == (3, True, 7)


def test_a_frame_of_the_version_before_has_no_trace() -> None:
    old = OldCallFrame(3, None, "local", Raw(msgspec.msgpack.encode(READ)), False, 7)
    [frame] = decode_caller_frames(only(msgspec.msgpack.encode(old)))
    assert isinstance(frame, CallFrame)
    assert (frame.until_ms, frame.trace) == (7, "")


def test_a_frame_without_a_trace_is_as_it_was() -> None:
    old = OldCallFrame(3, None, "local", Raw(msgspec.msgpack.encode(READ)), False, 7)
    assert encode_call(3, READ, until_ms=7) == msgspec.msgpack.encode(old)


class Told:
    """Notes the group commits that it is told of."""

    def __init__(self) -> None:
        self.commits: list[Commit] = []

    def committed(self, commit: Commit) -> None:
        self.commits.append(commit)


def test_a_commit_is_told_to_the_traced_writes_that_it_covers() -> None:
    commits, first, second, later = Commits(), Told(), Told(), Told()
    for number, told in ((2, first), (4, second), (6, later)):
        commits.add(number, told)  # type: ignore[arg-type]
    commits.settled(5, 1)
    assert first.commits == second.commits == [Commit(1, 5, (first, second))]  # type: ignore[arg-type]
    assert later.commits == []
    commits.settled(6, 2)
    assert later.commits == [Commit(2, 1, (later,))]  # type: ignore[arg-type]


def test_a_durable_write_waits_for_no_commit() -> None:
    commits, told = Commits(), Told()
    commits.settled(5, 1)
    commits.add(5, told)  # type: ignore[arg-type]
    commits.settled(6, 2)
    assert told.commits == []


def test_traced_writes_that_wait_are_bounded() -> None:
    commits, told = Commits(), Told()
    for number in range(TRACED_COMMITS_MAX + 10):
        commits.add(number + 1, told)  # type: ignore[arg-type]
    commits.settled(TRACED_COMMITS_MAX + 10, 1)
    assert len(told.commits) == TRACED_COMMITS_MAX


def test_without_a_listener_a_wait_tells_nobody() -> None:
    with tracing.during("shoal.follow"):
        assert tracing.stages.get() is None
