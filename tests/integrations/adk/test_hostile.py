"""Another agent has overwritten what a reader reads: no hostile value makes the ADK's classes run code."""

from __future__ import annotations

from google.genai import types

from shoal.client.store import Store
from shoal.integrations.adk import ShoalArtifactService, ShoalMemoryService, ShoalSessionService
from tests.integrations.adk.events import WHO, read, said, setting
from tests.support.hostile import lying, read_hostile


async def test_hostile_events_run_nothing(opened: Store, space: str) -> None:
    liar = lying(opened)
    service = ShoalSessionService(opened, space=space)
    session = await service.create_session(**WHO, state={"a": 1, "user:b": 2}, session_id="s")
    for event in (said("hi"), setting(c=[1, {"d": 2}]), said("bye", "clerk")):
        await service.append_event(session, event)
    await read_hostile(liar, lambda: read(service, session))


async def test_hostile_memories_run_nothing(opened: Store, space: str) -> None:
    liar = lying(opened)
    service = ShoalMemoryService(opened, space=space)
    session = await ShoalSessionService(opened, space=space).create_session(**WHO, session_id="s")
    session.events.append(said("tea with ana"))
    await service.add_session_to_memory(session)
    await read_hostile(liar, lambda: service.search_memory(**WHO, query="tea"))


async def test_hostile_artifacts_run_nothing(opened: Store, space: str) -> None:
    liar = lying(opened)
    service = ShoalArtifactService(opened, space=space)
    place = {**WHO, "session_id": "s", "filename": "a.txt"}
    await service.save_artifact(**place, artifact=types.Part(text="hello"))
    await read_hostile(liar, lambda: service.load_artifact(**place))
