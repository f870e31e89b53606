"""The half of a write that waits for nothing but the disk."""

from __future__ import annotations

import asyncio

import pytest

from shoal.cluster.operation import partition_of
from shoal.crdt.dot import Dot, Origin, VersionVector
from shoal.errors import InvalidName, ReadOnly, ShoalError, StorageFull
from shoal.protocol import requests
from shoal.protocol.requests import Add, Added, AnyReply, Assign, ReadCounter
from tests.node.conftest import Bench
from tests.support.pacing import LOOK_S

WRITE = Add("crew", "tokens", 5)
Answers = list[AnyReply | ShoalError]


async def settled(answers: Answers, count: int = 1) -> None:
    while len(answers) < count:
        await asyncio.sleep(LOOK_S)


async def test_a_begun_write_is_decided_at_once_and_told_once_it_is_durable(bench: Bench) -> None:
    session = bench.node.session()
    answers: Answers = []
    assert session.begin(WRITE, answers.append, key="k")
    assert bench.node.writes_pending == 1
    assert answers == []
    await settled(answers)
    assert answers == [Added(5, True)]
    assert bench.node.writes_pending == 0
    assert await session.call(ReadCounter("crew", "tokens")) == requests.CounterValue(5)


async def test_a_begun_writes_answer_is_in_the_bookmark(bench: Bench) -> None:
    session = bench.node.session()
    known: list[int] = []
    assert session.begin(WRITE, lambda answer: known.append(len(session.bookmark)))
    assert len(session.bookmark) == 0
    while not known:
        await asyncio.sleep(LOOK_S)
    assert known == [1]


async def test_a_key_that_came_before_is_answered_again_and_not_applied(bench: Bench) -> None:
    session = bench.node.session()
    answers: Answers = []
    assert session.begin(WRITE, answers.append, key="k")
    await settled(answers)
    assert session.begin(WRITE, answers.append, key="k")
    assert answers == [Added(5, True)] * 2
    assert await session.call(ReadCounter("crew", "tokens")) == requests.CounterValue(5)


async def test_writes_that_wait_for_copies_are_not_begun(bench: Bench) -> None:
    session = bench.node.session()
    answers: Answers = []
    assert not session.begin(WRITE, answers.append, durability="memory")
    assert not session.begin(ReadCounter("crew", "tokens"), answers.append)
    assert not session.begin(Assign("crew", "goal", b"\x01", expect="0" * 32), answers.append)  # A refusal waits, too.
    session.bookmark.note(partition_of("crew", "tokens"), VersionVector([Dot(Origin(bytes(16)), 1)]))
    assert not session.begin(WRITE, answers.append)
    assert answers == []
    assert await bench.node.session().call(ReadCounter("crew", "tokens")) == requests.CounterValue(0)


async def test_an_immediate_refusal_is_raised_and_not_told(bench: Bench) -> None:
    answers: Answers = []
    with pytest.raises(InvalidName):
        bench.node.session().begin(Add("crew", "", 1), answers.append)
    assert answers == []


async def test_a_begun_write_whose_sync_failed_is_told_so(bench: Bench) -> None:
    session = bench.node.session()
    answers: Answers = []
    bench.storage.fail_next("sync")
    assert session.begin(WRITE, answers.append)
    await settled(answers)
    assert isinstance(answers[0], StorageFull)
    assert len(session.bookmark) == 0
    with pytest.raises(ReadOnly):
        session.begin(WRITE, answers.append)
