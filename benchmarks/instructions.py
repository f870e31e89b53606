"""`python -m benchmarks.instructions [--against REVISION]`: instructions by operation, as Valgrind counts them.

Laws:
- Instructions hardly vary with what else runs on the machine, so that 3 % are seen where times vary by 30 %.
- Both revisions are counted in the same run, with the same interpreter and libraries; the workload is this checkout's.
- What starting takes does not count: it is in a short and in a long run, and the difference is divided by the operations.
"""

from __future__ import annotations

import argparse
import asyncio
import compileall
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from io import BytesIO
from pathlib import Path
from typing import Any

from langchain_core.runnables import RunnableConfig
from rich.console import Console
from rich.table import Table

import shoal
from benchmarks import checkpointers, trio
from benchmarks.states import state
from shoal.client.store import Store
from shoal.integrations.langgraph import ShoalSaver
from shoal.testing import machines

ROOT = Path(__file__).parent.parent
BOUND = 1.03  # As many times the instructions of the other revision.

_SHORT, _LONG, _RUNS = 50, 1050, 3
_CONVERSATION = 20  # Puts of one thread.
_REFS = re.compile(r"I\s+refs:\s+([\d,]+)")

Act = Callable[[int], Awaitable[object]]
"""An operation, by its number."""


def main() -> None:
    arguments = _arguments()
    if arguments.run:
        _run(arguments.run, arguments.times)
        return
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind is not installed; nothing was counted")
    chosen = arguments.only or _NAMES
    with _checkout(None) as here, _checkout(arguments.against) if arguments.against else nullcontext() as other:
        rows = [(name, _counted(name, here), _counted(name, other) if other is not None else None) for name in chosen]
    table = Table()
    for heading in ("operation", "instructions", *([arguments.against, "ratio"] if arguments.against else [])):
        table.add_column(heading, justify="left" if heading == "operation" else "right")
    for name, here, there in rows:
        beside = [] if there is None else [f"{there:,.0f}", f"{here / there:.3f} ×"]
        table.add_row(name, f"{here:,.0f}", *beside)
    Console().print(table)
    grown = [name for name, here, there in rows if there is not None and here > there * BOUND]
    if grown:
        raise SystemExit(f"more than {BOUND} × of the instructions of {arguments.against}: {', '.join(grown)}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instructions", description="Count instructions by operation.")
    parser.add_argument("--against", metavar="REVISION", help="count them of this revision, too, and compare")
    parser.add_argument("--only", action="append", choices=_NAMES, help="may be repeated")
    parser.add_argument("--run", choices=_NAMES, help=argparse.SUPPRESS)
    parser.add_argument("--times", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


@contextmanager
def _checkout(revision: str | None) -> Iterator[Path]:
    """A copy of the revision's `shoal`, or of this checkout's, compiled: no run counts its own compiling."""
    with tempfile.TemporaryDirectory() as directory:
        if revision is None:
            shutil.copytree(ROOT / "shoal", Path(directory) / "shoal", ignore=shutil.ignore_patterns("__pycache__"))
        else:
            archived = subprocess.run(["git", "archive", revision, "shoal"], cwd=ROOT, check=True, capture_output=True).stdout
            with tarfile.open(fileobj=BytesIO(archived)) as archive:
                archive.extractall(directory, filter="data")
        shutil.copytree(ROOT / "benchmarks", Path(directory) / "benchmarks", ignore=shutil.ignore_patterns("__pycache__"))
        compileall.compile_dir(directory, quiet=1)
        yield Path(directory)


def _counted(name: str, checkout: Path) -> float:
    """By operation; the least of several runs, for what a node does every second only ever adds to it."""
    short, long = (min(_instructions(name, checkout, times) for _ in range(_RUNS)) for times in (_SHORT, _LONG))
    return (long - short) / (_LONG - _SHORT)


def _instructions(name: str, checkout: Path, times: int) -> int:
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    command += [sys.executable, "-m", "benchmarks.instructions", "--run", name, "--times", str(times)]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
    found = _REFS.search(done.stderr)
    if done.returncode or found is None:
        raise SystemExit(f"{name} did not run under valgrind:\n{done.stderr[-2000:]}")
    return int(found[1].replace(",", ""))


# ── the operations ────────────────────────────────────────────────────────────


def _run(name: str, times: int) -> None:
    if name in trio.BEGINS:
        with tempfile.TemporaryDirectory() as directory:
            machines.run(trio.run(Path(directory), trio.BEGINS[name], times))
    else:
        asyncio.run(_run_embedded(name, times))


async def _run_embedded(name: str, times: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with shoal.open(Path(directory) / "store", durability="memory") as store:
            act = await _ACTS[name](store)
            for number in range(times):
                await act(number)


async def _save(store: Store) -> Act:
    threads = [store.space("bench").thread(f"t{number}") for number in range(8)]
    return lambda number: threads[number % 8].save(state(number % 8, number))


async def _load(store: Store) -> Act:
    thread = store.space("bench").thread("t")
    for number in range(20):
        await thread.save(state(0, number))
    return lambda _: thread.load()


async def _add(store: Store) -> Act:
    counter = store.space("bench").counter("n")
    return lambda _: counter.add(1)


async def _set(store: Store) -> Act:
    register = store.space("bench").register("r")
    return lambda number: register.set(state(0, number))


async def _append(store: Store) -> Act:
    journal = store.space("bench").thread("t").journal
    return lambda number: journal.append(state(0, number))


async def _put(store: Store) -> Act:
    """Of a state with a message more each time, up to 20."""
    saver = ShoalSaver(store)
    before: dict[str, tuple[RunnableConfig, list[Any]]] = {}

    async def put(number: int) -> None:
        thread = f"t{number // _CONVERSATION}"
        config, said = before.pop(thread, ({"configurable": {"thread_id": thread, "checkpoint_ns": ""}}, []))
        said = [*said, state(0, number)]
        before[thread] = await checkpointers.put(saver, config, said, number % _CONVERSATION), said

    return put


async def _edit(store: Store) -> Act:
    document = await store.space("bench").document("d")
    content = document.map("state")

    async def edit(number: int) -> None:
        content[f"k{number % 16}"] = number
        await document.flush()

    return edit


_ACTS: dict[str, Callable[[Store], Awaitable[Act]]] = {
    "save": _save,
    "load": _load,
    "counter.add": _add,
    "register.set": _set,
    "journal.append": _append,
    "langgraph.put": _put,
    "document.edit": _edit,
}
_NAMES = [*_ACTS, *trio.BEGINS]


if __name__ == "__main__":
    main()
