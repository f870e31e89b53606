"""A budget goes on being spent when a node is killed, through real processes and sockets."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

import shoal
from chaos.ports import free_ports
from shoal.errors import RightsElsewhere
from tests.cli.conftest import PATIENCE_S, served


async def drawn(url: str) -> None:
    """Wait until nothing is left in the pool, as a node sees it."""
    async with shoal.connect(url) as store, asyncio.timeout(PATIENCE_S):
        budget = store.space("crew").budget("tokens")
        while (await budget.rights()).pool or not (await budget.rights()).here:
            await asyncio.sleep(0.05)


@pytest.mark.answers("one-dead-node-stops-the-spending-of-a-budget")
async def test_after_the_death_of_any_node_the_others_spend_their_shares_and_then_say_who_has_the_rest(tmp_path: Path) -> None:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(served(tmp_path / str(n), "--listen", address, "--join", ",".join(addresses)))
            for n, address in enumerate(addresses)
        ]
        urls = [url for _, url in nodes]
        async with shoal.connect(",".join(urls), in_order=True) as store:  # All at the first node, which is then killed.
            budget = store.space("crew").budget("tokens")
            await budget.grant(90)
            await asyncio.gather(*(drawn(url) for url in urls))
            nodes[0][0].kill()
            nodes[0][0].wait(PATIENCE_S)
            for _ in range(6):
                await budget.spend(10)
            with pytest.raises(RightsElsewhere) as refused:
                await budget.spend(10)
        assert refused.value.detail["unreachable"] == [addresses[0]]
        assert f"{addresses[0]} has rights to 30 and cannot be reached. Nothing was written." in refused.value.message
