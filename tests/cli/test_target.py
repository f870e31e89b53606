"""Which store a command reads, and that reading never makes one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

import shoal
from shoal.cli.execution import Target, chosen, durability, ensured, opened
from shoal.errors import NotFound


def test_a_flag_beats_the_environment_of_the_other_kind() -> None:
    assert chosen(Path("a"), None, environment={"SHOAL_URL": "http://n1"}) == Target(Path("a"), None)
    assert chosen(None, "http://n1", environment={"SHOAL_DATA": "a"}) == Target(None, "http://n1")


def test_the_environment_names_the_store_where_no_flag_does() -> None:
    assert chosen(None, None, environment={"SHOAL_DATA": "a"}) == Target(Path("a"), None)
    assert chosen(None, None, environment={"SHOAL_URL": "http://n1", "SHOAL_DATA": ""}) == Target(None, "http://n1")


@pytest.mark.parametrize(
    ("data", "url", "environment", "said"),
    [
        (None, None, {}, "Give --data DIR"),
        (Path("a"), "http://n1", {}, "--data and --url are both given"),
        (None, None, {"SHOAL_DATA": "a", "SHOAL_URL": "u"}, "SHOAL_DATA and SHOAL_URL are both given"),
    ],
)
def test_none_or_two_stores_are_refused(data: Path | None, url: str | None, environment: dict[str, str], said: str) -> None:
    with pytest.raises(typer.BadParameter, match=said):
        chosen(data, url, environment=environment)


@pytest.mark.parametrize("made", [opened, ensured])
async def test_a_commands_durability_is_that_of_its_store(made: Callable[[Target], Any], tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state"):
        pass
    told = durability.set("quorum")
    try:
        async with made(Target(tmp_path / "state", None)) as store:
            assert store.connection.durability == "quorum"
        async with made(Target(None, "http://127.0.0.1:9")) as store:
            assert store.connection.durability == "quorum"
    finally:
        durability.reset(told)


def test_reading_does_not_make_a_store(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    with pytest.raises(NotFound, match="there is no store in"):
        opened(Target(absent, None))
    assert not absent.exists()


def test_a_directory_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "novel.txt").write_text("Call me Ishmael.")
    with pytest.raises(NotFound, match="is not a store"):
        opened(Target(tmp_path, None))


def test_a_volume_with_nothing_but_snapshots_is_empty(tmp_path: Path) -> None:
    (tmp_path / ".snapshot").mkdir()
    with pytest.raises(NotFound, match="there is no store in"):
        opened(Target(tmp_path, None))
    ensured(Target(tmp_path, None))
