from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ |= {"CREWAI_TRACING_ENABLED": "false", "CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true"}

with warnings.catch_warnings(action="ignore"):  # CrewAI's own modules warn when they are imported.
    from shoal.integrations.crewai import ShoalFlowPersistence


@pytest.fixture(params=["embedded", "served"])
def persistence(request: pytest.FixtureRequest, tmp_path: Path, space: str) -> Iterator[ShoalFlowPersistence]:
    if request.param == "embedded":
        opening = ShoalFlowPersistence.open(tmp_path / "state", space=space)
    else:
        opening = ShoalFlowPersistence.connect(request.getfixturevalue("url"), space=space)
    with opening as opened:
        yield opened
