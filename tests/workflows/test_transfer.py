"""Exports that are read back: threads, spaces and stores, here and under other names."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import shoal
from shoal import Store
from shoal.errors import InvalidInput, OutcomeUnknown, ShoalError, TooLarge, Unsupported
from shoal.kinds import LABELS
from shoal.kinds.document.state import yjs
from shoal.kinds.worklist.state import identify
from shoal.protocol import requests
from shoal.workflows.transfer import lines, objects
from shoal.workflows.transfer import lines as transfer_lines
from shoal.workflows.transfer.exporting import Wanted, export
from shoal.workflows.transfer.importing import TYPE_CHARACTERS_MAX, TYPES_MAX, Aim, ImportReport, import_from
from shoal.workflows.transfer.objects import KINDS
from tests.support.stores import filled


@pytest.fixture
async def source(tmp_path: Path) -> AsyncIterator[Store]:
    async with shoal.open(tmp_path / "source") as store:
        yield store


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Store]:
    async with shoal.open(tmp_path / "there") as store:
        yield store


async def exported(store: Store, space: str | None = "crew", thread: str | None = None, **how: Any) -> list[bytes]:
    return [line async for line in export(store.connection, Wanted(space, thread, **how))]


async def imported(store: Store, lines: list[bytes], *aim: Any, **how: Any) -> ImportReport:
    async def blocks() -> AsyncIterator[bytes]:
        for line in lines:
            yield line

    return await import_from(store.connection, blocks(), Aim(*aim, **how))


def sealed(records: list[dict[str, Any]]) -> list[bytes]:
    """Lines as somebody makes them who knows how to sum them."""
    lines = [json.dumps(record).encode() + b"\n" for record in records]
    end = {"type": "end", "records": len(lines), "sha256": sha256(b"".join(lines)).hexdigest()}
    return [*lines, json.dumps(end).encode() + b"\n"]


def records_of(lines: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines[:-1]]


def kept(lines: list[bytes]) -> list[dict[str, Any]]:
    """The records without what docs/EXPORT.md says is not kept."""
    found = records_of(lines)
    for record in found:
        record.pop("late", None)
        if record["type"] == "event" or (record["type"] == "entry" and "key" not in record):
            record.pop("id")
        if record["type"] == "file":
            record.pop("stored")
        if record["type"] == "list":
            record.pop("first", None)
        if record["type"] == "consumer":
            record.pop("generation", None)
    return found


async def test_all_kinds_come_back_as_they_were(source: Store, there: Store) -> None:
    await filled(source)
    lines = await exported(source)
    report = await imported(there, lines)
    assert report.whole, report
    assert kept(await exported(there)) == kept(lines)


async def test_an_export_as_changes_gives_the_same(source: Store, there: Store) -> None:
    await filled(source)
    lines = await exported(source, changes=True)
    assert any(record.get("appended") for record in records_of(lines))
    assert (await imported(there, lines)).whole
    assert kept(await exported(there)) == kept(await exported(source))


@pytest.mark.parametrize("changes", [False, True])
async def test_a_pruned_thread_comes_back(source: Store, there: Store, changes: bool) -> None:
    thread = source.space("crew").thread("t")
    for n in range(5):
        await thread.save({"n": n})
    await thread.prune(keep_last=2)
    await source.space("crew").counter("z").add(1)  # What comes after the thread.
    lines = await exported(source, changes=changes)
    report = await imported(there, lines)
    assert report.whole, report
    made = there.space("crew").thread("t")
    assert [found.id async for found in made.history()] == [found.id async for found in thread.history()]
    assert (await made.load()).state == {"n": 4}
    assert kept(await exported(there)) == kept(await exported(source))
    assert (await imported(there, lines, existing="resume")).whole
    await made.save({"n": 5})
    await made.prune(keep_last=1)
    assert [found.state async for found in made.history(states=True)] == [{"n": 5}]


async def test_a_fuller_export_brings_what_was_pruned(source: Store, there: Store) -> None:
    thread = source.space("crew").thread("t")
    for n in range(5):
        await thread.save({"n": n})
    full = await exported(source)
    await thread.prune(keep_last=2)
    assert (await imported(there, await exported(source))).whole
    assert (await imported(there, full, existing="resume")).whole
    assert len([found async for found in there.space("crew").thread("t").history()]) == 5


async def test_a_thread_keeps_ids_and_times(source: Store, there: Store) -> None:
    thread = source.space("crew").thread("t", author="ana")
    first = await thread.save({"n": 1})
    await there.import_from(io.BytesIO(b"".join(await exported(source, thread="t"))), name="other", space="lab")
    found = await there.space("lab").thread("other").load()
    assert (found.id, found.time, found.author, found.state) == (first.id, first.time, "ana", {"n": 1})
    assert (await there.space("lab").thread("other").load(as_of=first.time)).id == first.id


async def test_a_whole_store_comes_back(source: Store, there: Store, tmp_path: Path) -> None:
    await filled(source)
    await source.space("lab").counter("n").add(-(2**70 // 2**10))
    count = await source.export_to(tmp_path / "all.jsonl")
    report = await there.import_from(tmp_path / "all.jsonl")
    assert report.whole
    assert [name async for name in there.spaces()] == ["lab", "crew"]
    assert count == len(kept(await exported(there, None))) + 1


async def test_an_import_cut_anywhere_goes_on(source: Store, tmp_path: Path) -> None:
    await filled(source)
    lines = await exported(source)
    async with shoal.open(tmp_path / "cut") as store:
        for cut in range(1, len(lines)):
            with pytest.raises(ShoalError):
                await imported(store, lines[:cut], existing="resume")
        report = await imported(store, lines, existing="resume")
        assert report.whole, report
        assert kept(await exported(store)) == kept(lines)


async def test_two_imports_at_once_make_no_doubles(source: Store, there: Store) -> None:
    await filled(source)
    lines = await exported(source)
    await asyncio.gather(*(imported(there, lines, existing="resume") for _ in range(2)))
    assert (await imported(there, lines, existing="resume")).whole
    assert kept(await exported(there)) == kept(lines)


async def test_an_object_that_is_there_is_left(source: Store, there: Store) -> None:
    await source.space("crew").counter("n").add(5)
    await source.space("crew").thread("t").save({"from": "source"})
    await there.space("crew").counter("n").add(1)
    lines = await exported(source)
    report = await imported(there, lines)
    assert (report.whole, report.there) == (False, ["counter 'n' of space 'crew'"])
    assert await there.space("crew").counter("n").value() == 1
    assert (await there.space("crew").thread("t").load()).state == {"from": "source"}
    assert (await imported(there, lines, existing="replace")).whole
    assert await there.space("crew").counter("n").value() == 5


async def test_an_object_that_differs_afterwards_is_named(source: Store, there: Store) -> None:
    await source.space("crew").set("s").add("a")
    await there.space("crew").set("s").add("b")
    report = await imported(there, await exported(source), existing="resume")
    assert report.differs == ["set 's' of space 'crew': member: 1 read, 2 there"]


async def test_hidden_secrets_are_null_and_told(source: Store, there: Store) -> None:
    thread = source.space("crew").thread("t")
    await thread.save({"token": "swordfish", "n": 1}, label="a")
    held = source.space("crew").thread("s", schema=shoal.Schema("login", secret={"token"}))
    await held.save({"token": "swordfish", "n": 1})
    await held.save({"token": "swordfish", "n": 2})
    lines = await exported(source)
    assert b"swordfish" not in b"".join(line for line in lines if b'"thread":"s"' in line)
    report = await imported(there, lines)
    assert (report.whole, report.hidden, report.differs) == (False, 2, [])
    assert (await there.space("crew").thread("s").load()).state == {"token": None, "n": 2}
    assert (await imported(there, await exported(source, reveal=True), "again")).whole


async def test_an_altered_state_does_not_match_its_id(source: Store, there: Store) -> None:
    await source.space("crew").thread("t").save({"n": 1})
    records = records_of(await exported(source))
    next(each for each in records if each["type"] == "checkpoint")["state"] = {"n": 2}
    with pytest.raises(InvalidInput, match=r"up to line 5: .*does not match its id"):
        await imported(there, sealed(records))
    assert [name async for name in there.spaces()] == []


async def test_a_file_is_checked_before_anything_is_written(source: Store, there: Store, tmp_path: Path) -> None:
    await filled(source)
    lines = await exported(source)
    for wrong in (lines[:-1], [*lines[:-2], lines[-1]], [lines[0].replace(b"crew", b"wrec"), *lines[1:]]):
        (tmp_path / "wrong").write_bytes(b"".join(wrong))
        with pytest.raises(InvalidInput, match=r"is cut|was altered"):
            await there.import_from(tmp_path / "wrong")
    assert [name async for name in there.spaces()] == []


async def test_a_file_that_is_cut_within_a_line_says_so(source: Store, there: Store, tmp_path: Path) -> None:
    await source.space("crew").counter("n").add(1)
    whole = b"".join(await exported(source))
    for cut in (whole[: whole.index(b"\n") + 9], whole[:-9]):
        (tmp_path / "cut").write_bytes(cut)
        with pytest.raises(InvalidInput, match=r"is cut after \d lines: .* Nothing was written\. Get the whole of it"):
            await there.import_from(tmp_path / "cut")
    assert [name async for name in there.spaces()] == []


HEAD = {"type": "export", "format": 2, "shoal": "1", "space": "crew"}
SPACE = {"type": "space", "space": "crew"}
THREAD = {"type": "thread", "thread": "t"}
TIME = "2026-01-01T00:00:00Z"
ID = "a" * 64


@pytest.mark.parametrize(
    "records",
    [
        [],
        [{"type": "end"}],
        [SPACE],
        [HEAD, HEAD],
        [HEAD, {"type": "counter", "counter": "n", "value": 1}],
        [HEAD, {"type": "space", "space": ".shoal"}],
        [HEAD, {"type": "space", "space": "a\x00b"}],
        [HEAD, SPACE, {"type": "event", "thread": "t", "id": "1", "time": TIME}],
        [HEAD, SPACE, {"type": "counter", "counter": "x" * 2000, "value": 1}],
        [HEAD, SPACE, {"type": "counter", "counter": "n", "value": "much"}],
        [HEAD, SPACE, {"type": "counter", "counter": "n", "value": 2**80}],
        [HEAD, SPACE, THREAD, {"type": "checkpoint", "thread": "t", "id": ID, "parents": [ID], "branch": "main", "time": TIME}],
        [HEAD, SPACE, THREAD, {"type": "branch", "thread": "t", "name": "main", "heads": [ID]}],
        [HEAD, SPACE, THREAD, {"type": "step", "thread": "t", "key": "k", "name": "n", "state": "odd", "begun": "soon"}],
        [HEAD, SPACE, {"type": "document", "document": "d", "update": "AAAA"}],
        [HEAD, SPACE, {"type": "set", "set": "s", "members": [{"$type": "packed", "value": "wQ=="}]}],
        [HEAD, SPACE, {"type": "schema", "schema": "s", "version": 1, "json": {"type": 7}}],
        [{**HEAD, "thread": "t"}, SPACE, {"type": "counter", "counter": "n", "value": 1}],
        [HEAD, SPACE, {"type": "error", "code": "unavailable", "detail": "gone"}],
    ],
)
async def test_hostile_lines_are_refused(there: Store, records: list[dict[str, Any]]) -> None:
    with pytest.raises((InvalidInput, OutcomeUnknown, ShoalError)):
        await imported(there, sealed(records))


@pytest.mark.parametrize(
    "text", [b"\x00\xff", b"[" * 100_000, b'{"type":"set","set":"s","members":' + b"[" * 9999, b"null", b""]
)
async def test_bytes_that_are_no_record_are_refused(there: Store, text: bytes) -> None:
    lines = [json.dumps(each).encode() + b"\n" for each in (HEAD, SPACE)]
    with pytest.raises(InvalidInput, match="line 3"):
        await imported(there, [*lines, text + b"\n"])


async def test_a_line_of_any_length_takes_bounded_memory(there: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_lines, "LINE_BYTES_MAX", 1000)
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 100
            yield b"x" * 100

    with pytest.raises(TooLarge):
        await import_from(there.connection, endless(), Aim())
    assert read <= 1200


async def test_later_formats_and_unknown_records_are_told(there: Store) -> None:
    with pytest.raises(Unsupported, match="format 3"):
        await imported(there, sealed([{**HEAD, "format": 3}]))
    with pytest.raises(Unsupported, match="format 1"):
        await imported(there, sealed([{**HEAD, "format": 1}]))
    report = await imported(there, sealed([HEAD, SPACE, {"type": "hologram"}, {"type": "counter", "counter": "n", "value": 1}]))
    assert (report.whole, report.unknown, report.objects) == (False, {"hologram": 1}, {"counter": 1})


async def test_a_report_names_some_types_and_counts_all(there: Store) -> None:
    report = await imported(there, sealed([HEAD, SPACE, *({"type": f"{n}" * 100} for n in range(1000, 1500))]))
    assert (sum(report.unknown.values()), sum(report.read.values())) == (500, 503)
    assert len(report.unknown) == len(report.read) == TYPES_MAX + 1
    assert max(map(len, report.unknown)) <= TYPE_CHARACTERS_MAX


async def test_a_time_to_come_is_now(there: Store) -> None:
    event = {"type": "event", "thread": "t", "id": "1", "time": "9999-01-01T00:00:00Z", "event": 1}
    await imported(there, sealed([HEAD, SPACE, THREAD, event]))
    [found] = [each async for each in there.space("crew").thread("t").journal.read()]
    assert found.time.year < 9999


async def test_a_document_keeps_its_yjs_state(source: Store, there: Store) -> None:
    document = await source.space("crew").document("d", initial={"notes": {"a": "b"}}, author="ana")
    document.map("notes")["c"] = "d"
    await document.close()
    lines = await exported(source)
    assert (await imported(there, lines)).whole
    again = await exported(there)
    assert [each["update"] for each in records_of(again)[2:]] == [each["update"] for each in records_of(lines)[2:]]


async def test_a_document_with_very_many_items_comes_back(source: Store, there: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "STRUCTS_MAX", 20)
    monkeypatch.setattr(yjs, "STRUCTS_MAX", 20)
    content = {"notes": {str(number): number for number in range(100)}}
    await (await source.space("crew").document("d", initial=content)).close()
    assert (await imported(there, await exported(source))).whole
    document = await there.space("crew").document("d")
    assert document.to_py() == content
    await document.close()


async def test_a_value_without_a_form_in_json_comes_back(source: Store, there: Store) -> None:
    deep: Any = []
    for _ in range(500):
        deep = [deep]
    await source.space("crew").register("deep").set(deep)
    lines = await exported(source)
    assert b'"$type":"packed"' in lines[-2]
    assert (await imported(there, lines)).whole
    assert await there.space("crew").register("deep").get() == deep


def test_every_kind_is_exported() -> None:
    assert {"thread", *KINDS} == {*LABELS.values()}
    assert list(KINDS)[-1] == "schema"


async def test_writes_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "WRITES_MAX", 4)
    monkeypatch.setattr(lines, "BYTES_MAX", 1000)
    sizes: list[int] = []

    class Noting:
        async def write(self, request: requests.Import, **_: Any) -> requests.ImportReply:
            sizes.append(len(request.writes))
            return requests.ImportReply([])

    connection: Any = Noting()
    sender = lines.Sender(connection, None)
    for size in [1] * 10 + [2000, 1]:
        await sender.put(requests.Imported(requests.Append("crew", "t", b"x" * size)))
    await sender.flush()
    assert (sizes, sender.writes) == ([4, 4, 3, 1], 12)


async def test_parents_come_first(source: Store) -> None:
    await filled(source)
    seen: set[str] = set()
    for record in records_of(await exported(source)):
        if record["type"] == "checkpoint":
            assert seen.issuperset(record["parents"])
            seen.add(record["id"])
    assert len(seen) == 6


async def test_a_thread_grows_by_a_later_export(source: Store, there: Store) -> None:
    thread = source.space("crew").thread("t")
    await thread.save({"n": 1})
    await thread.journal.append({"n": 1})
    assert (await imported(there, await exported(source))).whole
    await thread.save({"n": 2})
    await thread.journal.append({"n": 2})
    assert (await imported(there, await exported(source), existing="resume")).whole
    assert [each.event async for each in there.space("crew").thread("t").journal.read()] == [{"n": 1}, {"n": 2}]


async def test_an_import_after_a_deletion_begins_anew(source: Store, there: Store) -> None:
    await filled(source)
    lines = await exported(source)
    assert (await imported(there, lines)).whole
    await there.space("crew").delete()
    report = await imported(there, lines)
    # Its Yjs clients are those of a deleted document: docs/EXPORT.md.
    assert report.differs == ["document 'notes' of space 'crew': it was deleted here: import it under another name"]
    assert (await imported(there, lines, "again")).whole
    assert kept(await exported(there))[2:-1] == [each for each in kept(lines)[2:-1] if each["type"] != "document"]


async def test_tries_priorities_and_dead_letters_come_back(source: Store, there: Store) -> None:
    await filled(source)
    assert (await imported(there, await exported(source))).whole
    work = there.space("crew").thread("t").worklist("jobs")
    pending = {item.key: item async for item in work.pending()}
    assert sorted(pending) == ["claimed", "given back", "late"]
    dead = [(item.key, item.tried.attempt, item.tried.reason) async for item in work.dead() if item.tried is not None]
    assert dead == [("dead", 1, "no answer")]
    job = await work.claim(
        ttl=60
    )  # The given back one waits for its time, as the late one does; the old claim is not known here.
    assert job is not None
    assert (job.item, job.attempt) == ("claimed", 2)
    await job.complete(1)
    assert await work.claim(ttl=60) is None
    await work.revive("dead")
    revived = await work.claim(ttl=60)
    assert revived is not None
    assert (revived.item, revived.attempt) == ("dead", 1)


async def test_a_try_is_recalled_in_an_import_alone(there: Store) -> None:
    connection = there.connection
    work = there.space("crew").thread("t").worklist("jobs")
    await work.add({"a": 1})
    recall = requests.RecallTry("crew", "t", "jobs", identify("a").hex(), 3, "dead", "w", "no")
    with pytest.raises(InvalidInput, match="part of an import"):
        await connection.write(recall, key=None, durability=None)
    for field, wrong in (("state", "over"), ("attempt", -1), ("attempt", 2**31), ("not_before_ms", 2**62), ("id", "x")):
        with pytest.raises(InvalidInput):
            refused = structs.replace(recall, **{field: wrong})
            await connection.write(requests.Import([requests.Imported(refused)]), key=None, durability=None)
    job = await work.claim(ttl=60)
    assert job is not None
    [reply] = (await connection.write(requests.Import([requests.Imported(recall)]), key=None, durability=None)).replies
    assert reply == requests.TryRecalled(False)  # What happened here counts.
    assert [item.key async for item in work.dead()] == []
