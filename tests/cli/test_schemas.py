"""`shoal schema`, and what other commands hide."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import shoal as library
from shoal import Schema
from shoal.cli.main import app


@pytest.fixture
def data(tmp_path: Path) -> list[str]:
    return ["--data", str(tmp_path / "s"), "--space", "crew"]


@pytest.fixture
def ids(tmp_path: Path) -> list[str]:
    async def fill() -> list[str]:
        async with library.open(tmp_path / "s") as store:
            thread = store.space("crew").thread("login", schema=Schema("login", secret={"/credentials/token"}))
            return [
                (await thread.save({"credentials": {"token": token, "user": "ada"}})).id for token in ("hunter2", "hunter3")
            ]

    return asyncio.run(fill())


def shoal(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"SHOAL_DATA": None, "SHOAL_URL": None, "SHOAL_SPACE": None})


def test_a_schema_is_put_shown_listed_and_checked(tmp_path: Path, data: list[str], ids: list[str]) -> None:
    file = tmp_path / "plan.json"
    file.write_text('{"required": ["tasks"]}')
    put = shoal("schema", "put", "plan", str(file), "--version", "1", "--threads", "*", *data)
    assert (put.exit_code, put.stdout) == (0, "1\n")
    assert shoal("schema", "list", *data).stdout.split() == ["plan"]
    shown = json.loads(shoal("schema", "show", "plan", "--json", *data).stdout)
    assert (shown["version"], shown["schema"], shown["threads"]) == (1, {"required": ["tasks"]}, "*")
    assert '{"required": ["tasks"]}' in shoal("schema", "show", "plan", *data).stdout
    broken = shoal("schema", "check", "login", "--json", *data)
    assert broken.exit_code == 1
    assert json.loads(broken.stdout)["checkpoint"] == ids[-1]
    file.write_text("{}")
    shoal("schema", "put", "plan", str(file), "--version", "2", *data)
    whole = shoal("schema", "check", "login", *data)
    assert (whole.exit_code, whole.stdout) == (0, "")


@pytest.mark.parametrize(
    ("text", "said"), [("{", "not valid JSON"), ('{"type": "plan"}', "no JSON Schema"), ("3", "object or a boolean")]
)
def test_a_malformed_schema_is_exit_code_1(tmp_path: Path, data: list[str], ids: list[str], text: str, said: str) -> None:
    assert ids
    file = tmp_path / "plan.json"
    file.write_text(text)
    result = shoal("schema", "put", "plan", str(file), "--version", "1", *data)
    assert result.exit_code == 1
    assert said in result.stderr
    assert shoal("schema", "list", *data).stdout == ""


def test_secret_fields_are_hidden_unless_they_are_asked_for(data: list[str], ids: list[str]) -> None:
    for arguments in (
        ["show", "login"],
        ["show", "login", "--json"],
        ["diff", "login", *ids],
        ["diff", "login", *ids, "--json"],
    ):
        hidden = shoal(*arguments, *data)
        assert hidden.exit_code == 0, hidden.output
        assert "hunter" not in hidden.stdout
        assert "secret" in hidden.stdout
        assert "hunter3" in shoal(*arguments, "--reveal", *data).stdout


def test_a_resumed_state_hides_them_too(data: list[str], ids: list[str]) -> None:
    assert ids
    for arguments in (["resume", "login"], ["resume", "login", "--json"]):
        shown = shoal(*arguments, *data)
        assert shown.exit_code == 0, shown.output
        assert "hunter" not in shown.stdout
        assert "secret" in shown.stdout
