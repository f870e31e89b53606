from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest

from shoal.errors import OutcomeUnknown, StoreClosed
from shoal.integrations import base as bridge
from shoal.integrations.base import Bridge


async def made() -> Bridge:
    return Bridge()


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Bridge:
    """A bridge to a loop that is closed."""
    monkeypatch.setattr(bridge, "_CLOSED_CHECK_S", 0.001)
    return asyncio.run(made())


def test_a_call_that_a_closed_loop_never_answers_ends(ended: Bridge) -> None:
    with pytest.raises(OutcomeUnknown, match="may or may not"):
        ended.waited(Future())


def test_nothing_is_handed_to_a_closed_loop(ended: Bridge) -> None:
    with pytest.raises(StoreClosed, match="Nothing was written"):
        ended.soon(lambda: None)
    with pytest.raises(StoreClosed, match="Nothing was written"):
        ended.check_elsewhere()


def test_a_calls_own_time_out_is_raised(ended: Bridge) -> None:
    future: Future[Any] = Future()
    future.set_exception(TimeoutError("its own"))
    with pytest.raises(TimeoutError, match="its own"):
        ended.waited(future)


def test_an_interrupted_call_is_cancelled(ended: Bridge) -> None:
    class Interrupted(Future[Any]):
        def result(self, timeout: float | None = None) -> Any:
            raise KeyboardInterrupt

    future = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        ended.waited(future)
    assert future.cancelled()
