"""Yjs clients that do not read."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from shoal.kinds.document.state.yjs import parse_state
from tests.api.yjs.conftest import Serve, map_of, seen


@pytest.mark.answers("slow-consumer-makes-memory-grow-without-bound")
async def test_one_stalled_client_among_fifty_is_bounded_and_catches_up_once_it_reads(serve: Serve) -> None:
    budget = 2 << 20  # The document is smaller, what passes through it six times as large.
    served = await serve(yjs_send_bytes_max=budget)
    async with AsyncExitStack() as stack:
        stalled = await stack.enter_async_context(served.client())
        clients = [await stack.enter_async_context(served.client()) for _ in range(49)]
        stalled.reading.clear()
        stalled.socket._response.connection.transport.pause_reading()  # type: ignore[union-attr]
        connections = list(next(iter(served.listener._yjs._rooms.values()))._guests)
        left = 20  # Writes after the first that the stalled client missed.
        for number in range(160):
            key, value = f"k{number % 20}", f"{number}" + "x" * 65_536
            map_of(clients[number % 49])[key] = value
            for client in clients:
                await seen(client, key, value)
            assert all(c._waiting_bytes + c._held_bytes <= budget for c in connections)  # type: ignore[attr-defined]
            left -= any(c._missed for c in connections)  # type: ignore[attr-defined]
            if not left:
                break
        assert any(c._missed for c in connections)  # type: ignore[attr-defined]
        stalled.socket._response.connection.transport.resume_reading()  # type: ignore[union-attr]
        stalled.reading.set()
        await stalled.until(lambda: parse_state(stalled.doc.get_state()) == parse_state(clients[0].doc.get_state()))
        assert map_of(stalled).to_py() == map_of(clients[0]).to_py()


async def test_a_client_that_never_reads_again_is_cut_off(serve: Serve) -> None:
    served = await serve(yjs_send_bytes_max=1 << 14, yjs_stalled_s=0.2)
    async with served.client() as stalled, served.client() as one:
        stalled.reading.clear()
        stalled.socket._response.connection.transport.pause_reading()  # type: ignore[union-attr]
        number = 0
        while len(served.listener._yjs._open) == 2:
            map_of(one)["k"] = f"{number}" + "x" * 262_144
            await one.until(lambda number=number: one.updates > number)  # type: ignore[misc]
            number += 1
        stalled.reading.set()
        stalled.socket._response.connection.transport.resume_reading()  # type: ignore[union-attr]
