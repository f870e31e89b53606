from __future__ import annotations

import pytest

from shoal.client.store import Store
from shoal.integrations.adk import ShoalArtifactService, ShoalMemoryService, ShoalSessionService


@pytest.fixture
async def sessions(opened: Store, space: str) -> ShoalSessionService:
    return ShoalSessionService(opened, space=space)


@pytest.fixture
async def memories(opened: Store, space: str) -> ShoalMemoryService:
    return ShoalMemoryService(opened, space=space)


@pytest.fixture
async def artifacts(opened: Store, space: str) -> ShoalArtifactService:
    return ShoalArtifactService(opened, space=space)
