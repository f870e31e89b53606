"""Tools of an agent that is killed: what counts as one call, and what outlives it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import AsyncMock

import pytest

from shoal.client.store import Store
from shoal.testing import crash_everywhere
from tests.testing.test_crash_everywhere import pay, position

Call = Callable[..., Awaitable[Any]]


def test_of_calls_with_one_key_one_happens_and_all_get_its_result() -> None:
    def bank() -> dict[str, Call]:
        paid: list[int] = []

        async def pay(amount: int, key: str) -> int:
            await asyncio.sleep(amount)  # Of two that end at one moment, the loop may take either first.
            paid.append(amount)
            return len(paid)

        return {"pay": pay}

    async def agent(store: Store, pay: Call) -> None:
        receipts = [*await asyncio.gather(pay(7, "k"), pay(7, "k"), pay(8, key="other"))]
        await store.space("s").register("receipts").set(receipts)
        assert receipts == [1, 1, 2]

    assert crash_everywhere(agent, tools=bank, keys={"pay": "key"}).ok
    with pytest.raises(AssertionError):
        crash_everywhere(agent, tools=bank)


def test_a_key_that_comes_with_other_arguments_is_reported() -> None:
    async def agent(store: Store, pay: Call) -> None:
        amount = 100 + await store.space("s").counter("starts").add(0 if await position(store) else 1)
        await pay(amount, key="k")

    report = crash_everywhere(agent, tools={"pay": pay}, keys={"pay": "key"}, normalise=lambda *_: None)
    texts = {problem.text for trial in report.bad for problem in trial.problems}
    assert "pay(102, key='k') came with the key of pay(101, key='k')" in texts


def test_a_tool_that_raises_has_done_nothing_and_its_key_is_free() -> None:
    failures = iter(range(10**6))

    async def pay(key: str) -> None:
        if next(failures) % 2 == 0:
            raise ConnectionError

    async def agent(store: Store, pay: Call) -> None:
        with pytest.raises(ConnectionError):
            await pay("k")
        await pay("k")

    assert crash_everywhere(agent, tools={"pay": pay}, keys={"pay": "key"}).points == 3


def test_a_tool_that_only_reads_may_be_called_again() -> None:
    async def look() -> int:
        return 7

    async def agent(store: Store, look: Call) -> None:
        await look()
        await store.space("s").counter("n").add(1, key="k")
        await look()

    report = crash_everywhere(agent, tools={"look": look}, reads=["look"])
    assert report.ok
    assert report.points == 3


def test_tools_that_share_a_world_are_made_for_each_run() -> None:
    def world() -> dict[str, Call]:
        sent: list[str] = []

        async def send(text: str) -> None:
            sent.append(text)

        async def was_sent(text: str) -> bool:
            return text in sent

        return {"send": send, "was_sent": was_sent}

    async def agent(store: Store, send: Call, was_sent: Call) -> None:
        if not await was_sent("hello"):
            await send("hello")

    assert crash_everywhere(agent, tools=world, reads=["was_sent"]).ok


def test_a_tool_keeps_its_name_and_signature() -> None:
    async def agent(store: Store, pay: Call) -> None:
        assert pay.__name__ == "pay"
        assert list(inspect.signature(pay).parameters) == ["amount", "key"]

    crash_everywhere(agent, tools={"pay": pay})


def test_a_mock_is_a_tool() -> None:
    async def agent(store: Store, send: Call) -> None:
        assert await send("x") == "sent"

    assert not crash_everywhere(agent, tools={"send": AsyncMock(return_value="sent")}).ok
