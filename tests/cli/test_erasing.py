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
    assert lines("delete", "agent", "--yes", *where) == ["deleted agent"]
    assert lines("threads", *where) == []
    assert documents("delete", "agent", "--yes", *where) == [{"thread": "agent", "existed": False}]


def test_without_a_yes_nothing_is_deleted(tmp_path: Path) -> None:
    where = store(tmp_path / "state")
    assert run("delete", "agent", *where).exit_code != 0
    assert lines("threads", *where) == ["agent"]
