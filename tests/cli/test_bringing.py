"""`shoal restore --space` and `--thread`: a part of a backup comes into a store that runs, and what is there stays."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import shoal
from shoal import Store
from shoal.backup.clouds import opened
from shoal.cli import bringing
from shoal.cli.bringing import Brought, Subject, bring
from shoal.errors import InvalidInput, MomentMissing, NotFound, ShoalError, StorageFull
from shoal.node.backup import folding
from shoal.workflows.transfer.exporting import Wanted, export
from simulation.bounds import altered
from tests.cli.test_commands import shoal as command
from tests.support.stores import filled
from tests.workflows.test_transfer import kept

pytestmark = pytest.mark.real_time("it uses files and threads")


async def shipped(store: Store) -> None:
    """All that the store holds is in its backup."""
    while (await store.backup.status()).state != "current":
        await asyncio.sleep(0.05)


def now_ms() -> int:
    return round(datetime.now(UTC).timestamp() * 1000)


async def lines_of(store: Store, space: str, thread: str | None = None) -> list[bytes]:
    return [line async for line in export(store.connection, Wanted(space, thread, reveal=True))]


@pytest.fixture
async def source(tmp_path: Path) -> AsyncIterator[Store]:
    """A store with a backup, which holds something of everything."""
    async with shoal.open(tmp_path / "source") as store:
        await filled(store)
        await store.space("other").counter("n").add(1)
        await store.backup.init(f"file://{tmp_path}/bucket")
        await shipped(store)
        yield store


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket"


async def test_a_thread_comes_back_beside_the_one_that_runs(source: Store, url: str, scratch: Path) -> None:
    thread = source.space("crew").thread("t")
    before = await lines_of(source, "crew", "t")
    moment = now_ms()
    await asyncio.sleep(0.01)
    await thread.save({"messages": ["spoilt"]}, overwrite=True)
    await shipped(source)
    subject = Subject(url, "crew", "t", "t-yesterday", moment)
    made = await bring(subject, source, scratch=scratch)
    assert made.report.whole, made.report
    assert made.restored is not None
    assert made.restored.partitions == 1
    came = [line.replace(b"t-yesterday", b"t") for line in await lines_of(source, "crew", "t-yesterday")]
    assert kept(came) == kept(before)
    assert (await thread.load()).state == {"messages": ["spoilt"]}
    assert os.listdir(scratch) == []


async def test_a_space_comes_back_with_all_its_kinds(source: Store, url: str, scratch: Path) -> None:
    made = await bring(Subject(url, "crew", None, "crew-copy"), source, scratch=scratch)
    assert made.report.whole, made.report
    there, here = await lines_of(source, "crew"), await lines_of(source, "crew-copy")
    assert kept([line.replace(b'"crew-copy"', b'"crew"') for line in here]) == kept(there)
    assert os.listdir(scratch) == []


async def test_a_deleted_space_comes_back_under_its_name(source: Store, url: str, scratch: Path) -> None:
    before = await lines_of(source, "other")
    moment = now_ms()
    await asyncio.sleep(0.01)
    await source.space("other").counter("n").delete()
    await shipped(source)
    assert (await bring(Subject(url, "other", moment=moment), source, scratch=scratch)).report.whole
    assert await lines_of(source, "other") == before


async def test_a_rule_that_is_restored_deletes_nothing_of_what_is_wanted(
    source: Store, url: str, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule was there at that moment, and lets the threads go; the export takes longer than several looks of the node."""
    before = await lines_of(source, "crew")
    await source.space("crew").retention.set(threads_older_than=timedelta(milliseconds=1), yes=True)
    await shipped(source)
    whole = export

    async def slow(*arguments: object) -> AsyncIterator[bytes]:
        await asyncio.sleep(1)
        async for line in whole(*arguments):  # type: ignore[arg-type]
            yield line

    monkeypatch.setattr(bringing, "export", slow)
    with altered(retention_look_s=0.05):
        made = await bring(Subject(url, "crew", None, "crew-copy"), source, scratch=scratch)
    assert made.report.whole, made.report
    here = await lines_of(source, "crew-copy")
    assert kept([line.replace(b'"crew-copy"', b'"crew"') for line in here]) == kept(before)


async def test_an_existing_object_is_not_written_to(source: Store, url: str, scratch: Path) -> None:
    for subject in (Subject(url, "crew", "t"), Subject(url, "crew"), Subject(url, "crew", None, "other")):
        with pytest.raises(InvalidInput, match=r"there is a thread|is not empty"):
            await bring(subject, source, scratch=scratch)
    assert os.listdir(scratch) == []


async def test_a_missing_thread_or_space_is_told(source: Store, url: str, scratch: Path) -> None:
    for subject in (Subject(url, "crew", "none"), Subject(url, "nowhere")):
        with pytest.raises(NotFound, match="the backup has no"):
            await bring(subject, source, scratch=scratch)
    with pytest.raises(InvalidInput, match="space of the nodes themselves"):
        await bring(Subject(url, ".shoal"), source, scratch=scratch)
    assert os.listdir(scratch) == []


async def test_a_moment_that_is_not_in_the_backup_is_told(source: Store, url: str, scratch: Path) -> None:
    for moment, told in ((now_ms() + 86_400_000, "has not come yet"), (now_ms() - 86_400_000, "the backup begins at")):
        with pytest.raises(MomentMissing, match=told):
            await bring(Subject(url, "crew", "t", "t-2", moment), source, scratch=scratch)
    assert os.listdir(scratch) == []


async def test_a_cut_attempt_is_gone_on_with(source: Store, url: str, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attempt ends in the middle of its import. The next uses its directory: the bucket is not read again."""
    reads = 0
    whole = export

    async def cut(*arguments: object) -> AsyncIterator[bytes]:
        async for line in whole(*arguments):  # type: ignore[arg-type]
            if b'"type":"step"' in line:
                raise ConnectionError("killed")
            yield line

    monkeypatch.setattr(bringing, "export", cut)
    with pytest.raises((ConnectionError, ShoalError)):
        await bring(Subject(url, "crew", "t", "again"), source, scratch=scratch)
    assert len(os.listdir(scratch)) == 1
    monkeypatch.setattr(bringing, "export", whole)

    def counted(place: str) -> object:
        nonlocal reads
        reads += 1
        return opened(place)

    made: Brought = await bring(
        Subject(url, "crew", "t", "again"),
        source,
        scratch=scratch,
        resume=True,
        open_store=counted,  # type: ignore[arg-type]
    )
    assert made.report.whole, made.report
    assert (made.restored, reads) == (None, 0)
    came = [line.replace(b'"again"', b'"t"') for line in await lines_of(source, "crew", "again")]
    assert kept(came) == kept(await lines_of(source, "crew", "t"))
    assert os.listdir(scratch) == []


async def test_a_directory_without_room_is_refused(
    source: Store, url: str, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(StorageFull, match=r"has 1\. Nothing was written"):
        await bring(Subject(url, "crew", None, "copy"), source, scratch=scratch)
    assert os.listdir(scratch) == []


async def test_a_directory_of_somebody_else_is_refused(source: Store, url: str, scratch: Path) -> None:
    subject = Subject(url, "crew", "t", "copy")
    place = bringing._scratch(subject, scratch)
    place.rmdir()
    place.symlink_to(scratch)
    with pytest.raises(InvalidInput, match="somebody else's"):
        await bring(subject, source, scratch=scratch)


async def test_only_the_threads_partition_is_read(source: Store, url: str, scratch: Path) -> None:
    read = 0

    class Counting:
        def __init__(self, store: object) -> None:
            self._store = store
            self.get = self._get

        def __getattr__(self, name: str) -> object:
            return getattr(self._store, name)

        async def _get(self, name: str, *span: int) -> bytes | None:
            nonlocal read
            content: bytes | None = await self._store.get(name, *span)  # type: ignore[attr-defined]
            read += len(content or b"") if name.startswith(("segments/", "bases/")) else 0
            return content

    for nth in range(50):
        await source.space("bulk").thread(f"b{nth}").save({"text": os.urandom(20_000)})
    await shipped(source)
    made = await bring(
        Subject(url, "crew", "forked", "copy"),
        source,
        scratch=scratch,
        open_store=lambda place: Counting(opened(place)),  # type: ignore[arg-type, return-value]
    )
    assert made.report.whole
    assert read < 100_000
    assert isinstance(made.restored, folding.Restored)


def test_the_command_brings_into_a_directory(tmp_path: Path) -> None:
    async def made() -> None:
        async with shoal.open(tmp_path / "source") as store:
            await store.space("crew").thread("t").save({"n": 1})
            await store.backup.init(f"file://{tmp_path}/bucket")
            await shipped(store)

    asyncio.run(made())
    place, target = f"file://{tmp_path}/bucket", str(tmp_path / "new")
    arguments = ["restore", place, "--space", "crew", "--thread", "t", "--as", "copy", "--data", target]
    first = command(*arguments, "--scratch", str(tmp_path))
    assert first.exit_code == 0, first.output
    assert "there   thread 1" in first.output
    assert " of 0 bytes read" not in first.output
    again = command(*arguments)
    assert again.exit_code == 1
    assert "--as" in again.output
    assert command("show", "copy", "--space", "crew", "--data", target).exit_code == 0


@pytest.mark.parametrize(
    "wrong", [["--as", "x", "--data", "d"], ["--url", "http://n:1"], ["--resume", "--data", "d"], []], ids=str
)
def test_options_of_a_part_need_the_part(wrong: list[str]) -> None:
    assert command("restore", "file:///nowhere", *wrong).exit_code == 2


def test_a_backup_is_listed_in_a_pipe(source: Store, tmp_path: Path) -> None:
    del source
    done = command("backup", "list", f"file://{tmp_path}/bucket")
    assert done.exit_code == 0, done.output
    head, *rows = done.stdout.splitlines()
    assert "every moment from" in head
    assert rows
    assert all(re.search(r"Z  (rows|operations)  .*  (bases|segments)/[0-9a-f]{64}$", row) for row in rows)


def test_a_scratch_directory_that_cannot_be_made_is_told(source: Store, tmp_path: Path) -> None:
    del source
    refused = command("backup", "verify", f"file://{tmp_path}/bucket", "--scratch", str(tmp_path / "none"))
    assert refused.exit_code == 1
    assert "cannot be made" in refused.stderr
    assert "Nothing was verified. Name another --scratch." in " ".join(refused.stderr.split())
