"""`shoal cluster rebuild`: it shows what is left, asks, and does what was shown."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from typer.testing import CliRunner

import shoal
from shoal.cli.main import app
from shoal.cli.operating.cluster_key import show
from shoal.protocol.requests import GivenUp, RebuildView, Survivor
from tests.cli.conftest import PATIENCE_S, served

VIEW = RebuildView(
    "0123456789abcdef",
    7,
    "",
    [
        Survivor("n2:7400", "bb" * 16, "empty", "", 0, 0, 0, 0, True, 3, {"n1:7400": 2}),
        Survivor("n3:7400", "cc" * 16, "forgotten", "dd" * 16, 7, 1, 40, 3, False, 12),
    ],
    [GivenUp("n1:7400", "aa" * 16, 61_000), GivenUp("n2:7400", "ee" * 16, 0), GivenUp("n4:7400", "", 5_000)],
    ["writes with `local` that only n1:7400 held"],
    90_000,
)


CONFIG = {"SHOAL_QUORUM_TIMEOUT_S": "0.5", "SHOAL_ADVERTISE": "n1:7400"}


def run(*arguments: str, answer: str = "") -> Any:
    return CliRunner().invoke(app, ["cluster", "rebuild", *arguments], input=answer, catch_exceptions=False)


def test_remains_and_possible_losses_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    show(VIEW, leases_after=None)
    shown = capsys.readouterr().out.splitlines()
    assert shown[1:4] == [
        "member   directory  votes                              keys  operations     lacks",
        "n2:7400  bbbbbbbb   none                               0     3 (a learner)  2 that n1:7400 held",
        "n3:7400  cccccccc   40 in term 1, as copy of dddddddd  3     12             -",
    ]
    assert shown[4:8] == [
        "given up: n1:7400, directory aaaaaaaa: not linked for 61 s",
        "given up: n2:7400, directory eeeeeeee: another directory is there",
        "given up: n4:7400, directory unknown: not linked for 5 s",
        "may be lost: writes with `local` that only n1:7400 held",
    ]
    assert "for 90 s" in shown[8]
    assert shown[9] == "plan 0123456789abcdef"


async def held(directory: Path) -> None:
    """Make a directory that holds something."""
    async with shoal.open(directory) as store:
        await store.space("crew").counter("c").add(1)


def got(url: str) -> str:
    with urlopen(url, timeout=PATIENCE_S) as answer:
        return str(answer.read().decode())


def test_a_rebuild_is_shown_asked_for_and_made_once(tmp_path: Path) -> None:
    asyncio.run(held(tmp_path / "n1"))
    with served(tmp_path / "n1", "--join", "127.0.0.1:9", config=CONFIG) as (_, url):
        assert "`shoal cluster rebuild`" in json.loads(got(f"{url}/readyz"))["register"]
        assert 'shoal_condition{condition="no-quorum"} 1.0' in got(f"{url}/metrics")
        looked = run("--dry-run", "--url", url)
        assert (looked.stderr, looked.exit_code) == ("", 0)
        assert "given up: 127.0.0.1:9, directory unknown" in looked.stdout
        refused = run("--url", url, answer="n\n")
        assert refused.exit_code == 1
        assert "is this what shall go on?" in refused.stderr
        unsure = run("--json", "--url", url)
        assert (unsure.exit_code, "--yes or --dry-run" in unsure.stderr) == (1, True)
        made = run("--json", "--yes", "--leases-after", "0", "--url", url)
        assert json.loads(made.stdout)["epoch"] > 1_000_000
        assert "register" not in json.loads(got(f"{url}/readyz"))
        assert 'shoal_condition{condition="no-quorum"} 0.0' in got(f"{url}/metrics")
        again = run("--yes", "--url", url)
        assert (again.exit_code, "so there is nothing to rebuild" in again.stdout) == (0, True)


def test_a_node_without_peers_has_nothing_to_rebuild(tmp_path: Path) -> None:
    with served(tmp_path / "n1") as (_, url):
        ended = run("--dry-run", "--url", url)
        assert ended.exit_code == 1
        assert "runs without peers" in ended.stderr
