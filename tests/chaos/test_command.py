"""What is asked for wrongly is refused before a process is started."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from chaos.__main__ import app


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--faults", "flood"], "'flood' is no fault; there is: kill"),
        (["--faults", ","], "name at least one of: kill"),
        (["--nodes", "2", "--faults", "wipe"], "'wipe' takes 3 nodes, so that a majority stays"),
        (["--durability", "local", "--faults", "composed"], "'step-wipe-cut' takes disks, and local writes with them"),
        (["--backend", "compose", "--faults", "clock"], "'clock' cannot be made with compose"),
        (["--backend", "compose", "--nodes", "5"], "docker-compose.yml has 3 nodes"),
        (["--nodes", "0"], "should be greater than or equal to 1"),
        (["--kills", "0"], "should be greater than or equal to 1"),
        (["--durability", "memory"], "'memory' is not one of"),
        (["--report", "/nowhere/at/all.html"], "there is no directory /nowhere/at"),
        (["--agents", "none"], "should be a valid integer"),
    ],
)
def test_a_mistake_is_told_and_ends_with_2(arguments: list[str], said: str) -> None:
    refused = CliRunner().invoke(app, ["run", *arguments], env={"COLUMNS": "300", "NO_COLOR": "1"})
    assert refused.exit_code == 2
    assert said in " ".join(refused.output.split())
