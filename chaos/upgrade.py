"""Replace the nodes of a cluster one after another by nodes of another version, while clients of both versions write.

Laws:
- The other version is any revision of this repository, as its wheel has it. It runs in this environment.
- Writes go on, each through a quorum, with a key: one that fails is sent again until it is answered. In the end each that was
  acknowledged counts, once, on all nodes, and these hold the same.
- An error that a client is told breaks a promise, also if the write is acknowledged later.
- A write is due at a time that was fixed beforehand, and its duration counts from then: a stop of the nodes is not hidden by
  writers that wait for it.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from chaos.cluster import Cluster, NodeFailed
from chaos.processes import running

CAUGHT_UP_S_MAX = 60.0
LANES = 12  # Threads of each version's writer: each appends one event after another, at times that are fixed beforehand.
RATE = 300.0
"""Writes a second, each through a quorum."""
WORSE_MAX = 3.0
"""How many times longer than before 99 of 100 writes may take while nodes are replaced."""
_WARM_S = 4.0  # Nothing is measured for so long.
_CALM_S = 10.0  # Before the first node is replaced.
_GIT = ("git", "-C", str(Path(__file__).parents[1]))
_BETWEEN_S = 1.0  # Writes are made for so long between two restarts.

_WRITER = """
import asyncio, json, sys, time
import shoal

async def main() -> None:
    urls, name, lanes, every_s = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    stopped = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    counts, took, told = {}, [], []
    async with shoal.connect(urls, durability="quorum") as store:
        async def write(lane: str, due_s: float) -> None:
            thread, number = store.space("upgrade").thread(lane), 0
            while not stopped.done():
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                for attempt in range(100):
                    try:
                        await thread.journal.append({"number": number}, key=f"{lane}-{number}")
                        break
                    except shoal.ShoalError as error:
                        told.append([time.monotonic(), error.code])
                        if not error.retryable or attempt == 99:
                            raise
                        await asyncio.sleep(0.1)
                took.append([due_s, time.monotonic() - due_s])
                number += 1
                due_s += every_s
            counts[lane] = number
        begins_s = time.monotonic() + 1.0
        await asyncio.gather(*(write(f"{name}-{lane}", begins_s + every_s * lane / lanes) for lane in range(lanes)))
    print(json.dumps([counts, took, told]))

asyncio.run(main())
"""


class Version(NamedTuple):
    """A version of the program."""

    name: str
    sources: Path

    @property
    def python(self) -> list[str]:
        """Runs Python with this version of the package."""
        return ["env", f"PYTHONPATH={self.sources}", sys.executable, "-P"]  # Not the package in the current directory.

    @property
    def program(self) -> list[str]:
        """Runs `shoal`."""
        return [*self.python, "-m", "shoal"]


class Outcome(NamedTuple):
    """What an upgrade came to. `problems` is empty if every promise was kept."""

    acknowledged: int
    problems: list[str]
    told: dict[str, int]  # Errors that clients were told, by code. Each such write was sent again, and counted once.
    rate: float  # Writes a second, while nodes were replaced.
    before_s: float  # 99 of 100 writes took at most so long, from the moment at which they were due,
    meanwhile_s: float  # and so long while nodes were replaced.
    slowest_s: float  # The slowest one then.

    @property
    def figures(self) -> str:
        """For people."""
        worse = self.meanwhile_s / self.before_s if self.before_s else float("inf")
        errors = ", ".join(f"{count} × {code}" for code, count in sorted(self.told.items())) or "none"
        before, meanwhile, slowest = (f"{seconds * 1000:.0f} ms" for seconds in self[4:])
        return (
            f"{self.rate:.0f} writes/s while nodes were replaced; errors told to clients: {errors}; p99 before {before}, "
            f"meanwhile {meanwhile}: {worse:.1f} × (at most {WORSE_MAX:g}); slowest {slowest}"
        )


def present() -> Version:
    """The version of this checkout."""
    return Version("present", Path(__file__).parents[1])


def last_release() -> str:
    """The newest tag of this repository, or the commit before this one if nothing was released."""
    tags = subprocess.run([*_GIT, "describe", "--tags", "--abbrev=0"], capture_output=True, text=True, check=False)
    return tags.stdout.strip() or "HEAD~1"


def checked_out(revision: str, directory: Path) -> Version:
    """The sources of a revision, below `directory`.

    Raises:
        ValueError: git knows no such revision.
    """
    _unpacked(revision, directory, "shoal")
    return Version(revision, directory)


def built(revision: str, directory: Path) -> Version:
    """The package of a revision as its wheel has it, below `directory`: what its users installed.

    Raises:
        ValueError: git knows no such revision, or no wheel can be built of it.
    """
    sources, wheels, package = (directory / name for name in ("sources", "wheels", "package"))
    for each in (sources, package):
        each.mkdir()
    _unpacked(revision, sources)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    made = subprocess.run(
        [*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(wheels), str(sources)], capture_output=True, check=False
    )
    if made.returncode:
        raise ValueError(f"no wheel of {revision}: {made.stderr.decode(errors='replace').strip()[-1000:]}")
    [wheel] = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(package)
    return Version(revision, package)


def _unpacked(revision: str, directory: Path, *paths: str) -> None:
    packed = subprocess.run([*_GIT, "archive", "--format=tar", revision, *paths], capture_output=True, check=False)
    if packed.returncode:
        raise ValueError(packed.stderr.decode(errors="replace").strip())
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(directory, filter="data")


async def upgrade(
    old: Version,
    new: Version,
    directory: Path,
    *,
    say: Callable[[str], None],
    now_s: Callable[[], float],
    rate: float = RATE,
    calm_s: float = _CALM_S,
) -> Outcome:
    """Roll three nodes from one version to the other.

    Raises:
        NodeFailed: a node did not start, or did not catch up.
    """
    async with running(directory, nodes=3, now_s=now_s, program=old.program) as cluster:
        async with _writing((old, new), cluster, rate=rate) as written:
            await asyncio.sleep(_WARM_S + calm_s)
            began_s = time.monotonic()
            cluster.start_as.program = new.program
            for node in cluster.nodes:
                await cluster.stop(node)
                await cluster.start(node)
                await cluster.admitted(node)
                took_s = await cluster.caught_up(CAUGHT_UP_S_MAX)
                if took_s is None:
                    raise NodeFailed(f"{node.name} did not catch up within {CAUGHT_UP_S_MAX:g} s after it was upgraded.")
                say(f"{node.name}: {old.name} → {new.name}; it held what the others held after {took_s:.1f} s")
                await asyncio.sleep(_BETWEEN_S)
            ended_s = time.monotonic()
        problems = []
        if await cluster.equal(CAUGHT_UP_S_MAX) is None:
            problems.append(f"the nodes did not come to hold the same within {CAUGHT_UP_S_MAX:g} s")
        for node in cluster.nodes:
            found = await _read(new, node.url, list(written.counts))
            for name, count in written.counts.items():
                if found[name] != list(range(count)):
                    problems.append(
                        f"{node.name} shows {len(found[name])} events of {name}, of which {count} were acknowledged"
                    )
        return _concluded(written, problems, began_s - calm_s, began_s, ended_s)


def _concluded(written: Written, problems: list[str], calm_s: float, began_s: float, ended_s: float) -> Outcome:
    before = sorted(took_s for due_s, took_s in written.took if calm_s <= due_s < began_s)
    meanwhile = sorted(took_s for due_s, took_s in written.took if began_s <= due_s < ended_s)
    told: dict[str, int] = {}
    for _, code in written.told:
        told[code] = told.get(code, 0) + 1
    if told:
        problems = [*problems, f"{sum(told.values())} errors were told to clients"]
    return Outcome(
        acknowledged=sum(written.counts.values()),
        problems=problems,
        told=told,
        rate=len(meanwhile) / (ended_s - began_s),
        before_s=of_hundred(99, before),
        meanwhile_s=of_hundred(99, meanwhile),
        slowest_s=meanwhile[-1] if meanwhile else 0.0,
    )


def of_hundred(share: int, ordered: Sequence[float]) -> float:
    """The least number that so many of a hundred do not exceed; 0 if there are none."""
    return ordered[max(0, -(-share * len(ordered) // 100) - 1)] if ordered else 0.0


class Written(NamedTuple):
    """What the writers did."""

    counts: dict[str, int]  # Acknowledged events, by thread.
    took: list[tuple[float, float]]  # When a write was due, and how long after that it was acknowledged.
    told: list[tuple[float, str]]  # When a client was told an error, and its code.


@asynccontextmanager
async def _writing(versions: Sequence[Version], cluster: Cluster, *, rate: float) -> AsyncGenerator[Written]:
    """Write while the context is open. What was written is there once it is closed."""
    written = Written({}, [], [])
    every_s = LANES * len(versions) / rate
    # An old and a new client with one name each, also if both are of one version.
    names = [f"{place}-{version.name}" for place, version in zip(("old", "new"), versions, strict=True)]
    writers = [
        (name, await _started(version, cluster.urls(number), name, every_s))
        for number, (name, version) in enumerate(zip(names, versions, strict=True))
    ]
    try:
        yield written
        for name, writer in writers:
            told, said = await writer.communicate(b"")
            if writer.returncode:
                raise NodeFailed(f"the writer {name} failed: {said.decode(errors='replace').strip()[-2000:]}")
            counts, took, errors = json.loads(told)
            written.counts.update(counts)
            written.took.extend(took)
            written.told.extend(errors)
    finally:
        for _, writer in writers:
            if writer.returncode is None:
                writer.kill()
                await writer.wait()


async def _started(version: Version, urls: str, name: str, every_s: float) -> asyncio.subprocess.Process:
    command = [*version.python, "-c", _WRITER, urls, name, str(LANES), str(every_s)]
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, env=_environment())


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}


_READER = """
import asyncio, json, sys
import shoal

async def main() -> None:
    async with shoal.connect(sys.argv[1]) as store:
        found = {}
        for name in json.loads(sys.argv[2]):
            thread = store.space("upgrade").thread(name)
            found[name] = [event.event["number"] async for event in thread.journal.read()]
        print(json.dumps(found))

asyncio.run(main())
"""


async def _read(version: Version, url: str, names: Sequence[str]) -> dict[str, list[int]]:
    command = [*version.python, "-c", _READER, url, json.dumps(names)]
    reader = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=_environment())
    told, _ = await reader.communicate()
    found: dict[str, list[int]] = json.loads(told)
    return found
