"""The desk: where its parties meet, and the shop that they work for.

All parties share one space of Shoal, and nothing else:

    thread ticket-N       what is known of a ticket: everybody reads and writes it
    thread triage-N       the LangGraph graph that triages it
    thread answer-N       the session of the OpenAI agent that answers it
    worklist tickets      tickets to triage, each claimed by one worker
    worklist answers      tickets to answer, each claimed by one worker
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NoReturn, TypedDict

import shoal
from shoal.errors import LeaseLost

SPACE = "desk"
TICKETS = {
    "ticket-1": {"customer": "Ada", "order": 17, "text": "My lamp arrived broken. I want my money back."},
    "ticket-2": {"customer": "Ben", "order": 18, "text": "Where is my order?"},
    "ticket-3": {"customer": "Cem", "order": 19, "text": "The tea is stale. I want my money back."},
    "ticket-4": {"customer": "Dora", "order": 20, "text": "The sofa is the wrong blue. I want my money back."},
}
ASK_FROM = 50  # €. A person decides on refunds from this amount on.
TTL_S = 3.0  # After a worker was killed, its ticket is handed out again so many seconds later. At work one takes a minute.
WAIT_S = 60.0  # For work, before a worker asks again.
CLAIMS_MAX = 100  # A ticket that was claimed so often without an end is put aside, as a dead letter.


class Order(TypedDict):
    """An order, as the shop has it."""

    price: int  # €
    where: str


ORDERS = {
    17: Order(price=120, where="delivered"),
    18: Order(price=60, where="on its way, and there on Friday"),
    19: Order(price=12, where="delivered"),
    20: Order(price=900, where="delivered"),
}


class Shop:
    """A system outside of Shoal. It pays whenever it is told to: told twice, it pays twice."""

    def __init__(self, directory: str) -> None:
        self._paid = Path(directory) / "payments.jsonl"

    async def pay(self, order: int) -> str:
        """Pay an order's price back."""
        await asyncio.sleep(0.3)  # A bank is slow: whoever kills the agent now cannot know whether it has paid.
        with self._paid.open("a") as file:
            print(json.dumps({"order": order, "amount": ORDERS[order]["price"]}), file=file, flush=True)
            os.fsync(file.fileno())
        await asyncio.sleep(0.3)
        return f"paid {ORDERS[order]['price']} €"

    def paid(self) -> list[dict[str, int]]:
        """All that it has paid."""
        return [json.loads(line) for line in self._paid.read_text().splitlines()] if self._paid.exists() else []


async def open_tickets(store: shoal.Store) -> None:
    """The customers write: once, however often this runs."""
    space = store.space(SPACE)
    for name, ticket in TICKETS.items():
        await space.thread(name, author=str(ticket["customer"])).update(ticket, key="opened")
    await space.worklist("tickets").add(TICKETS, attempts_max=CLAIMS_MAX)


async def work(space: shoal.Space, worklist: str, do: Callable[[str], Awaitable[None]]) -> NoReturn:
    """Do the tickets of a worklist, for ever."""
    queue = space.worklist(worklist)
    while True:
        job = await queue.claim(ttl=TTL_S, wait=WAIT_S)
        if job is None:
            continue
        try:
            async with job:
                await do(job.item)
                await job.complete()
        except LeaseLost:  # The node was away for longer than TTL_S: by now another worker may have the ticket.
            say(f"has lost its claim of {job.item}")


def say(text: str) -> None:
    """Tell whoever looks at the terminal."""
    print(text, flush=True)  # noqa: T201


def arguments(given: list[str]) -> tuple[str, Shop]:
    """The node's URL and the shop, as a party's program is given them."""
    return given[1], Shop(given[2])
