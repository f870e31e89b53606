"""Output that no stored value can turn against the terminal."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.cli.output import emit, form, pairs, plain, to_text
from tests.cli.test_options import ALL


def test_text_stays_readable() -> None:
    assert to_text({"größe": "€"}) == '{"größe": "€"}'


def test_no_control_character_reaches_the_terminal() -> None:
    every = "".join(map(chr, range(0xA0)))
    text = to_text(every)
    assert not any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in text)
    assert json.loads(text) == every


REORDERING = "".join(map(chr, [*range(0x2028, 0x202F), *range(0x2066, 0x206A)]))


@pytest.mark.parametrize("shown", [to_text, plain])
def test_no_character_reorders_what_is_shown(shown: Callable[[str], str]) -> None:
    """A value would look like another one, such as an amount that was approved."""
    assert not set(REORDERING) & set(shown(f"pay {REORDERING} 100"))


def test_yaml_reorders_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    token = form.set("yaml")
    try:
        emit({"amount": f"pay {REORDERING} 100", "ö": "größe"})
    finally:
        form.reset(token)
    text = capsys.readouterr().out
    assert not set(REORDERING) & set(text)
    assert yaml.safe_load(text) == {"amount": f"pay {REORDERING} 100", "ö": "größe"}


def test_a_type_that_json_lacks_is_tagged() -> None:
    assert json.loads(to_text(uuid.UUID(int=1))) == {"$type": "uuid", "value": str(uuid.UUID(int=1))}


def test_a_document_for_machines_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    emit({"a": "b\nc"})
    assert capsys.readouterr().out == '{"a": "b\\nc"}\n'


def test_documents_of_yaml_are_apart(capsys: pytest.CaptureFixture[str]) -> None:
    token = form.set("yaml")
    try:
        emit({"a": "größe", "b": [1, None]})
        emit([])
    finally:
        form.reset(token)
    out = capsys.readouterr().out
    assert list(yaml.safe_load_all(out)) == [{"a": "größe", "b": [1, None]}, []]
    assert out.startswith("---\na: größe\n")


def test_every_command_that_prints_json_takes_an_output() -> None:
    for option in (each for each in ALL if each.names == ("--json",) and each.command != "shoal export"):
        assert any(each.command == option.command and each.names == ("--output", "-o") for each in ALL), option.command


def test_json_is_short_for_an_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert CliRunner().invoke(app, ["context", "add", "a", "http://n1"]).exit_code == 0
    told = [CliRunner().invoke(app, ["context", "list", *words]).output for words in (["--json"], ["-o", "json"])]
    assert told[0] == told[1] == CliRunner().invoke(app, ["context", "list", "--json", "-o", "json"]).output
    plain = [CliRunner().invoke(app, ["context", "list", *words]).output for words in ([], ["-o", "table"])]
    assert plain[0] == plain[1] != told[0]


def test_pairs_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    pairs({"a": 1, "long": 2})
    assert capsys.readouterr().out == "a     1\nlong  2\n"
