"""One run of the demo, from an empty directory or running nodes to the verdict.

Three settings differ only in where the agents write: three nodes of its own, of which one is killed; one embedded store, which
is killed with its agents; nodes that run already, where nothing is killed and agents with checkpoints resume. At the end each
store is read by itself, and all must agree with a recount that uses no store.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from threading import Event

from rich.console import Console

import shoal
from shoal.demo.agent import DOCUMENT, SPACE, thread_name
from shoal.demo.course import Access, Course, Plan
from shoal.demo.director import CREW, Director, Script, write_script
from shoal.demo.nodes import Node, cluster, node_name
from shoal.demo.screen import Screen
from shoal.demo.survey import library, list_modules, recount, share
from shoal.demo.verdict import Found, judge, read_back
from shoal.errors import ShoalError, Unauthenticated
from shoal.records import NamedTuple

SIZE = 3


class Options(NamedTuple):
    """The options of `shoal demo`; tests replace the command of the crews' processes."""

    agents: int = 9
    limit: int | None = None  # The number of modules; None for all.
    embedded: bool = False
    urls: Sequence[str] = ()  # Nodes that run already.
    access: Access = Access()
    keep: bool = False  # Keep the directory, and let the cluster run.
    watch: bool = False  # Let the cluster run until somebody interrupts it.
    command: Sequence[str] = CREW


async def run_demo(options: Options, *, console: Console, random: Random, now_s: Callable[[], float]) -> bool:
    """Survey, kill, resume, recount; True if every store agreed.

    Raises:
        DemoFailed: a node or the agents could not do their work.
        Unauthenticated: a node lets nobody in with this token. Nothing was written.
        ShoalError: a store could not be read back.
    """
    # List first: if the supervisor is killed, nobody removes a directory that exists before its processes do.
    modules = list_modules(library(), limit=options.limit)
    if options.urls:
        await _check_let_in(options)
        return await _survey(options, modules, None, [], console=console, random=random, now_s=now_s)
    size, name = 0 if options.embedded else SIZE, f"demo-{random.getrandbits(32):08x}"
    data = Path(tempfile.mkdtemp(prefix="shoal-demo-"))
    try:
        async with cluster(data, size=size, name=name, temporary=not options.keep) as nodes:
            agreed = await _survey(options, modules, data, nodes, console=console, random=random, now_s=now_s)
            if options.watch:
                urls = ", ".join(f"{node.url}/" for node in nodes)
                console.print(f"Look at it at {urls}, and end it with Ctrl-C.", highlight=False, soft_wrap=True)
                await asyncio.Event().wait()
            for node in nodes if options.keep else []:
                node.release()
    finally:
        if not options.keep:
            shutil.rmtree(data, ignore_errors=True)
    if options.keep:
        _show_way(console, data, nodes)
    return agreed


async def _check_let_in(options: Options) -> None:
    """Ask each node once: nine agents that it refuses would wait for each other's refusals to be forgotten."""
    for url in options.urls:
        async with shoal.connect(url, **options.access.arguments) as store:
            try:
                await store.status()
            except Unauthenticated:
                raise
            except ShoalError:
                pass  # The agents wait for a node that is away, and say what they may not do.


async def _survey(
    options: Options,
    modules: Sequence[str],
    data: Path | None,
    nodes: Sequence[Node],
    *,
    console: Console,
    random: Random,
    now_s: Callable[[], float],
) -> bool:
    urls, root, started_s, stopped = options.urls or [node.url for node in nodes], library(), now_s(), Event()
    course = Course([len(share(modules, agent, agents=options.agents)) for agent in range(options.agents)], nodes=urls)
    script = Script() if options.urls else write_script(course, random=random)
    recounting = asyncio.create_task(asyncio.to_thread(recount, root, modules, stopped=stopped.is_set))
    try:
        with Screen(console, course) as screen:
            stores = f"{len(urls)} nodes" if urls else "one embedded store"
            where = "" if data is None else f" in {data}"
            screen.say(f"{options.agents} agents survey {len(modules)} modules of {root} on {stores}{where}")
            if nodes:
                screen.say(
                    f"Watch them in a browser at {nodes[-1].url}/; as it is killed, an open page goes on with another node"
                )
                screen.say(f"While it is down, the page is at {nodes[0].url}/")
            directory = str(data) if options.embedded else ""
            plans = [
                Plan(
                    directory,
                    [*urls[crew:], *urls[:crew]],
                    bool(directory) and not options.keep,
                    options.limit,
                    options.agents,
                    [*members],
                    access=options.access,
                )
                for crew, members in enumerate(course.crews)
            ]
            director = Director(script, nodes=nodes, course=course, screen=screen, now_s=now_s)
            await director.direct(plans, command=options.command)
        seconds, recounted = now_s() - started_s, await recounting
    finally:
        stopped.set()  # A thread cannot be cancelled; it checks this after each module.
    found = await _read_back(options, data, urls)
    differences = judge(recounted, found, agents=options.agents)
    screen.show_summary(found, seconds=seconds)
    screen.show_verdict(differences)
    return not differences


async def _read_back(options: Options, data: Path | None, urls: Sequence[str]) -> Mapping[str, Found]:
    # One address only, so that no other node answers.
    openings = {node_name(number): shoal.connect(url, wait=30, **options.access.arguments) for number, url in enumerate(urls)}
    found = {}
    for name, opening in (openings or {"the store": shoal.open(str(data))}).items():
        async with opening as store:
            found[name] = await read_back(store, agents=options.agents)
    return found


def _show_way(console: Console, data: Path, nodes: Sequence[Node]) -> None:
    where = f"--url {nodes[0].url}" if nodes else f"--data {data}"
    lines = [
        "The cluster is left running:" if nodes else f"The store is kept in {data}.",
        *(f"  {node_name(node.number)}  {node.url}  {node.data}" for node in nodes),
        "Look at it with:",
        *(f"  shoal {it} {where} --space {SPACE}" for it in ("threads", f"log {thread_name(0)}", f"doc get {DOCUMENT}")),
        "Remove it with:" if not nodes else "Stop it and remove it with:",
        *([f"  kill {' '.join(str(node.process.pid) for node in nodes if node.process)}"] if nodes else []),
        f"  rm -r {data}",
    ]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
