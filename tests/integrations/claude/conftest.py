from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import shoal
from shoal.client.store import Store
from shoal.integrations.claude import ShoalSessionStore
from tests.cli.conftest import PATIENCE_S, served


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a node in a process of its own."""
    with served(tmp_path_factory.mktemp("claude") / "state") as (process, at):
        yield at
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)


@pytest.fixture(params=["embedded", "served"])
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    store = shoal.open(tmp_path / "state") if request.param == "embedded" else shoal.connect(request.getfixturevalue("url"))
    async with store as each:
        yield each


@pytest.fixture
async def sessions(opened: Store, request: pytest.FixtureRequest) -> ShoalSessionStore:
    return ShoalSessionStore(opened, space=request.node.name[:200])
