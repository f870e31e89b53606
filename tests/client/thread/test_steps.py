"""Steps as their callers see them: called once, whoever asks again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from shoal.client.connection import StoreConnection
from shoal.client.store import Store
from shoal.config import Config
from shoal.errors import (
    HeadMoved,
    InvalidInput,
    KeyReused,
    NoQuorum,
    OutcomeUnknown,
    ShoalError,
    StepAbandoned,
    StepFailed,
    StepSettled,
    StepUnresolved,
    StorageFull,
)
from shoal.kinds.step.handle.steps import Step
from shoal.kinds.thread.handle.thread import Thread
from shoal.node.node import Node
from shoal.protocol.requests import BeginStep, EndStep
from shoal.protocol.session import Session
from shoal.storage.interface import MemoryStorage
from simulation.world.environment import SimulatedEnvironment
from simulation.world.fleet import Fleet

pytestmark = pytest.mark.virtual_time


class Effects:
    """The outside world: what was called, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self, what: str, result: Any = None) -> Any:
        async def call() -> Any:
            self.calls.append(what)
            if isinstance(result, Exception):
                raise result
            return result

        return call


@pytest.fixture
def effects() -> Effects:
    return Effects()


_seeds = count(9)


def store_on(session: Session, config: Config) -> Store:
    """A store of its own process: its randomness is nobody else's."""
    environment = SimulatedEnvironment(next(_seeds)).environment
    return Store(StoreConnection(session, config, "local", environment.entropy), close=session.close)


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    one = Node(MemoryStorage(), config=Config(), environment=SimulatedEnvironment(1).environment)
    yield one
    await one.stop()


@pytest.fixture
def thread(node: Node) -> Thread:
    return store_on(node.session(), Config()).space("crew").thread("t")


def another(node: Node) -> Thread:
    """A handle of another process."""
    return store_on(node.session(), Config()).space("crew").thread("t")


async def somebody_watches(node: Node) -> None:
    while not (await store_on(node.session(), Config()).status()).connections:
        await asyncio.sleep(0)


async def left_open(thread: Thread, key: str = "k", **options: Any) -> None:
    """A step whose process died after its intent."""
    beginning = thread.begin("charge", key=key, **options)
    step = await beginning.__aenter__()
    assert not step.done
    await beginning.__aexit__(asyncio.CancelledError, asyncio.CancelledError(), None)


async def test_a_step_that_is_done_is_not_called_again(thread: Thread, node: Node, effects: Effects) -> None:
    for handle in (thread, thread, another(node)):
        assert await handle.step("bill", key="call-42", call=effects("bill", {"due": (1, 2)})) == {"due": (1, 2)}
    assert effects.calls == ["bill"]


async def test_its_name_is_its_key_where_none_is_given(thread: Thread, effects: Effects) -> None:
    await thread.step("bill", call=effects("bill"))
    assert [record.key async for record in thread.steps()] == ["bill"]


async def test_a_call_may_be_synchronous_and_may_take_the_step(thread: Thread) -> None:
    def call(step: Step) -> str:
        return f"{step.key} {step.name} {step.attempt}"

    assert await thread.step("bill", key="k", call=call) == "k bill 1"
    assert await thread.step("other", call=lambda order="o": order) == "o"
    assert await thread.step("built-in", call=dict) == {}


async def test_a_failed_step_keeps_its_error_and_is_called_again(thread: Thread, effects: Effects) -> None:
    with pytest.raises(TimeoutError):
        await thread.step("search", key="k", call=effects("search", TimeoutError("too slow")))
    [record] = [record async for record in thread.steps()]
    assert (record.state, record.failures) == ("failed", 1)
    assert record.error == {"type": "TimeoutError", "message": "too slow"}
    assert await thread.step("search", key="k", call=lambda step: step.attempt) == 2


async def test_after_so_many_attempts_the_stored_error_is_raised(thread: Thread, effects: Effects) -> None:
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await thread.step("search", attempts=2, call=effects("search", TimeoutError("too slow")))
    with pytest.raises(StepFailed, match="TimeoutError: too slow") as raised:
        await thread.step("search", attempts=2, call=effects("search"))
    assert raised.value.detail["attempts"] == 2
    assert effects.calls == ["search", "search"]
    await thread.resolve("search", "retry")
    await thread.step("search", attempts=2, call=effects("at last"))
    assert effects.calls[-1] == "at last"


async def test_an_intent_without_a_result_is_not_called_again_by_itself(thread: Thread, node: Node, effects: Effects) -> None:
    await left_open(thread)
    [record] = await another(node).unresolved()
    with pytest.raises(StepUnresolved, match="may have happened, or may be in progress") as raised:
        await another(node).step("charge", key="k", call=effects("charge"))
    assert raised.value.detail["holder"] == record.holder != ""
    assert raised.value.detail["since_ms"] == record.since.timestamp() * 1000
    assert effects.calls == []


async def test_one_that_is_idempotent_is_called_again(thread: Thread, node: Node, effects: Effects) -> None:
    await left_open(thread)
    assert await another(node).step("charge", key="k", call=effects("charge", 7), idempotent=True) == 7
    [record] = [record async for record in thread.steps()]
    assert [attempt.state for attempt in record.attempts] == ["taken", "result"]


@pytest.mark.parametrize("how", ["result", "retry", "abandon"])
async def test_a_human_settles_it(thread: Thread, node: Node, effects: Effects, how: Any) -> None:
    await left_open(thread)
    await another(node).resolve("k", how, value={"paid": True}, by="ana", reason="asked the bank")
    assert await thread.unresolved() == []
    if how == "abandon":
        with pytest.raises(StepAbandoned, match="by ana"):
            await thread.step("charge", key="k", call=effects("charge"))
    else:
        result = await thread.step("charge", key="k", call=effects("charge", "now"))
        assert result == ("now" if how == "retry" else {"paid": True})
    assert effects.calls == (["charge"] if how == "retry" else [])
    events = [event.event async for event in thread.journal.read()]
    assert events == [{"kind": "step-resolved", "step": "k", "how": how, "by": "ana", "reason": "asked the bank"}]


async def test_a_step_that_is_done_cannot_be_settled(thread: Thread, effects: Effects) -> None:
    await thread.step("bill", call=effects("bill"))
    with pytest.raises(StepSettled):
        await thread.resolve("bill", "retry")


async def test_other_arguments_under_the_same_key_are_refused(thread: Thread, effects: Effects) -> None:
    await thread.step("bill", key="k", arguments={"order": 1}, call=effects("bill"))
    await thread.step("bill", key="k", arguments={"order": 1}, call=effects("bill"))
    with pytest.raises(KeyReused):
        await thread.step("bill", key="k", arguments={"order": 2}, call=effects("bill"))
    [record] = [record async for record in thread.steps()]
    assert record.arguments == {"order": 1}
    assert effects.calls == ["bill"]


async def test_concurrent_calls_of_one_key_are_one(thread: Thread, effects: Effects) -> None:
    results = await asyncio.gather(*(thread.step("bill", key="k", call=effects("bill", 5)) for _ in range(5)))
    assert results == [5] * 5
    assert effects.calls == ["bill"]


async def test_concurrent_steps_of_several_keys_run_beside_each_other(thread: Thread) -> None:
    arrived = asyncio.Barrier(3)
    await asyncio.gather(*(thread.step(f"s{n}", call=arrived.wait) for n in range(3)))
    assert [record.state async for record in thread.steps()] == ["done"] * 3


async def test_nested_steps_name_their_parent_and_siblings_do_not(thread: Thread, effects: Effects) -> None:
    async def outer() -> None:
        await asyncio.gather(thread.step("left", call=effects("left")), thread.step("right", call=effects("right")))

    await thread.step("outer", call=outer)
    await thread.step("after", call=effects("after"))
    parents = {record.key: record.parent async for record in thread.steps()}
    assert parents == {"outer": "", "left": "outer", "right": "outer", "after": ""}


async def test_a_step_within_itself_is_refused_and_does_not_wait_for_itself(thread: Thread, effects: Effects) -> None:
    async def outer() -> None:
        await thread.step("outer", call=effects("inner"))

    with pytest.raises(InvalidInput, match="within itself"):
        await thread.step("outer", call=outer)


async def test_the_next_attempt_finds_the_progress_of_the_last(thread: Thread) -> None:
    async def move(step: Step) -> Any:
        moved = step.record.progress or 0
        for file in range(moved, 4):
            await step.progress(file + 1)
            if file == 1 and step.attempt == 1:
                raise OSError("the disk is gone")
        return moved

    with pytest.raises(OSError, match="the disk is gone"):
        await thread.step("move", call=move)
    assert await thread.step("move", call=move) == 2


async def test_as_a_context_it_shows_whether_there_is_anything_to_do(thread: Thread, effects: Effects) -> None:
    for _ in range(2):
        async with thread.begin("pay", key="k") as step:
            if not step.done:
                step.result = await effects("pay", "receipt")()
        assert step.result == "receipt"
    assert effects.calls == ["pay"]
    with pytest.raises(InvalidInput, match="already has a result"):
        step.result = "another"


async def test_a_block_that_raises_fails_the_step(thread: Thread) -> None:
    with pytest.raises(ValueError, match="no"):
        async with thread.begin("pay"):
            raise ValueError("no")
    assert [record.state async for record in thread.steps()] == ["failed"]


async def test_an_error_whose_text_is_no_unicode_is_written_all_the_same(thread: Thread) -> None:
    with pytest.raises(ValueError, match="no"):
        async with thread.begin("pay"):
            raise ValueError("no \ud800")
    [record] = [record async for record in thread.steps()]
    assert record.state == "failed"
    assert record.error == {"type": "ValueError", "message": "no \\ud800"}


async def test_a_call_that_is_cancelled_is_unresolved(thread: Thread) -> None:
    began = asyncio.Event()

    async def call() -> None:
        began.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(thread.step("pay", call=call))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [record.key for record in await thread.unresolved()] == ["pay"]


async def test_compensations_run_once_in_the_reverse_order_of_completion(thread: Thread, node: Node, effects: Effects) -> None:
    async def refund(paid: int) -> None:
        await effects(f"refund {paid}")()

    def unbook() -> None:
        effects.calls.append("unbook")

    await thread.step("pay", key="p", call=effects("pay", 7), compensate=refund)
    await thread.step("book", key="b", call=effects("book"), compensate=unbook)
    await thread.step("look", key="l", call=effects("look"))
    assert await thread.compensate() == ["b", "p"]
    names = [record.compensation async for record in thread.steps() if record.compensation]
    elsewhere: dict[str, Callable[..., Any]] = {names[0]: refund, names[1]: unbook}
    assert await another(node).compensate(elsewhere) == ["b", "p"]
    assert effects.calls == ["pay", "book", "look", "unbook", "refund 7"]


async def test_nothing_is_undone_while_it_is_not_known_what_was_done(thread: Thread, node: Node, effects: Effects) -> None:
    await left_open(thread, compensate=effects("undo"))
    with pytest.raises(StepUnresolved):
        await thread.compensate()
    await thread.resolve("k", "result")
    with pytest.raises(InvalidInput, match="no callable was given for"):
        await another(node).compensate()
    assert effects.calls == []


async def test_a_step_waits_while_the_thread_is_paused(thread: Thread, node: Node, effects: Effects) -> None:
    await another(node).pause("too dear", by="ana")
    task = asyncio.create_task(thread.step("pay", call=effects("pay")))
    await somebody_watches(node)
    assert effects.calls == []
    await another(node).approve(by="ana")
    await task
    assert effects.calls == ["pay"]


async def test_a_thread_that_is_deleted_takes_its_steps_and_its_status_along(thread: Thread, effects: Effects) -> None:
    await thread.step("bill", call=effects("bill"))
    await thread.pause()
    await thread.delete()
    assert (await thread.status()).status == "running"
    assert [record async for record in thread.steps()] == []
    await thread.step("bill", call=effects("bill"))
    assert effects.calls == ["bill", "bill"]


# ── several owners ────────────────────────────────────────────────────────────


async def test_an_agent_that_goes_on_elsewhere_repeats_no_effect(effects: Effects) -> None:
    async with Fleet() as fleet:
        for wire in (("a", "c"), ("b", "c")):
            fleet.wires[wire].open.clear()
        await left_open(fleet["a"].store().space("crew").thread("t"))
        await fleet.crash("a")
        fleet.wires["b", "c"].open.set()
        with pytest.raises(StepUnresolved):
            await fleet["c"].store().space("crew").thread("t").step("charge", key="k", call=effects("charge"))
    assert effects.calls == []


async def test_of_agents_that_begin_at_once_at_most_one_calls(effects: Effects) -> None:
    async with Fleet(quorum_timeout_s=30.0) as fleet:
        for number in range(6):
            effects.calls.clear()
            step = f"s{number}"
            threads = [fleet[name].store().space("crew").thread("t") for name in "abc"]
            outcomes = await asyncio.gather(*(t.step(step, call=effects(step)) for t in threads), return_exceptions=True)
            assert len(effects.calls) <= 1
            assert all(outcome is None or isinstance(outcome, StepUnresolved) for outcome in outcomes)
            # Whoever withdrew left nothing open.
            await fleet.converged()
            assert await threads[0].unresolved() == []


async def test_without_a_quorum_nothing_is_called_unless_that_is_asked_for(effects: Effects) -> None:
    async with Fleet() as fleet:
        await fleet.isolate("a")
        thread = fleet["a"].store().space("crew").thread("t")
        with pytest.raises(NoQuorum):
            await thread.step("pay", call=effects("pay"))
        assert effects.calls == []
        await thread.step("pay", call=effects("pay"), durability="local")
        assert effects.calls == ["pay"]


# ── answers that do not come ──────────────────────────────────────────────────


class Losing:
    """A session that loses the answers to some requests."""

    def __init__(self, session: Session, kind: type, times: int, *, error: type[ShoalError] = OutcomeUnknown) -> None:
        self._session, self._kind, self._times, self._error = session, kind, times, error
        self.bookmark = session.bookmark
        self.connections = session.connections
        self.subscribe = session.subscribe
        self.close = session.close

    async def call(self, request: Any, /, **options: Any) -> Any:
        reply = await self._session.call(request, **options)
        if isinstance(request, self._kind) and self._times:
            self._times -= 1
            raise self._error("the answer was lost")
        return reply


@pytest.mark.parametrize("error", [OutcomeUnknown, StorageFull])
async def test_an_intent_of_unknown_outcome_is_withdrawn_and_nothing_is_called(
    node: Node, effects: Effects, error: type[ShoalError]
) -> None:
    thread = store_on(Losing(node.session(), BeginStep, 1, error=error), Config()).space("crew").thread("t")
    with pytest.raises(error):
        await thread.step("pay", call=effects("pay"))
    assert await thread.unresolved() == []
    await thread.step("pay", call=effects("pay"))
    assert effects.calls == ["pay"]


async def test_a_result_is_written_again_until_it_is_known_to_be_there(node: Node, effects: Effects) -> None:
    thread = store_on(Losing(node.session(), EndStep, 2), Config()).space("crew").thread("t")
    assert await thread.step("pay", call=effects("pay", 7)) == 7
    assert effects.calls == ["pay"]
    assert await thread.unresolved() == []


# ── a result with what it led to ──────────────────────────────────────────────


async def test_a_batch_writes_the_result_with_the_state_it_led_to(thread: Thread, node: Node) -> None:
    space = store_on(node.session(), Config()).space("crew")
    async with thread.begin("bill", key="k") as step, space.batch() as batch:
        saved = batch.thread("t").save({"due": 7})
        batch.thread("t").finish(step, {"due": 7})
    assert (await thread.load()).id == saved.reply.id
    assert (step.done, step.result) == (True, {"due": 7})
    (record,) = [record async for record in thread.steps()]
    assert (record.state, record.result, len(record.attempts)) == ("done", {"due": 7}, 1)


async def test_the_result_outlives_a_batch_that_is_refused(thread: Thread, node: Node, effects: Effects) -> None:
    space = store_on(node.session(), Config()).space("crew")
    with pytest.raises(HeadMoved):
        async with thread.begin("bill", key="k") as step, space.batch() as batch:
            batch.thread("t").finish(step, await effects("bill", 7)())
            batch.thread("t").save({"due": 7}, expect_head="0" * 64)
    assert await thread.heads() == {}
    assert await another(node).step("bill", key="k", call=effects("bill", 8)) == 7
    assert effects.calls == ["bill"]


async def test_a_batch_takes_no_step_of_another_thread(thread: Thread, node: Node) -> None:
    batch = store_on(node.session(), Config()).space("crew").batch()
    async with thread.begin("bill", key="k") as step:
        with pytest.raises(InvalidInput, match="is one of thread 't'"):
            batch.thread("u").finish(step, 7)
        step.result = 8
    assert await thread.step("bill", key="k", call=lambda: 9) == 8


async def test_a_caller_that_has_a_rival_withdraws(thread: Thread, effects: Effects, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = StoreConnection.write

    async def write(self: StoreConnection, request: Any, **how: Any) -> Any:
        reply = await sound(self, request, **how)
        return replace(reply, rivals=["another"]) if isinstance(request, BeginStep) else reply

    monkeypatch.setattr(StoreConnection, "write", write)
    with pytest.raises(StepUnresolved):
        await thread.step("pay", call=effects("pay"))
    assert effects.calls == []
    assert [record.state async for record in thread.steps()] == ["ready"]
