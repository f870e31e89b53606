"""A store with something of everything in it, on a directory and behind a URL."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import shoal
from tests.support.forked import Forked

PATIENCE_S = 30


def clean_environment() -> dict[str, str]:
    """Ours, without what would configure a `shoal`."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}


@contextmanager
def running(
    *arguments: str, config: Mapping[str, str] | None = None, anew: bool = False
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`shoal` in a process of its own, and the first line that it prints; it is killed if it is still there at the end.

    It is `anew` that of a new interpreter, as a user's is, and else forked from one that has imported `shoal`.
    """
    environment = {**clean_environment(), **(config or {})}
    command = ["-m", "shoal", *arguments]
    with (
        subprocess.Popen([sys.executable, *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if anew
        else Forked(command, environment)
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


@contextmanager
def served(
    data: Path, *arguments: str, config: Mapping[str, str] | None = None, anew: bool = False
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`shoal serve` on a port that the system chooses, and its URL."""
    with running("serve", "--data", str(data), "--listen", "127.0.0.1:0", *arguments, config=config, anew=anew) as started:
        yield started


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("filled") / "state"
    asyncio.run(_fill(data))
    return data


async def _fill(data: Path) -> None:
    async with shoal.open(data) as store:
        crew = store.space("crew")
        plain = crew.thread("plain")
        await plain.save({"step": 1}, metadata={"by": "planner"})
        await plain.save({"step": 2, "text": "größe\x9b"})
        await plain.journal.append({"paid": 5}, key="order-1")
        await plain.journal.append("note")
        one, other = crew.thread("forked"), crew.thread("forked")
        await one.save({"side": 0})
        await other.load()
        await one.save({"side": 1})
        await other.save({"side": 2}, on_conflict="fork")
        await crew.counter("tokens").add(512)
        await crew.register("goal").set(["reach", "Mars"])
        async with await crew.document("plan") as document:
            document.map("tasks")["t1"] = {"done": False}
        await store.space("other").counter("n").add(1)


@pytest.fixture(params=["--data", "--url"])
def target(request: pytest.FixtureRequest, filled: Path, tmp_path: Path) -> Iterator[list[str]]:
    """The options that name the filled store, one way and the other."""
    if request.param == "--data":
        # A copy: what one test does to its store is no other's business.
        shutil.copytree(filled, tmp_path / "state")
        yield ["--data", str(tmp_path / "state")]
        return
    yield ["--url", request.getfixturevalue("url")]


class Running(NamedTuple):
    """A served copy of the filled store."""

    url: str
    data: Path
    pid: int


@pytest.fixture(scope="module")
def url(node: Running) -> str:
    return node.url


@pytest.fixture(scope="module")
def node(filled: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Shared by the tests of a module, and no others: many write."""
    data = tmp_path_factory.mktemp("served") / "state"
    shutil.copytree(filled, data)
    with served(data) as (process, address):
        yield Running(address, data, process.pid)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
