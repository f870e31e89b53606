"""Answers in place of a person in the browser, where there is neither: `python -m examples.support_desk --by-itself`.

Approves refunds below 500 €. What it does is what the page does: it watches the tickets, and approves with a reason.
"""

from __future__ import annotations

import asyncio
import sys

import shoal
from examples.support_desk.desk import ORDERS, SPACE, TICKETS, WAIT_S, arguments, say

TOO_MUCH = 500  # €


async def decide(space: shoal.Space, name: str) -> None:
    ticket = space.thread(name)
    await ticket.wait_for("waiting")
    order = (await ticket.load()).state["order"]
    decision = "refund" if ORDERS[order]["price"] < TOO_MUCH else "refuse"
    await ticket.approve(by="ana", reason=decision)
    say(f"{decision} {name}")


async def main() -> None:
    url, _ = arguments(sys.argv)
    async with shoal.connect(url, wait=WAIT_S) as store, asyncio.TaskGroup() as questions:
        for name in TICKETS:
            questions.create_task(decide(store.space(SPACE), name))


if __name__ == "__main__":
    asyncio.run(main())
