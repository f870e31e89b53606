"""LangGraph's own conformance suite: 81 tests over 8 capabilities, on an embedded store and on a node."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.conformance.initializer import RegisteredCheckpointer
from langgraph.checkpoint.conformance.validate import validate

from shoal.integrations.langgraph import ShoalSaver

TESTS = {
    Capability.PUT: 17,
    Capability.PUT_WRITES: 10,
    Capability.GET_TUPLE: 10,
    Capability.LIST: 16,
    Capability.DELETE_THREAD: 5,
    Capability.DELETE_FOR_RUNS: 7,
    Capability.COPY_THREAD: 8,
    Capability.PRUNE: 8,
}


def test_the_table_is_the_whole_suite(record_property: Any) -> None:
    record_property("checks", 0)
    assert set(TESTS) == set(Capability)
    assert sum(TESTS.values()) == 81


@pytest.mark.parametrize("capability", Capability, ids=lambda capability: capability.value)
@pytest.mark.parametrize("place", ["embedded", "connected"])
async def test_conformance(
    place: str, capability: Capability, tmp_path: Path, request: pytest.FixtureRequest, record_property: Any
) -> None:
    async def opened() -> AsyncGenerator[BaseCheckpointSaver[str], None]:
        if place == "embedded":
            opening = ShoalSaver.open(tmp_path / "state")
        else:
            # Each capability on a space of its own.
            opening = ShoalSaver.connect(request.getfixturevalue("url"), space=f"conformance-{capability.value}")
        async with opening as saver:
            yield saver

    report = await validate(RegisteredCheckpointer("ShoalSaver", opened), capabilities={capability.value})
    result = report.results[capability.value]
    assert result.failures == []
    assert result.tests_passed == TESTS[capability]
    record_property("checks", TESTS[capability])
