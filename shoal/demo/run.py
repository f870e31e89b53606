"""The whole demo, from an empty directory to the verdict.

The recount runs on a thread of the supervisor while the agents survey, and
reads nothing but the modules themselves. A temporary directory is gone when
`run` returns or raises; one that the caller named, or asked to keep, stays.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from threading import Event
from typing import NamedTuple

from rich.console import Console

import shoal
from shoal.demo.agent import DOCUMENT, SPACE, thread_name
from shoal.demo.display import Display
from shoal.demo.messages import Plan
from shoal.demo.progress import Progress
from shoal.demo.report import Summary, print_summary, print_verdict
from shoal.demo.supervisor import WORKER, supervise, totals
from shoal.demo.survey import Figures, library, list_modules, recount
from shoal.demo.verdict import Found, judge, read_back
from shoal.errors import InvalidInput


class Options(NamedTuple):
    agents: int = 9
    limit: int | None = None  # Modules; None for all.
    keep: bool = False
    data: Path | None = None  # Where to keep the store; None for a temporary directory.
    worker: Sequence[str] = WORKER


async def run(options: Options, *, console: Console, random: Random, now_s: Callable[[], float]) -> bool:
    """Survey, kill, resume, recount; True if everything agreed.

    Raises:
        InvalidInput: `options.data` is not an empty directory. Nothing was written.
        WorkerFailed: the worker could not do its work.
        ShoalError: the store could not be read back.
    """
    # Listed first: a directory that exists before its worker does would outlive a supervisor that is killed.
    modules = list_modules(library(), limit=options.limit)
    with _directory(options) as data:
        try:
            return await _run_in(data, modules, options, console=console, random=random, now_s=now_s)
        finally:
            if _is_kept(options):
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
        temporary=not _is_kept(options),
        root=str(root),
        modules=modules,
        agents=options.agents,
        modules_max=len(modules),
    )
    progress = Progress(totals(plan))
    async with _recounting(root, modules) as recounting:
        started_s = now_s()
        with Display(console, progress) as display:
            display.say(f"{options.agents} agents survey {len(modules)} modules of {root} on one store in {data}")
            await supervise(plan, progress=progress, audience=display, random=random, now_s=now_s, command=options.worker)
        seconds = now_s() - started_s
        recounted = await recounting
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
    print_verdict(console, differences)
    return not differences


@asynccontextmanager
async def _recounting(root: Path, modules: Sequence[str]) -> AsyncIterator[asyncio.Task[dict[str, Figures]]]:
    stopped = Event()
    task = asyncio.create_task(asyncio.to_thread(recount, root, modules, stopped=stopped.is_set))
    try:
        yield task
    finally:
        # A thread cannot be cancelled: it is told, and ends after the module in hand.
        stopped.set()


def _is_kept(options: Options) -> bool:
    return options.keep or options.data is not None


@contextmanager
def _directory(options: Options) -> Iterator[Path]:
    if options.data is not None:
        if options.data.exists() and (not options.data.is_dir() or any(options.data.iterdir())):
            raise InvalidInput(
                f"{options.data} is not an empty directory. Nothing was written; name another, or leave --data out."
            )
        yield options.data
        return
    data = Path(tempfile.mkdtemp(prefix="shoal-demo-"))
    try:
        yield data
    finally:
        if not options.keep:
            shutil.rmtree(data, ignore_errors=True)
