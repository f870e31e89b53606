"""`python -m benchmarks.way [--saves N] [--pause-ms N]`: one save's way through client, socket, node and disk, as a time line.

Laws:
- The clock is the machine's monotonic one, which both processes share; a mark costs less than a microsecond.
- A mark is a call that starts or ends. Nothing of Shoal is changed but that it is noted.
- Only saves of which each mark was made, in this order, count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import monotonic_ns
from typing import Any

import uvloop
from rich.console import Console
from rich.table import Table

import shoal
from benchmarks.cluster import free_ports
from benchmarks.states import state

_WARM = 200

_marks: list[tuple[str, int]] = []

WAY = [
    ("called", "client", "the agent calls `save`"),
    ("requested", "client", "the state is checked and packed into a request with a key"),
    ("posted", "client", "the request is packed into a frame"),
    ("sending", "client", "a turn of the loop: the writer takes the frame"),
    ("arrived", "socket", "aiohttp writes; the other process wakes and reads"),
    ("decoded", "node", "frames are decoded"),
    ("begun", "node", "the session's bounds and its order"),
    ("asked", "node", "the request is decoded"),
    ("writing", "node", "it is checked, decided, applied to rows, sealed as an operation"),
    ("written", "node", "RocksDB takes the batch"),
    ("syncing", "node", "the rest of the turn, and a turn of the loop: one sync for all that wait"),
    ("on its thread", "node", "the executor's thread wakes"),
    ("synced", "disk", "fdatasync"),
    ("told", "node", "the loop wakes"),
    ("answering", "node", "peers are told, waiters are woken"),
    ("answered", "node", "the reply is packed into a frame"),
    ("back", "socket", "a turn of the loop: the writer; the other process wakes and reads"),
    ("woken", "client", "the frame is decoded; two turns of the loop: the reader, the caller"),
    ("returned", "client", "the reply is decoded, the handle moves"),
]
"""Each mark, whose time it ends, and what happened until then."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.way", description="Draw the way of a save as a time line.")
    parser.add_argument("--saves", type=int, default=1000)
    parser.add_argument("--pause-ms", type=float, default=4.0, help="between two saves")
    parser.add_argument("--node", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.node:
        _node(*arguments.node)
        return
    with tempfile.TemporaryDirectory() as directory:
        port, noted = free_ports(1)[0], Path(directory) / "marks"
        command = [sys.executable, "-m", "benchmarks.way", "--node", f"{directory}/store", str(port), str(noted)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as node:
            assert node.stdout is not None
            node.stdout.readline()
            try:
                uvloop.run(_saves(f"http://127.0.0.1:{port}", arguments.saves, arguments.pause_ms / 1000))
            finally:
                node.terminate()
        both = sorted([*_marks, *map(tuple, json.loads(noted.read_text()))], key=lambda mark: mark[1])
    _show(list(_ways(both)))


def _show(ways: list[list[int]]) -> None:
    if not ways:
        raise SystemExit("no save passed all marks: the code has changed, and the marks of benchmarks/way.py have not")
    table = Table(title=f"The way of a save; medians of {len(ways):,}, in µs")
    for heading in ("in", "what happens", "takes", "until"):
        table.add_column(heading, justify="right" if heading in ("takes", "until") else "left")
    sums: dict[str, float] = {}
    for at, (_, place, what) in enumerate(WAY[1:], 1):
        takes, until = (median((way[at] - way[since]) / 1000 for way in ways) for since in (at - 1, 0))
        sums[place] = sums.get(place, 0.0) + takes
        table.add_row(place, what, f"{takes:,.0f}", f"{until:,.0f}")
    console = Console()
    console.print(table)
    console.print(", ".join(f"{place} {spent:,.0f} µs" for place, spent in sums.items()))


def _ways(marks: list[tuple[str, int]]) -> Iterator[list[int]]:
    names = [name for name, _, _ in WAY]
    way: list[int] = []
    for name, at in marks:
        if name == names[0]:
            way = [at]
        elif way and name == names[len(way)]:
            way.append(at)
            if len(way) == len(names):
                yield way
                way = []


# ── the marks ─────────────────────────────────────────────────────────────────


def _mark(name: str) -> None:
    _marks.append((name, monotonic_ns()))


def _note(owner: Any, attribute: str, *, before: str = "", after: str = "") -> None:
    """Mark each call of a function or method."""
    whole: Callable[..., Any] = getattr(owner, attribute)

    def called(*given: Any, **named: Any) -> Any:
        if before:
            _mark(before)
        found = whole(*given, **named)
        if after:
            _mark(after)
        return found

    setattr(owner, attribute, called)


def _note_client() -> None:
    from shoal.transport import link
    from shoal.transport.dialling import DialledSocket

    _note(link.Link, "call", before="requested")
    _note(link.Link, "_exchange", before="posted")
    _note(DialledSocket, "send_bytes", before="sending")
    _note(link, "decode_node_frames", before="back")
    _note(link, "decode_reply", before="woken")


def _note_node() -> None:
    from shoal.api import session
    from shoal.node.session import ServiceSession
    from shoal.storage.commit import GroupCommit
    from shoal.storage.rocks import RocksStorage

    _note(session, "decode_caller_frames", before="arrived", after="decoded")
    _note(session.SessionSocket, "_begin", before="begun")
    _note(ServiceSession, "begin", before="asked")
    _note(GroupCommit, "write", before="writing", after="written")
    _note(GroupCommit, "_settle", before="told")
    _note(session.SessionSocket, "_send_answer", before="answering", after="answered")
    begin_sync = RocksStorage.begin_sync

    def begun(storage: RocksStorage) -> Callable[[], int]:
        sync = begin_sync(storage)
        _mark("syncing")

        def synced() -> int:
            _mark("on its thread")
            number = sync()
            _mark("synced")
            return number

        return synced

    setattr(RocksStorage, "begin_sync", begun)  # noqa: B010


# ── the two processes ─────────────────────────────────────────────────────────


async def _saves(url: str, saves: int, pause_s: float) -> None:
    _note_client()
    async with shoal.connect(url) as store:
        thread = store.space("bench").thread("way")
        for step in range(_WARM + saves):
            if step == _WARM:
                _marks.clear()
            content = state(0, step)
            _mark("called")
            await thread.save(content)
            _mark("returned")
            await asyncio.sleep(pause_s)


def _node(directory: str, port: str, noted: str) -> None:
    from shoal.cli.serving import serving
    from shoal.config import Config

    _note_node()
    uvloop.run(serving(Path(directory), Config(listen_port=int(port))))
    Path(noted).write_text(json.dumps(_marks))


if __name__ == "__main__":
    main()
