"""Planted bugs in imports: each is told by the comparison that follows an import, or refused by the node."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import shoal
from shoal import Store
from shoal.errors import ShoalError
from shoal.workflows.transfer import lines, objects, records, threads
from shoal.workflows.transfer.exporting import Wanted, export
from shoal.workflows.transfer.importing import Aim, ImportReport, import_from
from shoal.workflows.transfer.threads import ThreadImport
from tests.support.stores import filled

pytestmark = pytest.mark.real_time("it uses files and threads")


@pytest.fixture
async def source(tmp_path: Path) -> AsyncIterator[Store]:
    async with shoal.open(tmp_path / "source") as store:
        await filled(store)
        yield store


async def brought(source: Store, directory: Path) -> ImportReport:
    async with shoal.open(directory) as store:
        return await import_from(store.connection, export(source.connection, Wanted("crew", reveal=True)), Aim())


def altering(name: str, change: Callable[[Any], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """A bug: records of one type are altered, or dropped, before they are written."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        take = ThreadImport.take

        async def altered(self: ThreadImport, record: Any) -> None:
            made = change(record) if type(record) is getattr(records, name) else record
            if made is not None:
                await take(self, made)

        patch.setattr(ThreadImport, "take", altered)

    return plant


def values_lose_their_types(patch: pytest.MonkeyPatch) -> None:
    """Texts come in the place of values."""
    packed_of = lines.packed_of

    async def packed(raw: Any, *rest: Any) -> bytes:
        found: bytes = await packed_of(raw, *rest)
        return b"\xa1x" if found[:1] == b"\x81" else found

    patch.setattr(threads, "packed_of", packed)


def a_map_keeps_no_counter(patch: pytest.MonkeyPatch) -> None:
    parts = objects._parts
    patch.setattr(objects, "_parts", lambda number: list(parts(number))[:-1])


BUGS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "tries are lost": altering("Entry", lambda record: structs.replace(record, tried=None)),
    "a dead letter waits again": altering(
        "Entry",
        lambda record: (
            record if record.tried is None else structs.replace(record, tried=structs.replace(record.tried, state="waiting"))
        ),
    ),
    "priorities are lost": altering("Entry", lambda record: structs.replace(record, plan=None)),
    "an item is done by nobody": altering("Entry", lambda record: structs.replace(record, finishes=[])),
    "events are as old as the import": altering("Event", lambda record: structs.replace(record, time=None)),
    "an erased event is written": altering("Event", lambda record: structs.replace(record, erased=False)),
    "a label is lost": altering("Label", lambda record: None if record.label == "best" else record),
    "a branch is lost": altering("Branch", lambda record: None if record.name == "what-if" else record),
    "a step is begun again": altering("Step", lambda record: structs.replace(record, attempts=record.attempts[:-1])),
    "a status has no reason": altering("Status", lambda record: structs.replace(record, reason="")),
    "a file has another name": altering("File", lambda record: structs.replace(record, name=f"{record.name}.bak")),
    "a file lacks a chunk": altering("Chunk", lambda record: None),
    "values lose their types": values_lose_their_types,
    "a map keeps no counter": a_map_keeps_no_counter,
}


async def test_without_a_bug_it_is_whole(source: Store, tmp_path: Path) -> None:
    report = await brought(source, tmp_path / "there")
    assert report.whole, report


@pytest.mark.parametrize("plant", BUGS.values(), ids=list(BUGS))
async def test_a_bug_of_the_import_is_told(
    source: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    try:
        report = await brought(source, tmp_path / "there")
    except ShoalError:
        return
    assert not report.whole
