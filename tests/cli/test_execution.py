"""How commands end: by Ctrl-C, by a reader that went away, by an error."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import typer

import shoal
from shoal.cli import execution
from shoal.cli.execution import execute, interruptible
from shoal.errors import NotFound
from tests.cli.conftest import PATIENCE_S, clean_environment
from tests.support import forked

COMMAND = (sys.executable, "-m", "shoal")


def test_an_errors_own_text_is_all_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    async def fail() -> None:
        raise NotFound("there is no whale.")

    with pytest.raises(typer.Exit) as caught:
        execute(fail())
    assert caught.value.exit_code == 1
    assert capsys.readouterr() == ("", "shoal: there is no whale.\n")


def test_a_bug_is_not_hidden() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        execute(fail())


def test_a_result_is_returned() -> None:
    async def answer() -> int:
        return 42

    assert execute(answer()) == 42


def test_a_command_that_lasts_collects_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lasts() -> list[bool]:
        seen = [gc.isenabled()]
        await asyncio.sleep(0.01)
        return [*seen, gc.isenabled()]

    monkeypatch.setattr(execution, "_STARTED_S", 0)
    gc.disable()
    try:
        assert execute(lasts()) == [False, True]
    finally:
        gc.enable()


def test_a_command_that_ends_at_once_leaves_no_timer() -> None:
    async def ends() -> None: ...

    gc.disable()
    try:
        execute(ends())
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_lets_an_interruptible_command_clean_up(number: signal.Signals, code: int) -> None:
    cleaned: list[bool] = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    with pytest.raises(typer.Exit) as caught:
        execute(interruptible(work()))
    assert (caught.value.exit_code, cleaned) == (code, [True])


@asynccontextmanager
async def watching(url: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, bytes]]:
    """`shoal watch`, and the first line that it printed."""
    process = await forked.create_subprocess_exec(
        *COMMAND,
        "watch",
        "--url",
        url,
        "--space",
        "crew",
        "--prefix",
        "seen",
        stdout=PIPE,
        stderr=PIPE,
        env=clean_environment(),
    )
    try:
        assert process.stdout is not None
        first = asyncio.create_task(process.stdout.readline())
        async with shoal.connect(url) as store:
            # It shows changes from when it began; when that is, only its first line says.
            while not first.done():
                await store.space("crew").counter("seen").add(1)
                await asyncio.wait({first}, timeout=0.05)
        yield process, await first
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_watch_shows_a_change_and_ctrl_c_ends_it_quietly(url: str) -> None:
    async with watching(url) as (process, line):
        assert b"counter seen  add" in line
        process.send_signal(signal.SIGINT)
        _, errors = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert (process.returncode, errors) == (130, b"")


def test_a_reader_that_goes_away_is_no_error(filled: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "log", "plain", "--data", str(filled), "--space", "crew"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (141, b"")


def test_each_exit_code_is_documented() -> None:
    codes = re.findall(r"^    (\d+)  ", execution.__doc__ or "", re.MULTILINE)
    page = (Path(__file__).parents[2] / "docs" / "TERMINAL.md").read_text()
    assert re.findall(r"^\| (\d+) \|", page, re.MULTILINE) == codes
    assert {"0", "1", "2", "130", "141", "143"} <= set(codes)
