"""`shoal://` on the ADK's command line, in a Runner, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from google.adk.cli.service_registry import ServiceRegistry, get_service_registry

from chaos.ports import free_ports
from shoal.errors import InvalidInput
from shoal.integrations.adk import ShoalArtifactService, ShoalMemoryService, ShoalSessionService, register
from shoal.integrations.adk.sessions import opening_of
from tests.cli.conftest import PATIENCE_S, clean_environment
from tests.integrations.adk.events import WHO, read, said, texts

PROGRAM = """
import asyncio
from google.adk.cli.service_registry import get_service_registry
from shoal.integrations.adk import register

async def main():
    register()
    sessions = get_service_registry().create_session_service("shoal:./state")
    await sessions.create_session(app_name="desk", user_id="ana")
    print(len((await sessions.list_sessions(app_name="desk")).sessions))

asyncio.run(main())
"""
AGENT = """
from google.adk.agents import LlmAgent
root_agent = LlmAgent(name="desk", model="gemini-3.5-flash")
"""
SERVICES = """
from shoal.integrations.adk import register
register()
"""


@pytest.fixture
def registry() -> ServiceRegistry:
    register()
    return get_service_registry()


async def test_the_three_services_of_a_directory_share_one_store(registry: ServiceRegistry, tmp_path: Path) -> None:
    uri = f"shoal:{tmp_path / 'state'}?space=desk"
    sessions = registry.create_session_service(uri, agents_dir="agents")
    assert isinstance(sessions, ShoalSessionService)
    assert isinstance(registry.create_memory_service(uri, agents_dir="agents"), ShoalMemoryService)
    assert isinstance(registry.create_artifact_service(uri, agents_dir="agents", per_agent=True), ShoalArtifactService)
    session = await sessions.create_session(**WHO, session_id="s")
    await sessions.append_event(session, said("hi"))
    again = registry.create_session_service(uri)
    assert again is sessions
    assert texts(await read(again, session)) == ["hi"]


def test_a_directory_ends_with_its_process_and_keeps_everything(tmp_path: Path) -> None:
    for nth in (1, 2):
        ended = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{nth}\n", "")


async def test_a_node_by_its_address(registry: ServiceRegistry, url: str) -> None:
    sessions = registry.create_session_service(url.replace("http://", "shoal://") + "?space=by-address")
    assert isinstance(sessions, ShoalSessionService)
    session = await sessions.create_session(**WHO)
    assert await read(sessions, session) == session


@pytest.mark.parametrize("uri", ["shoal://", "shoal:", "shoal:///", "shoal://n1:7400/path", "shoal://n1?colour=red"])
def test_a_malformed_uri_is_refused_with_advice(uri: str) -> None:
    with pytest.raises(InvalidInput, match=r"Nothing was opened. Write `shoal://n1:7400"):
        opening_of(uri)


def test_the_command_line_serves_agents_from_it(tmp_path: Path, url: str) -> None:
    agents = tmp_path / "agents"
    (agents / "desk").mkdir(parents=True)
    (agents / "desk" / "__init__.py").write_text("from . import agent\n")
    (agents / "desk" / "agent.py").write_text(AGENT)
    (agents / "services.py").write_text(SERVICES)
    (port,) = free_ports(1)
    uri = url.replace("http://", "shoal://") + "?space=command-line"
    command = [
        sys.executable,
        "-m",
        "google.adk.cli",
        "api_server",
        "--port",
        f"{port}",
        "--session_service_uri",
        uri,
        str(agents),
    ]
    with subprocess.Popen(command, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as api:
        try:
            assert api.stdout is not None
            said = ""
            while "Uvicorn running" not in said:
                line = api.stdout.readline()
                assert line, said
                said += line
            at = f"http://127.0.0.1:{port}/apps/desk/users/ana/sessions/s"
            made = urllib.request.Request(at, data=json.dumps({"n": 1}).encode(), headers={"Content-Type": "application/json"})
            with urllib.request.urlopen(made, timeout=PATIENCE_S) as answer:
                assert answer.status == 200
            with urllib.request.urlopen(at, timeout=PATIENCE_S) as answer:
                found = json.load(answer)
        finally:
            api.kill()
    assert (found["id"], found["state"]) == ("s", {"n": 1})
