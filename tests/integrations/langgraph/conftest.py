from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shoal.integrations.langgraph import ShoalSaver
from tests.cli.conftest import PATIENCE_S, served


@pytest.fixture
async def saver(tmp_path: Path) -> AsyncIterator[ShoalSaver]:
    async with ShoalSaver.open(tmp_path / "state") as opened:
        yield opened


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a node in a process of its own."""
    with served(tmp_path_factory.mktemp("langgraph") / "state") as (process, at):
        yield at
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
