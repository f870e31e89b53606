"""Rules of redaction and LangGraph's saver: nothing that a graph saves, in whatever way, is stored with a secret."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint

import shoal
from shoal.config import Config
from shoal.integrations.langgraph import ShoalSaver
from shoal.storage.rocks import RocksStorage

SECRET = "sk-ant-" + "Zq7" * 12
CORE = b"Zq7Zq7Zq7"
STAR = "[credentials]"
THREAD: RunnableConfig = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
METADATA: Any = {"source": "input", "step": 1, "why": SECRET}
MESSAGES = [
    HumanMessage(f"my key is {SECRET}", id="1", additional_kwargs={"more": SECRET}),
    AIMessage(
        [{"type": "text", "text": f"used {SECRET}"}],
        id="2",
        tool_calls=[{"name": "pay", "args": {"key": SECRET}, "id": "c1"}],
    ),
    ToolMessage(SECRET, tool_call_id="c1", id="3", artifact={"raw": SECRET.encode()}),
]


async def ruled(directory: Path) -> None:
    """Set the rules of the saver's space, as a program of an administrator would."""
    async with shoal.open(directory) as store:
        await store.space("langgraph").redaction.set(credentials=True)


def is_clean(directory: Path) -> bool:
    storage = RocksStorage.open(directory, config=Config(), now_ms=0)
    try:
        return not any(CORE in key + value for key, value in storage.scan(b"", None))
    finally:
        storage.close()


def checkpoint(values: dict[str, Any]) -> Any:
    return {**empty_checkpoint(), "channel_values": values, "channel_versions": dict.fromkeys(values, "1")}


def check_messages(messages: list[Any]) -> None:
    human, ai, tool = messages
    assert [type(each) for each in messages] == [HumanMessage, AIMessage, ToolMessage]
    assert (human.content, human.additional_kwargs) == (f"my key is {STAR}", {"more": STAR})
    assert ai.content == [{"type": "text", "text": f"used {STAR}"}]
    assert ai.tool_calls[0]["args"] == {"key": STAR}
    assert (tool.content, tool.artifact) == (STAR, {"raw": STAR.encode()})


async def test_the_saves_of_an_async_graph_are_replaced(tmp_path: Path) -> None:
    await ruled(tmp_path)
    async with ShoalSaver.open(tmp_path) as saver:
        given = checkpoint({"messages": MESSAGES, "other": {"key": [SECRET]}})
        with shoal.redactions() as found:
            at = await saver.aput(THREAD, given, METADATA, given["channel_versions"])
            await saver.aput_writes(at, [("messages", MESSAGES), ("other", SECRET)], "task", "path")
        assert {each.rule for each in found} == {"credentials"}
        told = await saver.aget_tuple(at)
        assert told is not None
        check_messages(told.checkpoint["channel_values"]["messages"])
        assert told.checkpoint["channel_values"]["other"] == {"key": [STAR]}
        assert dict(told.metadata)["why"] == STAR
        assert told.pending_writes is not None
        (_, _, messages), (_, _, other) = told.pending_writes
        check_messages(messages)
        assert other == STAR
    assert is_clean(tmp_path)


async def test_the_saves_of_a_blocking_graph_are_replaced(tmp_path: Path) -> None:
    await ruled(tmp_path)

    def work() -> None:
        with ShoalSaver.open(tmp_path) as saver:
            given = checkpoint({"messages": MESSAGES})
            at = saver.put(THREAD, given, METADATA, given["channel_versions"])
            saver.put_writes(at, [("messages", MESSAGES)], "task")
            told = saver.get_tuple(at)
            assert told is not None
            check_messages(told.checkpoint["channel_values"]["messages"])

    await asyncio.to_thread(work)
    assert is_clean(tmp_path)


async def test_a_list_that_grows_is_replaced_at_its_end(tmp_path: Path) -> None:
    await ruled(tmp_path)
    async with ShoalSaver.open(tmp_path) as saver:
        at = THREAD
        for count in (1, 2, 3):
            given = checkpoint({"messages": MESSAGES[:count]})
            given["channel_versions"] = {"messages": str(count)}
            at = await saver.aput(at, given, {}, given["channel_versions"])
        told = await saver.aget_tuple(at)
        assert told is not None
        check_messages(told.checkpoint["channel_values"]["messages"])
    assert is_clean(tmp_path)


async def test_a_thread_whose_name_is_a_secret_is_refused(tmp_path: Path) -> None:
    await ruled(tmp_path)
    async with ShoalSaver.open(tmp_path) as saver:
        given = checkpoint({"a": 1})
        with pytest.raises(shoal.errors.RedactionRefused):
            await saver.aput({"configurable": {"thread_id": f"t {SECRET}", "checkpoint_ns": ""}}, given, {}, {"a": "1"})
    assert is_clean(tmp_path)
