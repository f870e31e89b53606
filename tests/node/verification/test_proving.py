"""Documents that show something else than their updates build are found, by a node beside its scrub and by `verify`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pycrdt
import pytest

from shoal.config import Config
from shoal.kinds.document.state import live, surrogates
from shoal.kinds.document.state.live import EMPTY, LiveDocument
from shoal.kinds.document.state.surrogates import Fitted
from shoal.node.verification.verify import verify
from shoal.protocol.requests import Compact, ReadDocumentJson, Update, Updates
from simulation.world.fleet import Fleet
from tests.node.conftest import Opener
from tests.support.histories import A, typed

SETTINGS: dict[str, Any] = {"scrub_interval_s": 0.02, "scrub_bytes_per_s": 1 << 30, "rights_spread_s": 1e6}
BASE = typed("x😀y", 0, client=A)
CUT = typed("|", 0, origin=(A, 1), right=(A, 2))
SHOWN = '{"t":"x\ufffd|\ufffdy"}'.encode()


def let_the_engine_split(patch: pytest.MonkeyPatch) -> None:
    """Plant the bug."""

    def unfitted(updates: Sequence[bytes], *_: object) -> Fitted:
        return Fitted(updates, (), ())

    for module in (surrogates, live):
        patch.setattr(module, "fit", unfitted)


async def shown(fleet: Fleet, name: str) -> bytes:
    reply = await fleet[name].node.session().call(ReadDocumentJson("crew", "plan"))
    return reply.json


@pytest.mark.answers("replicas-with-equal-rows-show-different-documents")
async def test_an_open_document_that_shows_something_else_is_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Fleet("abc", **SETTINGS) as fleet:
        session = fleet["a"].node.session()
        await session.call(Updates("crew", "plan", [BASE]))
        await fleet.converged()
        assert {await shown(fleet, name) for name in "abc"} == {'{"t":"x😀y"}'.encode()}
        with monkeypatch.context() as patch:
            let_the_engine_split(patch)
            await session.call(Updates("crew", "plan", [CUT]))
            await fleet.converged()
            assert await shown(fleet, "b") != SHOWN
        async with asyncio.timeout(30):
            while sum(fleet[name].replicator.scrubber.replaced for name in "abc") < 3:
                await asyncio.sleep(0.01)
        assert {await shown(fleet, name) for name in "abc"} == {SHOWN}


async def test_bytes_exchanged_for_a_list_are_found() -> None:
    def made(value: object) -> bytes:
        doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=A)
        doc.get("m", type=pycrdt.Map)["k"] = value
        return doc.get_update()

    async with Fleet("abc", **SETTINGS) as fleet:
        await fleet["a"].node.session().call(Update("crew", "plan", made(b"\x01"), {"m": "map"}))
        await fleet.converged()
        before = await shown(fleet, "b")
        [(_, opened)] = fleet["b"].node._database.documents._open.items()
        opened.live = LiveDocument(bytes_max=1 << 20, roots_max=8, updates=[made([1.0])], roots={"m": "map"})
        assert await shown(fleet, "b") != before
        async with asyncio.timeout(30):
            while not fleet["b"].replicator.scrubber.replaced:
                await asyncio.sleep(0.01)
        assert await shown(fleet, "b") == before


async def test_open_documents_that_are_right_stay_open() -> None:
    async with Fleet("abc", **SETTINGS) as fleet:
        session = fleet["a"].node.session()
        await session.call(Updates("crew", "plan", [BASE]))
        await session.call(Updates("crew", "plan", [CUT]))
        await fleet.converged()
        held = fleet["a"].node._database.documents.held
        await asyncio.sleep(2)
        assert held
        assert fleet["a"].node._database.documents.held == held
        assert fleet["a"].replicator.scrubber.replaced == 0


async def test_a_root_that_is_declared_meanwhile_is_no_difference() -> None:
    async with Fleet("a", **SETTINGS | {"scrub_interval_s": 1e6}) as fleet:
        session = fleet["a"].node.session()
        await session.call(Updates("crew", "plan", [BASE]))
        [key] = fleet["a"].node._database.documents.held
        for when in range(5):
            steps = fleet["a"].replicator.scrubber._proving.differing(key)
            with pytest.raises(StopIteration) as done:
                for nth in range(100):
                    next(steps)
                    if nth == when:
                        await session.call(Update("crew", "plan", EMPTY, {f"r{nth}": "map"}))
            assert done.value.value is False


async def test_a_number_that_the_engine_reads_inexactly_is_no_damage(open_bench: Opener) -> None:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=A)
    doc.get("t", type=pycrdt.Text).insert_embed(0, {"width": 2.2790121708605243e274})
    bench = open_bench()
    session = bench.node.session()
    await session.call(Updates("crew", "plan", [doc.get_update()]))
    await session.call(Updates("crew", "plan", [typed("x", 0, client=7)]))
    await session.call(Compact("crew", "plan", 0))
    assert verify(bench.storage, config=Config()).problems == []


async def test_a_compaction_that_shows_something_else_is_reported(open_bench: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = open_bench()
    session = bench.node.session()
    await session.call(Updates("crew", "plan", [BASE]))
    await session.call(Updates("crew", "plan", [CUT]))
    assert verify(bench.storage, config=Config()).sound
    with monkeypatch.context() as patch:
        let_the_engine_split(patch)
        await session.call(Compact("crew", "plan", 0))
    [problem] = verify(bench.storage, config=Config()).problems
    assert "its compaction shows something else than the updates that it covers" in problem
