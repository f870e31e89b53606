"""A tool's call continues the trace in its `_meta`, as the SDK reads it; what Shoal does is within."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.cli.conftest import PATIENCE_S
from tests.integrations.mcp.conftest import client

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the exporter is not installed")

from tests.traces.collector import collecting

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(("parent", "is_continued"), [(PARENT, True), (PARENT + "0", False), ("nonsense", False)])
async def test_a_tool_call_continues_the_trace_of_its_meta(tmp_path: Path, parent: str, is_continued: bool) -> None:
    with collecting() as collected:
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collected.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        async with client("--data", str(tmp_path / "state"), environment=variables) as made:
            given = {"namespace": ["memory"], "key": "k", "value": 7}
            result = await made.call_tool("put_item", given, meta={"traceparent": parent})
            assert not result.is_error
            async with asyncio.timeout(PATIENCE_S):
                while not {"tools/call put_item", "shoal.commit"} <= {span.name for span in collected.spans}:
                    await asyncio.sleep(0.05)
    spans = {span.name: span for span in collected.spans}
    call = spans["tools/call put_item"]
    [put] = [span for span in collected.spans if span.parent_span_id == call.span_id]
    assert put.name.startswith("shoal ")
    assert put.trace_id == spans["shoal.commit"].trace_id == call.trace_id
    assert (call.trace_id.hex() == PARENT[3:35]) is is_continued
