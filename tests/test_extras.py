"""A plain installation runs, and a feature that needs an absent package names the extra that installs it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from shoal.raising import EXTRAS, told
from tests.cli.conftest import PATIENCE_S, clean_environment

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
PLAIN = f"import sys\nfor name in {tuple(EXTRAS)!r}:\n    sys.modules[name] = None\n"
COMMAND = f"{PLAIN}from shoal.cli.main import main\nsys.argv[0] = 'shoal'\nmain()\n"
ENGINES = {"pycrdt", "rocksdict"}


def run(code: str, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {**clean_environment(), **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False)


USE = f"""{PLAIN}
import asyncio, shoal

async def main(directory):
    async with shoal.open(directory) as store:
        space = store.space("crew")
        await space.thread("t").save({{"n": 1}})
        await space.counter("c").add(2)
        document = await space.document("d")
        document.text("t").insert(0, "hi")
        await document.close()
        print((await space.thread("t").load()).state)

asyncio.run(main(sys.argv[1]))
"""


def test_a_plain_installation_opens_a_store(tmp_path: Path) -> None:
    done = run(USE, tmp_path / "state")
    assert done.stdout == "{'n': 1}\n", done.stderr


def test_a_plain_installation_runs_commands(tmp_path: Path) -> None:
    assert run(USE, tmp_path / "state").returncode == 0
    done = run(COMMAND, "verify", tmp_path / "state")
    assert done.returncode == 0, done.stderr


def test_a_plain_installation_serves_and_connects() -> None:
    code = f"{PLAIN}import shoal.cli.serving, shoal.api.server, shoal.transport.session, shoal.transport.peers\nprint('loaded')"
    done = run(code)
    assert done.stdout == "loaded\n", done.stderr


SCHEMA = f"""{PLAIN}
import asyncio, shoal

async def main(directory):
    async with shoal.open(directory) as store:
        try:
            await store.space("crew").schemas.put("s", 1, {{"type": "object"}})
        except shoal.errors.Unsupported as error:
            print(error.message)

asyncio.run(main(sys.argv[1]))
"""


def test_a_schema_without_its_package_names_the_extra(tmp_path: Path) -> None:
    assert "pip install '.[schemas]'" in run(SCHEMA, tmp_path / "state").stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("token", "init", "tokens"),
        ("tls", "init", "tls", "--node", "n1"),
        ("serve", "--data", "d", "--listen", "127.0.0.1:0", "--set", "token_keys=keys.json"),
        ("--encryption-key", "env:KEY", "serve", "--data", "d", "--listen", "127.0.0.1:0"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_a_command_without_its_package_names_the_extra(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    absent = tmp_path / "absent"
    absent.mkdir()
    for name in EXTRAS:  # Also if the process begins anew.
        (absent / f"{name}.py").write_text(f"raise ModuleNotFoundError(name={name!r})")
    code = f"import os\nos.chdir({str(tmp_path)!r})\n{COMMAND}"
    done = run(code, *arguments, PYTHONPATH=str(absent), KEY="0" * 64)
    assert done.returncode == 1
    assert "pip install '.[security]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_each_extra_is_declared_with_its_package() -> None:
    names = {"jwt": "pyjwt", "re2": "google-re2", "yaml": "pyyaml"}
    for module, (extra, _) in EXTRAS.items():
        declared = {canonicalize_name(Requirement(line).name) for line in PROJECT["optional-dependencies"][extra]}
        assert canonicalize_name(names.get(module, module)) in declared


def test_another_module_that_is_absent_is_not_explained() -> None:
    assert told(ModuleNotFoundError("No module named 'x'", name="x")) is None


def test_only_the_engines_have_an_upper_bound() -> None:
    lines = [*PROJECT["dependencies"]]
    for extra, wanted in PROJECT["optional-dependencies"].items():
        lines += wanted if extra not in ("test", "bench", "release", "check", "charts") else []
    bounded = {
        requirement.name
        for requirement in map(Requirement, lines)
        if any(specifier.operator in ("<", "<=", "==", "~=") for specifier in requirement.specifier)
    }
    assert bounded == ENGINES
