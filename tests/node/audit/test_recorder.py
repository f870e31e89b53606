"""Nodes keep statements in journals, which all nodes get: without gaps, and each proves the others' histories."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from shoal.audit import statements
from shoal.audit.statements import Kind
from shoal.audit.verification import Report, verify
from shoal.client.store import Store
from shoal.config import Config
from shoal.crdt.rows import successor
from shoal.errors import Overloaded
from shoal.names import RESERVED
from shoal.node.verification.verify import verify as verified
from shoal.protocol.requests import Append, Statement
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from shoal.testing.machines import run
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench, Opener, open_bench  # noqa: F401
from tests.support.paces import USUAL


def in_fleet(work: Callable[[Fleet], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with Fleet("abc", **{"audit_interval_s": 10.0, **USUAL, **settings}) as nodes:
            await work(nodes)

    run(main())


async def kept(store: Store) -> list[Statement]:
    space = store.space(RESERVED)
    return [
        statements.from_text(event.event)
        async for thread in space.threads()
        async for event in space.thread(thread).journal.read()
    ]


async def checked(store: Store) -> Report:
    return await verify(await kept(store), store.connection.session.call)


@pytest.mark.answers("statements-show-tampering")
def test_each_node_gets_the_statements_of_all_and_they_prove_each_other() -> None:
    async def work(nodes: Fleet) -> None:
        for number in range(5):
            for name in "abc":
                await nodes[name].store().space("s").counter("n").add(number)
            await asyncio.sleep(10)
        await asyncio.sleep(1)
        for name in "abc":
            found = await kept(nodes[name].store())
            assert {each.node for each in found} == {nodes[each].node._incarnation.node for each in "abc"}
            for node in {each.node for each in found}:
                numbers = [each.number for each in found if each.node == node]
                assert numbers == list(range(1, len(numbers) + 1))
            report = await checked(nodes[name].store())
            assert report.sound, report.findings
            assert (report.gone, report.proved > 10) == (0, True)

    in_fleet(work)


@pytest.mark.answers("statements-show-tampering")
def test_kept_statements_of_all_cover_each_directory() -> None:
    async def work(nodes: Fleet) -> None:
        for name in "abc":
            await nodes[name].store().space("s").register(name).set(name)
        await asyncio.sleep(25)
        storage = nodes["b"].storage
        report = verified(storage, config=Config())
        assert (report.sound, report.rows >= 9, report.uncompared) == (True, True, []), report.problems
        key, value = next(row for row in storage.scan(keys.OBJECT, successor(keys.OBJECT)) if row[1].endswith(b"\xa1c"))
        storage.write({key: value[:-1] + b"d"})
        differing = [problem for problem in verified(storage, config=Config()).problems if "of this directory" in problem]
        assert len(differing) >= 3, "each node has signed them"

    in_fleet(work, scrub_interval_s=3600.0)


async def test_of_kept_statements_the_last_counts(open_bench: Opener) -> None:  # noqa: F811
    bench = open_bench()
    for number in range(5):
        await bench.space.counter("n").add(number)
        await bench.node.service._recorder.record()
    report = verified(bench.storage, config=Config())
    assert (report.sound, report.statements, report.rows) == (True, 5, 1), "that of the journal itself moves on"


def test_a_node_that_shows_another_history_is_convicted_by_the_others_statements() -> None:
    async def work(nodes: Fleet) -> None:
        await nodes["a"].store().space("s").counter("n").add(1)
        await asyncio.sleep(11)
        found = await kept(nodes["b"].store())
        seed = bytes(32)
        [mine, *_] = [each for each in found if each.node == nodes["c"].node._incarnation.node and each.heads]
        forged = [msgspec.structs.replace(head, chain=bytes(32)) for head in mine.heads]
        lie = statements.signed(msgspec.structs.replace(mine, number=0, heads=forged, node=b"d" * 16), seed)
        report = await verify([*found, lie], nodes["b"].store().connection.session.call)
        assert {Kind.FORKED, Kind.ALTERED} == {finding.kind for finding in report.findings}

    in_fleet(work)


def test_a_node_without_the_setting_keeps_none() -> None:
    async def work(nodes: Fleet) -> None:
        await nodes["a"].store().space("s").counter("n").add(1)
        await asyncio.sleep(100)
        assert await kept(nodes["a"].store()) == []

    in_fleet(work, audit_interval_s=0.0)


async def test_nothing_is_stated_twice(open_bench: Opener) -> None:  # noqa: F811
    bench = open_bench()
    signer = bench.node.service._recorder._signer
    assert await signer.state() is None, "there is nothing yet"
    await bench.space.counter("n").add(1)
    first = await signer.state()
    assert first is not None
    assert await signer.state() is None
    await bench.space.counter("m").add(1)
    second = await signer.state()
    assert second is not None
    assert (second.number, second.previous) == (2, statements.digest(first))
    assert len(second.heads) == 1


@pytest.mark.answers("statements-show-tampering")
async def test_a_statement_that_was_made_and_not_kept_is_kept_before_the_next(open_bench: Opener) -> None:  # noqa: F811
    bench = open_bench()
    await bench.space.counter("n").add(1)
    recorder = bench.node.service._recorder
    write, failing = recorder._write, True

    async def flaky(request: Any, *rest: Any, **named: Any) -> Any:
        if failing and isinstance(request, Append):
            raise Overloaded("not now. Nothing was written.")
        return await write(request, *rest, **named)

    recorder._write = flaky
    with pytest.raises(Overloaded):
        await recorder.record()
    left = bench.storage.left_by_crash()
    again = open_bench(MemoryStorage(dict(left.scan(b"", None)), identity=bench.storage.identity), seed=2)
    await again.node.service._recorder.record()
    numbers = [each.number for each in await kept(again.store)]
    assert numbers == [1, 2]
    assert (await checked(again.store)).sound


async def test_the_journal_is_bounded(open_bench: Opener) -> None:  # noqa: F811
    bench: Bench = open_bench(audit_keep_s=3600.0)
    await bench.space.counter("n").add(1)
    await bench.node.service._recorder.record()
    thread = bench.store.space(RESERVED).thread(statements.THREADS + bench.node._incarnation.node.hex())
    assert (await thread.journal.retention()).older_than == timedelta(hours=1)
