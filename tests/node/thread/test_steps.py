"""Steps over storage: who may cause an effect, on one node and on several."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from shoal import values
from shoal.config import Config
from shoal.errors import (
    InvalidInput,
    KeyReused,
    NoQuorum,
    NotFound,
    OutcomeUnknown,
    StatusChanged,
    StepSettled,
    ThreadHeld,
    TooLarge,
)
from shoal.kinds.worklist.serving.handouts import Handouts
from shoal.node.verification.verify import verify
from shoal.protocol import requests
from shoal.protocol.requests import (
    BeginStep,
    CatchUp,
    CaughtUp,
    EndStep,
    ListSteps,
    MoveThread,
    ProgressStep,
    ReadJournal,
    ReadStanding,
    ReadStep,
    ResolveStep,
    Standing,
    Step,
    Steps,
)
from shoal.protocol.session import Session
from shoal.testing.machines import run
from simulation.world.fleet import Fleet, Member
from tests.node.conftest import Bench, Opener

VALUE = values.encode({"amount": 120})
OTHER = values.encode("other")
ERROR = values.encode({"type": "TimeoutError", "message": "the bank did not answer"})


def begin(attempt: str = "x", step: str = "k", **fields: Any) -> BeginStep:
    return BeginStep("crew", "t", step, fields.pop("name", "charge"), attempt, **fields)


def end(outcome: Any = "result", value: bytes = VALUE, attempt: str = "x", step: str = "k") -> EndStep:
    return EndStep("crew", "t", step, attempt, outcome, value)


async def ask(session: Session, request: Any, **options: Any) -> Step:
    reply = await session.call(request, **options)
    assert isinstance(reply, Step)
    return reply


@pytest.fixture
def session(bench: Bench) -> Session:
    return bench.node.session()


async def test_an_intent_is_there_before_the_effect_and_its_result_after_it(session: Session) -> None:
    begun = await ask(session, begin(holder="host:7", arguments=OTHER, compensation="refund", parent="outer"))
    assert (begun.begun, begun.state, begun.rivals) == (True, "open", [])
    done = await ask(session, end())
    assert (done.state, done.result, done.begun) == ("done", VALUE, False)
    read = await ask(session, ReadStep("crew", "t", "k"))
    assert (read.name, read.arguments, read.compensation, read.parent) == ("charge", OTHER, "refund", "outer")
    assert [(attempt.id, attempt.state, attempt.holder) for attempt in read.attempts] == [("x", "result", "host:7")]


async def test_a_settled_step_answers_whoever_begins_it_again(session: Session) -> None:
    await ask(session, begin())
    await ask(session, end())
    again = await ask(session, begin("y"))
    assert (again.begun, again.state, again.result, len(again.attempts)) == (False, "done", VALUE, 1)


async def test_an_open_step_is_not_begun_by_another(session: Session) -> None:
    await ask(session, begin())
    other = await ask(session, begin("y"))
    assert (other.begun, other.state, len(other.attempts)) == (False, "open", 1)


async def test_the_same_attempt_again_is_the_same_intent(session: Session) -> None:
    first = await ask(session, begin())
    again = await ask(session, begin())
    assert again == first


async def test_a_successor_leaves_the_first_attempt_visible(session: Session) -> None:
    await ask(session, begin())
    taken = await ask(session, begin("y", take_over=True))
    assert taken.begun
    assert [(attempt.id, attempt.state) for attempt in taken.attempts] == [("x", "taken"), ("y", "open")]


async def test_two_results_keep_both_and_the_first_counts(session: Session) -> None:
    await ask(session, begin())
    await ask(session, begin("y", take_over=True))
    await ask(session, end())
    both = await ask(session, end(value=OTHER, attempt="y"))
    assert both.result == VALUE
    assert [(conflict.value, conflict.attempt) for conflict in both.conflicts] == [(OTHER, "y")]


async def test_a_failed_step_is_begun_again_as_often_as_allowed(session: Session) -> None:
    for attempt in ("x", "y"):
        assert (await ask(session, begin(attempt, attempts=2))).begun
        failed = await ask(session, end("error", ERROR, attempt))
    assert (failed.state, failed.failures, failed.attempts[1].error) == ("failed", 2, ERROR)
    third = await ask(session, begin("z", attempts=2))
    assert (third.begun, third.failures) == (False, 2)
    assert (await ask(session, begin("z", attempts=3))).begun


async def test_the_attempts_of_a_step_are_bounded(open_bench: Opener) -> None:
    session = open_bench(step_attempts_max=2).node.session()
    for attempt in ("x", "y"):
        assert (await ask(session, begin(attempt))).begun
        await ask(session, end("withdrawn", b"", attempt))
    assert not (await ask(session, begin("z"))).begun


async def test_progress_belongs_to_its_attempt(session: Session) -> None:
    await ask(session, begin())
    await ask(session, ProgressStep("crew", "t", "k", "x", VALUE))
    shown = await ask(session, ProgressStep("crew", "t", "k", "x", OTHER))
    assert [attempt.progress for attempt in shown.attempts] == [OTHER]


@pytest.mark.parametrize(
    ("how", "state"),
    [("retry", "ready"), ("abandon", "abandoned"), ("result", "done")],
)
async def test_a_human_settles_an_open_step_and_the_journal_says_who_and_why(session: Session, how: Any, state: str) -> None:
    await ask(session, begin())
    resolved = await ask(session, ResolveStep("crew", "t", "k", how, VALUE, by="ana", reason="asked the bank"))
    assert resolved.state == state
    assert resolved.result == (VALUE if how == "result" else b"")
    page = await session.call(ReadJournal("crew", "t"))
    assert isinstance(page, requests.Events)
    assert [values.decode(event.event) for event in page.events] == [
        {"kind": "step-resolved", "step": "k", "how": how, "by": "ana", "reason": "asked the bank"}
    ]
    assert (await ask(session, begin("y"))).begun == (how == "retry")


async def test_a_step_that_is_done_is_not_settled_again(session: Session) -> None:
    await ask(session, begin())
    await ask(session, end())
    with pytest.raises(StepSettled):
        await session.call(ResolveStep("crew", "t", "k", "retry"))


async def test_steps_are_listed_in_their_order_page_by_page(session: Session) -> None:
    for step in ("c", "a", "b"):
        await ask(session, begin(step=step))
    await ask(session, end(step="a"))
    first = await session.call(ListSteps("crew", "t", limit=2))
    assert isinstance(first, Steps)
    assert [step.key for step in first.items] == ["c", "a"]
    assert first.more
    rest = await session.call(ListSteps("crew", "t", after=first.items[-1].position))
    assert isinstance(rest, Steps)
    assert [step.key for step in rest.items] == ["b"]
    assert not rest.more
    still = await session.call(ListSteps("crew", "t", only_open=True))
    assert isinstance(still, Steps)
    assert [step.key for step in still.items] == ["c", "b"]


async def test_without_a_name_the_only_open_attempt_is_meant(session: Session) -> None:
    await ask(session, begin())
    assert (await ask(session, end(attempt=""))).state == "done"
    with pytest.raises(StepSettled, match="0 open attempts"):
        await session.call(end(attempt=""))


@pytest.mark.parametrize(
    ("request_", "error", "text"),
    [
        (begin("y", name="refund"), KeyReused, "not 'refund'"),
        (begin("y", arguments=VALUE), KeyReused, "other arguments"),
        (end(step="unknown"), NotFound, "no step 'unknown'"),
        (end(attempt="unknown"), NotFound, "no attempt 'unknown'"),
        (ReadStep("crew", "t", "unknown"), NotFound, "no step"),
        (ProgressStep("crew", "t", "k", "unknown", VALUE), NotFound, "no attempt"),
        (ProgressStep("crew", "t", "k", "x", values.encode("x" * 70_000)), TooLarge, "at most 65536 bytes"),
        (end("perhaps"), InvalidInput, "'result', 'error', 'withdrawn', 'unkept'"),
        (ResolveStep("crew", "t", "k", "perhaps"), InvalidInput, "'result', 'retry', 'abandon'"),  # type: ignore[arg-type]
        (ResolveStep("crew", "t", "k", "retry", by="x" * 5000), TooLarge, "an author may have at most 4096 bytes"),
        (MoveThread("crew", "t", "asleep"), InvalidInput, "'running', 'paused'"),  # type: ignore[arg-type]
        (ListSteps("crew", "t", after="zz"), InvalidInput, "position of a step"),
    ],
)
async def test_senseless_requests_are_refused(session: Session, request_: Any, error: type[Exception], text: str) -> None:
    await ask(session, begin(arguments=OTHER))
    with pytest.raises(error, match=text):
        await session.call(request_)


# ── status ────────────────────────────────────────────────────────────────────


async def test_a_thread_that_is_held_begins_no_step_and_shows_those_that_are_done(session: Session) -> None:
    await ask(session, begin())
    await ask(session, end())
    await session.call(MoveThread("crew", "t", "paused", "too dear", "ana"))
    with pytest.raises(ThreadHeld, match=r"paused by ana \(too dear\)"):
        await session.call(begin(step="other"))
    assert (await ask(session, begin("y"))).result == VALUE
    await session.call(MoveThread("crew", "t", "running", by="ana"))
    assert (await ask(session, begin(step="other"))).begun


async def test_the_status_is_the_last_one_and_the_journal_has_all(session: Session) -> None:
    assert await session.call(ReadStanding("crew", "t")) == Standing("running", "", "", 0)
    await session.call(MoveThread("crew", "t", "waiting", "approve?"))
    await session.call(MoveThread("crew", "t", "done", by="ana"))
    standing = await session.call(ReadStanding("crew", "t"))
    assert isinstance(standing, Standing)
    assert (standing.status, standing.by) == ("done", "ana")
    page = await session.call(ReadJournal("crew", "t"))
    assert isinstance(page, requests.Events)
    assert [values.decode(event.event)["status"] for event in page.events] == ["waiting", "done"]


async def test_the_ledger_survives_a_power_cut_and_verifies(bench: Bench) -> None:
    session = bench.node.session()
    await ask(session, begin(arguments=OTHER))
    await ask(session, ProgressStep("crew", "t", "k", "x", OTHER))
    await ask(session, end("error", ERROR))
    await ask(session, begin("y"))
    await ask(session, end(attempt="y"))
    await ask(session, begin(step="open"))
    await session.call(ResolveStep("crew", "t", "open", "retry", by="ana"))
    await session.call(MoveThread("crew", "t", "paused"))
    after = bench.crashed()
    assert (await ask(after.node.session(), ReadStep("crew", "t", "k"))).result == VALUE
    report = verify(after.storage, config=Config())
    assert report.problems == []
    await after.node.stop()


# ── several owners ────────────────────────────────────────────────────────────


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet() as fleet:
        yield fleet


def at(member: Member) -> Session:
    return member.node.session()


async def test_an_agent_that_starts_elsewhere_finds_the_intent_that_a_quorum_holds(fleet: Fleet) -> None:
    for wire in (("a", "c"), ("b", "c")):
        fleet.wires[wire].open.clear()
    assert (await ask(at(fleet["a"]), begin(), durability="quorum")).begun
    await fleet.crash("a")
    fleet.wires["b", "c"].open.set()
    seen = await ask(at(fleet["c"]), begin("y"), durability="quorum")
    assert (seen.begun, seen.state) == (False, "open")


async def test_without_asking_a_quorum_it_would_not_find_it(fleet: Fleet) -> None:
    """What the test above would show of a node that looks only at itself."""
    for wire in (("a", "c"), ("b", "c")):
        fleet.wires[wire].open.clear()
    assert (await ask(at(fleet["a"]), begin(), durability="quorum")).begun
    await fleet.crash("a")
    assert (await ask(at(fleet["c"]), begin("y"), durability="local")).begun


async def test_of_two_that_begin_at_once_no_two_believe_to_be_alone(fleet: Fleet) -> None:
    for number in range(10):
        step = f"k{number}"
        both = await asyncio.gather(
            ask(at(fleet["a"]), begin("x", step), durability="quorum"),
            ask(at(fleet["b"]), begin("y", step), durability="quorum"),
        )
        assert sum(reply.begun and not reply.rivals for reply in both) <= 1


@pytest.mark.answers("effects-are-not-repeated", note="of attempts that begin at once one begins")
def test_of_those_that_begin_at_once_on_all_nodes_one_begins() -> None:
    """They see each other, and give way one after another until one is left."""

    async def main() -> None:
        async with Fleet(quorum_timeout_s=20.0) as fleet:
            for number in range(8):
                step = f"k{number}"
                replies = await asyncio.gather(
                    *(ask(at(fleet[name]), begin(name, step), durability="quorum") for name in "abc")
                )
                assert sum(reply.begun for reply in replies) == 1
                assert not any(reply.rivals for reply in replies)
                await fleet.converged()
                shown = await at(fleet["a"]).call(ReadStep("crew", "t", step))
                assert [attempt.state for attempt in shown.attempts].count("open") == 1

    run(main())


@pytest.mark.answers("effects-are-not-repeated", note="of attempts that begin at once one begins")
def test_of_two_that_begin_at_once_both_give_way_if_the_register_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(self: Handouts, *given: object) -> None:
        raise NoQuorum("too few vote. Nothing was written.")

    monkeypatch.setattr(Handouts, "hand_out", refused)

    async def main() -> None:
        async with Fleet(quorum_timeout_s=20.0) as fleet:
            for number in range(8):
                step = f"k{number}"
                both = await asyncio.gather(*(ask(at(fleet[name]), begin(name, step), durability="quorum") for name in "ab"))
                assert sum(reply.begun for reply in both) <= 1
                assert not any(reply.rivals for reply in both)

    run(main())


async def test_an_intent_needs_a_quorum_and_nothing_is_written_without_one(fleet: Fleet) -> None:
    await fleet.isolate("a")
    with pytest.raises(NoQuorum):
        await at(fleet["a"]).call(begin(), durability="quorum")
    with pytest.raises(NotFound):
        await at(fleet["a"]).call(ReadStep("crew", "t", "k"))


async def test_peers_that_are_linked_and_silent_are_no_quorum(fleet: Fleet) -> None:
    for wire in (("b", "a"), ("c", "a")):
        fleet.wires[wire].open.clear()
    with pytest.raises(NoQuorum, match="1 of 3 owners reported what they hold"):
        await at(fleet["a"]).call(begin(), durability="quorum")


async def test_a_second_look_that_fails_leaves_the_outcome_unknown(fleet: Fleet) -> None:
    answers: list[str] = []

    def silent_after_the_first_look(source: str, target: str, message: bytes) -> bytes | None:
        if message[1] == 5 and target == "a":  # Vectors.
            answers.append(source)
            return message if len(answers) <= 2 else None
        return message

    await fleet.converged()
    fleet.spoil = silent_after_the_first_look
    with pytest.raises(OutcomeUnknown, match="Begin it again with the same attempt"):
        await at(fleet["a"]).call(begin(), durability="quorum")
    fleet.spoil = lambda source, target, message: message
    assert (await ask(at(fleet["a"]), begin(), durability="quorum")).begun


async def test_catching_up_brings_what_a_quorum_acknowledged(fleet: Fleet) -> None:
    for wire in (("a", "c"), ("b", "c")):
        fleet.wires[wire].open.clear()
    await at(fleet["a"]).call(MoveThread("crew", "t", "paused"), durability="quorum")
    fleet.wires["b", "c"].open.set()
    session = at(fleet["c"])
    assert await session.call(CatchUp("crew", "t")) == CaughtUp(quorum=True, size=3, reason="")
    standing = await session.call(ReadStanding("crew", "t"))
    assert isinstance(standing, Standing)
    assert standing.status == "paused"


async def test_a_node_that_cannot_catch_up_says_why(fleet: Fleet) -> None:
    await fleet.isolate("c")
    caught = await at(fleet["c"]).call(CatchUp("crew", "t"))
    assert isinstance(caught, CaughtUp)
    assert (caught.quorum, caught.size) == (False, 3)
    assert "1 can be reached" in caught.reason


async def test_nodes_that_worked_apart_come_to_hold_the_same_ledger(fleet: Fleet) -> None:
    await fleet.isolate("c")
    await ask(at(fleet["a"]), begin("x", holder="a"))
    await ask(at(fleet["c"]), begin("y", holder="c"))
    await ask(at(fleet["a"]), end(attempt="x"))
    await ask(at(fleet["c"]), end(value=OTHER, attempt="y"))
    await at(fleet["c"]).call(MoveThread("crew", "t", "paused", by="c"))
    fleet.link_all("c")
    await fleet.converged()
    assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")
    step = await ask(at(fleet["b"]), ReadStep("crew", "t", "k"))
    assert {step.result, *(conflict.value for conflict in step.conflicts)} == {VALUE, OTHER}


async def test_of_two_who_decide_the_second_is_told(bench: Bench) -> None:
    thread = bench.space.thread("t")
    with pytest.raises(StatusChanged, match="it is running"):
        await thread.approve(expect=await bench.space.thread("other").request_approval("?"))
    bench.simulated.now_ms += 1
    asked = await thread.request_approval("refund?", by="agent")
    bench.simulated.now_ms += 1
    assert (await thread.fail("too dear", by="ana", expect=asked)).status == "failed"
    before = await thread.status()
    for late in (thread.approve(by="ben", expect=asked), thread.fail("no", by="ben", expect=asked)):
        with pytest.raises(StatusChanged, match="meanwhile by ana: it is failed") as refused:
            await late
        assert (refused.value.detail["status"], refused.value.detail["by"], refused.value.written) == ("failed", "ana", "no")
    assert await thread.status() == before
    assert (await thread.approve(expect=before)).status == "running"


async def test_a_status_that_was_never_set_can_be_expected(bench: Bench) -> None:
    thread = bench.space.thread("t")
    await thread.save({"n": 1})
    assert (await thread.fail("no", expect=await thread.status())).status == "failed"


async def test_a_decision_that_is_sent_again_counts_once(bench: Bench) -> None:
    session = bench.node.session()
    asked = await session.call(MoveThread("crew", "t", "waiting", "refund?"))
    decided = await session.call(MoveThread("crew", "t", "running", "", "ana", asked.wall_ms), key="k")
    assert await session.call(MoveThread("crew", "t", "running", "", "ana", asked.wall_ms), key="k") == decided
