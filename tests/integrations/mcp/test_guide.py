"""What docs/integrations/mcp.md shows can be used as it is written."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters

from shoal.integrations.mcp import memory
from shoal.integrations.mcp.server import STATE_TOOLS
from tests.cli.conftest import clean_environment

TEXT = (Path(__file__).parents[3] / "docs" / "integrations" / "mcp.md").read_text()
CONFIGURATIONS = [json.loads(each) for each in re.findall(r"^```json\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)]
SERVERS = [(name, server) for each in CONFIGURATIONS for name, server in each["mcpServers"].items()]


@pytest.mark.parametrize(("name", "server"), SERVERS)
async def test_a_configuration_starts_a_server(name: str, server: dict[str, Any], url: str, tmp_path: Path) -> None:
    arguments = [url if each.startswith("http://") else each for each in server["args"]]
    beside = {**clean_environment(), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    async with Client(StdioServerParameters(command=server["command"], args=arguments, env=beside, cwd=tmp_path)) as made:
        names = {tool.name for tool in (await made.list_tools()).tools}
    wanted = memory.TOOLS if name == "memory" else STATE_TOOLS
    assert names == {tool.name for tool in wanted}


def test_the_guide_names_every_tool() -> None:
    assert len(SERVERS) == 3
    for tool in (*STATE_TOOLS, *memory.TOOLS):
        assert f"`{tool.name}`" in TEXT
