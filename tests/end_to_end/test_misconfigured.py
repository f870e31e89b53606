"""Nodes that were set up wrongly say so: in the log of each, in the status, and to Prometheus."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import pytest

import shoal
from chaos.ports import free_ports
from tests.cli.conftest import PATIENCE_S, clean_environment, served
from tests.support import forked


async def disagreements(url: str, *wanted: str) -> int:
    """Wait until a node tells all that is wanted; returns of how many nodes it tells something."""
    async with shoal.connect(url) as store, asyncio.timeout(PATIENCE_S):
        while True:
            found = (await store.cluster()).disagreements
            if all(text in " ".join(found) for text in wanted):
                return len(found)
            await asyncio.sleep(0.05)


async def refused(url: str) -> None:
    """Wait until no member takes the node at `url`, for it has another key."""
    async with shoal.connect(url) as store, asyncio.timeout(PATIENCE_S):
        while not all("cluster_key" in member.reason for member in (await store.cluster()).members[1:]):
            await asyncio.sleep(0.05)


def ended(process: subprocess.Popen[str]) -> list[dict[str, str]]:
    """The warnings of a node that is stopped now."""
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE_S)
    events = [json.loads(line) for line in errors.splitlines()]
    return [event for event in events if event["level"] == "warning"]


@pytest.mark.answers("nodes-count-different-majorities")
async def test_other_lists_doubled_addresses_and_wrong_keys_are_told_by_every_node(tmp_path: Path) -> None:
    ports = free_ports(4)
    n1, n2, n3, stranger = (f"127.0.0.1:{port}" for port in ports)
    join = ",".join((n1, n2, n3))

    def node(name: str, address: str, more: str = "", **settings: str) -> tuple[subprocess.Popen[str], str]:
        environment = {f"SHOAL_{setting}": value for setting, value in settings.items()}
        started = served(tmp_path / name, "--listen", address, "--join", join + more, config=environment)
        return stack.enter_context(started)

    with ExitStack() as stack:
        first, url1 = node("n1", n1)
        second, url2 = node("n2", n2, f",{stranger}")
        third, url3 = node("n3", n3, ADVERTISE=n1)
        fourth, url4 = node("n4", stranger, CLUSTER_KEY="a secret of other nodes")
        for url in (url1, url2, url3):
            # To the second node either of the others may be the one whose name is doubled: it compares no list with them then.
            lists = [] if url == url2 else [f"only {n2} has {stranger}"]
            await disagreements(url, f"two nodes advertise {n1}", *lists)
            async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as response:
                assert 'shoal_condition{condition="members-differ"} 1.0' in await response.text()
        shown = forked.run(["-m", "shoal", "status", "--url", url2], clean_environment(), timeout=PATIENCE_S)
        assert shown.returncode == 0, shown.stderr
        assert f"two nodes advertise {n1}" in " ".join(shown.stdout.split()), shown.stdout  # Lines are as wide as a terminal.
        await refused(url4)
        turned_away = [event for event in ended(fourth) if event["event"] in ("peer-not-linked", "peer-refuses")]
        assert {event["address"] for event in turned_away} == {n1, n2, n3}
        assert all("cluster_key" in event["reason"] for event in turned_away)
        for process in (first, second, third):
            warnings = ended(process)
            assert any(event["event"] == "members-differ" for event in warnings)
            assert any("cluster_key" in event["reason"] for event in warnings if event["event"] == "peer-refused")
