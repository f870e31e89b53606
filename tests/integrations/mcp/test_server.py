"""The handlers of a server, called as the SDK calls them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mcp.types import CallToolRequestParams

import shoal
from shoal.integrations.mcp.server import ShoalServer
from shoal.integrations.mcp.views import OneView


async def test_a_request_that_is_sent_twice_counts_once(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state") as store:
        one, other = (ShoalServer(OneView(store, "default"), "default") for _ in range(2))
        for server, request, wanted in ((one, 7, 1), (one, 7, 1), (one, "7", 2), (other, 7, 3)):
            assert await added(server, request) == wanted


async def added(server: ShoalServer, request: int | str) -> Any:
    """The value after one call that adds 1."""
    context: Any = SimpleNamespace(request_id=request)
    params = CallToolRequestParams(name="write_value", arguments={"kind": "counter", "name": "n", "add": 1})
    result = await server.call_tool(context, params)
    assert result.structured_content is not None
    return result.structured_content["value"]
