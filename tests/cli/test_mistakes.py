"""First mistakes on the command line: each is told with what was probably meant."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import shoal
from shoal.cli.execution import near
from shoal.cli.main import app
from tests.cli.conftest import served


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    # A level deeper: other tests make stores right in the directory that `mktemp` makes its own in.
    directory = tmp_path_factory.mktemp("first") / "here" / "state"
    directory.parent.mkdir()
    with shoal.sync.open(directory) as store:
        store.space("crew").thread("researcher-1").save({"n": 1})
        store.space("crew").counter("tokens").add(1)
    return str(directory)


def run(*arguments: str) -> Result:
    unset = {name: None for name in os.environ if name.startswith("SHOAL_")}
    return CliRunner().invoke(app, list(arguments), env={**unset, "COLUMNS": "400", "TERMINAL_WIDTH": "400", "NO_COLOR": "1"})


def told(result: Result) -> str:
    return " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["thredas"], "Did you mean 'threads'"),
        (["doc", "gett", "plan"], "Did you mean 'get'?"),
        (["help"], "`shoal --help` lists the commands"),
        (["version"], "`shoal --version` prints it."),
        (["ls"], "`shoal threads` lists threads"),
        (["init"], "`shoal serve --data DIR` makes a store"),
        (["--data", "./state", "threads"], "Options come after the command: shoal COMMAND --data …"),
        (["doc", "--data", "./state", "list"], "Options come after the command: shoal doc COMMAND --data …"),
        (["status", "--tls-ca", "ca.pem"], "It stands before the command: shoal --tls-ca … status …"),
        (["cluster", "members", "--token-file", "t"], "It stands before the command: shoal --token-file … cluster members …"),
        (["counter", "add", "n", "1", "--durability", "all"], "before the command: shoal --durability … counter add …"),
        (["threads", "./state"], "A store's directory is named by --data: --data ./state"),
        (["threads", "http://n1:7400"], "A node is named by --url: --url http://n1:7400"),
        (["threads", "--spce", "crew"], "Possible options: --space"),
        (["save", "t", "{step:", "1}"], "Put JSON in single quotes, so that the shell leaves it as it is: '{\"step\": 1}'."),
        (["show", "my", "thread", "one"], "A name that has spaces is put in quotes."),
        (["serve"], "For example: shoal serve --data ./state"),
        (["status"], "Give --data DIR for a store on this machine, or --url URL for a running node"),
        (["threads", "--data", "a", "--url", "http://b:1"], "--data and --url are both given."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_an_unknown_word_brings_a_suggestion(arguments: list[str], hint: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert hint in told(result)


def test_shoal_alone_lists_its_commands() -> None:
    said = run()
    assert "First steps:" in said.output
    assert "Traceback" not in said.output


@pytest.mark.parametrize("name", ["threads", "verify"])
def test_a_wrong_directory_names_the_store_beside_it(data: str, name: str) -> None:
    beside = str(Path(data).parent)
    for wrong in (beside, f"{beside}/sate"):
        result = run(name, "--data", wrong)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
        assert f"Nothing was written. There is a store in {data}." in result.stderr
    assert sorted(os.listdir(beside)) == ["state"]


def test_a_file_is_no_directory(data: str) -> None:
    result = run("threads", "--data", f"{data}/FORMAT")
    assert result.exit_code == 1
    assert "is a file, not the directory of a store. Nothing was written." in result.stderr


def test_where_there_is_no_store_the_way_to_make_one_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert f"`shoal serve --data {tmp_path}/a/b` makes one." in run("threads", "--data", f"{tmp_path}/a/b").stderr


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("localhost:7400", "Write http://localhost:7400."),
        ("ftp://n1", "It must look like http://host:7400."),
        ("http://127.0.0.1:9", "connection refused. Nothing was sent."),
    ],
)
def test_a_wrong_url_is_one_plain_line(url: str, said: str) -> None:
    result = run("threads", "--url", url)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert said in result.stderr


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["show", "researcher"], "researcher-1"),
        (["log", "reseacher-1"], "researcher-1"),
        (["steps", "researcher-2"], "researcher-1"),
        (["counter", "get", "tokns"], "tokens"),
    ],
    ids=" ".join,
)
def test_a_misspelt_name_is_told_the_one_that_is_like_it(data: str, arguments: list[str], meant: str) -> None:
    result = run(*arguments, "--data", data, "--space", "crew")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"Did you mean '{meant}'?" in result.stderr


def test_without_its_space_nothing_is_found_and_the_spaces_are_named(data: str) -> None:
    for arguments in (["show", "researcher-1"], ["threads"], ["graph", "researcher-1"]):
        assert "There is no such space; there is crew. Name it with --space." in run(*arguments, "--data", data).stderr


def test_names_that_begin_so_come_first() -> None:
    assert near("agent", ["agent-1", "agents", "aegnt"]) == " Did you mean 'agent-1', 'agents'?"
    assert near("agnt", ["agent", "other"]) == " Did you mean 'agent'?"
    assert near("zzz", ["agent"]) == ""


SPACE_COMMANDS = [
    ("retention", "set", "{}", "--keep-last", "5"),
    ("retention", "show", "{}"),
    ("redaction", "show", "{}"),
    ("space", "quota", "{}", "--bytes", "10GiB"),
    ("space", "quota", "{}"),
    ("usage", "{}"),
]


@pytest.mark.parametrize("command", SPACE_COMMANDS, ids=" ".join)
def test_a_space_that_holds_nothing_is_told(data: str, command: tuple[str, ...]) -> None:
    for space, is_told in (("crew", False), ("crwe", True)):
        arguments = [part.format(space) for part in command]
        found = run(*arguments, "--data", data)
        assert found.exit_code == 0, found.stderr  # A rule may be set before the first write.
        assert (f"nothing is in space '{space}'" in told(found)) is is_told
        documents = run(*arguments, "--data", data, "--json").stdout
        assert json.loads(documents)["is_empty"] is is_told


def test_a_dry_run_of_rules_about_no_thread_is_told(data: str) -> None:
    for arguments in (("crwe", "--keep-last", "5"), ("crew", "--keep-last", "5", "--prefix", "none-")):
        found = run("retention", "set", *arguments, "--dry-run", "--data", data)
        assert "has no thread that these rules are about" in told(found)
    assert "has no thread" not in told(run("retention", "set", "crew", "--keep-last", "5", "--dry-run", "--data", data))


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_a_rule_of_another_prefix_is_not_unset_in_silence(data: str, dry_run: tuple[str, ...]) -> None:
    assert run("retention", "set", "ruled", "--keep-last", "5", "--prefix", "agent", "--yes", "--data", data).exit_code == 0
    refused = run("retention", "unset", "ruled", "--prefix", "agnet", *dry_run, "--data", data)
    assert refused.exit_code == 1
    assert "no rule of retention for the prefix 'agnet'; it has rules for: 'agent'. Nothing was written." in told(refused)
    assert run("retention", "unset", "ruled", "--prefix", "agent", "--data", data).exit_code == 0
    assert run("retention", "unset", "ruled", "--prefix", "agnet", "--data", data).exit_code == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--pattern", "mail=[a-z]+@[a-z]+", "--replace", "mial=[mail]"), "names a pattern that is not given: 'mial'"),
        (("--credentials", "--replace", "[gone]"), "--replace is for a --pattern"),
    ],
)
def test_a_replacement_of_no_pattern_is_refused(tmp_path: Path, given: tuple[str, ...], said: str) -> None:
    """Else a misspelt name would become the text in the place of all matches."""
    with shoal.sync.open(tmp_path / "state") as store:
        store.space("crew").register("r").set(1)
    refused = run("redaction", "set", "crew", *given, "--data", str(tmp_path / "state"))
    assert refused.exit_code == 1
    assert said in told(refused)
    assert "Nothing was written" in told(refused)


def test_a_test_of_redaction_says_which_hooks_it_does_not_ask(tmp_path: Path) -> None:
    hooks = tmp_path / "hooks.toml"
    hooks.write_text('[hooks.names]\ncommand = ["cat"]\n')
    with served(tmp_path / "state", config={"SHOAL_REDACTION_HOOKS": str(hooks)}) as (_, url):
        assert run("redaction", "set", "crew", "--hook", "names", "--url", url).exit_code == 0
        assert "a test asks no hook, and the rules of space 'crew' have some" in told(
            run("redaction", "test", "crew", "x", "--url", url)
        )
        assert "hook" not in told(run("redaction", "test", "crew", "x", "--credentials", "--url", url))
