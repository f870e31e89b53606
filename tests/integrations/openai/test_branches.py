"""Branches of a conversation, and what was said and used on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from agents.usage import Usage

import shoal
from shoal.client.store import Store
from shoal.errors import InvalidName
from shoal.integrations.openai import ShoalSession
from simulation.bounds import altered


@pytest.fixture(autouse=True)
def bounds() -> Iterator[None]:
    with altered(branches_max=3):
        yield


def said(text: Any, role: str = "user") -> Any:
    return {"role": role, "content": text}


def call(name: str, kind: str = "function_call", **more: Any) -> Any:
    return {"type": kind, "name": name, "call_id": "c", "arguments": "{}", **more}


FIRST = [said("Hello"), said("hi", "assistant"), said("what is 1 + 1?"), call("add"), call("add"), said("2", "assistant")]


async def test_a_branch_begins_before_a_turn_and_goes_its_own_way(session: ShoalSession) -> None:
    await session.add_items(FIRST)
    assert await session.create_branch_from_content("1 + 1", "other") == "other"
    assert session.current_branch == "other"
    assert await session.get_items() == FIRST[:2]
    await session.add_items([said("what is 2 + 2?")])
    assert await session.get_items(branch_id="main") == FIRST
    assert await session.get_items(1) == [said("what is 2 + 2?")]
    await session.switch_to_branch("main")
    assert await session.get_items() == FIRST
    listed = await session.list_branches()
    assert [(each["branch_id"], each["message_count"], each["user_turns"], each["is_current"]) for each in listed] == [
        ("main", 6, 2, True),
        ("other", 3, 2, False),
    ]


async def test_branches_are_there_for_others_and_a_deleted_one_leaves_them_on_main(opened: Store, space: str) -> None:
    session, other = ShoalSession(opened, "s", space=space), ShoalSession(opened, "s", space=space)
    await session.add_items(FIRST)
    await session.create_branch_from_turn(2, "b")
    await other.switch_to_branch("b")
    with pytest.raises(ValueError, match="Cannot delete current branch"):
        await session.delete_branch("b")
    await session.delete_branch("b", force=True)
    assert session.current_branch == "main"
    await other.add_items([said("late")])
    assert (other.current_branch, await session.get_items()) == ("main", [*FIRST, said("late")])
    for again in (session.switch_to_branch("b"), session.delete_branch("b")):
        with pytest.raises(ValueError, match="'b' does not exist"):
            await again
    assert await session.create_branch_from_turn(2, "b") == "b", "its name is free"
    with pytest.raises(ValueError, match="already been used"):
        await session.create_branch_from_turn(1, "b")


@pytest.mark.parametrize("id", [17, UUID(int=5)])
async def test_ints_and_uuids_are_ids(opened: Store, space: str, id: Any) -> None:
    session, same = ShoalSession(opened, id, space=space), ShoalSession(opened, str(id), space=space)
    await session.add_items(FIRST)
    assert await session.create_branch_from_turn(2, id) == str(id)
    await same.switch_to_branch(id)
    assert await same.get_items() == await session.get_items() == FIRST[:2]
    await session.delete_branch(id, force=True)
    assert [each["branch_id"] for each in await same.list_branches()] == ["main"]
    with pytest.raises(InvalidName, match="must be text, an int or a UUID"):
        ShoalSession(opened, cast(Any, None), space=space)


async def test_branches_that_come_and_go_reach_no_bound(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state") as store:
        session = ShoalSession(store, "s")
        await session.add_items(FIRST)
        for n in range(20):
            await session.create_branch_from_turn(2, f"b{n}")
            await session.delete_branch(f"b{n}", force=True)
        for n in range(10):
            await session.create_branch_from_turn(2, f"c{n}")
            await session.clear_session()
            await session.add_items(FIRST)
        assert list(await store.space("openai").thread("s").heads()) == ["main"]


async def test_branches_that_an_earlier_version_deleted_stay_so(opened: Store, space: str) -> None:
    session = ShoalSession(opened, "s", space=space)
    await session.add_items(FIRST)
    empty: dict[str, Any] = {"items": [], "times": []}
    await opened.space(space).thread("s").save(empty, branch="old", metadata={"openai": 1, "deleted": True})
    with pytest.raises(ValueError, match="does not exist"):
        await session.switch_to_branch("old")
    assert [each["branch_id"] for each in await session.list_branches()] == ["main"]
    await session.clear_session()
    assert list(await opened.space(space).thread("s").heads()) == ["main"]


@pytest.mark.parametrize("name", ["", "  "])
async def test_malformed_branches_are_refused(session: ShoalSession, name: str) -> None:
    await session.add_items(FIRST)
    with pytest.raises(ValueError, match="cannot be empty"):
        await session.create_branch_from_turn(1, name)
    with pytest.raises(ValueError, match="cannot be empty"):
        await session.delete_branch(name)
    with pytest.raises(ValueError, match="Turn 3 does not contain"):
        await session.create_branch_from_turn(3)
    with pytest.raises(ValueError, match="No user turns found"):
        await session.create_branch_from_content("nothing of it")
    with pytest.raises(ValueError, match="Cannot delete the 'main' branch"):
        await session.delete_branch("main")
    assert [each["branch_id"] for each in await session.list_branches()] == ["main"]


async def test_turns_are_found_and_described(session: ShoalSession) -> None:
    await session.add_items([said("before", "assistant"), *FIRST, said([{"type": "input_text", "text": "x" * 200}])])
    turns = await session.get_conversation_turns()
    assert [(turn["turn"], turn["full_content"], turn["can_branch"]) for turn in turns[:2]] == [
        (1, "Hello", True),
        (2, "what is 1 + 1?", True),
    ]
    assert turns[2]["content"].endswith("...")
    assert all(turn["timestamp"] for turn in turns)
    assert [turn["turn"] for turn in await session.find_turns_by_content("HELLO")] == [1]
    assert [turn["turn"] for turn in await session.find_turns_by_content("xxx")] == [3]
    assert list(await session.get_conversation_by_turns()) == [0, 1, 2, 3]
    assert (await session.get_conversation_by_turns())[2][1] == {"type": "function_call", "tool_name": "add"}


async def test_tools_are_counted_by_turn(session: ShoalSession) -> None:
    await session.add_items(
        [
            *FIRST,
            call("sum", "mcp_call", server_label="maths"),
            {"type": "shell_call"},
            {"type": "tool_search_output"},
            call("x", namespace="n"),
            said("more"),
            call("add"),
        ]
    )
    assert await session.get_tool_usage() == [
        ("add", 2, 2),
        ("maths.sum", 1, 2),
        ("n.x", 1, 2),
        ("shell_call", 1, 2),
        ("tool_search", 1, 2),
        ("add", 1, 3),
    ]


async def test_the_tokens_of_a_run_are_stored_with_its_turn(session: ShoalSession) -> None:
    def ran(tokens: int) -> Any:
        return SimpleNamespace(
            context_wrapper=SimpleNamespace(usage=Usage(requests=1, input_tokens=tokens, total_tokens=tokens))
        )

    await session.store_run_usage(ran(9))
    assert await session.get_session_usage() is None
    await session.add_items(FIRST[:2])
    await session.store_run_usage(ran(1))
    await session.add_items(FIRST[2:])
    await session.store_run_usage(ran(2))
    await session.create_branch_from_turn(2, "b")
    turns: Any = await session.get_turn_usage()
    assert [turn["user_turn_number"] for turn in turns] == [1]
    await session.switch_to_branch("main")
    assert await session.get_turn_usage(2) != {}
    assert await session.get_turn_usage(5) == {}
    total = await session.get_session_usage("main")
    assert total is not None
    assert (total["requests"], total["input_tokens"], total["total_turns"]) == (2, 3, 2)
    for _ in FIRST[2:]:
        await session.pop_item()
    assert await session.get_turn_usage(2) == {}


async def test_compaction_replaces_the_end_only_if_nothing_changed(session: ShoalSession) -> None:
    await session.add_items([said(f"{n}") for n in range(6)])
    snapshot = await session._get_compaction_snapshot(4, prune_prefix=lambda item: item == said("0"))
    assert snapshot is not None
    assert (snapshot.items, snapshot.complete) == ([said(f"{n}") for n in range(2, 6)], False)
    assert await snapshot.replace_suffix(1, [said("short")])
    assert await session.get_items() == [said("1"), said("2"), said("short")]
    stale = await session._get_compaction_snapshot(9)
    assert stale is not None
    assert stale.complete
    await session.add_items([said("new")])
    assert not await stale.replace_suffix(0, [said("lost")])
    assert not await stale.replace_suffix(9, [])
    assert len(await session.get_items()) == 4
