"""`shoal verify`: a sound store is said to be sound, a damaged one is not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from shoal.cli.main import app
from shoal.cluster.operation import TIP_BYTES
from shoal.config import Config
from shoal.crdt.rows import successor
from shoal.node.snapshots.receiving import Taken
from shoal.storage import keys
from shoal.storage.rocks import RocksStorage
from tests.cli.conftest import Running
from tests.terminal import SIZES, shoal_in_terminal


def verify(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["verify", *arguments])


def damaged(filled: Path, tmp_path: Path) -> Path:
    """A copy of the filled store in which one row of one object was changed behind the log's back."""
    directory = tmp_path / "state"
    shutil.copytree(filled, directory)
    storage = RocksStorage.open(directory, config=Config(), now_ms=0)
    key, value = next(iter(storage.scan(keys.OBJECT, successor(keys.OBJECT))))
    storage.write({key: value + b"\x00"})
    storage.close()
    return directory


def truncated(filled: Path, tmp_path: Path) -> Path:
    """A copy of the filled store all of whose operations have left the log, and one of whose partitions came in a snapshot."""
    directory = tmp_path / "state"
    shutil.copytree(filled, directory)
    storage = RocksStorage.open(directory, config=Config(), now_ms=0)
    tips = list(storage.scan(keys.VECTOR, successor(keys.VECTOR)))
    gone = [(table, successor(table) or b"") for table in (keys.LOG, keys.KEY)]
    record = Taken("n2:7400", ["n3:7400"], 0).row(int.from_bytes(tips[0][0][1:3], "big"))
    storage.write({keys.BASE + key[1:]: tip[:TIP_BYTES] for key, tip in tips} | record, gone)
    storage.close()
    return directory


def test_rows_that_cannot_be_folded_are_not_called_sound(filled: Path, tmp_path: Path) -> None:
    directory = str(truncated(filled, tmp_path))
    result = verify(directory)
    assert (result.exit_code, "sound" in result.stdout) == (0, False)
    assert "trusted: the rows of 1 partition came in a snapshot from n2:7400, and were compared with n3:7400" in result.stdout
    assert "no fault found. 0 of " in result.stdout
    report = json.loads(verify(directory, "--json").stdout)
    assert (report["sound"], report["problem_count"], len(report["trusted"])) == (False, 0, 2)


def signed(directory: Path, file: Path) -> str:
    """A statement on a directory, made while a node has it open."""
    file.write_text(CliRunner().invoke(app, ["audit", "sign", "--data", str(directory)]).stdout)
    return str(file)


@pytest.mark.answers("statements-show-tampering")
def test_a_statement_covers_rows_without_a_log(filled: Path, tmp_path: Path) -> None:
    directory = str(truncated(filled, tmp_path))
    statement = signed(tmp_path / "state", tmp_path / "a.statement")
    result = verify(directory, "--statement", statement)
    assert (result.exit_code, "not compared" in result.stdout) == (0, False), result.stdout
    assert "are those that node" in result.stdout
    storage = RocksStorage.open(tmp_path / "state", config=Config(), now_ms=0)
    key, value = next(row for row in storage.scan(keys.OBJECT, successor(keys.OBJECT)) if b"Mars" in row[1])
    storage.write({key: value.replace(b"Mars", b"Moon")})
    storage.close()
    assert verify(directory).exit_code == 0, "nothing else tells"
    result = verify(directory, "--statement", statement)
    assert result.exit_code == 1
    number = int.from_bytes(key[1:3], "big")
    assert f"partition {number}: the rows of its objects of this directory are not those of the statement" in result.stdout


def test_a_sound_store_is_said_to_be_sound(filled: Path) -> None:
    result = verify(str(filled))
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "sound")


def test_checks_are_counted(filled: Path) -> None:
    report = json.loads(verify(str(filled), "--json").stdout)
    assert report["sound"]
    assert (report["checkpoints"], report["problem_count"]) == (5, 0)


def test_a_row_changed_behind_the_log_is_exit_code_1_and_named(filled: Path, tmp_path: Path) -> None:
    result = verify(str(damaged(filled, tmp_path)))
    assert result.exit_code == 1
    assert "rows differ from what its operations make" in result.stdout
    assert result.stdout.splitlines()[-1] == "not sound: 1 found. Nothing was changed."


def test_a_store_in_use_is_refused(node: Running) -> None:
    result = verify(str(node.data))
    assert (result.exit_code, result.stdout) == (1, "")
    assert str(node.pid) in result.stderr


def test_a_directory_without_a_store_is_refused_and_none_is_made(tmp_path: Path) -> None:
    result = verify(str(tmp_path / "absent"))
    assert (result.exit_code, list(tmp_path.iterdir())) == (1, [])


@pytest.mark.parametrize(("terminal", "spins"), [("xterm-256color", True), ("dumb", False)])
@pytest.mark.parametrize("columns", SIZES)
def test_a_terminal_shows_that_it_is_at_work(filled: Path, tmp_path: Path, columns: int, terminal: str, spins: bool) -> None:
    shutil.copytree(filled, tmp_path / "state")
    shown = shoal_in_terminal("verify", tmp_path / "state", columns=columns, environment={"TERM": terminal})
    assert (shown.code, shown.lines[-1]) == (0, "sound")
    assert ("verifying" in shown.text, "\x1b" in shown.raw) == (spins, spins)
