"""The words of rules of retention: an age says its unit, and what `show` says of a rule is what it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shoal.sync
from shoal.cli.commands.retention import _sentence
from shoal.protocol.requests import RetentionRule
from tests.cli.test_commands import lines
from tests.cli.test_commands import shoal as run


@pytest.mark.parametrize("option", ["--older-than", "--threads-older-than", "--events-older-than"])
def test_an_age_in_a_rule_has_a_unit(option: str, tmp_path: Path) -> None:
    with shoal.sync.open(tmp_path / "state") as store:
        store.space("crew").thread("t").save({"n": 1})
    where = ("--data", str(tmp_path / "state"))
    refused = run("retention", "set", "crew", option, "30", "--yes", *where)
    assert refused.exit_code == 1
    assert f"{option} 30 has no unit. Nothing was written. Say 30d" in " ".join(refused.stderr.split())
    assert lines("retention", "set", "crew", option, "30d", "--yes", *where)


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ({"keep_last": 20}, "keep the last 20 checkpoints of a branch"),
        ({"older_than_ms": 30_000}, "checkpoints go that are older than 30s"),
        (
            {"keep_last": 20, "older_than_ms": 30_000},
            "keep the last 20 checkpoints of a branch, and what is younger than 30s",
        ),
        ({"threads_older_than_ms": 60_000}, "whole threads go 1m after the last write"),
    ],
)
def test_a_rule_is_said_as_it_acts(bounds: dict[str, Any], said: str) -> None:
    assert _sentence(RetentionRule("", **bounds)) == f"all threads: {said}"


def test_a_rule_that_can_let_no_checkpoint_go_says_so(tmp_path: Path) -> None:
    with shoal.sync.open(tmp_path / "state") as store:
        thread = store.space("langgraph").thread("t")
        for nth in range(4):
            thread.save({"n": nth}, label=f"/{nth}")
    where = ("--data", str(tmp_path / "state"))
    done = run("retention", "set", "langgraph", "--keep-last", "2", *where)
    assert done.exit_code == 0, done.output
    told = " ".join(done.stderr.split())
    assert "all checkpoints that were looked at have labels" in told
    assert "--threads-older-than lets whole threads go, and saver.prune old checkpoints" in told
    assert "labels" not in run("retention", "set", "langgraph", "--threads-older-than", "30d", *where).stderr
    shown = lines("retention", "set", "langgraph", "--keep-last", "2", "--dry-run", *where)
    assert "checkpoints that stay: 1 heads of branches, 1 among the last, 2 with a label" in shown
