"""Two researchers that read pages, on whichever machines run the crew; each page is bought once.

    python examples/crew.py                                   kills the program at every point, and shows that nothing is lost
    python examples/crew.py http://127.0.0.1:7400 host-1      one machine of a real crew: start it on several, and kill any

On resuming, a researcher continues at its last checkpoint. A page that it was buying when it was killed is bought again with
the same key, which the shop knows: it sells once for each key.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

import shoal
from shoal.testing import Report, crash_everywhere

PAGES = {1: ["tea/oolong", "tea/sencha"], 2: ["coffee/arabica"]}

Buy = Callable[..., Awaitable[str]]


def survey(store: shoal.Store, buy: Buy) -> shoal.Crew:
    crew = shoal.Crew(store, "survey")

    @crew.agent("researcher", count=len(PAGES), ttl=5)
    async def researcher(ctx: shoal.CrewContext) -> None:
        facts = dict(ctx.state.get("facts", {}))
        for page in PAGES[ctx.number][len(facts) :]:
            # If the machine died while it bought the page, the step is open: the shop knows its key.
            facts[page] = await ctx.thread.step(
                "buy", key=page, idempotent=True, call=lambda page=page: buy(page, key=f"{ctx.name}/{page}")
            )
            await ctx.checkpoint({"facts": facts})

    return crew


async def run(store: shoal.Store, buy: Buy) -> None:
    await survey(store, buy).run(until_finished=True)


def world() -> dict[str, Buy]:
    """The shop, made anew for each run."""

    async def buy(page: str, *, key: str) -> str:
        return f"what {page} says"

    return {"buy": buy}


def check(nodes: int = 1) -> Report:
    return crash_everywhere(run, tools=world, keys={"buy": "key"}, nodes=nodes)


async def machine(url: str, name: str) -> None:
    async with shoal.connect(url) as store:
        await survey(store, world()["buy"]).run(name=name)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        asyncio.run(machine(sys.argv[1], sys.argv[2]))
    else:
        print(check())  # noqa: T201
