"""A program that is killed: it drives a scripted session to its last turn, through the SDK, from what the store has."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Literal, cast

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, ResultMessage

from shoal.integrations.claude import ShoalSessionStore
from tests.integrations.claude.scripted import ENTRIES, SESSION, ScriptedTransport

PROJECT = "trial"


async def main(urls: str, flush: str, turns: int) -> None:
    projects = Path("/nowhere/projects")
    async with ShoalSessionStore.connect(urls, durability="quorum", wait=30) as store:
        entries = await store.load({"project_key": PROJECT, "session_id": SESSION}) or []
        first = len(entries) // ENTRIES  # A turn of which only a part is stored is written again: no entry may come twice.
        options = ClaudeAgentOptions(
            session_store=store,
            session_store_flush=cast("Literal['batched', 'eager']", flush),
            env={"CLAUDE_CONFIG_DIR": str(projects.parent)},
        )
        client = ClaudeSDKClient(options, transport=ScriptedTransport(projects, PROJECT, first))
        await client.connect()
        print("began", first, flush=True)  # noqa: T201
        for turn in range(first, turns):
            await client.query("go on")
            async for message in client.receive_response():
                if isinstance(message, ResultMessage):
                    print("acknowledged", turn, flush=True)  # noqa: T201
        await client.disconnect()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
