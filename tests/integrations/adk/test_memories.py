"""Memories: found by words, there once, and gone when they are deleted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from google.adk.memory.in_memory_memory_service import InMemoryMemoryService
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions.session import Session
from google.genai import types

from shoal.client.store import Store
from shoal.config import Config
from shoal.errors import InvalidName, InvalidValue, SchemaTooNew
from shoal.integrations.adk import ShoalMemoryService, ShoalServices
from tests.integrations.adk.events import WHO, said, setting

TEXTS = ["Where is my order?", "Your order ships on Monday", "私はPythonを使う", "Tee für größere Kannen", "python, snakes"]


def session_of(*texts: str, id: str = "s") -> Session:
    return Session(id=id, **WHO, events=[*(said(text, id=f"e{nth}") for nth, text in enumerate(texts)), setting(a=1)])


async def found(service: Any, query: str, **who: str) -> list[str]:
    answer = await service.search_memory(**(WHO | who), query=query)
    return [memory.content.parts[0].text for memory in answer.memories]


@pytest.mark.parametrize("query", ["order", "my ORDER?", "python", "Größere", "使う", "yth", "the", "", "?!", "für Monday"])
async def test_words_find_what_they_find_in_the_frameworks_own(memories: ShoalMemoryService, query: str) -> None:
    theirs = InMemoryMemoryService()
    for service in (memories, theirs):
        await service.add_session_to_memory(session_of(*TEXTS))
    assert await found(memories, query) == await found(theirs, query)
    assert await found(memories, query, user_id="ben") == []


async def test_a_memory_is_there_once(memories: ShoalMemoryService) -> None:
    for upto in (1, 3, 5, 5):
        await memories.add_session_to_memory(session_of(*TEXTS[:upto]))
    await asyncio.gather(*(memories.add_session_to_memory(session_of(*TEXTS)) for _ in range(4)))
    assert await found(memories, "order") == TEXTS[:2]
    answer = await memories.search_memory(**WHO, query="order")
    assert [memory.id for memory in answer.memories] == ["e0", "e1"]
    assert answer.memories[0].author == "user"


async def test_events_without_an_id_are_memories_each(memories: ShoalMemoryService) -> None:
    session = session_of(*TEXTS[:2])
    for event in session.events:
        event.id = ""
    for _ in range(2):
        await memories.add_session_to_memory(session)
    assert sorted(await found(memories, "order")) == sorted(TEXTS[:2])


async def test_an_int_is_the_id_of_a_user(memories: ShoalMemoryService) -> None:
    entry = MemoryEntry(id="m", content=said("an order").content)
    user: Any = 17
    await memories.add_memory(app_name="desk", user_id=user, memories=[entry])
    assert await found(memories, "order", user_id=user) == await found(memories, "order", user_id="17") == ["an order"]
    await memories.delete_memory(app_name="desk", user_id=user, memory_id="m")
    assert await found(memories, "order", user_id="17") == []


async def test_a_deleted_memory_does_not_come_back(memories: ShoalMemoryService) -> None:
    await memories.add_session_to_memory(session_of(*TEXTS))
    await memories.delete_memory(**WHO, memory_id="e0")
    await memories.delete_memory(**WHO, memory_id="unknown")
    await memories.delete_memory(**WHO)
    await memories.add_session_to_memory(session_of(*TEXTS))
    assert await found(memories, "order") == TEXTS[1:2]


async def test_memories_that_an_agent_writes(memories: ShoalMemoryService) -> None:
    entry = MemoryEntry(content=types.Content(parts=[types.Part(text="likes tea")]), custom_metadata={"a": 1})
    await memories.add_memory(**WHO, memories=[entry, entry], custom_metadata={"b": [2]})
    answer = await memories.search_memory(**WHO, query="tea")
    assert [memory.custom_metadata for memory in answer.memories] == [{"a": 1, "b": [2]}] * 2
    assert len({memory.id for memory in answer.memories}) == 2


async def test_a_search_has_a_bound(opened: Store, space: str) -> None:
    memories = ShoalMemoryService(opened, space=space, results_max=3)
    await memories.add_session_to_memory(session_of(*["tea"] * 5, "tea and milk"))
    assert await found(memories, "tea milk") == ["tea and milk", "tea", "tea"]


async def test_more_memories_than_one_batch(tmp_path: Path) -> None:
    async with ShoalServices.open(tmp_path / "state", config=Config(batch_writes_max=4)) as services:
        await services.memories.add_session_to_memory(session_of(*(f"tea {nth}" for nth in range(10))))
        assert len(await found(services.memories, "tea")) == 10


async def test_bad_input_writes_nothing(memories: ShoalMemoryService) -> None:
    entry = MemoryEntry(content=types.Content(parts=[types.Part(text="tea")]))
    with pytest.raises(InvalidValue, match="Nothing was written"):
        await memories.add_memory(**WHO, memories=[entry, entry], custom_metadata={"a": object()})
    with pytest.raises(InvalidName, match="at most 1024 bytes"):
        await memories.add_session_to_memory(session_of(*TEXTS, id="s" * 2048))
    assert await found(memories, "tea order") == []


async def test_a_newer_form_is_refused(opened: Store, space: str) -> None:
    await opened.space(space).items.put(("{desk}", "memories", "ana", "s"), "e0", {"adk": 2})
    with pytest.raises(SchemaTooNew):
        await ShoalMemoryService(opened, space=space).search_memory(**WHO, query="tea")
