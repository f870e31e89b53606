"""A node signs what is durable, with one key, and roots of exactly the operations that it names."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from shoal.cluster.operation import Tip, partition_of
from shoal.crdt.dot import Origin
from shoal.node import statements as signing
from shoal.node.snapshots import checking as rooting
from shoal.node.snapshots.checking import vector_root
from shoal.node.statements import Signer
from shoal.protocol.requests import LeftOut, SignHeads, Statement
from tests.node.conftest import Bench

N = partition_of("crew", "n")


def signer_of(bench: Bench) -> Signer:
    return bench.node.service._recorder._signer


def pause_with(bench: Bench, pause: Callable[[], Awaitable[None]]) -> None:
    roots = signer_of(bench)._roots
    roots._environment = replace(roots._environment, pause=pause)


async def add(bench: Bench) -> None:
    await bench.space.counter("n").add(1)


def sequence(statement: Statement) -> int:
    [head] = [each for each in statement.heads if each.partition == N]
    return head.sequence


async def test_each_statement_has_the_same_key(bench: Bench) -> None:
    await add(bench)
    assert (await signer_of(bench).sign()).key == (await signer_of(bench).sign()).key


async def test_a_statement_waits_for_the_disk(bench: Bench) -> None:
    await add(bench)
    bench.simulated.hold_syncs()
    writing = asyncio.create_task(add(bench))
    signed = asyncio.create_task(signer_of(bench).sign())
    await asyncio.sleep(0.05)
    assert not signed.done()
    bench.simulated.release_syncs()
    await writing
    assert sequence(await signed) == 2


async def test_a_root_is_of_the_heads_beside_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooting, "_ROWS_AT_ONCE", 1)
    await add(bench)
    written = 0

    async def write() -> None:
        nonlocal written
        if written < 3:
            written += 1
            await add(bench)

    pause_with(bench, write)
    signer = signer_of(bench)
    for statement in (await signer.sign(), await signer.sign([LeftOut(N, [])]), await signer.state()):
        assert statement is not None
        assert statement.roots is not None
        [root] = statement.roots
        stated = {Origin(head.origin): Tip(head.sequence, head.hlc, head.chain) for head in statement.heads}
        assert root.vector == vector_root(stated)
    assert written == 3


async def test_a_root_that_takes_long_comes_later(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await add(bench)
    monkeypatch.setattr(rooting, "_ROWS_AT_ONCE", 1)
    monkeypatch.setattr(signing, "_ROOTS_WAIT_S", 0.01)
    go_on = asyncio.Event()

    async def wait() -> None:
        await go_on.wait()

    pause_with(bench, wait)
    first = await signer_of(bench).sign()
    assert (first.roots, sequence(first)) == ([], 1)
    assert (await signer_of(bench).sign([LeftOut(N, [])])).roots == []
    go_on.set()
    await asyncio.sleep(0)
    second = await signer_of(bench).sign()
    assert [root.partition for root in second.roots or ()] == [N]


async def test_a_root_is_read_anew_when_asked(bench: Bench) -> None:
    await add(bench)
    session = bench.node.session()
    first = await session.call(SignHeads())
    key, value = next(iter(bench.storage.scan(b"O", b"P")))
    bench.storage.write({key: value + b"x"})
    assert (await session.call(SignHeads())).roots == first.roots
    assert (await session.call(SignHeads([LeftOut(N, [])]))).roots != first.roots
