"""Rules of redaction at every door: a secret that any of them is given is nowhere afterwards."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import shoal
from shoal.client.store import Space, Store
from shoal.config import Config
from shoal.errors import RedactionRefused
from shoal.protocol.requests import Replaced
from shoal.storage.engine import BLOB_BYTES_MIN
from shoal.storage.rocks import RocksStorage
from tests.end_to_end.conftest import Cli, Rest
from tests.support.remains import files_with, uncompressed

SECRET = "sk-ant-" + "Zq7" * 12
CORE = b"Zq7Zq7Zq7"
STAR = "[credentials]"
PLACE = {"rule": "credentials", "count": 1}


@pytest.fixture
async def ruled(space: Space) -> AsyncIterator[Space]:
    await space.redaction.set(credentials=True)
    yield space
    await space.redaction.unset()


# ── REST ──────────────────────────────────────────────────────────────────────


async def test_rules_are_set_tried_shown_and_unset_over_rest(rest: Rest) -> None:
    told = await rest("PUT", "/redaction", {"credentials": True, "patterns": [{"name": "mail", "regex": "[a-z]+@[a-z.]+"}]})
    assert (told["credentials"], told["cards"], told["patterns"][0]["replace"]) == (True, False, "[mail]")
    tried = await rest("POST", "/redaction/test", {"texts": [f"{SECRET} to ada@example.org", "plain"]})
    assert tried["texts"] == [f"{STAR} to [mail]", "plain"]
    assert [each["path"] for each in tried["replaced"]] == ["0", "0"]
    assert (await rest("GET", "/redaction"))["patterns"] == told["patterns"]
    assert (await rest("DELETE", "/redaction"))["credentials"] is False
    for wrong in ({}, {"patterns": [{"name": "p", "regex": "("}]}, {"hooks": ["none"]}, {"more": 1}):
        assert (await rest("PUT", "/redaction", wrong, status=400))["code"] == "invalid-input"
    assert (await rest("GET", "/redaction"))["wall_ms"] in (0, None)


async def test_a_header_says_what_was_replaced_over_rest(ruled: Space, rest: Rest) -> None:
    path = rest.path + "/threads/t/checkpoints"
    async with rest.http.post(path, json={"state": {"key": SECRET, "n": 1}}) as answer:
        assert answer.status < 300
        assert json.loads(answer.headers["Shoal-Redacted"]) == [{"path": "/channels/key", **PLACE}]
    async with rest.http.post(path, json={"state": {"n": 1}}) as answer:
        assert "Shoal-Redacted" not in answer.headers
    refused = await rest("POST", "/threads/t/checkpoints", {"state": {SECRET: 1}}, status=422)
    assert refused["code"] == "redaction-refused"
    assert SECRET not in json.dumps(refused)


async def test_the_value_of_a_register_and_a_batch_are_replaced_over_rest(ruled: Space, rest: Rest) -> None:
    writes = [{"op": "save", "thread": "b", "state": {"key": SECRET}}, {"op": "append", "thread": "b", "event": SECRET}]
    async with rest.http.post(rest.path + "/batch", json={"writes": writes}) as answer:
        assert answer.status < 300, await answer.text()
        assert [each["path"] for each in json.loads(answer.headers["Shoal-Redacted"])] == [
            "/writes/0/channels/key",
            "/writes/1/event",
        ]
    assert (await ruled.thread("b").load()).state == {"key": STAR}


# ── sessions ──────────────────────────────────────────────────────────────────


async def test_a_session_hears_what_was_replaced_and_others_see_no_more(ruled: Space, url: str) -> None:
    async with shoal.connect(url) as other:
        async with aclosing(other.space(ruled.name).watch(timeout=30)) as changes:
            seen = asyncio.ensure_future(anext(changes))
            while not seen.done():
                with shoal.redactions() as found:
                    await ruled.register("r").set({"key": [SECRET]})
                assert found == [Replaced("/value/key/0", "credentials", 1)]
                await asyncio.sleep(0.02)
            assert CORE.decode() not in repr(await seen)
        assert await other.space(ruled.name).register("r").get() == {"key": [STAR]}


async def test_a_pushed_event_holds_no_secret(ruled: Space) -> None:
    thread = ruled.thread("pushed")
    await thread.journal.append({"n": 0})
    async with aclosing(thread.journal.read(follow=True, timeout=30)) as events:
        assert (await anext(events)).event == {"n": 0}
        await thread.journal.append({"key": SECRET})
        assert (await anext(events)).event == {"key": STAR}


async def test_a_search_and_the_audit_find_what_is_stored(ruled: Space) -> None:
    thread = ruled.thread("searched")
    await thread.save({"text": f"a rare word before {SECRET}"})
    await thread.journal.append(f"another rare word before {SECRET}")
    assert [hit async for hit in ruled.search("Zq7Zq7")] == []
    assert {hit.thread async for hit in ruled.search("rare word")} == {"searched"}
    told = [each async for each in ruled.audit("searched")]
    assert CORE.decode() not in repr(told)
    assert {place.path for each in told for place in each.redacted} == {"/channels/text", "/event"}


async def test_a_blocking_store_hears_what_was_replaced(ruled: Space, url: str) -> None:
    def work() -> tuple[Any, list[Replaced]]:
        with shoal.sync.connect(url) as store, shoal.redactions() as found:
            register = store.space(ruled.name).register("blocking")
            register.set(SECRET)
            assert store.space(ruled.name).redaction.get().credentials
            return register.get(), found

    assert await asyncio.to_thread(work) == (STAR, [Replaced("/value", "credentials", 1)])


# ── the command line ──────────────────────────────────────────────────────────


async def test_the_command_line_sets_tries_and_is_told(space: Space, cli: Cli) -> None:
    patterns = ("--pattern", "mail=[a-z]+@[a-z.]+")
    (told,) = await cli.bare("redaction", "set", space.name, "--credentials", *patterns)
    assert (told["credentials"], told["patterns"][0]["name"]) == (True, "mail")
    (tried,) = await cli.bare("redaction", "test", space.name, f"to ada@example.org {SECRET}")
    assert tried["texts"] == [f"to [mail] {STAR}"]
    code, _, errors = await cli._run("register", "set", "note", json.dumps(SECRET), "--space", space.name)
    assert code == 0
    assert "1 × credentials at /value" in errors
    assert SECRET not in errors
    assert await space.register("note").get() == STAR
    (left,) = await cli.bare("redaction", "unset", space.name, "--yes")
    assert not left["credentials"]


# ── the disk ──────────────────────────────────────────────────────────────────

SIZES = (0, 40, 400, BLOB_BYTES_MIN // 2, BLOB_BYTES_MIN + 100, 200_000)


async def _written(store: Store) -> None:
    """Writes of many kinds and sizes, each with the secret."""
    space = store.space("crew")
    for nth, size in enumerate(SIZES):
        text = f"{'x y ' * (size // 4)} {SECRET} and after"
        thread = space.thread(f"t{nth}")
        await thread.save({"messages": [text], "other": {"deep": (text, text.encode())}}, metadata={"why": text})
        await thread.save({"messages": [text, text], "other": 1})
        await thread.journal.append(text, key=f"k{nth}")
        await space.register(f"r{nth}").set(text)
        await space.map("m").set(f"k{nth}", text)
        await space.items.put(("ada",), f"k{nth}", {"text": text})
        with pytest.raises(RedactionRefused):
            async with await space.document(f"d{nth}") as document:
                document.text("body").insert(0, text)
                await document.flush()
    await space.set("s").add(SECRET)
    with pytest.raises(RedactionRefused):
        await space.register(SECRET).set(1)


@pytest.mark.answers("pasted-secret-is-stored-for-ever")
@pytest.mark.parametrize("compressed", [False, True], ids=["uncompressed", "compressed"])
async def test_no_file_of_the_directory_and_of_a_backup_holds_the_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compressed: bool
) -> None:
    """In bytes where nothing is compressed; else through RocksDB, log and blobs included."""
    if not compressed:
        uncompressed(monkeypatch)
    data, bucket = tmp_path / "state", tmp_path / "bucket"
    async with shoal.open(data, config=Config()) as store:
        await store.space("crew").redaction.set(credentials=True)
        await _written(store)
        await store.backup.init(f"file://{bucket}")
        async with asyncio.timeout(60):
            while (await store.backup.status()).state != "current":
                await asyncio.sleep(0.05)
        held = files_with(data, CORE)  # The log of RocksDB, while the store is open.
    assert held == []
    assert files_with(data, CORE) == []
    assert files_with(bucket, CORE) == []
    storage = RocksStorage.open(data, config=Config(), now_ms=0)
    try:
        rows = [key + value for key, value in storage.scan(b"", None)]
    finally:
        storage.close()
    assert any(STAR.encode() in row for row in rows)
    assert not any(CORE in row for row in rows)


async def test_the_scan_finds_a_secret_without_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan that finds nothing, whatever is there, would prove nothing."""
    uncompressed(monkeypatch)
    async with shoal.open(tmp_path / "state") as store:
        await store.space("crew").thread("t").save({"messages": [SECRET]})
        await store.space("crew").register("r").set("x" * (BLOB_BYTES_MIN + 1) + SECRET)
    assert files_with(tmp_path / "state", CORE)


async def test_metrics_count_and_say_nothing_else(ruled: Space, rest: Rest, http: aiohttp.ClientSession, url: str) -> None:
    await ruled.register("counted").set(SECRET)
    async with http.get(f"{url}/metrics") as answer:
        text = await answer.text()
    assert "shoal_redaction_replaced_total" in text
    assert CORE.decode() not in text
