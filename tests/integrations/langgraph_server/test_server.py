"""`langgraph dev` on Shoal: examples/langgraph_server as it is, killed with SIGKILL and started again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import pytest

from shoal.errors import InvalidConfig
from shoal.integrations.langgraph import server
from tests.cli.conftest import PATIENCE_S, clean_environment

EXAMPLE = Path(__file__).parents[3] / "examples" / "langgraph_server"
THREAD = "11111111-2222-4333-8444-555555555555"
_LOOK_S = 0.25


class Server:
    """A running `langgraph dev`."""

    def __init__(self, process: subprocess.Popen[bytes], url: str) -> None:
        self.process = process
        self.url = url

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.url + path, data, {"content-type": "application/json"}, method=method)
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
            return json.loads(answer.read() or b"null")

    def make_thread(self) -> None:
        self.ask("POST", "/threads", {"thread_id": THREAD, "if_exists": "do_nothing", "metadata": {"graph_id": "diary"}})

    def say(self, words: str) -> list[str]:
        run = {"assistant_id": "diary", "input": {"said": words}}
        turns: list[str] = self.ask("POST", f"/threads/{THREAD}/runs/wait", run)["turns"]
        return turns

    def turns(self) -> list[str]:
        values = self.ask("GET", f"/threads/{THREAD}/state")["values"]
        turns: list[str] = values.get("turns", [])
        return turns

    def history(self) -> list[list[str]]:
        """The turns of each checkpoint, newest first."""
        return [state["values"].get("turns", []) for state in self.ask("GET", f"/threads/{THREAD}/history?limit=100")]

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def project(place: Path, **environment: str) -> Path:
    """A copy of the example; with `environment` instead of its own."""
    shutil.copytree(EXAMPLE, place, ignore=shutil.ignore_patterns("__pycache__"))
    configuration = json.loads((place / "langgraph.json").read_text())
    if environment:
        configuration["env"] = environment
    (place / "langgraph.json").write_text(json.dumps(configuration))
    return place


@contextmanager
def running(place: Path) -> Iterator[Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("langgraph")), "dev", "--no-browser", "--no-reload", "--port", str(port)]
    log = place / "server.log"
    with log.open("ab") as output:
        environment = {**clean_environment(), "LANGSMITH_TRACING": "false"}
        process = subprocess.Popen(
            command, cwd=place, env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True
        )
    found = Server(process, f"http://127.0.0.1:{port}")
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with suppress(URLError, ConnectionError):
                found.ask("GET", "/ok")
                break
            assert process.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(_LOOK_S)
        yield found
    finally:
        if process.poll() is None:
            found.kill()


def test_a_killed_server_finds_its_state_again(tmp_path: Path) -> None:
    place = project(tmp_path / "app")
    with running(place) as one:
        one.make_thread()
        assert one.say("hello") == ["1: hello"]
        assert one.say("again") == ["1: hello", "2: again"]
        before = one.history()
        assert before[0] == ["1: hello", "2: again"]
        one.kill()
    with running(place) as one:
        one.make_thread()
        assert one.turns() == ["1: hello", "2: again"]
        assert one.history() == before
        assert one.say("after") == ["1: hello", "2: again", "3: after"]
        [remembered] = one.ask("POST", "/store/items/search", {"namespace_prefix": ["diary"]})["items"]
        assert remembered["value"] == {"count": 3}


def test_two_servers_continue_one_thread(tmp_path: Path, url: str) -> None:
    space = "two-servers"
    places = [project(tmp_path / name, SHOAL_URL=url, SHOAL_SPACE=space) for name in ("one", "two")]
    with running(places[0]) as one, running(places[1]) as two:
        one.make_thread()
        two.make_thread()
        assert one.say("to one") == ["1: to one"]
        assert two.say("to two") == ["1: to one", "2: to two"]
        assert one.turns() == ["1: to one", "2: to two"]
        assert one.history() == two.history()


def test_a_thread_is_copied_and_deleted_in_shoal(tmp_path: Path) -> None:
    place = project(tmp_path / "app")
    with running(place) as one:
        one.make_thread()
        one.say("hello")
        copied = one.ask("POST", f"/threads/{THREAD}/copy")["thread_id"]
        one.ask("DELETE", f"/threads/{THREAD}")
        assert one.ask("GET", f"/threads/{copied}/state")["values"]["turns"] == ["1: hello"]
        with pytest.raises(HTTPError, match="404"):
            one.turns()
        one.make_thread()
        assert one.turns() == []


@pytest.mark.parametrize("environment", [{}, {"SHOAL_DATA": "./state", "SHOAL_URL": "http://127.0.0.1:9"}], ids=["none", "two"])
def test_a_server_must_be_told_one_store(environment: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig, match=r"(neither|both) SHOAL_DATA .* Nothing was opened"):
        server.opening_of(environment)


async def test_both_parts_share_one_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path / "state"))
    monkeypatch.delenv("SHOAL_URL", raising=False)
    for _ in range(2):  # The store is closed when both have ended, so that it can be opened again.
        async with server.checkpointer() as saver, server.store() as memory:
            await memory.aput(("a",), "k", {"n": 1})
            assert await saver.aget_tuple({"configurable": {"thread_id": "t"}}) is None
            found = await memory.aget(("a",), "k")
            assert found is not None
            assert found.value == {"n": 1}
