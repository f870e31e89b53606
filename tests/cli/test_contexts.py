"""Named servers: which one a command uses, and how they are kept."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from shoal.cli import execution
from shoal.cli.commands import contexts
from shoal.cli.execution import Target, chosen
from shoal.cli.main import app
from shoal.errors import InvalidInput, NotFound

URL = "https://n1:7400,https://n2:7400"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    return tmp_path


def shoal(*words: str) -> str:
    done = CliRunner().invoke(app, ["context", *words])
    assert done.exit_code == 0, done.output
    return done.output


def file(home: Path) -> Path:
    return contexts.directory({"XDG_CONFIG_HOME": str(home)}, "linux") / "contexts.json"


def test_the_first_context_is_in_use() -> None:
    shoal("add", "crew", URL)
    shoal("add", "other", "http://127.0.0.1:7400")
    assert chosen(None, None, environment=_environment()) == Target(None, URL)
    shoal("use", "other")
    assert chosen(None, None, environment=_environment()) == Target(None, "http://127.0.0.1:7400")


def test_options_and_variables_take_precedence() -> None:
    shoal("add", "crew", URL)
    assert chosen(Path("a"), None, environment=_environment()) == Target(Path("a"), None)
    assert chosen(None, None, environment={**_environment(), "SHOAL_DATA": "a"}) == Target(Path("a"), None)


def test_a_named_context_beside_a_store_is_refused() -> None:
    shoal("add", "crew", URL)
    token = execution.context.set("crew")
    try:
        assert chosen(None, None, environment={**_environment(), "SHOAL_URL": "http://n9"}) == Target(None, URL)
        with pytest.raises(typer.BadParameter, match="Remove one"):
            chosen(None, "http://n9", environment=_environment())
        execution.context.set("nowhere")
        with pytest.raises(NotFound, match="There are: crew"):
            chosen(None, None, environment=_environment())
    finally:
        execution.context.reset(token)


def test_a_contexts_token_and_ca_are_used(tmp_path: Path) -> None:
    shoal("add", "crew", URL, "--token-file", str(tmp_path / "t"), "--tls-ca", str(tmp_path / "ca.pem"))
    given, token, ca = tmp_path / "mine", execution.token_file.set(None), execution.tls_ca.set(None)
    try:
        chosen(None, None, environment=_environment())
        assert (execution.token_file.get(), execution.tls_ca.get()) == (tmp_path / "t", str(tmp_path / "ca.pem"))
        execution.token_file.set(given)
        chosen(None, None, environment=_environment())
        assert execution.token_file.get() == given
    finally:
        execution.token_file.reset(token)
        execution.tls_ca.reset(ca)


def test_nobody_else_can_read_the_file(home: Path) -> None:
    shoal("add", "crew", URL)
    file(home).chmod(0o644)
    shoal("add", "other", URL)
    assert stat.S_IMODE(file(home).stat().st_mode) == 0o600
    assert stat.S_IMODE(file(home).parent.stat().st_mode) == 0o700


def test_a_write_that_fails_leaves_the_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shoal("add", "crew", URL)
    before = file(home).read_text()

    def dump(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("json.dump", dump)
    with pytest.raises(InvalidInput, match="as before"):
        contexts.add("other", URL)
    assert file(home).read_text() == before


def test_a_removed_context_is_not_in_use() -> None:
    shoal("add", "crew", URL)
    assert CliRunner().invoke(app, ["context", "remove", "crew"], input="n\n").exit_code == 1
    shoal("remove", "crew", "--yes")
    assert "there are none" in shoal("list")
    with pytest.raises(typer.BadParameter, match="context use NAME"):
        chosen(None, None, environment=_environment())


@pytest.mark.parametrize(
    ("name", "url"),
    [("a b", URL), ("", URL), ("x" * 65, URL), ("a", "n1:7400"), ("a", "ftp://n1"), ("a", "http://user:secret@n1"), ("a", "")],
)
def test_malformed_contexts_are_refused(home: Path, name: str, url: str) -> None:
    with pytest.raises(InvalidInput, match="Nothing was written"):
        contexts.add(name, url)
    assert not file(home).exists()


@pytest.mark.parametrize("text", ["", "[]", '{"current": "a"}', '{"current": "a", "contexts": {"a": {}}}', "\xff"])
def test_a_damaged_file_is_named(home: Path, text: str) -> None:
    file(home).parent.mkdir()
    file(home).write_text(text)
    with pytest.raises(InvalidInput, match=r"contexts\.json does not hold contexts"):
        contexts.read()


def test_contexts_are_listed_for_people_and_machines() -> None:
    shoal("add", "crew", URL)
    assert shoal("list").splitlines()[1].split() == ["*", "crew", URL]
    told = {"name": "crew", "url": URL, "token_file": None, "tls_ca": None, "in_use": True}
    assert json.loads(shoal("list", "-o", "json")) == told


@pytest.mark.parametrize(
    ("platform", "environment", "where"),
    [
        ("linux", {"HOME": "/home/ana"}, "/home/ana/.config/shoal"),
        ("linux", {"HOME": "/home/ana", "XDG_CONFIG_HOME": "/etc/ana"}, "/etc/ana/shoal"),
        ("linux", {"HOME": "/home/ana", "XDG_CONFIG_HOME": "relative"}, "/home/ana/.config/shoal"),
        ("darwin", {"HOME": "/Users/ana"}, "/Users/ana/Library/Application Support/shoal"),
        ("win32", {"HOME": "/c/ana", "APPDATA": "/c/ana/Roaming"}, "/c/ana/Roaming/shoal"),
    ],
)
def test_the_directory_follows_the_systems_rules(platform: str, environment: dict[str, str], where: str) -> None:
    assert contexts.directory(environment, platform) == Path(where)


def _environment() -> dict[str, str]:
    return {"XDG_CONFIG_HOME": os.environ["XDG_CONFIG_HOME"]}
