"""A conversation of durable runs that is killed 50 times in the middle of a run, and goes on at another node each time:
no message is lost, doubled or out of order, and no model is asked and no tool called twice.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import InMemoryConversationStore

from shoal.integrations.pydantic import ShoalConversationStore
from tests.integrations.crashes import cluster, killed_again_and_again
from tests.integrations.pydantic import worker

KILLS = 50
TURNS = 25


def said(conversation: Conversation) -> list[Any]:
    """What was said, without the times."""
    return [
        [
            (part.part_kind, getattr(part, "content", None), getattr(part, "args", None), getattr(part, "tool_call_id", None))
            for part in message.parts
        ]
        for message in conversation.messages
    ]


@pytest.mark.answers("killed-run-asks-a-model-twice")
async def test_a_killed_conversation_goes_on_at_another_node(tmp_path: Path, record_property: Any) -> None:
    calm, effects = InMemoryConversationStore(), tmp_path / "calm"
    for turn in range(TURNS):
        await worker.turn_on(calm, worker.Outside(effects, turn))
    killed = tmp_path / "killed"
    async with cluster(tmp_path) as urls:
        acknowledged = await killed_again_and_again(worker.__name__, urls, str(killed), str(TURNS), kills=KILLS, seed=3)
        for url in urls:  # Each has it, and has the same.
            async with ShoalConversationStore.connect(url, space="crew", durability="quorum") as store:
                conversation = await worker.conversation_of(store)
                assert said(conversation) == said(await worker.conversation_of(calm))
                record = await store.read_record(worker.CONVERSATION)
                assert record is not None
                assert record.branches == []
    assert Counter(killed.read_text().splitlines()) == Counter(effects.read_text().splitlines())
    assert acknowledged == sorted(set(acknowledged)), "a turn that was acknowledged ran again"
    record_property("kills", KILLS)
