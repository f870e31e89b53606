"""The demo's agents at nodes that run already, and the verdict: `docker compose run --rm demo`.

    python agents.py [--limit N] URL [URL …]

Nine agents, a crew at each node, survey the standard library as they do in
`shoal demo`, but for the kill: stop or kill a container while they work, and
they go on with the others. Agents that find checkpoints of theirs resume: a
second run has nothing left to do, and judges what the first one left. In the
end each node is asked by itself; the exit code is 1 unless all of them agree
with a recount that knows no store.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence

import aiohttp
from rich.console import Console

import shoal
from shoal.demo.lookout import look
from shoal.demo.messages import CrewPlan, Failed, Finished, Saved
from shoal.demo.screen.report import print_verdict
from shoal.demo.stage import CREW, recounting
from shoal.demo.survey import library, list_modules
from shoal.demo.verdict import Found, judge_nodes, read_back
from shoal.demo.workers import WorkerFailed, early_end, messages, worker
from shoal.transport.credentials import Credentials, from_environment

AGENTS = 9
LINE_EVERY_S = 2.0
SETTLE_S_MAX = 60.0
_POLL_S = 0.1


class Survey:
    """Use: `await run()`, once."""

    def __init__(self, urls: Sequence[str], modules: Sequence[str], *, console: Console) -> None:
        self._urls = urls
        self._modules = modules
        self._console = console
        self._saved = 0

    async def run(self) -> bool:
        """True if every node agrees with the recount.

        Raises:
            WorkerFailed: the agents at a node could not do their work.
            ShoalError: a node could not be read back.
        """
        self._say(f"{AGENTS} agents survey {len(self._modules)} modules at {len(self._urls)} nodes")
        async with recounting(library(), self._modules) as recount:
            telling = asyncio.create_task(self._tell())
            try:
                await asyncio.gather(*(self._follow(self._plan(nth)) for nth in range(len(self._urls))))
            finally:
                telling.cancel()
            self._say(f"done; {self._saved} modules in this run")
            await self._settled()
            found = {url: await self._read(url) for url in self._urls}
            differences = judge_nodes(await recount, found)
        print_verdict(self._console, differences, agreed="all nodes hold the same, and it equals the recount.")
        return not differences

    def _plan(self, nth: int) -> CrewPlan:
        members = list(range(nth, AGENTS, len(self._urls)))
        return CrewPlan(
            urls=",".join([*self._urls[nth:], *self._urls[:nth]]),
            root=str(library()),
            modules=list(self._modules),
            agents=AGENTS,
            members=members,
            gates=[],
        )

    async def _follow(self, plan: CrewPlan) -> None:
        finished = False
        async with worker(CREW, plan) as (process, said):
            async for message in messages(process):
                if isinstance(message, Failed):
                    raise WorkerFailed(message.reason)
                self._saved += isinstance(message, Saved)
                finished = finished or isinstance(message, Finished)
        if not finished:
            raise early_end(process, said)

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(LINE_EVERY_S)
            self._say(f"{self._saved} modules surveyed")

    async def _settled(self) -> None:
        """Return once all nodes say that they hold the same, or after a while: the verdict shows what differs then."""
        loop = asyncio.get_running_loop()
        by_s = loop.time() + SETTLE_S_MAX
        token = await Credentials(from_environment(os.environ)).token()
        async with aiohttp.ClientSession(headers={} if token is None else {"Authorization": f"Bearer {token}"}) as http:
            while loop.time() < by_s:
                views = await asyncio.gather(*(look(http, url) for url in self._urls))
                if len({view and view.digest for view in views}) == 1 and None not in views:
                    return
                await asyncio.sleep(_POLL_S)

    async def _read(self, url: str) -> Found:
        # One address only: this node is to answer, and no other.
        async with shoal.connect(url, wait=30) as store:
            return await read_back(store, agents=AGENTS)

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the demo's agents at nodes that run already, and judge what they leave.")
    parser.add_argument("urls", metavar="URL", nargs="+", help="each node, for example http://n1:7400")
    parser.add_argument("--limit", metavar="N", type=int, help="survey so many modules, spread evenly; all without it")
    given = parser.parse_args()
    console = Console()
    try:
        agreed = asyncio.run(Survey(given.urls, list_modules(library(), limit=given.limit), console=console).run())
    except (WorkerFailed, shoal.errors.ShoalError) as error:
        console.print(f"the agents could not go on: {error}", style="red", markup=False, highlight=False)
        return 1
    return 0 if agreed else 1


if __name__ == "__main__":
    sys.exit(main())
