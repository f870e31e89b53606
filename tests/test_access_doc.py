"""What docs/ACCESS.md shows runs as it is written, and names what there is."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.access.grants import FAMILIES, RIGHTS
from shoal.api.routes import ROUTES
from shoal.cli.main import app
from shoal.config import Config
from tests.cli.conftest import PATIENCE_S, clean_environment, served
from tests.test_threads_doc import program

TEXT = (Path(__file__).parent.parent / "docs" / "ACCESS.md").read_text()
LINES = [line for block in re.findall(r"^```sh\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE) for line in block.splitlines()]


def run(line: str) -> str:
    """Run a line of the page."""
    words = shlex.split(line)
    variables: dict[str, str | None] = {name: None for name in os.environ if name.startswith("SHOAL_")}
    variables["SHOAL_TLS_CA"] = str(Path("tls/ca.pem").absolute())
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    assert words.pop(0) == "shoal"
    done = CliRunner().invoke(app, words, env=variables, catch_exceptions=False)
    assert done.exit_code == 0, f"{line}: {done.stderr}"
    return done.stdout


@contextmanager
def node(directory: Path) -> Iterator[str]:
    """A node as the page starts it."""
    assert CliRunner().invoke(app, ["tls", "init", str(directory / "tls"), "--node", "n1"]).exit_code == 0
    options = ("--tls", str(directory / "tls" / "n1"), "--token-keys", str(directory / "tokens" / "keys.json"))
    with served(directory / "state", *options) as (_, url):
        yield url


def test_the_commands_and_the_snippet_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = [line for line in LINES if line.startswith("shoal token") and "rotate" not in line]
    assert len(first) == 7
    for line in first:
        run(line)
    [snippet] = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    with node(tmp_path) as url:
        (tmp_path / "snippet.py").write_text(
            f"import asyncio\nimport shoal\n{program(snippet.replace('https://n1.example.com:7400', url))}\n"
            "asyncio.run(snippet(None, None, None))\n"
        )
        subprocess.run([sys.executable, "snippet.py"], env=clean_environment(), timeout=PATIENCE_S, check=True)
        asking = [line.replace("https://n1.example.com:7400", url) for line in LINES if "https://n1" in line]
        assert len(asking) == 3
        id = run("shoal token list ./tokens --json").split('"id": "')[1].partition('"')[0]
        for line in asking:
            said = run(re.sub("1f0cbe71[0-9a-f]+", id, line))
            assert said == {"counter get": "1\n", "token revoke": f"{id}\n"}.get(" ".join(line.split()[2:4]), said)
    run("shoal token rotate ./tokens")


def test_the_actions_families_routes_and_settings_are_those_of_the_code() -> None:
    table = re.findall(r"^\| `(\w+)` \|", TEXT.partition("**Authors.**")[0], re.MULTILINE)
    assert table == list(RIGHTS)
    [listed] = re.findall(r"^- \*Families\*.*$", TEXT, re.MULTILINE)
    assert set(FAMILIES) <= set(re.findall(r"`(\w+)`", listed))
    [open_] = re.findall(r"^These need no token: .*$", TEXT, re.MULTILINE)
    assert {"/healthz", "/readyz", "/", "/docs"} == {
        route.path for route in ROUTES if route.is_open and route.method == "GET"
    } - {"/docs/rapidoc.js", "/ui/{file}"}
    assert all(f"`{path}`" in open_ for path in ("/healthz", "/readyz", "/", "/docs"))
    assert set(re.findall(r"`((?:tokens?|oidc)_\w+|revocations_max)`", TEXT)) <= set(Config.__struct_fields__)
