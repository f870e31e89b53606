"""The tests of an integration run where its SDK is installed: see tests/integrations/suites.py, and `make integrations`."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import shoal
from shoal.client.store import Store
from tests.cli.conftest import PATIENCE_S, served

_SDKS = {
    "adk": "google.adk",
    "autogen": "autogen_ext",
    "claude": "claude_agent_sdk",
    "crewai": "crewai",
    "harness": "pydantic_ai_harness",
    "langgraph": "langgraph",
    "langgraph_server": "langgraph_api",
    "mcp": "mcp_types",
    "microsoft": "agent_framework",
    "openai": "agents",
    "pydantic": "pydantic_ai",
}


def _is_installed(sdk: str) -> bool:
    try:
        return find_spec(sdk) is not None
    except ModuleNotFoundError:  # The package that it is in is not there.
        return False


collect_ignore = [folder for folder, sdk in _SDKS.items() if not _is_installed(sdk)]
_PACKAGES = {  # Of npm.
    "hocuspocus": "provider-2",
    "openapi": "openapi-typescript",
    "streams": "@durable-streams",
}
collect_ignore += [folder for folder, name in _PACKAGES.items() if not (Path(sys.prefix) / "node_modules" / name).is_dir()]


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a node in a process of its own."""
    with served(tmp_path_factory.mktemp("served") / "state") as (process, at):
        yield at
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)


@pytest.fixture(params=["embedded", "served"])
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """A store of the test's own, and one that all share: there a test keeps to a space of its own."""
    store = shoal.open(tmp_path / "state") if request.param == "embedded" else shoal.connect(request.getfixturevalue("url"))
    async with store as each:
        yield each


@pytest.fixture
def space(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)[:200]
