from __future__ import annotations

import pytest

from shoal.client.store import Store
from shoal.integrations.claude import ShoalSessionStore


@pytest.fixture
async def sessions(opened: Store, space: str) -> ShoalSessionStore:
    return ShoalSessionStore(opened, space=space)
