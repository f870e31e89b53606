"""A support desk: a LangGraph agent, an OpenAI agent, an MCP client and a person in a browser work on one space.

    python -m examples.support_desk                    then open the page that it names, and decide
    python -m examples.support_desk --by-itself        a program decides in place of the person
    python -m examples.support_desk --data ./desk      where the node and the shop keep what they know

It needs `pip install '.[langgraph,openai,mcp]' langgraph`, in a clone of the repository, and is started there. It needs no
key and no network: the models are scripted. Each party is a process, whose number it prints: kill any of them, the node too.
It is started again, and goes on. So does the whole desk after Ctrl-C, if this program is started again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path

from aiohttp import web

import shoal
from examples.support_desk.desk import SPACE, TICKETS, WAIT_S, Shop, open_tickets, say

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SDKS = {"langgraph": "langgraph", "openai-agents": "agents", "mcp": "mcp"}  # Package → what is imported.
LIVES_MAX = 20  # A party that ends so often does not only get killed.


class Party:
    """A program that is started again whenever it is killed, or fails."""

    def __init__(self, name: str, *command: str) -> None:
        self.name = name
        self._command = command
        self._process: asyncio.subprocess.Process | None = None

    async def run(self) -> None:
        """Return when the program has ended by itself."""
        for _ in range(LIVES_MAX):
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", *self._command),
                cwd=ROOT,
                stdout=asyncio.subprocess.PIPE,
                process_group=0,  # Ctrl-C is for this program, which ends the others.
            )
            say(f"{self.name}: process {self._process.pid}")
            assert self._process.stdout is not None
            async for line in self._process.stdout:
                say(f"{self.name}: {line.decode().rstrip()}")
            status = await self._process.wait()
            if status == 0:
                return
            say(f"{self.name}: {f'was killed by signal {-status}' if status < 0 else f'failed with {status}'}; starts again")
            await asyncio.sleep(0.5)
        raise RuntimeError(f"{self.name} has ended {LIVES_MAX} times. Its last words are above.")

    async def stop(self) -> None:
        """End it as anything can end it: nothing is lost by that."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


@contextlib.asynccontextmanager
async def page(desk: dict[str, str]) -> AsyncIterator[str]:
    """Serve the page, and the client in JavaScript that it uses; yields the origin."""

    async def html(_request: web.Request) -> web.StreamResponse:
        return web.FileResponse(HERE / "page.html")

    async def known(_request: web.Request) -> web.Response:
        return web.json_response(desk)

    app = web.Application()
    app.router.add_get("/", html)
    app.router.add_get("/desk.json", known)
    app.router.add_static("/client", ROOT / "clients" / "js" / "src")
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def running(*parties: Party) -> AsyncIterator[list[asyncio.Task[None]]]:
    """The parties at work."""
    tasks = [asyncio.create_task(party.run()) for party in parties]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(party.stop() for party in parties))


def missing() -> list[str]:
    """The packages that the parties need and that are not installed."""
    return [package for package, sdk in SDKS.items() if find_spec(sdk) is None]


def free_port() -> int:
    """A port for the node, which keeps it when it is started again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def main(directory: str, *, by_itself: bool) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # Ends the others, too.
    desk = {"space": SPACE}
    async with page(desk) as origin:
        address = f"127.0.0.1:{free_port()}"
        desk["url"] = f"http://{address}"
        serve = ("shoal", "serve", "--data", str(Path(directory) / "state"), "--listen", address)
        node = Party("node", *serve, "--set", f"allowed_origins={origin}")
        async with running(node) as [serving], shoal.connect(desk["url"], wait=WAIT_S) as store:
            await open_tickets(store)
            say(f"The desk is open at {origin}")
            names = ["triage", "answer", "note", *(["person"] if by_itself else [])]
            programs = [Party(name, f"examples.support_desk.{name}", desk["url"], directory) for name in names]
            async with running(*programs) as tasks:
                closing = asyncio.create_task(closed(store, tasks[names.index("note")]))
                # The node and the agents never end by themselves: if one of them has, it has given up.
                ended, _ = await asyncio.wait([closing, serving, *tasks[:2]], return_when=asyncio.FIRST_COMPLETED)
                await asyncio.gather(*ended)
            await show(store, Shop(directory))


async def closed(store: shoal.Store, noting: asyncio.Task[None]) -> None:
    """Return when every ticket has its answer, and its note."""
    for name in TICKETS:
        await store.space(SPACE).thread(name).wait_for("done")
    await noting


async def show(store: shoal.Store, shop: Shop) -> None:
    for name in TICKETS:
        ticket = (await store.space(SPACE).thread(name).load()).state
        say(f"{name}: {ticket['answer']} ({'; '.join(ticket['notes'])})")
    paid = [f"{payment['amount']} € for order {payment['order']}" for payment in shop.paid()]
    say(f"The shop has paid: {', '.join(paid)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.support_desk")
    parser.add_argument("--data", default="./desk")
    parser.add_argument("--by-itself", action="store_true")
    given = parser.parse_args()
    if lacking := missing():
        parser.exit(2, f"{', '.join(lacking)} is not installed. Run: pip install '.[langgraph,openai,mcp]' langgraph\n")
    Path(given.data).mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(main(str(Path(given.data).resolve()), by_itself=given.by_itself))
