"""The demo profile: the agents survey at the three nodes, and the verdict is worth something."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from shoal.demo.crew import SPACE, counter_name
from tests.cli.conftest import PATIENCE_S, clean_environment
from tests.deploy.conftest import NODES, SERVICES, Image, asked, running
from tests.deploy.test_compose import started, token_in

DEMO = SERVICES["demo"]


def agents(urls: list[str], directory: Path, *, at: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """The service's entry and command, with each container's address mapped to this machine's, and nodes to go to."""
    assert DEMO["volumes"] == ["client:/tls:ro"]  # The certificate of the CA and a token, and no key.
    *words, inside = DEMO["command"]
    mapped = {f"https://{NODES[name]['environment']['SHOAL_ADVERTISE']}": url for name, url in zip(NODES, urls, strict=True)}
    there = [mapped[address] for address in inside.split(",") if mapped[address] in at]
    command = [sys.executable, "-m", "shoal", *words, ",".join(there)]
    environment = {name: file.replace("/tls/", f"{directory}/tls/") for name, file in DEMO["environment"].items()}
    return subprocess.run(
        [*command, "--limit", "18"],
        env={**clean_environment(), **environment},
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_S,
        check=False,
    )


def test_the_agents_agree_with_the_recount_and_resume_and_a_lie_in_one_counter_is_found(image: Image, tmp_path: Path) -> None:
    with running(started(image, tmp_path, {}), tmp_path) as urls:
        first = agents(urls, tmp_path, at=urls)
        assert (first.returncode, first.stderr) == (0, "")
        assert re.search(r"operations acknowledged to the agents +│ +72 ", first.stdout)
        assert "kill -9" not in first.stdout
        asked(
            f"{urls[1]}/v1/spaces/{SPACE}/counters/{counter_name('lines').replace('/', '%2F')}",
            {"add": 1},
            token=token_in(tmp_path),
        )
        again = agents(urls, tmp_path, at=urls[:1])  # One node is enough to resume at, and to find it.
        assert again.returncode == 1
        assert again.stdout.count("\nresumed agent-") == 9
        assert re.search(r"operations acknowledged to the agents +│ +0 ", again.stdout)
        assert "differences from the recount" in again.stdout


def test_it_is_started_on_request_only_once_all_nodes_are_healthy() -> None:
    assert DEMO["profiles"] == ["demo"]
    assert DEMO["depends_on"] == {name: {"condition": "service_healthy"} for name in NODES}
    assert "restart" not in DEMO
