"""Writes of `quorum` and `all` that a node begins without a task of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from shoal.cluster import messages
from shoal.cluster.messages import Push, Supply
from shoal.errors import OutcomeUnknown, ShoalError
from shoal.protocol.requests import Add, Added, AnyReply, BeginStep, CounterValue, DeleteCounter, Durability, ReadCounter
from simulation.world.fleet import Fleet

WRITE, READ = Add("crew", "tokens", 5), ReadCounter("crew", "tokens")
Answers = list[AnyReply | ShoalError]


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet() as fleet:
        yield fleet


async def told(answers: Answers) -> AnyReply | ShoalError:
    while not answers:
        await asyncio.sleep(0.001)
    return answers[0]


@pytest.mark.parametrize(("durability", "slow"), [("quorum", "bc"), ("all", "c")])
async def test_one_is_told_once_enough_owners_hold_it(durability: Durability, slow: str) -> None:
    async with Fleet(quorum_timeout_s=30) as fleet:
        await fleet["a"].store().space("crew").counter("other").add(1, durability="all")
        for name in slow:
            fleet.wires[name, "a"].open.clear()
        session = fleet["a"].node.session()
        answers: Answers = []
        assert session.begin(WRITE, answers.append, durability=durability)
        while fleet["a"].node.writes_pending or any(fleet[name].digest() != fleet["a"].digest() for name in slow):
            await asyncio.sleep(0.001)
        assert answers == []
        assert len(session.bookmark) == 0
        fleet.wires[slow[0], "a"].open.set()
        assert await told(answers) == Added(5, True)
        assert len(session.bookmark) == 1


async def test_one_whose_copies_come_too_late_has_an_unknown_outcome(fleet: Fleet) -> None:
    for target in "bc":
        fleet.wires["a", target].open.clear()
    answers: Answers = []
    assert fleet["a"].node.session().begin(WRITE, answers.append, durability="quorum")
    late = await told(answers)
    assert isinstance(late, OutcomeUnknown)
    assert late.detail["acknowledged"] == ["a:1"]


async def test_without_a_quorum_in_sight_none_is_begun(fleet: Fleet) -> None:
    await fleet.isolate("a")
    answers: Answers = []
    session = fleet["a"].node.session()
    assert not session.begin(WRITE, answers.append, durability="quorum")
    assert answers == []
    assert await session.call(READ) == CounterValue(0)


async def test_one_that_was_made_before_is_left_to_call(fleet: Fleet) -> None:
    answers: Answers = []
    session = fleet["a"].node.session()
    assert session.begin(WRITE, answers.append, key="k", durability="quorum")
    assert await told(answers) == Added(5, True)
    assert not session.begin(WRITE, answers.append, key="k", durability="quorum")
    assert len(answers) == 1
    assert await session.call(WRITE, key="k", durability="quorum") == Added(5, True)
    assert await session.call(READ) == CounterValue(5)


async def test_one_that_a_quorum_must_be_asked_about_first_is_left_to_call(fleet: Fleet) -> None:
    answers: Answers = []
    assert not fleet["a"].node.session().begin(BeginStep("crew", "t", "pay", "pay"), answers.append, durability="quorum")
    assert answers == []


async def test_one_that_a_node_began_is_answered_though_the_node_stops(fleet: Fleet) -> None:
    answers: Answers = []
    assert fleet["a"].node.session().begin(WRITE, answers.append, durability="quorum")
    await fleet["a"].node.stop()
    # Whether another node's acknowledgement came before its links were closed depends on the disk.
    assert isinstance(await told(answers), Added | OutcomeUnknown)


async def test_a_bug_after_the_write_is_answered_as_an_unknown_outcome(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    async def breaks(*_: object) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(fleet["a"].node.service._acknowledging, "refuse_dead", breaks)
    for target in "bc":
        fleet.wires[target, "a"].open.clear()
    answers: Answers = []
    session = fleet["a"].node.session()
    assert session.begin(WRITE, answers.append, durability="quorum")
    await fleet["a"].node.session().call(DeleteCounter("crew", "tokens"))  # It must look for the write.
    for target in "bc":
        fleet.wires[target, "a"].open.set()
    failed = await asyncio.wait_for(told(answers), 30)
    assert isinstance(failed, OutcomeUnknown)
    assert "secret" not in failed.message


async def test_a_repeated_one_needs_copies_too(fleet: Fleet) -> None:
    """Its first attempt was acknowledged under `local`, and no other owner has it."""

    def keep(source: str, target: str, message: bytes) -> bytes | None:
        return None if source == "a" and isinstance(messages.decode(message), Push | Supply) else message

    fleet.spoil = keep
    session = fleet["a"].node.session()
    assert await session.call(WRITE, key="k") == Added(5, True)
    with pytest.raises(OutcomeUnknown) as raised:
        await session.call(WRITE, key="k", durability="quorum")
    assert raised.value.written == "unknown"


async def test_a_repeated_one_that_may_have_died_is_of_unknown_outcome(fleet: Fleet) -> None:
    """The owners hold it, and whether its object was deleted meanwhile cannot be asked."""
    session = fleet["a"].node.session()
    assert await session.call(WRITE, key="k", durability="quorum") == Added(5, True)
    fleet.spoil = lambda source, target, message: None if target == "a" else message
    with pytest.raises(OutcomeUnknown, match="deleted meanwhile") as raised:
        await session.call(WRITE, key="k", durability="quorum")
    assert raised.value.written == "unknown"
