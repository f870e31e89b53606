"""One machine of the crew on trial, a process of its own: `python -m chaos.crew_machine URLS NAME NOTES TTL AGENTS`.

Its agents cause numbered effects, each by a step, and note what happened in a file that all machines append to: the world
outside. A step that an earlier run left open is looked up there, as an agent would ask a payment service.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import shoal

SPACE = "crew"
AGENT = "agent"
_WORK_S = 0.05  # Between two effects.


class Notes:
    """Lines that several processes append to one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def add(self, kind: str, ctx: shoal.CrewContext, n: int) -> None:
        """Note what an agent did. A short line arrives whole."""
        line = {
            "kind": kind,
            "agent": ctx.name,
            "n": n,
            "machine": ctx.machine,
            "fence": ctx.lease.fence,
            "at_s": time.monotonic(),
        }
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def has(self, agent: str, n: int) -> bool:
        """Whether an effect happened."""
        lines = map(json.loads, self._path.read_text().splitlines())
        return any((line["kind"], line["agent"], line["n"]) == ("effect", agent, n) for line in lines)


async def work(ctx: shoal.CrewContext, notes: Notes) -> None:
    """Cause one effect after the other, and save how far it is."""
    for step in ctx.open_steps:
        if notes.has(ctx.name, int(step.key)):
            await ctx.thread.resolve(step, "result", value=int(step.key))
        else:
            await ctx.thread.resolve(step, "retry")
    n = ctx.state.get("n", 0)
    while True:
        n += 1
        await ctx.thread.step("effect", key=str(n), call=_effect(ctx, notes, n))
        await ctx.checkpoint({"n": n})
        notes.add("saved", ctx, n)
        await asyncio.sleep(_WORK_S)


def _effect(ctx: shoal.CrewContext, notes: Notes, n: int) -> Callable[[], int]:
    def effect() -> int:
        ctx.lease.check()
        notes.add("effect", ctx, n)
        return n

    return effect


async def main(urls: str, name: str, path: str, ttl: str, count: str) -> None:
    """Run the crew until SIGTERM."""
    notes = Notes(Path(path))
    async with shoal.connect(urls, wait=30) as store:
        crew = shoal.Crew(store, SPACE)

        @crew.agent(AGENT, count=int(count), ttl=float(ttl), tries=1000)
        async def agent(ctx: shoal.CrewContext) -> None:
            await work(ctx, notes)

        await crew.run(name=name)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
