"""`shoal token`, and every command that asks a node, with and without a token."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main
from typer.testing import CliRunner, Result

from shoal.cli.commands.doctor import UNSURE
from shoal.cli.main import app
from tests.cli.conftest import served

ENVIRONMENT = dict.fromkeys(("SHOAL_TOKEN", "SHOAL_TOKEN_FILE", "SHOAL_URL", "SHOAL_DATA", "SHOAL_SPACE", "SHOAL_CONFIG"))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env=ENVIRONMENT, input="")


def made(directory: Path, name: str, *allow: str, lasts: str = "1h") -> Path:
    """A file with a new token."""
    file = directory / f"{name}.token"
    grants = [word for each in allow for word in ("--allow", each)]
    result = run("token", "create", str(directory / "tokens"), name, *grants, "--lasts", lasts, "--out", str(file))
    assert result.exit_code == 0, result.stderr
    assert file.read_text().strip() not in result.stdout + result.stderr
    return file


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    result = run("token", "init", str(tmp_path / "tokens"))
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path / 'tokens' / 'keys.json'}\n")
    return tmp_path


def test_a_token_is_made_shown_and_listed(directory: Path) -> None:
    file = made(directory, "planner", "crew-*:read,write", "other:thread:append")
    assert file.stat().st_mode & 0o777 == 0o600
    keys = str(directory / "tokens" / "keys.json")
    told = json.loads(run("token", "inspect", str(file), "--keys", keys, "--json").stdout)
    assert (told["author"], told["state"]) == ("planner", "valid")
    assert told["grants"] == ["crew-*:*:read,write", "other:thread:append"]
    assert "not verified" in run("token", "inspect", str(file)).stdout
    [listed] = [json.loads(line) for line in run("token", "list", str(directory / "tokens"), "--json").stdout.splitlines()]
    assert (listed["id"], listed["state"]) == (told["id"], "valid")
    assert told["id"] in run("token", "list", str(directory / "tokens")).stdout


def test_without_a_file_the_token_alone_is_printed(directory: Path) -> None:
    result = run("token", "create", str(directory / "tokens"), "planner", "--allow", "*:read")
    assert re.fullmatch(r"[\w-]+\.[\w-]+\.[\w-]+\n", result.stdout)


def test_a_word_that_is_no_family_is_pointed_out(directory: Path) -> None:
    keys = str(directory / "tokens")
    meant = run("token", "create", keys, "planner", "--allow", "crew-*:threads:read")
    assert "'crew-*:threads' is taken as a space's name" in meant.stderr
    assert "is taken" not in run("token", "create", keys, "planner", "--allow", "crew-*:thread:read").stderr


def test_inspect_fails_if_nodes_would_not_accept_it(directory: Path) -> None:
    file = made(directory, "planner", "*:read")
    keys = str(directory / "tokens" / "keys.json")
    other = run("token", "inspect", str(file), "--keys", keys, "--cluster", "other")
    assert (other.exit_code, "another cluster" in other.stdout) == (1, True)
    run("token", "rotate", str(directory / "tokens"), "--withdraw")
    assert run("token", "inspect", str(file), "--keys", keys).exit_code == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["init", "{0}/tokens"],
        ["create", "{0}/nowhere", "a", "--allow", "*:read"],
        ["create", "{0}/tokens", "a", "--allow", "*:everything"],
        ["create", "{0}/tokens", "a\nb", "--allow", "*:read"],
        ["create", "{0}/tokens", "a", "--allow", "*:read", "--lasts", "soon"],
        ["create", "{0}/tokens", "a", "--allow", "*:read", "--out", "{0}/taken"],
        ["inspect", "{0}/taken"],
        ["inspect", "{0}/nowhere"],
        ["list", "{0}/damaged"],
        ["rotate", "{0}/nowhere"],
        ["revoke", "{0}/tokens", "unknown", "--url", "http://127.0.0.1:9"],
    ],
)
def test_a_mistake_changes_nothing_and_says_so(directory: Path, arguments: list[str]) -> None:
    (directory / "taken").write_text("mine")
    (directory / "damaged").mkdir()
    (directory / "damaged" / "issued.jsonl").write_text("{")
    before = {file: file.read_bytes() for file in directory.rglob("*") if file.is_file()}
    result = run("token", *(each.replace("{0}", str(directory)) for each in arguments))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("shoal: ")
    assert {file: file.read_bytes() for file in directory.rglob("*") if file.is_file()} == before


def test_a_revoked_token_is_listed_and_refused(directory: Path) -> None:
    planner, ops = made(directory, "planner", "crew:admin"), made(directory, "ops", "*:admin")
    tokens = str(directory / "tokens")
    with served(directory / "state", "--token-keys", f"{tokens}/keys.json") as (_, url):
        add = ("counter", "add", "n", "1", "--space", "crew", "--url", url)
        assert run("--token-file", str(planner), *add).stdout == "1\n"
        id = json.loads(run("token", "inspect", str(planner), "--json").stdout)["id"]
        refused = run("--token-file", str(planner), "token", "revoke", tokens, id, "--url", url)
        assert (refused.exit_code, "does not grant `admin` of map" in refused.stderr) == (1, True)
        assert run("--token-file", str(ops), "token", "revoke", tokens, id, "--url", url).stdout == f"{id}\n"
        assert "is revoked" in run("--token-file", str(planner), *add).stderr
        listed = run("--token-file", str(ops), "token", "list", tokens, "--url", url, "--json").stdout.splitlines()
        assert {each["author"]: each["state"] for each in map(json.loads, listed)} == {"planner": "revoked", "ops": "valid"}


def test_a_node_with_peers_and_tokens_but_no_proof_of_peers_is_not_started(directory: Path) -> None:
    keys = str(directory / "tokens" / "keys.json")
    result = run("serve", "--data", str(directory / "s"), "--token-keys", keys, "--join", "127.0.0.1:7401,127.0.0.1:7402")
    assert result.exit_code == 1
    assert "SHOAL_CLUSTER_KEY" in result.stderr
    assert not (directory / "s").exists()


@pytest.mark.parametrize("content", [None, "", "{}", '{"keys": []}'])
def test_a_node_whose_keys_cannot_be_used_is_not_started(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "keys.json"
    if content is not None:
        file.write_text(content)
    result = run("serve", "--data", str(tmp_path / "state"), "--listen", "127.0.0.1:0", "--token-keys", str(file))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "Nothing was started" in result.stderr
    assert not (tmp_path / "state").exists()


# ── every command ─────────────────────────────────────────────────────────────


class Command(NamedTuple):
    words: tuple[str, ...]
    arguments: tuple[str, ...]
    options: frozenset[str]


def commands(of: Any, *path: str) -> Iterator[Command]:
    """All commands that take a URL, each with arguments that it may have."""
    for name, command in getattr(of, "commands", {}).items():
        if hasattr(command, "commands"):
            yield from commands(command, *path, name)
        elif "--url" in (options := frozenset(option for parameter in command.params for option in parameter.opts)):
            yield Command((*path, name), tuple(_given(command)), options)


def _given(command: Any) -> Iterator[str]:
    for parameter in command.params:
        if not parameter.required:
            continue
        if parameter.param_type_name == "option":
            yield parameter.opts[0]
        yield _value(parameter)


def _value(parameter: Any) -> str:
    metavar = str(parameter.metavar or "")
    if "JSON" in metavar or metavar in ("COUNT", "AMOUNT", "FENCE", "N"):
        return "1"
    return {"HOST:PORT": "n4:7400", "OLD": "n3:7400", "NEW": "n4:7400", "FILE": FILE, "DIR": DIRECTORY}.get(metavar, "n")


FILE, DIRECTORY, EXPORT = "{file}", "{directory}", "{export}"
YES = {"--yes", "--no-wait"}
EVERY = list(commands(typer.main.get_command(app)))
ELSEWHERE = {("token", "list"), ("token", "revoke"), ("cluster", "leftovers"), ("mcp",)}
"""Commands of directories, and one that waits for calls: those of `token` are tested above, the others connect as all do."""
ANYBODY = {("spaces",)}
"""Every token may list spaces: it sees those in which it is granted something."""


def asked(command: Command, url: str, directory: Path, *options: str) -> Result:
    words = " ".join(command.words)
    agreed = [option for option in YES if option in command.options]
    spaced = ["--space", "crew"] if "--space" in command.options else []
    places = {FILE: str(directory / "file"), DIRECTORY: str(directory / "left"), EXPORT: str(directory / "export")}
    arguments = [places.get(each, each) for each in FULL.get(words, command.arguments)]
    return run(*options, *command.words, *arguments, *agreed, *spaced, "--url", url)


TICKET = f"3.{'0' * 32}"
FULL: dict[str, list[str]] = {
    "export": ["n"],
    "import": [EXPORT],  # A file that is no whole export is refused before a node is asked, and so is a rule without a bound.
    "retention set": ["n", "--keep-last", "2"],
    "redaction set": ["n", "--credentials"],
    "tiering set": ["n", "file:///nowhere", "--idle", "30d"],
    "save": ["n", '{"a": 1}'],
    "worklist complete": ["n", "w", "k", "--ticket", TICKET],
    "worklist fail": ["n", "w", "k", "--ticket", TICKET],
    "inbox forget": ["n", "2026-01-01T00:00:00Z"],
    "worklist forget": ["n", "w", "2026-01-01T00:00:00Z"],
    "worklist done": ["n", "w", "k"],
    "worklist show": ["n", "w", "k"],
    "step resolve": ["n", "k", "retry"],
    "crew move": ["n", "--anywhere"],
    "edit": ["n", '{"a": 1}'],
    "steps": ["n"],
    "space delete": ["crew"],
    "subject tag": ["ana", "thread", "n"],
    "subject untag": ["ana", "thread", "n"],
    "subject find": ["ana", "--in", "crew"],
    "subject erase": ["ana", "--in", "crew"],
}
"""Arguments of commands that need more than those that are required."""


def _export(directory: Path, url: str) -> None:
    """Make the whole export of a space with a counter."""
    asking = ("--token-file", str(made(directory, "whole", "*:admin")))
    there = ("--space", "crew", "--url", url)
    assert run(*asking, "counter", "add", "n", "1", *there).exit_code == 0
    shown = run(*asking, "export", "--all", *there)
    assert shown.exit_code == 0, shown.stderr
    (directory / "export").write_text(shown.stdout)


@pytest.mark.answers("requests-need-their-right", note="every command")
def test_every_command_is_told_why_it_is_not_let_in(directory: Path) -> None:
    expired, elsewhere = made(directory, "old", "*:admin", lasts="1s"), made(directory, "other", "other:admin,impersonate")
    (directory / "file").write_text("{}")
    wrong = []
    keys = str(directory / "tokens" / "keys.json")
    options = ("--token-keys", keys, "--set", "token_failures_max=1000000")
    while json.loads(run("token", "inspect", str(expired), "--keys", keys, "--json").stdout)["state"] == "valid":
        time.sleep(0.05)
    with served(directory / "state", *options) as (_, url):
        _export(directory, url)
        for command in EVERY:
            if command.words in ELSEWHERE:
                continue
            words = " ".join(command.words)
            for shown, told in (
                ((), "it asks for a token, and none was given"),
                (("--token-file", str(expired)), "the token has expired"),
                (("--token-file", str(elsewhere)), "does not grant"),
            ):
                result = asked(command, url, directory, *shown)
                if told == "does not grant" and command.words in ANYBODY:
                    continue
                code = UNSURE if words == "doctor" else 1
                if result.exit_code != code or told not in result.stderr or "Traceback" in result.stderr:
                    wrong.append(f"{words} {shown and shown[1][-9:]}: {result.exit_code} {result.stderr[-300:]!r}")
    assert len(EVERY) > 80
    assert wrong == []
