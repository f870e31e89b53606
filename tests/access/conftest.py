"""Tokens, and nodes in this process that ask for them."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec
import pytest

from shoal.access import grants, keys
from shoal.access.access import Access
from shoal.access.bearer import Token
from shoal.cli.serving import access_of, listening
from shoal.config import Config
from shoal.node.environment import system_environment
from shoal.node.node import Node, open_node
from shoal.transport.link import Link
from simulation.bounds import altered, parted

LIMITS = Config()


class Made(NamedTuple):
    """A token and its text."""

    token: Token
    text: str

    @property
    def header(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.text}"}


class Mint:
    """Makes tokens with the keys of a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        keys.found(directory)

    @property
    def keys(self) -> str:
        return str(self.directory / keys.KEYS)

    def make(
        self, *allow: str, author: str = "planner", lasts_s: float = 3600.0, ago_s: float = 0.0, cluster: str = "shoal"
    ) -> Made:
        """A token with these grants; `ago_s` is how long ago it was made."""
        return Made(
            *keys.issue(
                self.directory,
                author,
                [grants.parsed(each) for each in allow],
                cluster=cluster,
                now_s=time.time() - ago_s,
                lasts_s=lasts_s,
                entropy=os.urandom,
                bytes_max=1 << 20,
            )
        )


class Served(NamedTuple):
    """A node that listens, and its access."""

    url: str
    node: Node
    access: Access | None
    directory: Path


Serve = Callable[..., Awaitable[Served]]


@pytest.fixture
def mint(tmp_path: Path) -> Mint:
    return Mint(tmp_path / "tokens")


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    """Start a node with settings, in a new directory or a given one."""
    async with AsyncExitStack() as stack:

        async def start(directory: Path | None = None, **settings: object) -> Served:
            mine, bounds = parted(settings)
            stack.enter_context(altered(**bounds))
            config = msgspec.structs.replace(Config(listen_port=0, stop_timeout_s=2.0), **mine)
            place = directory or tmp_path / f"node-{os.urandom(4).hex()}"
            node = await open_node(place, config=config, environment=system_environment())
            stack.push_async_callback(node.stop)
            access = access_of(config)
            if access is not None:
                await access.start(node.session())
                stack.push_async_callback(access.stop)
            listener = await listening(node, config, None, None, access)
            stack.push_async_callback(listener.stop)
            return Served(listener.url, node, access, place)

        yield start


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as client:
        yield client


@pytest.fixture
async def links(served: Served) -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:

        async def link(token: Made) -> Link:
            dialled = await Link.dial(served.url, config=Config(), token=token.text)
            stack.push_async_callback(dialled.close)
            return dialled

        yield link
