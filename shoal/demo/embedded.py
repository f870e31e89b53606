"""The demo on one embedded store, from an empty directory to the verdict: all agents are killed twice, and resume."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

from rich.console import Console

import shoal
from shoal.demo.agent import DOCUMENT, SPACE, thread_name
from shoal.demo.messages import Plan
from shoal.demo.progress import Progress
from shoal.demo.screen.display import Display
from shoal.demo.screen.report import Summary, print_summary, print_verdict
from shoal.demo.stage import Options, directory, recounting
from shoal.demo.supervisor import supervise, totals
from shoal.demo.survey import Figures, library, list_modules
from shoal.demo.verdict import Found, judge, read_back


async def run_embedded(options: Options, *, console: Console, random: Random, now_s: Callable[[], float]) -> bool:
    """Survey, kill, resume, recount; True if everything agreed.

    Raises:
        InvalidInput: `options.data` is not an empty directory. Nothing was written.
        WorkerFailed: the worker could not do its work.
        ShoalError: the store could not be read back.
    """
    # List first: if the supervisor is killed, nobody removes a directory that exists before its worker does.
    modules = list_modules(library(), limit=options.limit)
    with directory(options) as data:
        try:
            return await _run_in(data, modules, options, console=console, random=random, now_s=now_s)
        finally:
            if options.is_kept:
                _show_way(console, data)


def _show_way(console: Console, data: Path) -> None:
    console.print(f"The store is kept in {data}. Look at it with:", highlight=False, soft_wrap=True)
    for command in ("threads", f"log {thread_name(0)}", f"doc get {DOCUMENT}"):
        console.print(f"  shoal {command} --data {data} --space {SPACE}", highlight=False, soft_wrap=True)


async def _run_in(
    data: Path, modules: list[str], options: Options, *, console: Console, random: Random, now_s: Callable[[], float]
) -> bool:
    root = library()
    plan = Plan(
        data=str(data),
        temporary=not options.is_kept,
        root=str(root),
        modules=modules,
        agents=options.agents,
        modules_max=len(modules),
    )
    progress = Progress(totals(plan))
    async with recounting(root, modules) as recount:
        started_s = now_s()
        with Display(console, progress) as display:
            display.say(f"{options.agents} agents survey {len(modules)} modules of {root} on one store in {data}")
            await supervise(plan, progress=progress, audience=display, random=random, now_s=now_s, command=options.worker)
        seconds = now_s() - started_s
        recounted = await recount
    async with shoal.open(data) as store:
        found = await read_back(store, agents=options.agents)
        bytes_on_disk = (await store.status()).bytes_on_disk
    return _report(console, options, progress, recounted, found, bytes_on_disk=bytes_on_disk, seconds=seconds)


def _report(
    console: Console,
    options: Options,
    progress: Progress,
    recounted: Mapping[str, Figures],
    found: Found,
    *,
    bytes_on_disk: int,
    seconds: float,
) -> bool:
    summary = Summary(
        figures=Figures(**{name: found.counters[name] for name in Figures._fields}),
        agents=options.agents,
        checkpoints=sum(thread.checkpoints for thread in found.threads),
        operations=progress.operations,
        bytes_on_disk=bytes_on_disk,
        kills=progress.kills,
        seconds=seconds,
    )
    differences = judge(recounted, found)
    print_summary(console, summary)
    print_verdict(console, differences, agreed="document, counters, journals and threads equal the recount.")
    return not differences
