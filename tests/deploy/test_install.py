"""The installation shows how far it is on a terminal, one line elsewhere, and pip's words if it fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from subprocess import CompletedProcess, Popen
from typing import Any

import pytest

from deploy import install

LINES = (
    "Obtaining file:///shoal",
    "  Installing build dependencies: started",
    "Collecting aiohttp<4,>=3.9 (from shoal==0.1.0)",
    "  Downloading aiohttp-3.14.5.whl (1.8 MB)",
    "Collecting rich>=13 (from shoal==0.1.0)",
    "Installing collected packages: rich, aiohttp, shoal",
)


def pip(patch: pytest.MonkeyPatch, *, code: int) -> None:
    """A pip that says these lines and ends with this code."""
    program = f"import sys; print({chr(10).join(LINES)!r}, flush=True); sys.exit({code})"

    def popen(command: list[str], **options: Any) -> Popen[str]:
        assert command[1:4] == ["-m", "pip", "install"]
        assert not {"PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT"} & set(options["env"])
        return Popen([sys.executable, "-c", program], **options)

    patch.setattr("subprocess.Popen", popen)
    patch.setattr(install, "find_spec", lambda _: object())  # Environments that uv makes have no pip.


def test_actions_of_pip_are_named_briefly() -> None:
    told = [install.doing(line, nth) for nth, line in enumerate(LINES)]
    assert told[1:] == [
        "building what Shoal is built with",
        "package 3: aiohttp<4,>=3.9",
        "",
        "package 5: rich>=13",
        "installing 3 packages",
    ]


@pytest.mark.parametrize("columns", [20, 80])
def test_progress_fits_one_line(columns: int) -> None:
    line = install.shown("package 3: " + "a" * 100, 12.0, columns=columns)
    assert line.startswith("\r\x1b[K")
    assert len(line.removeprefix("\r\x1b[K")) < columns


def test_an_installation_in_a_pipe_is_one_line(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PIP_USER", "1")
    monkeypatch.setenv("PIP_TARGET", "/elsewhere")
    pip(monkeypatch, code=0)
    assert install.main(["-e", "."]) == 0
    [line] = capfd.readouterr().out.splitlines()
    assert line.startswith("Installed in ")


def test_a_failed_installation_shows_what_pip_said(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    pip(monkeypatch, code=1)
    assert install.main(["-e", "."]) == 1
    said = capfd.readouterr().out
    assert all(line in said for line in LINES)
    assert "Run the same command again" in said


def test_a_terminal_is_shown_each_step(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    pip(monkeypatch, code=0)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    assert install.main(["-e", "."]) == 0
    assert "installing 3 packages" in capfd.readouterr().out


def test_ctrl_c_ends_it_in_one_line(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def interrupted(process: Popen[str]) -> Iterator[str]:
        with process:
            yield "Collecting rich"
            raise KeyboardInterrupt

    pip(monkeypatch, code=0)
    monkeypatch.setattr(install, "_lines", interrupted)
    assert install.main(["-e", "."]) == 130
    assert "Interrupted" in capfd.readouterr().out


def test_a_checkout_that_cannot_be_written_says_so(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    assert install.main(["-e", "."]) == 1
    assert "cannot be written" in capfd.readouterr().out


@pytest.mark.parametrize(("code", "said"), [(0, "Installed in"), (1, "`make clean` removes it")])
def test_an_environment_without_pip_is_given_one(
    code: int, said: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ran: list[list[str]] = []

    def run(command: list[str], **_: Any) -> CompletedProcess[str]:
        ran.append(command[1:])
        return CompletedProcess(command, code, "", "")

    pip(monkeypatch, code=0)
    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.setattr(install, "find_spec", lambda _: None)
    assert install.main(["-e", "."]) == code
    assert ran == [["-m", "ensurepip", "--default-pip"]]
    assert said in capfd.readouterr().out
