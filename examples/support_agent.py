"""A support agent that is killed everywhere and looks the bill up once; a reviewer who tries another path; and who did what.

    python examples/support_agent.py

The agent looks up a bill (which costs money, and must not be done twice), searches a
knowledge base that times out, and drafts an answer. Each is a step of its thread's
ledger: a step that is done returns its result and does not call. What was begun and has
no end may have happened: the agent asks the billing system, and says what it found.

A reviewer branches from the checkpoint before the draft, and tries another path. The
audit lists what was known at each step.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any

import shoal
from shoal import AuditEntry, Store, Thread
from shoal.errors import StepFailed
from shoal.testing import Report, crash_everywhere

Call = Callable[..., Awaitable[Any]]
TICKET = "ticket-7"


async def agent(store: Store, look_up: Call, was_looked_up: Call, search: Call) -> None:
    thread = store.space("support").thread(TICKET, author="agent")
    found = await thread.resume()
    for step in found.open:
        # Nobody else knows the outcome: the process that started the step is gone.
        happened = step.name == "billing" and await was_looked_up(step.key)
        if happened:
            await thread.resolve(step, "result", value={"due": 120}, by="agent", reason="asked the billing system")
        else:
            await thread.resolve(step, "retry", by="agent", reason="it has not happened")

    if found.at is None:
        bill = await thread.step("billing", key="call-42", call=lambda: look_up("call-42"))
        await thread.save({"bill": bill}, metadata={"at": "billed"}, key="billed")
    if found.at in (None, "billed"):
        articles = await searched(thread, search)
        state = {**(await thread.load()).state, "articles": articles}
        draft = f"You owe {state['bill']['due']}. " + ("; ".join(articles) or "We will look into it.")
        await thread.save({**state, "draft": draft}, metadata={"at": "drafted"}, key="drafted")
    await thread.request_approval("please read the draft", by="agent")


async def searched(thread: Thread, search: Call) -> list[str]:
    """Searching changes nothing, and may be repeated; twice is enough."""
    while True:
        try:
            return list(await thread.step("search", attempts=2, idempotent=True, call=lambda: search("refund")))
        except TimeoutError:
            continue
        except StepFailed:
            return []  # Continue without it.


async def review(store: Store) -> str:
    """Another draft, from what was known before the first one. Nothing of the agent's is lost."""
    thread = store.space("support").thread(TICKET, author="reviewer")
    [billed] = [checkpoint.id async for checkpoint in thread.history() if checkpoint.metadata["at"] == "billed"]
    await thread.branch("reviewed", at=billed)
    state = (await thread.load(branch="reviewed")).state
    draft = f"You owe {state['bill']['due']}; take ten days."
    await thread.save({**state, "draft": draft}, branch="reviewed", metadata={"at": "drafted"})
    await thread.approve(by="reviewer", reason="took the other path")
    return draft


def world() -> dict[str, Call]:
    """The tools, and what they change; the agent's crashes do not touch it."""
    billed: list[str] = []

    async def look_up(call: str) -> dict[str, int]:
        billed.append(call)
        return {"due": 120}

    async def was_looked_up(call: str) -> bool:
        return call in billed

    async def search(_words: str) -> list[str]:
        raise TimeoutError("the knowledge base did not answer")

    return {"look_up": look_up, "was_looked_up": was_looked_up, "search": search}


def check() -> Report:
    """Kill the agent at every point. The journal tells how often it was asked and resolved, which may differ."""
    return crash_everywhere(
        agent,
        tools=world,
        reads=["was_looked_up", "search"],
        normalise=lambda name, content: [] if name.startswith("journal") else content,
    )


async def reviewed() -> tuple[str, list[AuditEntry]]:
    with tempfile.TemporaryDirectory() as directory:
        async with shoal.open(directory) as store:
            await agent(store, **world())
            draft = await review(store)
            return draft, await store.space("support").thread(TICKET).audit()


def main() -> None:
    print(check())  # noqa: T201
    draft, entries = asyncio.run(reviewed())
    print(f"\nThe reviewer's draft: {draft}\n")  # noqa: T201
    for entry in entries:
        print(f"{entry.kind:<10}  {entry.text:<16}  knowing {entry.known[:8] or 'nothing':<8}  {entry.by}")  # noqa: T201


if __name__ == "__main__":
    main()
