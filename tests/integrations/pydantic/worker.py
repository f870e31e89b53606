"""A program that is killed: it drives a conversation to its last turn, each turn as a durable run.

What is outside of it is a file, to which it appends a line for each effect.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationStore
from pydantic_ai.messages import ModelRequest, UserPromptPart
from pydantic_ai.usage import UsageLimits

import shoal
from shoal.integrations.pydantic import ShoalConversationStore, durable
from tests.integrations.pydantic import scripted

CONVERSATION = "trial"


class Outside:
    """Effects in a file."""

    def __init__(self, file: Path, turn: int) -> None:
        self._file = file
        self._turn = turn

    async def do(self, what: str) -> None:
        """Add an effect."""
        with self._file.open("ab", buffering=0) as file:
            file.write(f"{self._turn} {what}\n".encode())
        print("did", self._turn, flush=True)  # noqa: T201

    async def ask(self, nth: int) -> None:
        """A request to the model."""
        await self.do(f"ask {nth}")

    async def happened(self, what: str) -> bool:
        """Whether an effect is there."""
        return self._file.exists() and f"{self._turn} {what}" in self._file.read_text().splitlines()


def turns_in(conversation: Conversation) -> int:
    """How many messages the user has written."""
    asked = [message for message in conversation.messages if isinstance(message, ModelRequest)]
    return sum(isinstance(part, UserPromptPart) for message in asked for part in message.parts)


async def conversation_of(store: ConversationStore) -> Conversation:
    """The conversation, which is empty at first."""
    return await store.load(CONVERSATION) or Conversation(conversation_id=CONVERSATION)


async def turn_on(store: ConversationStore, outside: Outside) -> None:
    """One turn."""
    agent = scripted.agent_of(outside.ask, outside.do, outside.do)
    unlimited = UsageLimits(request_limit=None)
    result = await agent.run(scripted.PROMPT, conversation=await conversation_of(store), usage_limits=unlimited)
    await store.save(result)


async def main(urls: str, file: str, turns: int) -> None:
    async with shoal.connect(urls, durability="quorum", wait=30) as opened:
        store = ShoalConversationStore(opened, space="crew")
        thread = opened.space("crew").thread("clerk")
        first = turns_in(await conversation_of(store))
        print("began", first, flush=True)  # noqa: T201
        for turn in range(first, turns):
            outside = Outside(Path(file), turn)
            await scripted.settle(thread, outside.happened)
            with durable(thread, key=f"turn-{turn}"):
                await turn_on(store, outside)
            print("acknowledged", turn, flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
