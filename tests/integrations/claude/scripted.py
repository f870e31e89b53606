"""Claude Code, as far as the SDK's transport sees it: it writes a transcript of turns that are known beforehand.

The SDK is the real one: its reader, its batcher and its retries.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from claude_agent_sdk import Transport

SESSION = "00000000-0000-4000-8000-000000000001"
ENTRIES = 4  # In a turn.


def turn_entries(turn: int) -> list[dict[str, Any]]:
    """A turn: a message, a call of a tool, its result, and an answer."""
    kinds = ("user", "assistant", "user", "assistant")
    return [
        {
            "type": kind,
            "uuid": f"{turn:08}-0000-4000-8000-{nth:012}",
            "message": {"role": kind, "content": f"turn {turn}.{nth}"},
        }
        for nth, kind in enumerate(kinds)
    ]


class ScriptedTransport(Transport):
    """Answers each message of the user with the transcript of a turn."""

    def __init__(self, projects: Path, project: str, first_turn: int, frames: int = 2) -> None:
        self._file = str(projects / project / f"{SESSION}.jsonl")
        self._turn = first_turn
        self._frames = frames
        self._out: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    async def connect(self) -> None:
        """There is nothing to start."""

    async def write(self, data: str) -> None:
        """What the SDK sends."""
        for line in data.splitlines():
            message = json.loads(line)
            if message["type"] == "control_request":
                answer = {"subtype": "success", "request_id": message["request_id"], "response": {}}
                self._out.put_nowait({"type": "control_response", "response": answer})
            elif message["type"] == "user":
                self._answer()

    def _answer(self) -> None:
        entries = turn_entries(self._turn)
        size = -(-len(entries) // self._frames)
        for start in range(0, len(entries), size):
            self._out.put_nowait(
                {"type": "transcript_mirror", "filePath": self._file, "entries": entries[start : start + size]}
            )
        self._out.put_nowait(
            {
                "type": "result",
                "subtype": "success",
                "duration_ms": 1,
                "duration_api_ms": 1,
                "is_error": False,
                "num_turns": 1,
                "session_id": SESSION,
            }
        )
        self._turn += 1

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        """What the SDK receives."""
        while (message := await self._out.get()) is not None:
            yield message

    async def close(self) -> None:
        """End the messages."""
        self._out.put_nowait(None)

    def is_ready(self) -> bool:
        """It always is."""
        return True

    async def end_input(self) -> None:
        """There is no input to end."""
