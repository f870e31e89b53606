"""Another agent has overwritten what a reader reads: no hostile value makes a transcript's reader run code."""

from __future__ import annotations

from typing import Any

from shoal.client.store import Store
from shoal.integrations.claude import ShoalSessionStore
from tests.support.hostile import lying, read_hostile

KEY: Any = {"project_key": "p", "session_id": "s"}


async def test_hostile_transcripts_run_nothing(opened: Store, space: str) -> None:
    liar = lying(opened)
    entries: list[Any] = [{"type": "user", "uuid": f"u{nth}", "message": {"content": ["hi", {"n": nth}]}} for nth in range(3)]
    await ShoalSessionStore(opened, space=space).append(KEY, entries)

    async def read() -> None:
        sessions = ShoalSessionStore(opened, space=space)
        assert await sessions.load(KEY)
        await sessions.list_session_summaries("p")

    await read_hostile(liar, read)
