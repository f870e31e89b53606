"""A conversation that two nodes have saved while they were cut off from each other."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from shoal.integrations.pydantic import ShoalConversationStore
from tests.integrations.cutting import both, pair, until


def run_of(name: str) -> list[list[ModelMessage]]:
    """What two saves add: a question and the call of a tool, then its result and an answer."""
    return [
        [ModelRequest([UserPromptPart(f"{name} asks")]), ModelResponse([ToolCallPart("look", {}, tool_call_id=name)])],
        [ModelRequest([ToolReturnPart("look", name, tool_call_id=name)]), ModelResponse([TextPart(f"{name} answers")])],
    ]


def told(messages: list[ModelMessage]) -> list[str]:
    parts: list[Any] = [message.parts[0] for message in messages]
    return [f"call {part.tool_call_id}" if isinstance(part, ToolCallPart) else str(part.content) for part in parts]


def line_of(name: str) -> list[str]:
    return ["hello", f"{name} asks", f"call {name}", name, f"{name} answers"]


@pytest.mark.answers("two-nodes-that-are-cut-off-from-each-other")
async def test_one_of_two_lines_counts_and_the_other_is_kept_whole_and_named(tmp_path: Path) -> None:
    async with pair(tmp_path) as nodes:
        stores = ShoalConversationStore(nodes.one), ShoalConversationStore(nodes.other)
        one, other = stores
        await one.save(Conversation(conversation_id="c", messages=[ModelRequest([UserPromptPart("hello")])]))
        await until(partial(other.load, "c"), lambda found: found is not None)
        loaded: list[Any] = [await store.load("c") for store in stores]

        await nodes.cut()
        for additions in zip(*map(run_of, ("one", "other")), strict=True):
            for store, conversation, added in zip(stores, loaded, additions, strict=True):
                conversation.messages.extend(added)
                await store.save(conversation)
        await nodes.heal()

        records = await both(
            [partial(store.read_record, "c") for store in stores],
            lambda record: record is not None and len(record.branches) == 1,
        )
        assert records[0] == records[1]
        assert records[0] is not None
        [tip] = records[0].branches
        for store in stores:
            shown = await store.load("c")
            assert shown is not None
            kept = told([entry.message for entry in await store.read_history(tip)])
            assert sorted([told(shown.messages), kept]) == [line_of("one"), line_of("other")]
        # The writer of the line that counts goes on with it; the other one is refused, and what it said stays.
        counts = told((await loaded_at(one)).messages)
        for store, conversation in zip(stores, loaded, strict=True):
            is_lost = told(conversation.messages) != counts
            conversation.messages.append(ModelRequest([UserPromptPart("and now?")]))
            if is_lost:
                with pytest.raises(ConversationConflict):
                    await store.save(conversation)
            else:
                await store.save(conversation)
                await both(
                    [partial(each.load, "c") for each in stores],
                    lambda found: found is not None and told(found.messages) == [*counts, "and now?"],
                )
        for store in stores:
            record = await store.read_record("c")
            assert record is not None
            assert record.branches == [tip]
            assert told([entry.message for entry in await store.read_history(tip)])[0] == "hello"


async def loaded_at(store: ShoalConversationStore) -> Conversation:
    found = await store.load("c")
    assert found is not None
    return found
