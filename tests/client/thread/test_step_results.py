"""Results of steps that cannot be kept: the effect has happened, so the step is not called again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from shoal.config import Config
from shoal.errors import ResultNotKept
from shoal.kinds.thread.handle.thread import Thread
from shoal.node.node import Node
from shoal.storage.interface import MemoryStorage
from simulation.world.environment import SimulatedEnvironment
from tests.client.thread.test_steps import store_on


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    one = Node(MemoryStorage(), config=Config(), environment=SimulatedEnvironment(1).environment)
    yield one
    await one.stop()


@pytest.fixture
def thread(node: Node) -> Thread:
    return store_on(node.session(), Config()).space("crew").thread("t")


def repr_of(value: object) -> str:
    return type(value).__name__


class Receipt:
    def __repr__(self) -> str:
        return "Receipt(7)"


@pytest.mark.answers("effects-result-cannot-be-stored")
async def test_a_result_that_cannot_be_kept_is_written_as_text_and_never_called_again(thread: Thread) -> None:
    calls: list[str] = []

    def pay() -> Any:
        calls.append("pay")
        return Receipt()

    with pytest.raises(ResultNotKept, match=r"result is a .*Receipt, which is not registered.*It was Receipt\(7\)") as first:
        await thread.step("pay", call=pay)
    assert first.value.written == "yes"
    assert first.value.detail["result"] == "Receipt(7)"
    with pytest.raises(ResultNotKept, match="was carried out") as again:
        await thread.step("pay", call=pay)
    assert again.value.written == "no"
    assert calls == ["pay"]
    [record] = await thread.unresolved()
    assert record.attempts[0].state == "unkept"
    assert record.error is not None
    assert record.error["result"] == "Receipt(7)"
    await thread.resolve("pay", "result", value={"receipt": 7}, by="ana")
    assert await thread.step("pay", call=pay) == {"receipt": 7}
    assert calls == ["pay"]


async def test_a_step_whose_result_was_not_kept_can_be_given_free_or_is_repeated_if_that_does_no_harm(thread: Thread) -> None:
    for key, give_free in (("freed", True), ("idempotent", False)):
        with pytest.raises(ResultNotKept):
            await thread.step("pay", key=key, call=Receipt)
        if give_free:
            await thread.resolve(key, "retry")
        assert await thread.step("pay", key=key, call=lambda: 7, idempotent=not give_free) == 7


@pytest.mark.parametrize(
    "result", [object(), b"x" * (Config().request_bytes_max + 1), {"deep": {1: Receipt()}}, "\ud800", type], ids=repr_of
)
async def test_a_step_tells_its_outcome_for_any_result(thread: Thread, result: Any) -> None:
    with pytest.raises(ResultNotKept):
        await thread.step("pay", call=lambda: result)
    [record] = await thread.unresolved()
    assert record.error is not None
    assert len(str(record.error)) < 10_000


async def test_a_block_that_goes_on_after_its_result_was_not_kept_writes_nothing_more(thread: Thread) -> None:
    async with thread.begin("pay") as step:
        with pytest.raises(ResultNotKept):
            await step.finish(Receipt())
    with pytest.raises(ResultNotKept):
        async with thread.begin("bill") as step:
            await step.finish(Receipt())
    assert [record.attempts[0].state for record in await thread.unresolved()] == ["unkept", "unkept"]


@pytest.mark.answers("effects-result-cannot-be-stored")
async def test_a_result_that_a_batch_cannot_keep_is_not_taken_for_a_failure(thread: Thread, node: Node) -> None:
    space = store_on(node.session(), Config()).space("crew")
    with pytest.raises(ResultNotKept):
        async with thread.begin("pay") as step, space.batch() as batch:
            batch.thread(thread.name).finish(step, Receipt())
    assert [record.attempts[0].state for record in await thread.unresolved()] == ["unkept"]
