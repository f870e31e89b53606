"""A cluster of three processes over TLS: clients live through a kill, and nothing is lost."""

from __future__ import annotations

import asyncio
import subprocess
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

import shoal
from chaos.ports import free_ports
from tests.cli.conftest import PATIENCE_S, served
from tests.tls.conftest import Certificates


@pytest.mark.answers("peers-prove-themselves", note="a cluster of three over TLS and a kill")
async def test_three_nodes_over_tls_outlive_a_kill(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "tls")
    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
    names = ["n1", "n2", "n3"]

    def start(number: int) -> AbstractContextManager[tuple[subprocess.Popen[str], str]]:
        certificates.settings(names[number])
        place = str(certificates.directory / names[number])
        options = ["--listen", addresses[number], "--join", ",".join(addresses), "--tls", place]
        return served(tmp_path / names[number], *options, config={"SHOAL_CLUSTER_KEY": "a secret of the nodes alone"})

    with ExitStack() as stack:
        processes = [stack.enter_context(start(number))[0] for number in range(3)]
        urls = [f"https://{address}" for address in addresses]
        async with shoal.connect(urls, tls_ca=certificates.ca, durability="quorum", in_order=True, wait=PATIENCE_S) as store:
            counter = store.space("s").counter("n")
            for _ in range(20):
                await counter.add(1)
            processes[0].kill()
            processes[0].wait(PATIENCE_S)
            for _ in range(20):
                await counter.add(1)
            assert await counter.value() == 40
        stack.enter_context(start(0))
        async with shoal.connect(urls[0], tls_ca=certificates.ca, durability="all", wait=PATIENCE_S) as store:
            await store.space("s").counter("n").add(1)
            async with asyncio.timeout(PATIENCE_S):
                while await store.space("s").counter("n").value() != 41:
                    await asyncio.sleep(0.05)
