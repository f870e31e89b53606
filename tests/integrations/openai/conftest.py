from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from agents import set_tracing_disabled

import shoal
from shoal.client.store import Store
from shoal.integrations.openai import ShoalSession
from tests.cli.conftest import PATIENCE_S, served

set_tracing_disabled(True)


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a node in a process of its own."""
    with served(tmp_path_factory.mktemp("openai") / "state") as (process, at):
        yield at
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)


@pytest.fixture(params=["embedded", "served"])
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    store = shoal.open(tmp_path / "state") if request.param == "embedded" else shoal.connect(request.getfixturevalue("url"))
    async with store as each:
        yield each


@pytest.fixture
def space(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)[:200]


@pytest.fixture
async def session(opened: Store, space: str) -> ShoalSession:
    return ShoalSession(opened, "s", space=space)
