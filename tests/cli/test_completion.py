"""`shoal completion`: what each shell gets, and what bash makes of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.cli.main import app
from tests.terminal import shoal_in_terminal

SHELLS = ("bash", "zsh", "fish")


def script(shell: str) -> str:
    result = CliRunner().invoke(app, ["completion", shell])
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_gets_its_script_and_nothing_else(shell: str) -> None:
    assert f"_SHOAL_COMPLETE=complete_{shell}" in script(shell)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_person_is_told_how_to_install_it(shell: str) -> None:
    shown = shoal_in_terminal("completion", shell)
    assert f"shoal: to install it: mkdir -p ~/.{'zfunc' if shell == 'zsh' else ''}" in shown.text
    assert f"shoal completion {shell} > ~/." in shown.text


def test_another_shell_is_not_understood() -> None:
    assert CliRunner().invoke(app, ["completion", "tcsh"]).exit_code == 2


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
@pytest.mark.parametrize(
    ("typed", "found"),
    [
        pytest.param("thr", "threads", marks=pytest.mark.thorough),
        pytest.param("doc g", "get", marks=pytest.mark.thorough),
        ("threads --stat", "--status"),
    ],
)
def test_bash_completes_commands_and_options(tmp_path: Path, typed: str, found: str) -> None:
    program = tmp_path / "shoal"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "from shoal.cli.main import main; main()" "$@"\n')
    program.chmod(0o755)
    (tmp_path / "script").write_text(script("bash"))
    words = typed.split()
    asked = (
        f"source script; COMP_WORDS=(shoal {typed}); COMP_CWORD={len(words)}; _shoal_completion shoal; echo ${{COMPREPLY[@]}}"
    )
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", asked], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [found]
