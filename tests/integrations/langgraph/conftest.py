from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.integrations.langgraph import ShoalSaver


@pytest.fixture
async def saver(tmp_path: Path) -> AsyncIterator[ShoalSaver]:
    async with ShoalSaver.open(tmp_path / "state") as opened:
        yield opened
