from __future__ import annotations

import pytest
from agents import set_tracing_disabled

from shoal.client.store import Store
from shoal.integrations.openai import ShoalSession

set_tracing_disabled(True)


@pytest.fixture
async def session(opened: Store, space: str) -> ShoalSession:
    return ShoalSession(opened, "s", space=space)
