"""What `tests.support.forked` leaves behind: nothing, and nothing of anybody else."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable

import pytest
import uvloop

from tests.support import forked

LOOPS = (asyncio.new_event_loop, uvloop.new_event_loop)


def _ran(loop: Callable[[], asyncio.AbstractEventLoop], code: str) -> tuple[bytes, bytes, int]:
    async def run() -> tuple[bytes, bytes, int]:
        process = await forked.create_subprocess_exec(sys.executable, "-c", code, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        out, errors = await process.communicate()
        return out, errors, process.returncode

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(run())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_process_that_ended_leaves_no_descriptor(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    _ran(loop, "pass")  # The process that forks is there.
    before = set(os.listdir("/dev/fd"))
    for _ in range(3):
        assert _ran(loop, "print('said')") == (b"said\n", b"", 0)
    assert set(os.listdir("/dev/fd")) <= before  # What another test left may be collected meanwhile.


def test_uvloop_closes_the_descriptor_of_a_pipe_and_the_file_does_not() -> None:
    """A file that closes it again may close what another thread has opened under its number."""

    async def closes(reading: int) -> bool:
        with forked._pipe(reading, "rb") as pipe:
            return pipe.raw.closefd  # type: ignore[attr-defined,no-any-return]

    for loop, expected in zip(LOOPS, (True, False), strict=True):
        reading, writing = os.pipe()
        with asyncio.Runner(loop_factory=loop) as runner:
            assert runner.run(closes(reading)) is expected
        os.close(writing)
        if not expected:
            os.close(reading)


@pytest.mark.parametrize(
    ("code", "errors", "returned"),
    [
        ("import sys; sys.exit(3)", "", 3),
        ("import sys; sys.exit('a reason')", "a reason\n", 1),
        ("raise SystemExit", "", 0),
        ("1 / 0", "ZeroDivisionError: division by zero\n", 1),
        ("raise KeyboardInterrupt", "KeyboardInterrupt\n", -2),
        ("import sys; sys.exit(-2)", "", 254),
        ("import os; print('lost'); os.close(1)", "", 120),
        ("import os; os._exit(7)", "", 7),
    ],
)
def test_a_process_ends_as_its_interpreter_would(code: str, errors: str, returned: int) -> None:
    ended = forked.run(["-c", code], timeout=60)
    assert ended.returncode == returned
    assert ended.stderr.endswith(errors)


def test_exit_handlers_run_and_output_is_kept() -> None:
    code = """
import atexit, threading, time
def late():
    time.sleep(0.05)
    print("thread", end="")
threading.Thread(target=late).start()
atexit.register(lambda: print(" atexit", end=""))
print("main ", end="")
"""
    assert forked.run(["-c", code], timeout=60).stdout == "main thread atexit"
