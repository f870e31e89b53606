"""Without the SDK there is nothing to record with: it belongs to the extra `test`."""

from __future__ import annotations

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the SDK of OpenTelemetry is not installed")

from collections.abc import Iterator

from tests.traces.recording import Recorded, recording


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    with recording() as spans:
        yield spans
