"""A node for programs that connect, and a runner of programs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from shoal.api.http.listener import Listener
from shoal.api.server import create_app
from shoal.config import Config
from shoal.node.environment import system_environment
from shoal.node.node import open_node
from shoal.sync import Portal


@asynccontextmanager
async def serving(directory: Path) -> Any:
    """A node that listens; gives its address."""
    config = Config(listen_port=0)
    node = await open_node(directory, config=config, environment=system_environment())
    listener = Listener(create_app(node.session, config=config, node="n", version="0", now_s=time.time), config=config)
    await listener.start()
    yield listener.url
    await listener.stop()
    await node.stop()


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    portal = Portal()
    node = serving(tmp_path / "node")
    yield portal.run(node.__aenter__)
    portal.run(lambda: node.__aexit__(None, None, None))
    portal.close()


@pytest.fixture(params=["embedded", "connected"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A directory to open, or a node to connect to."""
    return str(tmp_path / "state") if request.param == "embedded" else request.getfixturevalue("url")


def output_of(program: str | Path, *arguments: str, fails: bool = False) -> tuple[str, str]:
    """What a program writes and says; it must end well, unless it `fails`."""
    ended = subprocess.run(
        [sys.executable, "-X", "dev", *(("-c", program) if isinstance(program, str) else (str(program),)), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (ended.returncode != 0) is fails, ended.stdout + ended.stderr
    return ended.stdout, ended.stderr
