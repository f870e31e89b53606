"""`shoal delete`, on a directory."""

from __future__ import annotations

from pathlib import Path

import shoal
from tests.cli.test_commands import CREW, documents, lines
from tests.cli.test_commands import shoal as run


def store(directory: Path) -> list[str]:
    with shoal.sync.open(directory) as opened:
        opened.space("crew").thread("agent").save({"n": 1})
    return ["--data", str(directory), *CREW]


def test_a_thread_is_deleted_and_deleting_it_again_says_that_there_was_none(tmp_path: Path) -> None:
    where = store(tmp_path / "state")
    assert lines("delete", "agent", "--yes", *where) == ["true"]
    assert lines("threads", *where) == []
    assert documents("delete", "agent", "--yes", *where) == [{"existed": False}]


def test_old_checkpoints_are_given_up_and_a_dry_run_says_which(tmp_path: Path) -> None:
    where = store(tmp_path / "state")
    with shoal.sync.open(tmp_path / "state") as opened:
        thread = opened.space("crew").thread("agent")
        thread.load()
        ids = [thread.save({"n": n}).id for n in range(5)]
    [report] = documents("prune", "agent", "--keep-last", "2", "--dry-run", *where)
    assert (report["count"], report["gone"][1:], report["stays"]) == (4, ids[:3], {"head": 1, "recent": 1})
    assert documents("prune", "agent", "--keep-last", "2", "--older-than", "1d", "--yes", *where)[0]["count"] == 0
    assert documents("prune", "agent", "--keep-last", "2", "--yes", *where)[0]["count"] == 4
    assert len(lines("log", "agent", *where)) == 2
    assert run("prune", "agent", "--older-than", "soon", *where).exit_code == 1


def test_without_a_yes_nothing_is_deleted(tmp_path: Path) -> None:
    where = store(tmp_path / "state")
    assert run("delete", "agent", *where).exit_code != 0
    assert documents("delete", "agent", "--dry-run", *where) == [{"existed": True}]
    assert documents("delete", "nobody", "--dry-run", *where) == [{"existed": False}]
    assert lines("counter", "add", "tokens", *where) == ["1"]
    assert run("counter", "delete", "tokens", *where).exit_code == 1
    assert [lines("counter", "delete", name, "--dry-run", *where) for name in ("tokens", "token")] == [["true"], ["false"]]
    assert lines("counter", "get", "tokens", *where) == ["1"]
    would = lines("space", "delete", "crew", "--dry-run", *where[:2])
    assert would == ["would be deleted from space crew: thread 1, counter 1"]
    assert lines("threads", *where) == ["agent"]


def test_a_space_is_deleted_and_deleting_it_again_says_that_there_was_nothing(tmp_path: Path) -> None:
    where = store(tmp_path / "state")[:2]
    assert lines("space", "delete", "crew", "--yes", *where) == ["deleted from space crew: thread 1"]
    assert lines("space", "delete", "crew", "--yes", *where) == ["there was nothing in space crew"]


def test_a_quota_is_set_and_shown(tmp_path: Path) -> None:
    where = store(tmp_path / "state")[:2]
    [shown] = documents("space", "quota", "crew", *where)
    assert (shown["limits"]["objects"], shown["used"]["objects"]) == (0, 1)
    lines("space", "quota", "crew", "--bytes", "1MiB", "--objects", "1", *where)
    [shown] = documents("space", "quota", "crew", "--watchers", "3", *where)
    assert shown["recorded"] == {"bytes": 1_048_576, "objects": 1, "watchers": 3}
    assert "objects                 1 of 1" in lines("space", "quota", "crew", *where)
    assert run("counter", "add", "more", *where, *CREW).exit_code == 1
    lines("space", "quota", "crew", "--default", *where)
    assert run("counter", "add", "more", *where, *CREW).exit_code == 0


def test_without_a_yes_no_space_is_deleted(tmp_path: Path) -> None:
    where = store(tmp_path / "state")
    assert run("space", "delete", "crew", *where[:2]).exit_code == 1
    assert run("items", "delete-all", "memory", *where).exit_code == 1
    assert lines("threads", *where) == ["agent"]
