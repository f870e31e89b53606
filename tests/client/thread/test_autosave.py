"""Saves that happen by themselves: when the state changed, at the end, and when the process is asked to stop."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.client.store import Store
from shoal.errors import Disconnected, HeadMoved, InvalidInput, InvalidValue, ShoalError
from shoal.kinds.thread.flows.checkpoints import Checkpoint
from shoal.kinds.thread.handle.autosave import SIGTERM_EXIT, Autosave
from shoal.kinds.thread.handle.thread import Thread


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with shoal.open(tmp_path / "state") as opened:
        yield opened


@pytest.fixture
def thread(store: Store) -> Thread:
    return store.space("crew").thread("t")


async def states(thread: Thread) -> list[dict[str, Any]]:
    return [checkpoint.state async for checkpoint in thread.history(states=True)][::-1]


class Failing:
    """Saves nothing, as long as it has errors to raise."""

    def __init__(self, *errors: ShoalError) -> None:
        self.errors = list(errors)
        self.saved: list[dict[str, Any]] = []
        self.tried = asyncio.Event()

    async def save(self, state: Mapping[str, Any]) -> Checkpoint:
        self.tried.set()
        if self.errors:
            raise self.errors.pop(0)
        self.saved.append(dict(state))
        return Checkpoint("id", (), "main", ("id",), 0, "", 0, b"\x80", {})

    def auto(self, state: Mapping[str, Any], *, every: float | None = None) -> Autosave:
        return Autosave(self.save, lambda: state, begin=self.begin, every=every, on_change=True, on_sigterm=False)

    async def begin(self) -> None:
        """The branch is new."""


async def test_the_state_is_saved_at_the_end(thread: Thread) -> None:
    state = {"n": 0}
    async with thread.autosave(lambda: state, metadata={"by": "auto"}):
        state["n"] = 1
    assert await states(thread) == [{"n": 1}]
    assert (await thread.load()).metadata == {"by": "auto"}


async def test_the_state_is_saved_also_where_the_block_fails(thread: Thread) -> None:
    state = {"n": 0}
    with pytest.raises(ZeroDivisionError):
        async with thread.autosave(lambda: state):
            state["n"] = 1 // 0 or 5
    assert await states(thread) == [{"n": 0}]


async def test_unchanged_states_are_saved_once(thread: Thread) -> None:
    state = {"n": 0}
    async with thread.autosave(lambda: state) as auto:
        assert await auto.save() is not None
        assert await auto.save() is None
        state["n"] = 1
        assert await auto.save() is not None
    assert await states(thread) == [{"n": 0}, {"n": 1}]


async def test_without_on_change_it_is_saved_at_each_turn(thread: Thread) -> None:
    async with thread.autosave(lambda: {"n": 0}, on_change=False) as auto:
        await auto.save()
    assert await states(thread) == [{"n": 0}, {"n": 0}]


async def test_it_is_saved_every_so_often() -> None:
    store = Failing()
    async with store.auto({"n": 0}, every=0.001):
        async with asyncio.timeout(20):
            await store.tried.wait()
    assert store.saved == [{"n": 0}]


async def test_an_error_that_passes_is_tried_again() -> None:
    store = Failing(Disconnected("away"))
    async with store.auto({"n": 0}, every=0.001) as auto:
        async with asyncio.timeout(20):
            await store.tried.wait()
            while auto.error is not None:
                await asyncio.sleep(0)
    assert store.saved == [{"n": 0}]


async def test_an_error_that_lasts_is_raised_at_the_end() -> None:
    store = Failing(HeadMoved("moved"))
    with pytest.raises(HeadMoved):
        async with store.auto({"n": 0}, every=0.001) as auto:
            async with asyncio.timeout(20):
                await store.tried.wait()
                while auto.error is None:
                    await asyncio.sleep(0)
    assert store.saved == []


async def test_a_save_that_is_cut_short_goes_on_and_the_last_one_builds_on_it(thread: Thread) -> None:
    state = {"n": 0}
    async with thread.autosave(lambda: state) as auto:
        cut = asyncio.ensure_future(auto.save())
        while not thread._checkout.turns["main"].locked():
            await asyncio.sleep(0)
        cut.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cut
        state["n"] = 1
    assert await states(thread) == [{"n": 0}, {"n": 1}]


async def test_beside_the_blocks_own_error_it_is_a_note() -> None:
    store = Failing(HeadMoved("moved"))
    with pytest.raises(ZeroDivisionError) as failed:
        async with store.auto({"n": 0}):
            raise ZeroDivisionError
    assert failed.value.__notes__ == ["And the state could not be saved: HeadMoved: moved"]


async def test_a_state_that_cannot_be_stored_is_raised(thread: Thread) -> None:
    with pytest.raises(InvalidValue):
        async with thread.autosave(lambda: {"n": object()}):
            pass


async def test_the_pause_is_longer_than_nothing(thread: Thread) -> None:
    with pytest.raises(InvalidInput):
        thread.autosave(dict, every=0)


async def test_a_handler_that_is_there_is_left_alone(thread: Thread) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None)
    try:
        with pytest.raises(InvalidInput, match="already has a handler"):
            async with thread.autosave(dict, on_sigterm=True):
                pass
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)


async def test_the_handler_is_gone_at_the_end(thread: Thread) -> None:
    async with thread.autosave(lambda: {"n": 1}, on_sigterm=True):
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


AGENT = """
import asyncio, sys
import shoal

async def main():
    async with shoal.open(sys.argv[1]) as store:
        state = {"n": 0}
        async with store.space("crew").thread("t").autosave(lambda: state, on_sigterm=True):
            state["n"] = 7
            print("working", flush=True)
            await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_a_process_that_is_asked_to_stop_saves_first(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", AGENT, str(tmp_path / "s")], stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == "working\n"
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(30) == SIGTERM_EXIT
    async with shoal.open(tmp_path / "s") as store:
        assert (await store.space("crew").thread("t").load()).state == {"n": 7}
