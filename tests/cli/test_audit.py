"""`shoal audit sign`, `export` and `verify`: a directory that was tampered with is told from one that was not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from shoal.cli.main import app
from shoal.config import Config
from shoal.crdt.rows import successor
from shoal.storage import keys
from shoal.storage.rocks import RocksStorage
from tests.cli.conftest import Running


def audit(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["audit", *map(str, arguments)])


@pytest.fixture
def data(filled: Path, tmp_path: Path) -> Path:
    directory = tmp_path / "state"
    shutil.copytree(filled, directory)
    return directory


@pytest.fixture
def statement(data: Path, tmp_path: Path) -> Path:
    file = tmp_path / "a.statement"
    file.write_text(audit("sign", "--data", data).stdout)
    return file


def tamper(directory: Path) -> None:
    storage = RocksStorage.open(directory, config=Config(), now_ms=0)
    key, row = next(iter(storage.scan(keys.LOG, successor(keys.LOG))))
    storage.write({key: row[:-1] + bytes([row[-1] ^ 1])})
    storage.close()


def test_a_store_that_was_left_alone_is_sound(data: Path, statement: Path) -> None:
    result = audit("verify", statement, "--data", data)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (
        0,
        "sound: nothing that a statement covers was altered, removed or back-dated.",
    )


@pytest.mark.answers("statements-show-tampering")
def test_a_changed_byte_is_found(data: Path, statement: Path) -> None:
    tamper(data)
    result = audit("verify", statement, "--data", data)
    assert result.exit_code == 1
    assert result.stdout.startswith("altered: partition ")
    assert result.stdout.splitlines()[-1].startswith("NOT SOUND")
    report = json.loads(audit("verify", statement, "--data", data, "--json").stdout)
    assert not report["sound"]
    assert report["findings"][0][0] == "altered"


def test_an_archive_is_checked_alone_and_with_the_store(data: Path, statement: Path, tmp_path: Path) -> None:
    archive = tmp_path / "a.jsonl"
    archive.write_text(audit("export", "--data", data).stdout)
    assert audit("verify", "--archive", archive).exit_code == 0
    assert audit("verify", statement, "--archive", archive, "--data", data).exit_code == 0
    since = audit("export", "--data", data, "--since", statement).stdout.splitlines()
    assert not any(line.startswith('{"log"') for line in since), "nothing was written since"
    lines = archive.read_text().splitlines()
    archive.write_text("\n".join(lines[:-1]) + "\n")
    assert audit("verify", "--archive", archive).exit_code == 1


def test_only_the_keys_that_are_named_are_believed(data: Path, statement: Path) -> None:
    said = audit("sign", "--data", data).stderr
    fingerprint = next(word for word in said.split() if word.startswith("SHA256:"))
    assert audit("verify", statement, "--data", data, "--signer", fingerprint).exit_code == 0
    result = audit("verify", statement, "--data", data, "--signer", "SHA256:other")
    assert (result.exit_code, "which is not one of --signer" in result.stderr) == (1, True)


def test_without_a_statement_nothing_is_called_proved(data: Path) -> None:
    result = audit("verify", "--data", data)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (
        0,
        "There is no statement, so nothing was proved: `shoal audit sign` makes one.",
    )


def test_malformed_statements_are_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("{}")
    result = audit("verify", tmp_path / "x", "--data", data)
    assert (result.exit_code, "holds no statement" in result.stderr) == (1, True)
    assert audit("verify", tmp_path / "absent", "--data", data).exit_code == 1
    assert audit("verify").exit_code == 2, "no store was given"


def test_a_running_node_is_audited(node: Running, tmp_path: Path) -> None:
    file = tmp_path / "n.statement"
    file.write_text(audit("sign", "--url", node.url).stdout)
    result = audit("verify", file, "--url", node.url)
    assert (result.exit_code, "sound: nothing" in result.stdout) == (0, True)
