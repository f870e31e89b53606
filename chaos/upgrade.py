"""Replace the nodes of a cluster one after another by nodes of another version, while clients of both versions write.

Laws:
- The other version is any revision of this repository. It runs from its own sources, in this environment.
- Writes go on, each through a quorum, with a key: one that fails is sent again until it is answered. In the end each that was
  acknowledged counts, once, on all nodes, and these hold the same.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from chaos.cluster import Cluster, NodeFailed
from chaos.processes import running

CAUGHT_UP_S_MAX = 60.0
WRITERS = 4  # Of each version.
_BEFORE_S = 1.0  # Writes are made for so long between two restarts.

_WRITER = """
import asyncio, sys
import shoal

async def main() -> None:
    urls, name = sys.argv[1:]
    loop = asyncio.get_running_loop()
    stopped = loop.run_in_executor(None, sys.stdin.read)
    acknowledged = 0
    async with shoal.connect(urls, durability="quorum") as store:
        space = store.space("upgrade")
        while not stopped.done():
            for attempt in range(100):
                try:
                    await space.thread(name).journal.append({"number": acknowledged}, key=f"{name}-{acknowledged}")
                    break
                except shoal.ShoalError as error:
                    if not error.retryable or attempt == 99:
                        raise
                    await asyncio.sleep(0.1)
            acknowledged += 1
            await asyncio.sleep(0.01)
    print(acknowledged)

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
        return [*self.python, "-m", "shoal.cli"]


class Outcome(NamedTuple):
    """What an upgrade came to. `problems` is empty if every promise was kept."""

    acknowledged: int
    problems: list[str]


def present() -> Version:
    """The version of this checkout."""
    return Version("present", Path(__file__).parents[1])


def checked_out(revision: str, directory: Path) -> Version:
    """The sources of a revision, below `directory`.

    Raises:
        ValueError: git knows no such revision.
    """
    command = ["git", "-C", str(present().sources), "archive", "--format=tar", revision, "shoal"]
    packed = subprocess.run(command, capture_output=True, check=False)
    if packed.returncode:
        raise ValueError(packed.stderr.decode(errors="replace").strip())
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(directory, filter="data")
    return Version(revision, directory)


async def upgrade(
    old: Version, new: Version, directory: Path, *, say: Callable[[str], None], now_s: Callable[[], float]
) -> Outcome:
    """Roll three nodes from one version to the other.

    Raises:
        NodeFailed: a node did not start, or did not catch up.
    """
    async with running(directory, nodes=3, now_s=now_s, program=old.program) as cluster:
        async with _writing((old, new), cluster) as acknowledged:
            cluster.start_as.program = new.program
            for node in cluster.nodes:
                await asyncio.sleep(_BEFORE_S)
                await cluster.stop(node)
                await cluster.start(node)
                await cluster.admitted(node)
                took_s = await cluster.caught_up(CAUGHT_UP_S_MAX)
                if took_s is None:
                    raise NodeFailed(f"{node.name} did not catch up within {CAUGHT_UP_S_MAX:g} s after it was upgraded.")
                say(f"{node.name}: {old.name} → {new.name}; it held what the others held after {took_s:.1f} s")
            await asyncio.sleep(_BEFORE_S)
        problems = []
        if await cluster.equal(CAUGHT_UP_S_MAX) is None:
            problems.append(f"the nodes did not come to hold the same within {CAUGHT_UP_S_MAX:g} s")
        for node in cluster.nodes:
            for name, count in acknowledged.items():
                found = await _read(new, node.url, name)
                if found != list(range(count)):
                    problems.append(f"{node.name} shows {len(found)} events of {name}, of which {count} were acknowledged")
        return Outcome(sum(acknowledged.values()), problems)


@asynccontextmanager
async def _writing(versions: Sequence[Version], cluster: Cluster) -> AsyncGenerator[dict[str, int]]:
    """Write while the context is open. The counts of the acknowledged events, by thread, are there once it is closed."""
    acknowledged: dict[str, int] = {}
    writers = [
        (f"{version.name}-{number}", await _started(version, cluster.urls(number), f"{version.name}-{number}"))
        for version in versions
        for number in range(WRITERS)
    ]
    try:
        yield acknowledged
        for name, writer in writers:
            told, said = await writer.communicate(b"")
            if writer.returncode:
                raise NodeFailed(f"the writer {name} failed: {said.decode(errors='replace').strip()[-2000:]}")
            acknowledged[name] = int(told)
    finally:
        for _, writer in writers:
            if writer.returncode is None:
                writer.kill()
                await writer.wait()


async def _started(version: Version, urls: str, name: str) -> asyncio.subprocess.Process:
    command = [*version.python, "-c", _WRITER, urls, name]
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, env=_environment())


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}


_READER = """
import asyncio, json, sys
import shoal

async def main() -> None:
    async with shoal.connect(sys.argv[1]) as store:
        thread = store.space("upgrade").thread(sys.argv[2])
        print(json.dumps([event.event["number"] async for event in thread.journal.read()]))

asyncio.run(main())
"""


async def _read(version: Version, url: str, name: str) -> list[int]:
    command = [*version.python, "-c", _READER, url, name]
    reader = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=_environment())
    told, _ = await reader.communicate()
    found: list[int] = json.loads(told)
    return found
