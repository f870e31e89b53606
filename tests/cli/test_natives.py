"""The commands that write counters, registers and sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import shoal
from shoal.cli.main import app


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with shoal.sync.open(tmp_path / "state"):
        return tmp_path / "state"


def run(data: Path, *arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--data", str(data)])
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def told(data: Path, *arguments: str) -> Any:
    return json.loads(run(data, *arguments, "--json"))


def test_a_counter_is_added_to_and_taken_from(data: Path) -> None:
    assert run(data, "counter", "add", "tokens", "512") == "512"
    assert run(data, "counter", "add", "tokens", "-12") == "500"
    assert told(data, "counter", "add", "tokens", "5", "--key", "k") == {"value": 505, "added": True}
    assert told(data, "counter", "add", "tokens", "5", "--key", "k") == {"value": 505, "added": False}
    assert run(data, "counter", "get", "tokens") == "505"


def test_a_register_is_set_if_it_is_as_expected(data: Path) -> None:
    version = run(data, "register", "set", "goal", '{"reach": "Mars"}')
    assert told(data, "register", "get", "goal")["value"] == {"reach": "Mars"}
    assert run(data, "register", "set", "goal", "1", "--expect", version) != version
    result = CliRunner().invoke(app, ["register", "set", "goal", "2", "--expect", version, "--data", str(data)])
    assert result.exit_code == 1
    assert "was expected. Nothing was written" in result.stderr


def test_a_history_says_when_and_by_whom(data: Path) -> None:
    run(data, "register", "set", "goal", '"Mars"', "--by", "ada")
    run(data, "register", "set", "goal", json.dumps("x" * 5000))
    large, mars = run(data, "register", "history", "goal").splitlines()
    assert large.endswith("Z  5003")
    assert mars.endswith('Z  ada  "Mars"  5')


def test_a_register_is_set_if_it_has_the_expected_value(data: Path) -> None:
    assert run(data, "register", "compare-and-set", "leader", "null", '"one"')
    result = CliRunner().invoke(app, ["register", "compare-and-set", "leader", "null", '"two"', "--data", str(data)])
    assert result.exit_code == 1
    assert "is 'one', not None. It was not changed" in " ".join(result.stderr.split())
    assert run(data, "register", "compare-and-set", "leader", '"one"', "null")
    assert run(data, "register", "get", "leader") == "null"


def test_a_set_is_added_to_and_removed_from(data: Path) -> None:
    assert run(data, "set", "add", "urls", '"a"', "2", '"a"') == "2"
    assert run(data, "set", "get", "urls") == '2\n"a"'
    assert run(data, "set", "remove", "urls", "2", "3", "--dry-run") == "1"
    assert told(data, "set", "remove", "urls", "2", "3", "--yes") == {"added": 0, "removed": 1, "size": 1}
    assert told(data, "set", "contains", "urls", "2", '"a"') == {"contained": [False, True]}
    assert told(data, "set", "get", "urls") == "a"
    assert told(data, "set", "clear", "urls", "--yes") == {"removed": 1, "more": False}
    assert run(data, "set", "get", "urls") == ""
    assert run(data, "set", "list") == "urls"


def test_members_are_popped_from_a_set(data: Path) -> None:
    run(data, "set", "add", "urls", '"a"', "2", '"b"')
    assert run(data, "set", "pop", "urls") == "2"
    assert run(data, "set", "pop", "urls") == '"a"'
    assert told(data, "set", "pop", "urls", "5") == {"members": ["b"], "size": 0}


def test_a_map_is_written_and_read(data: Path) -> None:
    version = run(data, "map", "set", "plan", "goal", "[1]", "--expect", "")
    assert run(data, "map", "set", "plan", "goal", "[2]", "--expect", version) != version
    run(data, "map", "set", "plan", "other", "3")
    run(data, "map", "add", "plan", "other", "4")
    assert run(data, "map", "get", "plan").splitlines() == ["goal  [2]", "other  3  4"]
    assert run(data, "map", "remove", "plan", "other", "--dry-run") == "true"
    assert told(data, "map", "remove", "plan", "other", "--yes") == {"removed": True}
    entry = told(data, "map", "get", "plan")
    assert (entry["key"], entry["siblings"][0]["value"], entry["count"], entry["members"]) == ("goal", [2], None, [])


def test_a_budget_is_granted_and_spent(data: Path) -> None:
    assert run(data, "budget", "grant", "tokens", "100", "--key", "daily") == "100"
    assert run(data, "budget", "grant", "tokens", "100", "--key", "daily") == "100"
    assert told(data, "budget", "spend", "tokens", "30") == {"remaining": 70, "rights": 70, "spent": True}
    assert run(data, "budget", "draw", "tokens", "5") == "70"
    assert run(data, "budget", "release", "tokens", "20") == "0"  # A store opened anew has drawn none yet.
    shown = told(data, "budget", "get", "tokens")
    assert (shown["granted"], shown["spent"], shown["remaining"], shown["conflicts"]) == (100, 30, 70, [])
    assert sum(holder["rights"] for holder in shown["holders"]) + shown["pool"] == 70
    result = CliRunner().invoke(app, ["budget", "spend", "tokens", "71", "--data", str(data)])
    assert (result.exit_code, "70 left" in result.stderr) == (1, True)


@pytest.mark.parametrize("arguments", [["set", "add", "s", "{"], ["register", "set", "r", "nope"]])
def test_values_without_a_json_form_are_refused(data: Path, arguments: list[str]) -> None:
    result = CliRunner().invoke(app, [*arguments, "--data", str(data)])
    assert (result.exit_code, "is not valid JSON" in result.stderr, result.stderr.count("\n")) == (1, True, 1)


@pytest.mark.parametrize("write", ["counter add x 5", "register set x 5", "set add x 5", "map set x k 5", "budget grant x 5"])
def test_deleted_objects_are_no_longer_listed(data: Path, write: str) -> None:
    kind = write.split()[0]
    run(data, *write.split())
    assert run(data, kind, "list") == "x"
    assert told(data, kind, "delete", "x", "--yes") == {"existed": True}
    assert run(data, kind, "list") == ""
    assert run(data, kind, "delete", "x", "--yes") == "false"
