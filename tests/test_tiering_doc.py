"""What docs/TIERING.md shows runs as it is written, and names what there is."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import shoal
from shoal.api.routes import ROUTES

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "TIERING.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


async def _filled(directory: Path) -> None:
    async with shoal.open(directory) as store:
        await store.space("crew").thread("old").save({"text": "x"})


async def test_the_commands_run_as_they_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    await _filled(tmp_path / "state")
    told = []
    for line in blocks("sh")[0].splitlines():
        words = shlex.split(line.split("#")[0].replace("$PWD", str(tmp_path)))
        assert words.pop(0) == "shoal"
        done = subprocess.run([sys.executable, "-m", "shoal", *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        told.append(done.stdout)
    assert f"go to file://{tmp_path}/cold once nothing was written to them for 30d" in told[0]
    assert "go nowhere" in told[-1]


def test_the_program_runs_as_it_is_shown(tmp_path: Path) -> None:
    program = blocks("python")[0].replace("/tmp/cold", str(tmp_path / "cold"))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"file://{tmp_path}/cold 0 0")


def test_the_routes_exist() -> None:
    there = {route.method for route in ROUTES if route.path == "/v1/spaces/{space}/tiering"}
    assert there == {"GET", "PUT", "DELETE"}
    assert ("POST", "/v1/spaces/{space}/tiering/run") in {(route.method, route.path) for route in ROUTES}


@pytest.mark.parametrize("name", sorted(set(re.findall(r"\bshoal_[a-z_]+", TEXT))))
def test_a_metric_that_is_named_exists(name: str) -> None:
    assert f"`{name}`" in (ROOT / "docs" / "METRICS.md").read_text()
