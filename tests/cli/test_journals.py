"""Events, inboxes and exports, on a directory and on a node."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal import Schema, values
from tests.cli.test_commands import CREW, documents, lines
from tests.cli.test_commands import shoal as command


def test_events_are_printed_in_order(target: list[str]) -> None:
    paid, note = lines("events", "plain", *target, *CREW)
    assert paid.endswith('[order-1]  {"paid": 5}')
    assert note.endswith('"note"')


def test_events_go_on_after_a_cursor(target: list[str]) -> None:
    first, second = documents("events", "plain", *target, *CREW)
    assert [event["event"] for event in (first, second)] == [{"paid": 5}, "note"]
    assert documents("events", "plain", "--after", first["cursor"], *target, *CREW) == [second]
    assert documents("events", "plain", "--after", second["cursor"], *target, *CREW) == []
    assert documents("events", "plain", "--follow", "-n", "2", *target, *CREW) == [first, second]


def test_malformed_cursors_are_refused(target: list[str]) -> None:
    result = command("events", "plain", "--after", "é", *target, *CREW)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "--after is not from an earlier answer" in result.stderr


def test_a_message_is_sent_and_listed(target: list[str], request: pytest.FixtureRequest) -> None:
    thread = f"to-{abs(hash(request.node.name))}"
    (sent,) = documents("inbox", "send", thread, '{"review": 17}', "--key", "k", "--by", "editor", *target, *CREW)
    assert sent["added"] == [True]
    (again,) = documents("inbox", "send", thread, '{"review": 17}', "--key", "k", *target, *CREW)
    assert again == {"ids": sent["ids"], "added": [False]}
    (listed,) = documents("inbox", "list", thread, *target, *CREW)
    assert ([listed["id"]], listed["key"], listed["by"], listed["value"]) == (sent["ids"], "k", "editor", {"review": 17})
    (shown,) = lines("inbox", "list", thread, *target, *CREW)
    assert shown.endswith('k  editor  {"review": 17}')
    assert lines("inbox", "list", thread, "--finished", *target, *CREW) == []


def test_a_message_that_is_no_json_is_refused(target: list[str]) -> None:
    result = command("inbox", "send", "plain", "{", *target, *CREW)
    assert result.exit_code == 1
    assert "not valid JSON" in result.stderr


def test_an_export_is_one_thread_or_all(target: list[str]) -> None:
    assert command("export", *target, *CREW).exit_code == 2
    assert command("export", "plain", "--all", *target, *CREW).exit_code == 2
    absent = command("export", "plai", *target, *CREW)
    assert (absent.exit_code, absent.stdout) == (1, "")


def test_an_export_has_every_thread(target: list[str]) -> None:
    exported = documents("export", "--all", *target, *CREW)
    assert {record.get("thread") for record in exported[1:]} >= {"plain", "forked"}
    forked = [record for record in exported if record["type"] == "checkpoint" and record["thread"] == "forked"]
    assert sorted(record["state"]["side"] for record in forked) == [0, 1, 2]


STATE = {
    "at": datetime(2030, 1, 2, tzinfo=UTC),
    "price": Decimal("1.50"),
    "raw": b"\x00\xff",
    "log": ["é\x9b", {"$type": 1}, (1, 2)],
}


async def fill(data: Path) -> dict[str, dict[str, Any]]:
    saved: dict[str, dict[str, Any]] = {}
    async with shoal.open(data) as store:
        thread, rival = (store.space("crew").thread("t") for _ in range(2))
        first = await thread.save(STATE, metadata={"by": "me"})
        await rival.load()
        left = await thread.save({"side": "left"}, label="best")
        right = await rival.save({"side": "right"}, on_conflict="fork")
        joined = await thread.merge(resolver=lambda _name, _base, sides: sides[0])
        await thread.branch("what-if", at=first.id)
        elsewhere = await thread.save({"n": 1}, branch="what-if")
        await thread.journal.append({"paid": Decimal("2.5")}, key="order-1")
        for checkpoint in (first, left, right, joined, elsewhere):
            saved[checkpoint.id] = (await store.space("crew").thread("t").load(checkpoint.id)).state
    return saved


async def fill_secret(data: Path) -> None:
    async with shoal.open(data) as store:
        schema = Schema("login", secret={"/token"})
        await store.space("crew").thread("t", schema=schema).save({"token": "hunter2", "n": 1})


def test_an_export_hides_what_is_secret(tmp_path: Path) -> None:
    asyncio.run(fill_secret(tmp_path / "state"))
    text = command("export", "t", "--data", str(tmp_path / "state"), *CREW).stdout
    assert '"n":1' in text
    assert "hunter2" not in text


def test_an_export_read_again_is_what_was_saved(tmp_path: Path) -> None:
    saved = asyncio.run(fill(tmp_path / "state"))
    text = command("export", "t", "--data", str(tmp_path / "state"), *CREW).stdout
    exported = [values.from_json(json.loads(line)) for line in text.splitlines()]
    assert (exported[0]["type"], exported[0]["format"], exported[0]["space"]) == ("export", 2, "crew")
    checkpoints = {record["id"]: record for record in exported if record["type"] == "checkpoint"}
    assert len(checkpoints) == sum(record["type"] == "checkpoint" for record in exported)
    assert {id: record["state"] for id, record in checkpoints.items()} == saved
    assert all(parent in checkpoints for record in checkpoints.values() for parent in record["parents"])
    branches = {record["name"]: record["heads"] for record in exported if record["type"] == "branch"}
    assert set(branches) == {"main", "what-if"}
    assert all(head in checkpoints for heads in branches.values() for head in heads)
    (best,) = [record for record in exported if record["type"] == "label"]
    assert checkpoints[best["checkpoint"]]["state"] == {"side": "left"}
    events = [record["event"] for record in exported if record["type"] == "event" and record.get("key") == "order-1"]
    assert events == [{"paid": Decimal("2.5")}]


def test_an_import_that_leaves_something_fails(target: list[str], tmp_path: Path) -> None:
    (tmp_path / "plain.jsonl").write_text(command("export", "plain", *target, *CREW).stdout)
    made = command("import", str(tmp_path / "plain.jsonl"), "--data", str(tmp_path / "made"), "--as", "copy", "--space", "lab")
    assert (made.exit_code, made.stdout.splitlines()[-1]) == (0, "there   thread 1")
    again = command("import", str(tmp_path / "plain.jsonl"), "--data", str(tmp_path / "made"), "--as", "copy", "--space", "lab")
    assert (again.exit_code, "thread 'copy' of space 'lab' was there" in again.stdout) == (1, True)
    more = ("--as", "copy", "--space", "lab", "--resume", "--json")
    [report] = documents("import", str(tmp_path / "plain.jsonl"), "--data", str(tmp_path / "made"), *more)
    assert report["whole"]


def test_a_cut_export_makes_no_directory(target: list[str], tmp_path: Path) -> None:
    whole = command("export", "plain", *target, *CREW).stdout
    for cut in (whole[: len(whole) // 2], "\n".join(whole.splitlines()[:-1]), "no export\n"):
        (tmp_path / "cut.jsonl").write_text(cut)
        made = command("import", str(tmp_path / "cut.jsonl"), "--data", str(tmp_path / "made"))
        assert made.exit_code == 1
        assert "Nothing was written" in made.stderr
        assert not (tmp_path / "made").exists()
