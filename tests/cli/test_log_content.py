"""What a served node logs of what it is sent: neither content nor secrets, also when it is sent nonsense."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path

import aiohttp
import pytest

import shoal
from shoal.config import Config
from shoal.errors import NotFound, ShoalError
from shoal.logs.events import EVENTS
from tests.cli.conftest import PATIENCE_S, clean_environment, served
from tests.support import forked

CANARY = "CANARY-7f3a"
KEY = "canary-key-of-the-cluster-4711-9x"


def secrets_of(folder: Path) -> list[str]:
    """A token, and its parts."""
    command = ["-m", "shoal", "token"]
    made = [
        forked.run([*command, "init", str(folder)], clean_environment(), timeout=PATIENCE_S),
        forked.run(
            [*command, "create", str(folder), "ana", "--allow", "crew:*:admin", "--out", str(folder / "ana.token")],
            clean_environment(),
            timeout=PATIENCE_S,
        ),
    ]
    assert [each.returncode for each in made] == [0, 0], made
    token = (folder / "ana.token").read_text().strip()
    return [token, *(part for part in token.split(".") if len(part) > 20)]


async def nonsense(url: str, token: str) -> None:
    """What a hostile or careless client sends, with the canary in it."""
    mine = {"Authorization": f"Bearer {token}"}
    async with shoal.connect(url, token=token, config=Config(request_timeout_s=30.0, reach_timeout_s=30.0)) as store:
        space = store.space("crew")
        await space.register("goal").set({"secret": CANARY})
        await space.thread("t").save({"secret": CANARY})
        for wrong in (space.thread("t").save({"secret": CANARY}, key=CANARY * 200), space.counter("n").add(2**80)):
            with pytest.raises((ShoalError, ValueError, TypeError)):
                await wrong
    async with aiohttp.ClientSession() as http:
        bodies = [CANARY.encode(), b'{"add": "' + CANARY.encode() + b'"}', b"\xff" + CANARY.encode(), b"[" * 5000]
        for path in ("counters/n", "registers/goal", "threads/t/events", "batch"):
            for body in bodies:
                async with http.post(f"{url}/v1/spaces/crew/{path}", data=body, headers=mine) as answer:
                    await answer.read()
        for headers in ({"Authorization": f"Bearer {CANARY}"}, {"Authorization": f"Bearer {token[:-3]}aaa"}):
            async with http.get(f"{url}/v1/spaces/crew/registers/goal", headers=headers) as answer:
                assert answer.status == 401


async def strange(url: str, token: str) -> None:
    """What one sends that claims to be a peer."""
    async with aiohttp.ClientSession() as http, http.ws_connect(f"{url}/v1/peer") as socket:
        await socket.send_bytes(CANARY.encode() + token.encode())
        while (await socket.receive()).type is not aiohttp.WSMsgType.CLOSED:
            pass


@pytest.mark.parametrize(
    ("form", "sends", "join"), [("json", nonsense, ""), ("text", nonsense, ""), ("json", strange, "127.0.0.1:9")]
)
def test_a_log_has_neither_content_nor_secrets(
    form: str, sends: Callable[[str, str], Coroutine[None, None, None]], join: str, tmp_path: Path
) -> None:
    secrets = [*secrets_of(tmp_path / "tokens"), KEY, CANARY]
    master = tmp_path / "master.key"
    master.write_text(os.urandom(32).hex())
    master.chmod(0o600)
    secrets.append(master.read_text())
    arguments = ["--log-format", form, "--log-level", "debug", "--token-keys", str(tmp_path / "tokens" / "keys.json")]
    arguments += ["--encryption-key", f"file:{master}", "--insecure", *(["--join", join] if join else [])]
    with served(tmp_path / "state", *arguments, config={"SHOAL_CLUSTER_KEY": KEY}) as (process, url):
        process.send_signal(signal.SIGHUP)
        asyncio.run(asyncio.wait_for(sends(url, secrets[0]), PATIENCE_S))
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert [secret for secret in secrets if secret in errors] == []
    lines = errors.splitlines()
    assert len(lines) >= 3
    if form == "json":
        told = [json.loads(line) for line in lines]
        assert {each["event"] for each in told} <= EVENTS.keys()
        assert {"ready", "stopped", *(["peer-refused"] if join else [])} <= {each["event"] for each in told}
    else:
        found = [re.fullmatch(r"\S+Z (debug|info|warning|error) +([a-z-]+): .*", line) for line in lines]
        assert all(found)
        assert {each[2] for each in found if each is not None} <= EVENTS.keys()


@pytest.mark.parametrize(("level", "is_told"), [("debug", True), ("info", False)])
def test_a_refused_request_is_a_line_at_debug_alone(level: str, is_told: bool, tmp_path: Path) -> None:
    async def refused(url: str) -> None:
        path, headers = f"/v1/spaces/crew/threads/{CANARY}/checkpoints/latest", {"X-Request-Id": "mine"}
        async with aiohttp.ClientSession() as http, http.get(url + path, headers=headers) as answer:
            assert answer.status == 404
        async with shoal.connect(url) as store:
            thread = store.space("crew").thread("t")
            with pytest.raises(NotFound):
                await thread.load()
            await thread.save({"a": 1})

    with served(tmp_path / "state", "--log-format", "json", "--log-level", level) as (process, url):
        asyncio.run(asyncio.wait_for(refused(url), PATIENCE_S))
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
    lines = [line for line in map(json.loads, errors.splitlines()) if line["event"] == "request-refused"]
    assert [(line["kind"], line["code"]) for line in lines] == [("load", "not-found")] * 2 * is_told
    assert [line["request"] for line in lines][:1] == ["mine"][: len(lines)]
    assert CANARY not in errors
