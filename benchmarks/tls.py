"""The cost of TLS on a session: the processor's time for one save, with and without, in alternating pairs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import uvloop

import shoal
from benchmarks.figures import Effort, Figure, Section, Target
from shoal.tls import authority

TASKS = 64
SAVES = 100  # By each task in one measurement.
STATE = {"messages": ["x" * 1000], "step": 0}
PAIRS_MIN = 5
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Cost(NamedTuple):
    """The processor's time for one save, in microseconds."""

    node: float
    client: float


def run(effort: Effort) -> Section:
    with tempfile.TemporaryDirectory() as directory:
        certificates = Path(directory) / "tls"
        authority.found(certificates, now=datetime.now(UTC))
        authority.issue(certificates, "n1", now=datetime.now(UTC))
        return Section(
            "TLS on a session", _METHOD, compared(effort, Path(directory), certificates, plain="plain", closed="TLS")
        )


_METHOD = (
    f"`shoal serve` in one process and `shoal.connect` in another, under uvloop; {TASKS} tasks save states of 1 KB on one "
    "connection, each save after an fsync. Processor time of both processes, user and system, in alternating pairs."
)


def compared(
    effort: Effort,
    place: Path,
    certificates: Path,
    *,
    plain: str,
    closed: str,
    options: Sequence[str] = (),
    token: Path | None = None,
) -> list[Figure]:
    """The cost of a save at a `plain` node and at a `closed` one, that has the certificates, options and token."""
    pairs: list[tuple[Cost, Cost]] = []
    for number in range(max(PAIRS_MIN, effort.repeats)):
        found = {}
        for is_closed in (False, True) if number % 2 else (True, False):
            data = place / f"{number}-{is_closed}"
            found[is_closed] = measured(data, certificates, options=options, token=token) if is_closed else measured(data, None)
        pairs.append((found[False], found[True]))
    return [
        Figure(f"a save's processor time at the node, {plain}", "µs", tuple(each.node for each, _ in pairs)),
        Figure(f"the same with {closed}", "µs", tuple(each.node for _, each in pairs)),
        Figure(f"a save's processor time at the client, {plain}", "µs", tuple(each.client for each, _ in pairs)),
        Figure(f"the same with {closed}", "µs", tuple(each.client for _, each in pairs)),
        Figure(
            f"saves per processor second with {closed} ÷ without",
            "",
            tuple(sum(without) / sum(each) for without, each in pairs),
            Target("≥", 0.9),
        ),
    ]


def measured(directory: Path, certificates: Path | None, *, options: Sequence[str] = (), token: Path | None = None) -> Cost:
    tls = [] if certificates is None else ["--tls", str(certificates / "n1")]
    with served(directory, *options, *tls) as (pid, url):
        return uvloop.run(_measure(pid, url, None if certificates is None else certificates / "ca.pem", token))


async def _measure(pid: int, url: str, ca: Path | None, token: Path | None) -> Cost:
    async with shoal.connect(url, tls_ca=ca, token=token) as store:
        space = store.space("bench")

        async def save(number: int, count: int) -> None:
            thread = space.thread(f"t{number}")
            for step in range(count):
                await thread.save({**STATE, "step": step})

        await asyncio.gather(*(save(number, 3) for number in range(TASKS)))  # Warm.
        node, client = used_s(pid), time.process_time()
        await asyncio.gather(*(save(TASKS + number, SAVES) for number in range(TASKS)))
        saves = TASKS * SAVES
        return Cost((used_s(pid) - node) / saves * 1e6, (time.process_time() - client) / saves * 1e6)


def used_s(pid: int) -> float:
    """The processor's time that a process has used (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


@contextmanager
def served(directory: Path, *options: str) -> Iterator[tuple[int, str]]:
    """`shoal serve` on a port that the system chooses: its process and its URL."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    command = [sys.executable, "-m", "shoal", "serve", "--data", str(directory), "--listen", "127.0.0.1:0", *options]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.pid, process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGTERM)
