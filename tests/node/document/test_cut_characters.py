"""Edits of Yjs clients within a character, on several nodes: all show the same, in any order, compacted or not."""

from __future__ import annotations

import json

import pytest

from shoal.errors import InvalidValue
from shoal.node.verification.verify import verify
from shoal.protocol.requests import Compact, ReadDocument, ReadDocumentJson, Updates
from simulation.world.fleet import Fleet
from tests.support.histories import A, deleted, document, typed

BASE = typed("x😀y", 0, client=A)
INSERTED = typed("|", 0, origin=(A, 1), right=(A, 2))
DELETED = deleted(A, 2, 1)
SHOWN = '{"t":"x\ufffd|y"}'


async def write(fleet: Fleet, name: str, *updates: bytes) -> None:
    for update in updates:
        await fleet[name].node.session().call(Updates("crew", "plan", [update]))


async def shown(fleet: Fleet) -> set[str]:
    """What the nodes show, and what a Yjs client is sent."""
    found = set()
    for name in fleet.members:
        session = fleet[name].node.session()
        content = (await session.call(ReadDocumentJson("crew", "plan"))).json.decode()
        state = await session.call(ReadDocument("crew", "plan"))
        assert document(updates=[state.update]).to_py()["t"] == json.loads(content)["t"]
        found.add(content)
    return found


async def begun(fleet: Fleet) -> None:
    await write(fleet, "a", BASE)
    await fleet.converged()
    assert await shown(fleet) == {'{"t":"x😀y"}'}


@pytest.mark.answers("edit-between-two-utf-16-units")
async def test_nodes_that_were_cut_apart_show_the_same() -> None:
    async with Fleet("abc") as fleet:
        await begun(fleet)
        await fleet.isolate("a")
        await write(fleet, "a", INSERTED)
        await write(fleet, "b", DELETED)
        fleet.link_all("a")
        await fleet.converged()
        assert await shown(fleet) == {SHOWN}


async def test_nodes_that_restarted_show_the_same() -> None:
    async with Fleet("abc", document_snapshot_updates=2) as fleet:
        await begun(fleet)
        await write(fleet, "a", INSERTED)
        await fleet.converged()
        for name in "ac":
            fleet.start(name, await fleet.crash(name, None))
        await fleet.converged()
        await write(fleet, "b", DELETED)
        await fleet.converged()
        assert await shown(fleet) == {SHOWN}


@pytest.mark.parametrize("before", [1, 2, 3])
async def test_a_node_that_compacts_shows_the_same(before: int) -> None:
    async with Fleet("abc") as fleet:
        updates = [BASE, INSERTED, DELETED]
        await write(fleet, "a", *updates[:before])
        await fleet["a"].node.session().call(Compact("crew", "plan", 0))
        await write(fleet, "a", *updates[before:])
        await fleet.converged()
        fleet.start("c", await fleet.crash("c", None))
        await fleet.converged()
        assert await shown(fleet) == {SHOWN}
        for name in "abc":
            assert verify(fleet[name].storage, config=fleet[name].config).problems == []


async def test_half_a_character_is_refused_before_it_is_stored() -> None:
    """UTF-8 has no lone surrogates: a client that writes one all the same sends no update."""
    async with Fleet("a") as fleet:
        lone = BASE.replace("😀".encode(), b"\xed\xa0\xbd\x7f")
        with pytest.raises(InvalidValue, match="not UTF-8"):
            await write(fleet, "a", lone)
