"""The client tries a call again after the errors that are `retryable`, and after no others."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from shoal import errors
from shoal.client.connection import StreamTimer, delays, resumed
from shoal.config import Config
from shoal.errors import ShoalError
from shoal.protocol.requests import EndStep
from tests.node.conftest import Bench, bench, open_bench

pytestmark = pytest.mark.virtual_time

__all__ = ["bench", "open_bench"]

CLASSES = [found for _, found in inspect.getmembers(errors, inspect.isclass) if issubclass(found, ShoalError)]
every_error = pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)


@every_error
async def test_a_stream_goes_on_after_it_or_ends_with_it(error: type[ShoalError]) -> None:
    failing = [error("once")]

    async def attempt(_: StreamTimer) -> AsyncGenerator[int, None]:
        if failing:
            raise failing.pop()
        yield 1

    stream = resumed(Config(), attempt)
    if error.retryable:
        async with asyncio.timeout(30):
            assert await anext(stream) == 1
    else:
        with pytest.raises(error):
            await anext(stream)
    await stream.aclose()


@every_error
async def test_a_result_is_written_again_after_it_or_not(
    bench: Bench, error: type[ShoalError], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = bench.space._connection
    write, failing = connection.write, [error("once")]

    async def fails_once(request: Any, **arguments: Any) -> Any:
        if isinstance(request, EndStep) and failing:
            raise failing.pop()
        return await write(request, **arguments)

    monkeypatch.setattr(type(connection), "write", lambda _self, request, **arguments: fails_once(request, **arguments))

    async def effect() -> int:
        return 7

    async with asyncio.timeout(30):
        if error.retryable:
            assert await bench.space.thread("t").step("s", key="k", call=effect) == 7
        else:
            with pytest.raises(ShoalError):
                await bench.space.thread("t").step("s", key="k", call=effect)


async def test_pauses_grow_up_to_their_bound() -> None:
    pauses = delays(Config(reconnect_delay_s_max=0.3))
    assert [next(pauses) for _ in range(5)] == [0.05, 0.1, 0.2, 0.3, 0.3]
