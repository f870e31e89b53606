"""A command at a wrong address says why at once, and `--wait` waits for a node that is about to come."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from chaos.ports import free_ports
from tests.cli.conftest import PATIENCE_S, clean_environment, served
from tests.support import forked


async def run(*arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    given = {**clean_environment(), **(environment or {})}
    ended = await asyncio.to_thread(forked.run, ["-m", "shoal", *arguments], given, timeout=PATIENCE_S)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:{}", "connection refused"),
        ("http://no-such-host.invalid:{}", "no-such-host.invalid"),
        ("127.0.0.1:{}", "Write http://127.0.0.1:"),
        ("http://127.0.0.1:{}/v1", "more than a host and a port"),
    ],
)
async def test_a_wrong_address_is_told_with_its_reason(url: str, said: str) -> None:
    (port,) = free_ports(1)
    code, _, errors = await run("threads", "--url", url.format(port))
    assert code == 1
    assert said in errors
    assert "Traceback" not in errors


async def test_a_server_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        code, _, errors = await run("status", "--url", f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert code == 1
    assert "did not answer in time" in errors
    assert "`shoal --wait 30 …`" in errors


@pytest.mark.parametrize("by", ["option", "environment"])
async def test_a_node_that_is_about_to_come_is_waited_for(by: str, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    command = ("status", "--url", f"http://127.0.0.1:{port}")
    arguments = ("--wait", "300", *command) if by == "option" else command
    waiting = asyncio.create_task(run(*arguments, environment={"SHOAL_WAIT": "300"} if by == "environment" else None))
    with served(tmp_path / "state", "--listen", f"127.0.0.1:{port}"):
        code, out, errors = await waiting
    assert (code, errors) == (0, "")
    assert "ready" in out
