"""An old directory's threads are listed under their statuses, in pieces."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.kinds.step.handler import StatusLister
from shoal.node.handler import Target
from shoal.storage.keys import Kind
from tests.node.conftest import Bench


def lister_of(bench: Bench, catalog: Any) -> StatusLister:
    database = bench.node._database
    return StatusLister(database._context, catalog, database.generations)


class Catalog:
    """Notes in which turn of the loop it was asked, and what was marked."""

    def __init__(self) -> None:
        self.turn = 0
        self.turns: set[int] = set()
        self.is_marked = False

    def set_standing(self, transaction: Any, target: Target, _standing: bytes) -> None:
        self.turns.add(self.turn)
        transaction.put(b"T" + target.name.encode(), b"")

    def set_asking(self, _transaction: Any, _target: Target, _asks: bool) -> None:
        self.turns.add(self.turn)

    def mark_indexed(self, _transaction: Any) -> None:
        self.is_marked = True


async def test_a_piece_is_read_and_written_in_one_turn(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    targets = [Target(Kind.THREAD, "crew", f"t{number}") for number in range(5)]
    for target in targets:
        await bench.space.thread(target.name).save({"n": 1})
        await bench.space.thread(target.name).pause()
    catalog = Catalog()
    lister = lister_of(bench, catalog)
    written: list[int] = []
    sound = lister._commit.write

    def noted(*args: Any) -> int:
        written.append(catalog.turn)
        return sound(*args)

    monkeypatch.setattr(lister._commit, "write", noted)

    async def count() -> None:
        while catalog.turn < 1000:  # Then it rests, so that a slow disk gets its time.
            catalog.turn += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await asyncio.sleep(0)
    await lister._written(targets)
    counting.cancel()
    assert catalog.turns == {1} == set(written)


async def test_until_all_are_listed_a_search_is_told(bench: Bench) -> None:
    catalog = Catalog()
    catalog.all_of = lambda _: iter(())  # type: ignore[attr-defined]
    await lister_of(bench, SimpleNamespace(all_of=lambda _: iter(()), mark_indexed=catalog.mark_indexed))._run()
    assert catalog.is_marked
