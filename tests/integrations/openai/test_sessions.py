"""What the SDK's own tests leave open: turns as one write, two resumers, bad input, two writers, blocking programs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, ModelBehaviorError, Runner, RunState, Session, SessionSettings
from agents.exceptions import UserError
from agents.memory.session import _session_accepts_wrapper
from agents.testing import ScriptedModel, assistant_message

import shoal
from shoal.client.store import Store
from shoal.config import Config
from shoal.errors import (
    Disconnected,
    HeadMoved,
    InvalidInput,
    InvalidName,
    InvalidValue,
    MergeConflict,
    SchemaTooNew,
    StoreClosed,
    TooLarge,
)
from shoal.integrations.openai import ShoalSession, Turn
from tests.cli.conftest import served
from tests.integrations.openai import worker


def said(text: str, role: str = "user") -> Any:
    return {"role": role, "content": text}


def agent(*texts: str) -> Agent[Any]:
    return Agent(name="clerk", model=ScriptedModel([[assistant_message(text)] for text in texts]))


async def contents(session: Session) -> list[Any]:
    return [item.get("content") for item in await session.get_items()]


def test_it_is_a_session_of_the_sdk_with_the_wrapper_in_every_method() -> None:
    for kind in (ShoalSession, Turn):
        assert all(callable(getattr(kind, name)) for name in ("get_items", "add_items", "pop_item", "clear_session"))
        assert _session_accepts_wrapper(kind)


async def test_a_runner_keeps_the_conversation(session: ShoalSession) -> None:
    assert isinstance(session, Session)
    await Runner.run(agent("hello"), "hi", session=session)
    result = await Runner.run(agent("again"), "and", session=session)
    assert [item.get("role") for item in await session.get_items()] == ["user", "assistant"] * 2
    assert [item.get("content") for item in result.to_input_list()][:1] == ["hi"]


@pytest.mark.parametrize(("limit", "shown"), [(None, 3), (0, 0), (1, 1), (9, 3), (-1, 3)])
async def test_limits(session: ShoalSession, limit: int | None, shown: int) -> None:
    await session.add_items([said("a"), said("b"), said("c")])
    assert await session.get_items(limit) == [said("a"), said("b"), said("c")][3 - shown :]
    session.session_settings = SessionSettings(limit=2)
    assert len(await session.get_items(limit)) == (2 if limit is None else shown)


async def test_any_json_comes_back(session: ShoalSession) -> None:
    given: list[Any] = [{"text": "half a pair: \ud83d", "big": 2**70, "nested": [None, True, 1.5]}, "a text", 5, None]
    await session.add_items(given)
    assert await session.get_items() == given
    assert [await session.pop_item() for _ in given] == given[::-1]
    assert await session.pop_item() is None


@pytest.mark.parametrize("bad", [object(), {1}, b"x", {("a",): 1}])
async def test_values_without_a_json_form_are_refused_whole(session: ShoalSession, bad: Any) -> None:
    with pytest.raises(InvalidValue, match=r"items\[1\] is no JSON.*Nothing was written"):
        await session.add_items([said("a"), bad])
    async with session.turn("t") as turn:
        with pytest.raises(InvalidValue, match=r"items\[0\] is no JSON"):
            await turn.add_items([bad])
    assert await session.get_items() == []


async def test_an_id_of_two_kilobytes_is_refused(opened: Store) -> None:
    with pytest.raises(InvalidName, match="at most 1024 bytes"):
        ShoalSession(opened, "s" * 2048)


@pytest.mark.parametrize("id", ["a/b", "", "..", "%2f", "größe\x00", "{tag}"])
async def test_ids_are_arbitrary_text(opened: Store, space: str, id: str) -> None:
    session = ShoalSession(opened, id, space=space)
    await session.add_items([said("a"), said("b")])
    await session.create_branch_from_turn(2, id + "-")
    assert await session.get_items() == [said("a")]
    assert [branch["branch_id"] for branch in await session.list_branches()] == ["main", id + "-"]


async def test_a_state_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async with ShoalSession.open(tmp_path / "state", "s", config=Config(request_bytes_max=65_536)) as session:
        with pytest.raises(TooLarge):
            await session.add_items([said("x" * 40_000), said("y" * 40_000)])
        assert await session.get_items() == []


async def test_a_newer_form_is_refused_and_nothing_is_written(opened: Store, space: str) -> None:
    thread = opened.space(space).thread("s")
    await thread.save({"items": []}, metadata={"openai": 2})
    session = ShoalSession(opened, "s", space=space)
    for call in (session.get_items, session.pop_item, lambda: session.add_items([said("a")])):
        with pytest.raises(SchemaTooNew, match="Update Shoal here"):
            await call()
    assert (await thread.load()).state == {"items": []}


async def test_two_writers_lose_nothing(opened: Store, space: str) -> None:
    writers = [ShoalSession(opened, "s", space=space) for _ in range(3)]
    await asyncio.gather(*(writers[n % 3].add_items([said(f"{n}"), said(f"{n}", "assistant")]) for n in range(15)))
    found = await contents(writers[0])
    assert sorted(found) == sorted(f"{n}" for n in range(15) for _ in range(2))
    assert found[::2] == found[1::2], "what was added at once stands together"
    popped: list[Any] = await asyncio.gather(*(writers[n % 3].pop_item() for n in range(30)))
    assert sorted(item["content"] for item in popped) == sorted(found)


async def test_a_cleared_session_is_empty_and_can_be_used_again(opened: Store, space: str) -> None:
    session, stale = ShoalSession(opened, "s", space=space), ShoalSession(opened, "s", space=space)
    await session.clear_session()
    await session.add_items([said("a secret"), said("b")])
    await stale.create_branch_from_turn(2, "other")
    await session.clear_session()
    assert await session.get_items() == []
    await stale.add_items([said("c")])
    assert stale.current_branch == "main"
    assert await session.get_items() == [said("c")]
    assert await session.create_branch_from_turn(1, "other") == "other", "its name is free"
    kept = [each async for each in opened.space(space).thread("s").history()]
    assert len(kept) <= 3, "the old checkpoints are pruned"


# ── turns ─────────────────────────────────────────────────────────────────────


@pytest.mark.answers("agent-sdk-keeps-half-a-turn")
async def test_a_turn_is_one_checkpoint_and_is_done_once(opened: Store, session: ShoalSession, space: str) -> None:
    for _ in range(2):
        async with session.turn("order-17") as turn:
            if not turn.done:
                await Runner.run(agent("hello"), "hi", session=turn)
                assert await session.get_items() == []
    assert len(await session.get_items()) == 2
    assert len([each async for each in opened.space(space).thread("s").history()]) == 1
    async with session.turn("order-17") as turn:
        assert turn.done
        with pytest.raises(InvalidInput, match=r"is done.*Nothing was written"):
            await turn.add_items([said("x")])
    with pytest.raises(InvalidInput, match="is not open"):
        await turn.get_items()


@pytest.mark.answers("agent-sdk-keeps-half-a-turn")
async def test_a_turn_that_fails_writes_nothing(session: ShoalSession) -> None:
    broken = Agent(name="clerk", model=ScriptedModel([ModelBehaviorError("no")]))
    with pytest.raises(ModelBehaviorError):
        async with session.turn("t") as turn:
            await Runner.run(broken, "hi", session=turn)
    assert await session.get_items() == []
    async with session.turn("t") as turn:
        assert not turn.done


async def test_a_turn_can_remove_items(session: ShoalSession) -> None:
    await session.add_items([said("a"), said("b"), said("c")])
    async with session.turn("t") as turn:
        await turn.add_items([said("d")])
        assert [await turn.pop_item() for _ in range(2)] == [said("d"), said("c")]
        await turn.add_items([said("e")])
        assert await turn.get_items(2) == [said("b"), said("e")]
    assert await contents(session) == ["a", "b", "e"]
    async with session.turn("u") as turn:
        await turn.clear_session()
        assert await turn.pop_item() is None
        await turn.add_items([said("f")])
    assert await contents(session) == ["f"]


async def test_a_turn_beside_another_writer_is_refused(session: ShoalSession) -> None:
    await session.add_items([said("a")])
    with pytest.raises(HeadMoved, match=r"changed by somebody else while the turn 't' ran\. Nothing of the turn was written"):
        async with session.turn("t") as turn:
            await turn.add_items([said("mine")])
            await session.add_items([said("theirs")])
    assert await contents(session) == ["a", "theirs"]


@pytest.mark.answers("two-processes-resume-one-run-that-waited")
async def test_of_two_that_resume_one_run_one_is_refused(opened: Store, space: str) -> None:
    session = ShoalSession(opened, "s", space=space)
    async with session.turn("1") as turn:
        result = await Runner.run(worker.agent_of(1, called=False), "turn 1", session=turn)
        assert result.interruptions
        turn.suspend(result.to_state())
    waiting = await session.get_items()

    async def resumed(key: str) -> None:
        async with ShoalSession(opened, "s", space=space).turn(key) as turn:
            resumer = worker.agent_of(1, called=True)
            state = await turn.suspended(resumer)
            assert state is not None
            await Runner.run(resumer, await worker.approved(state), session=turn)
            await both.wait()

    both = asyncio.Barrier(2)
    ended = await asyncio.gather(resumed("approved by ana"), resumed("approved by ben"), return_exceptions=True)
    assert [type(end) for end in ended if end is not None] == [HeadMoved]
    after = await session.get_items()
    assert after[: len(waiting)] == waiting
    assert [item.get("type") for item in after].count("function_call_output") == 1
    async with session.turn("later") as turn:
        assert await turn.suspended(worker.agent_of(1, called=True)) is None


async def test_a_newer_state_of_a_run_is_refused_by_the_sdk(opened: Store, space: str, session: ShoalSession) -> None:
    async with session.turn("1") as turn:
        result = await Runner.run(worker.agent_of(1, called=False), "turn 1", session=turn)
        turn.suspend(result.to_state())

    def newer(state: dict[str, Any]) -> None:
        state["run_state"]["$schemaVersion"] = "99.0"

    await opened.space(space).thread("s").modify(newer, metadata={"openai": 1})
    async with session.turn("2") as turn:
        with pytest.raises(UserError, match="schema version is not supported"):
            await turn.suspended(worker.agent_of(1, called=True))


async def test_a_suspended_run_survives_what_is_added_beside_it(session: ShoalSession) -> None:
    async with session.turn("1") as turn:
        result = await Runner.run(worker.agent_of(1, called=False), "turn 1", session=turn)
        turn.suspend(result.to_state())
    await session.add_items([said("more")])
    async with session.turn("2") as turn:
        assert isinstance(await turn.suspended(worker.agent_of(1, called=True)), RunState)
        turn.suspend(result.to_state())
    async with session.turn("3") as turn:
        assert await turn.suspended(worker.agent_of(1, called=True)) is not None


# ── where it runs ─────────────────────────────────────────────────────────────


@pytest.fixture
def loop_of_the_thread() -> Iterator[None]:
    """`Runner.run_sync` runs on the loop that is set for the thread, and leaves it open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.close()
    asyncio.set_event_loop(None)


def test_a_blocking_program(tmp_path: Path, loop_of_the_thread: None) -> None:
    other = asyncio.Runner()
    with ShoalSession.open(tmp_path / "state", "s") as session:
        Runner.run_sync(agent("hello"), "hi", session=session)
        assert other.run(contents(session))[0] == "hi"
        other.run(session.add_items([said("more")]))
    with ShoalSession.open(tmp_path / "state", "s") as session:
        assert len(other.run(session.get_items())) == 3
    with pytest.raises(StoreClosed):
        other.run(session.get_items())
    other.close()


async def test_a_cancelled_write_is_finished_before_the_cancellation_is_raised(session: ShoalSession) -> None:
    adding = asyncio.create_task(session.add_items([said("a")]))
    await asyncio.sleep(0)
    adding.cancel()
    await asyncio.sleep(0)
    adding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adding
    assert await session.get_items() == [said("a")]


async def test_a_node_that_is_gone_in_the_middle(tmp_path: Path) -> None:
    quick = Config(request_timeout_s=0.2, failover_timeout_s=0.1)
    with served(tmp_path / "state") as (process, url):
        async with ShoalSession.connect(url, "s", config=quick) as session:
            await session.add_items([said("a")])
            with pytest.raises(Disconnected):
                async with session.turn("t") as turn:
                    await turn.add_items([said("b")])
                    await asyncio.to_thread(process.kill)
                    await asyncio.to_thread(process.wait)
    async with ShoalSession.open(tmp_path / "state", "s") as session:
        assert await contents(session) == ["a"]


async def test_items_that_two_nodes_took_while_they_were_apart_are_both_kept(opened: Store, space: str) -> None:
    session = ShoalSession(opened, "s", space=space)
    await session.add_items([said("a")])
    thread = opened.space(space).thread("s")
    base = await thread.load()
    for text in ("left", "right"):
        state = {"items": [said("a"), said(text)], "times": [*base.state["times"], None]}
        await thread.save(state, parent=base.id, on_conflict="fork", metadata={"openai": 1})
    assert sorted(await contents(session)) == ["a", "left", "right"]
    assert len((await thread.heads())["main"]) == 1


@pytest.mark.parametrize("given", ["./x", Path("x"), "http://n1:7400", None])
def test_anything_but_an_open_store_is_refused_with_advice(given: Any) -> None:
    with pytest.raises(InvalidInput, match="needs an open store"):
        ShoalSession(given, "s")


async def test_a_session_on_a_store_beside_others(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state") as store:
        first, second = ShoalSession(store, "1"), ShoalSession(store, "2")
        await first.add_items([said("a")])
        assert await second.get_items() == []
        assert [name async for name in store.space("openai").threads()] == ["1"]


async def test_removals_against_additions_are_for_a_person(opened: Store, space: str) -> None:
    session = ShoalSession(opened, "s", space=space)
    await session.add_items([said("a"), said("b")])
    thread = opened.space(space).thread("s")
    base = await thread.load()
    for items in ([said("a")], [said("c")]):
        state = {"items": items, "times": base.state["times"][:1], "usage": {f"{items[0]['content']}": {}}}
        await thread.save(state, parent=base.id, on_conflict="fork", metadata={"openai": 1})
    with pytest.raises(MergeConflict, match="Nothing was written"):
        await session.get_items()
    assert len((await thread.heads())["main"]) == 2
