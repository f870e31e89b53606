"""Ids may be shortened: to a beginning that only one has, wherever one is taken."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import shoal
from shoal.cli import finding
from shoal.protocol.requests import Annotate
from tests.cli.test_commands import documents, lines
from tests.cli.test_commands import shoal as command
from tests.support.asking import question


@pytest.fixture
def where(tmp_path: Path) -> list[str]:
    with shoal.sync.open(tmp_path / "state") as store:
        thread = store.space("crew").thread("t")
        for n in range(20):
            thread.save({"n": n})
        thread.branch("side", at=thread.load().id)
        thread.save({"n": "side"}, branch="side")
        for n in range(3):
            thread.journal.append(n)
        store.space("crew").budget("tokens").grant(100)
        store.space("crew").budget("tokens").draw(10)
    return ["--data", str(tmp_path / "state"), "--space", "crew"]


def checkpoints(where: list[str]) -> list[str]:
    return [each["id"] for each in documents("graph", "t", *where)]


def shortened(id: str, others: list[str]) -> str:
    return next(id[:n] for n in range(1, 65) if sum(other.startswith(id[:n]) for other in others) == 1)


def test_every_command_that_takes_a_checkpoint_takes_its_beginning(where: list[str]) -> None:
    found = checkpoints(where)
    short = shortened(found[3], found)
    older = shortened(found[5], found)
    assert documents("show", "t", short, *where)[0]["id"] == found[3]
    assert documents("why", "t", short, *where)[0]["id"] == found[3]
    assert documents("diff", "t", older, short, *where)[0] | {"channels": {}} == {
        "before": found[5],
        "after": found[3],
        "channels": {},
    }
    assert documents("branch", "t", "new", "--at", short, *where)[0]["heads"] == [found[3]]
    assert documents("rollback", "t", short, *where)[0]["heads"] == [found[3]]
    assert len(documents("mutations", "t", "--after", older, *where)) == 2
    assert len(documents("mutations", "t", "--after", f"{older}/0", *where)) == 2
    assert documents("undo", "t", "--checkpoint", short, *where)[0]["parents"] == [found[3]]


def test_a_merge_takes_beginnings(where: list[str]) -> None:
    found = checkpoints(where)
    (side,) = [each for each in documents("branch", "t", *where) if each["branch"] == "side"]
    short = shortened(side["heads"][0], found)
    (merged,) = documents("merge", "t", short, "--resolve", 'n="both"', *where)
    assert side["heads"][0] == merged["id"] or side["heads"][0] in merged["parents"]


def test_a_branch_comes_before_an_id_that_begins_like_it(where: list[str]) -> None:
    found = checkpoints(where)
    lines("branch", "t", found[2][:1], "--at", found[9], *where)
    assert documents("diff", "t", found[2][:1], *where)[0]["before"] == found[9]


def test_an_event_is_taken_by_its_beginning(where: list[str]) -> None:
    events = [each["id"] for each in documents("events", "t", *where)]
    short = shortened(events[2], events)
    assert documents("trim", "t", "--before", short, "--dry-run", *where)[0]["events"] == 2


def test_a_holder_is_taken_by_its_beginning(where: list[str]) -> None:
    holders = [each["origin"] for each in documents("budget", "get", "tokens", *where)[0]["holders"]]
    result = command("budget", "draw", "tokens", "5", "--reclaim", holders[0][:6], *where)
    assert "begins with" not in result.stderr


def test_an_ambiguous_beginning_is_refused_with_those_that_have_it(where: list[str]) -> None:
    found = checkpoints(where)
    first = next(id[0] for id in found if sum(other[0] == id[0] for other in found) > 1)
    result = command("show", "t", first, *where)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"more than one checkpoint of thread 't' begins with '{first}': " in result.stderr
    listed = result.stderr.partition(": more")[2].partition(": ")[2].partition(". ")[0].split(", ")
    assert all(any(id.startswith(each) for id in found) for each in listed if each != "…")
    assert result.stderr.endswith("Nothing was written. Give more characters.\n")


@pytest.mark.parametrize(
    "arguments", [["show", "t", "xyz"], ["rollback", "t", "xyz"], ["why", "t", "xyz"], ["diff", "t", "xyz"]]
)
def test_an_unknown_beginning_is_refused_with_ids_there_are(where: list[str], arguments: list[str]) -> None:
    result = command(*arguments, *where)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no checkpoint of thread 't' begins with 'xyz'. Nothing was written. There are " in result.stderr


def test_a_thread_without_checkpoints_says_that_there_are_none(where: list[str]) -> None:
    assert "There are none." in command("show", "absent", "ab", *where).stderr


async def test_a_whole_id_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_: object) -> str:
        raise AssertionError("looked up")

    monkeypatch.setattr(finding, "_only", refused)
    assert await finding.checkpoint_id(None, None, "ab" * 32) == "ab" * 32  # type: ignore[arg-type]


def test_candidates_are_as_long_as_it_takes_to_tell_them_apart() -> None:
    assert finding._shown(["0" * 20 + "1", "0" * 20 + "2"]) == "0" * 20 + "1, " + "0" * 20 + "2"


def test_output_stays_json_whatever_was_shortened(where: list[str]) -> None:
    found = checkpoints(where)
    assert json.loads(lines("show", "t", found[0][:20], "--json", *where)[0])["id"] == found[0]


def test_a_command_says_that_a_graph_does_not_read_it(tmp_path: Path) -> None:
    async def asks() -> str:
        async with shoal.open(tmp_path / "state") as store:
            thread = store.space("langgraph").thread("support/7")
            first = await thread.save({"n": 1}, label="/1")
            await thread.save({"n": 2}, label="/2")
            await store.connection.write(
                Annotate("langgraph", "support/7", "/2", [question("task")]), key=None, durability=None
            )
            await store.space("langgraph").thread("plain").save({"n": 1})
            return first.id

    id = asyncio.run(asks())
    where = ["--data", str(tmp_path / "state"), "--space", "langgraph"]
    for command_of in (["pause", "support/7"], ["approve", "support/7"], ["rollback", "support/7", id]):
        done = command(*command_of, *where)
        assert done.exit_code == 0, done.output
        told = " ".join(done.stderr.split())
        assert "support/7 is a graph of LangGraph, which does not read" in told
        assert ("It still asks: refund?" in told) == (command_of[0] != "pause")
        assert "LangGraph" not in command(command_of[0], "plain", *where).stderr
