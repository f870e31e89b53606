"""Each reading command, on a directory and on a node: both show the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from shoal.cli.commands.status import _show_cluster, told
from shoal.cli.main import app
from shoal.protocol.requests import ClusterView, Member
from tests.api.conftest import STATUS

CREW = ["--space", "crew"]


def shoal(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"SHOAL_DATA": None, "SHOAL_URL": None, "SHOAL_SPACE": None})


def lines(*arguments: str) -> list[str]:
    result = shoal(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def documents(*arguments: str) -> list[Any]:
    return [json.loads(line) for line in lines(*arguments, "--json")]


def test_spaces_are_listed(target: list[str]) -> None:
    assert sorted(lines("spaces", *target)) == ["crew", "other"]
    assert sorted(documents("spaces", *target)) == ["crew", "other"]


def test_threads_are_listed(target: list[str]) -> None:
    assert lines("threads", *target, *CREW) == ["forked", "plain"]
    assert documents("threads", *target, *CREW) == ["forked", "plain"]


def test_threads_are_listed_by_prefix(target: list[str]) -> None:
    assert lines("threads", "--prefix", "pl", *target, *CREW) == ["plain"]


def test_log_shows_checkpoints_newest_first_and_marks_the_head(target: list[str]) -> None:
    newest, oldest = lines("log", "plain", *target, *CREW)
    assert newest.startswith("* ")
    assert newest.endswith("head of main")
    assert oldest.startswith("  ")
    assert oldest.endswith('{"by": "planner"}')


def test_log_for_machines_links_each_checkpoint_to_its_parent(target: list[str]) -> None:
    newest, oldest = documents("log", "plain", *target, *CREW)
    assert newest["parents"] == [oldest["id"]]
    assert (newest["head_of"], oldest["head_of"]) == (["main"], [])


def test_log_names_every_head_of_a_fork(target: list[str]) -> None:
    first, *others = lines("log", "forked", *target, *CREW)
    assert first == "branch main is forked, it has 2 heads:"
    winner = next(line for line in others if line.startswith("* ")).split()[1]
    assert winner in [line.strip() for line in others[:2]]


def test_log_is_limited(target: list[str]) -> None:
    assert len(lines("log", "plain", "-n", "1", *target, *CREW)) == 1


def test_log_shows_the_journal_oldest_first(target: list[str]) -> None:
    paid, note = lines("log", "plain", "--journal", *target, *CREW)
    assert paid.endswith('[order-1]  {"paid": 5}')
    assert note.endswith('Z  "note"')
    assert [event["event"] for event in documents("log", "plain", "--journal", *target, *CREW)] == [{"paid": 5}, "note"]


def test_show_prints_the_heads_state(target: list[str]) -> None:
    result = shoal("show", "plain", *target, *CREW)
    assert json.loads(result.stdout) == {"step": 2, "text": "größe\x9b"}
    assert "\x9b" not in result.stdout


def test_show_prints_an_older_checkpoint_by_its_id(target: list[str]) -> None:
    oldest = documents("log", "plain", *target, *CREW)[-1]["id"]
    (shown,) = documents("show", "plain", oldest, *target, *CREW)
    assert (shown["id"], shown["state"], shown["metadata"]) == (oldest, {"step": 1}, {"by": "planner"})


def test_shared_objects_are_read(target: list[str]) -> None:
    assert documents("doc", "get", "plan", *target, *CREW) == [{"tasks": {"t1": {"done": False}}}]
    assert documents("counter", "get", "tokens", *target, *CREW) == [{"value": 512}]
    (goal,) = documents("register", "get", "goal", *target, *CREW)
    assert goal["value"] == ["reach", "Mars"]


def test_shared_objects_are_listed(target: list[str]) -> None:
    assert lines("doc", "list", *target, *CREW) == ["plan"]
    assert lines("counter", "list", *target, *CREW) == ["tokens"]
    assert lines("register", "list", *target, *CREW) == ["goal"]


def test_status_says_how_the_node_is(target: list[str]) -> None:
    (found,) = documents("status", *target)
    assert (found["state"], found["spaces"]) == ("ready", 2)
    assert any(line.split() == ["state", "ready"] for line in lines("status", *target))


def test_a_node_that_is_no_member_is_not_called_read_only() -> None:
    outside = replace(STATUS, state="read-only", serves=False, reason="it was drained")
    assert told(outside)["state"] == "no-member"
    assert told(replace(outside, serves=True))["state"] == "read-only"


def test_the_last_time_of_retention_is_a_time() -> None:
    assert told(replace(STATUS, retention_last_ms=1_700_000_000_000))["retention last"] == "2023-11-14 22:13:20Z"
    assert not any("retention last" in label for label in told(STATUS))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "absent"], "absent"),
        (["log", "absent"], "there is no checkpoint of a thread 'absent' in space 'crew'"),
        (["log", "plain", "--branch", "b"], "thread 'plain' has no branch 'b'. It has main."),
        (["show", "plain", "0" * 64], "0" * 64),
        (["doc", "get", "pla"], "there is no document 'pla' in space 'crew'. `shoal doc list`"),
        (["counter", "get", "absent"], "there is no counter 'absent'"),
        (["register", "get", "absent"], "there is no register 'absent'"),
        (["show", "a\nb"], "must not hold control characters"),
    ],
)
def test_a_missing_object_is_exit_code_1(target: list[str], arguments: list[str], said: str) -> None:
    result = shoal(*arguments, *target, *CREW)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("shoal: ")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_without_a_store_the_usage_says_what_to_give() -> None:
    result = shoal("threads")
    assert result.exit_code == 2
    assert "--data DIR" in " ".join(result.stderr.split())


def test_a_missing_store_is_not_made(tmp_path: Path) -> None:
    result = shoal("threads", "--data", str(tmp_path / "absent"))
    assert (result.exit_code, list(tmp_path.iterdir())) == (1, [])
    assert "there is no store in" in result.stderr


def test_the_environment_names_store_and_space(filled: Path) -> None:
    result = CliRunner().invoke(app, ["threads"], env={"SHOAL_DATA": str(filled), "SHOAL_URL": None, "SHOAL_SPACE": "crew"})
    assert result.stdout.split() == ["forked", "plain"]


def test_a_node_that_is_not_there_is_exit_code_1() -> None:
    result = shoal("status", "--url", "not a url")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("shoal: ")


def test_steps_that_make_no_sense_are_not_understood(target: list[str]) -> None:
    assert shoal("step", "resolve", "plain", *target, *CREW).exit_code == 2
    assert shoal("step", "resolve", "plain", "k", "perhaps", *target, *CREW).exit_code == 2
    assert shoal("step", "resolve", "plain", "k", "result", "--result", "{", *target, *CREW).exit_code == 1


def test_an_approval_of_a_mistyped_thread_is_refused(target: list[str]) -> None:
    refused = shoal("approve", "no-such-thread", "--by", "ana", *target, *CREW)
    assert (refused.exit_code, "no-such-thread" in refused.stderr) == (1, True)
    assert "no-such-thread" not in lines("threads", *target, *CREW)


def test_a_thread_is_paused_for_people_to_read(target: list[str]) -> None:
    assert lines("pause", "held", "--by", "ana", *target, *CREW) == ["paused"]
    assert lines("approve", "held", "--by", "ana", *target, *CREW) == ["running"]
    assert lines("steps", "held", *target, *CREW) == []


def test_facts_that_a_peer_has_not_told_are_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    own = Member("n1:7400", "ab", "self", 3752, 0, 0, 0, 0, 0, 0, "", {})
    peer = Member("n2:7400", "cd", "linked", 0, 3752, 0, 764_000, 0, 0, 9, "", {}, told=False)
    _show_cluster(ClusterView("shoal", 2, 2, [own, peer], "d1", 0, [], 0))
    *_, first, second = capsys.readouterr().out.splitlines()
    assert first.split() == ["n1:7400", "self", "3752", "0", "-", "0", "B"]
    assert second.split() == ["n2:7400", "linked", "unknown", "unknown", "unknown", "0", "B"]
