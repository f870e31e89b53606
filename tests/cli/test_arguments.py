"""What people type: read from standard input for "-", and refused with an example of what is right."""

from __future__ import annotations

import io
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from shoal.cli.arguments import age_of, bytes_of, fields_of, json_of, moment_of
from shoal.cli.main import app
from shoal.errors import InvalidInput


@pytest.fixture
def where(tmp_path: Path) -> list[str]:
    import shoal

    with shoal.sync.open(tmp_path / "state") as store:
        store.space("crew").thread("t").save({"n": 1})
    return ["--data", str(tmp_path / "state"), "--space", "crew"]


@pytest.mark.parametrize(
    ("arguments", "typed", "shown"),
    [
        (["save", "t", "-", "--overwrite"], '{"n": 2}', ["show", "t"]),
        (["edit", "t", "-"], '{"n": 2}', ["show", "t"]),
        (["append", "t", "-"], '{"n": 2}', ["log", "t", "--journal"]),
        (["inbox", "send", "t", "-"], '{"n": 2}', ["inbox", "list", "t"]),
        (["doc", "edit", "plan", "-"], '{"m": {"n": 2}}', ["doc", "get", "plan"]),
        (["register", "set", "goal", "-"], '{"n": 2}', ["register", "get", "goal"]),
        (["set", "add", "tags", "-"], '{"n": 2}', ["set", "get", "tags"]),
        (["map", "set", "plan", "k", "-"], '{"n": 2}', ["map", "get", "plan"]),
        (["items", "put", "memory", "k", "-"], '{"n": 2}', ["items", "search", "--filter", "n=2"]),
        (["schema", "put", "plan", "-", "--version", "1"], '{"properties": {"n": {"const": 2}}}', ["schema", "show", "plan"]),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else None,
)
def test_a_dash_is_standard_input(where: list[str], arguments: list[str], typed: str, shown: list[str]) -> None:
    runner = CliRunner()
    done = runner.invoke(app, [*arguments, *where], input=typed)
    assert done.exit_code == 0, done.output
    told = runner.invoke(app, [*shown, "--json", *where]).stdout
    assert "2" in told.replace('"version": 2', "")


def test_a_filter_comes_from_standard_input_too(where: list[str]) -> None:
    runner = CliRunner()
    runner.invoke(app, ["items", "put", "memory", "k", '{"age": 20}', *where])
    found = runner.invoke(app, ["items", "search", "--filter", "-", "--json", *where], input='{"age": {"$gte": 18}}')
    assert json.loads(found.stdout)["value"] == {"age": 20}


def test_standard_input_is_read_once(where: list[str]) -> None:
    done = CliRunner().invoke(app, ["set", "add", "tags", "-", "-", *where], input="1")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "standard input has already been read" in done.stderr


def test_text_that_is_not_utf_8_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff"), encoding="utf-8"))
    with pytest.raises(InvalidInput, match=r"the value: standard input is not UTF-8 .* Nothing was written\."):
        json_of("-", "the value")


def test_a_file_that_is_not_there_is_named(where: list[str]) -> None:
    done = CliRunner().invoke(app, ["doc", "edit", "plan", "absent.json", *where])
    assert (done.exit_code, done.stderr) == (
        1,
        "shoal: absent.json cannot be read: No such file or directory. Nothing was written.\n",
    )


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("Mars", "'\"Mars\"'"),
        ("to reach Mars", "'\"to reach Mars\"'"),
        ("{step: 1}", "'{\"a\": 1}'"),
        ('{"a": ', "single quotes"),
    ],
)
def test_an_argument_that_is_no_json_is_explained(text: str, hint: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        json_of(text, "the value")
    assert caught.value.message.startswith("the value is not valid JSON (")
    assert hint in caught.value.message


@pytest.mark.parametrize(
    ("text", "age"),
    [
        ("30d", {"days": 30}),
        ("12h", {"hours": 12}),
        ("90m", {"minutes": 90}),
        ("45s", {"seconds": 45}),
        ("1.5", {"seconds": 1.5}),
    ],
)
def test_an_age_has_a_unit_or_is_seconds(text: str, age: dict[str, float]) -> None:
    assert age_of(text) == timedelta(**age)


@pytest.mark.parametrize("text", ["soon", "", "-1d", "1 week", "1e9d", "999999999999999d"])
def test_another_age_is_refused_with_examples(text: str) -> None:
    with pytest.raises(InvalidInput, match="Nothing was written"):
        age_of(text)


def test_a_size_has_a_unit_or_is_bytes() -> None:
    assert (bytes_of("4096"), bytes_of("64MiB"), bytes_of("1 KiB")) == (4096, 64 << 20, 1024)
    with pytest.raises(InvalidInput, match="'64MB' is not a size"):
        bytes_of("64MB")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["a=1", "b=x", 'c="1"'], {"a": 1, "b": "x", "c": "1"}),
        (['{"a": {"$gte": 2}}', "b=2"], {"a": {"$gte": 2}, "b": 2}),
        (["url=http://x?a=b"], {"url": "http://x?a=b"}),
    ],
)
def test_fields_are_given_one_by_one_or_as_json(given: list[str], wanted: dict[str, Any]) -> None:
    assert fields_of(given) == wanted


@pytest.mark.parametrize("given", ["a", "=1", "[1]"])
def test_another_filter_is_refused(given: str) -> None:
    with pytest.raises(InvalidInput, match="--filter must be KEY=VALUE"):
        fields_of([given])


def test_a_time_that_is_none_is_one_plain_line(where: list[str]) -> None:
    done = CliRunner().invoke(app, ["show", "t", "--as-of", "yesterday", *where])
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "2026-01-01T12:00:00+00:00" in done.stderr
    with pytest.raises(InvalidInput):
        moment_of("yesterday", "--as-of")
