"""A worker process for its supervisor: a plan goes in, messages come out, and it never outlives its context."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from shoal.demo.messages import CrewPlan, Message, OpenGate, Plan, read_message, to_line

_LINE_BYTES_MAX = 1 << 20
_STDERR_LINES = 20


class WorkerFailed(Exception):
    """A worker ended by itself before its work was done."""


@asynccontextmanager
async def worker(command: Sequence[str], plan: Plan | CrewPlan) -> AsyncIterator[tuple[Process, deque[str]]]:
    """A running worker and the last lines of its standard error. It has ended when the context is left."""
    # The session is its own, so that Ctrl-C in the terminal reaches only the supervisor, which then ends the worker.
    process = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True, limit=_LINE_BYTES_MAX
    )
    said: deque[str] = deque(maxlen=_STDERR_LINES)
    listening = asyncio.create_task(_listen(process, said))
    try:
        await tell(process, plan)
        yield process, said
        await process.wait()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await listening


async def tell(process: Process, news: Plan | CrewPlan | OpenGate) -> None:
    """Send it a line. If it has died, the end of its messages reports that, not this call."""
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError, RuntimeError):  # The last is uvloop's, of a closed pipe.
        process.stdin.write(to_line(news))
        await process.stdin.drain()


async def messages(process: Process) -> AsyncIterator[Message]:
    """Yield the worker's messages until its output ends; a last line that a kill cut off is dropped."""
    assert process.stdout is not None
    async for line in process.stdout:
        # A kill may cut off the last line.
        if line.endswith(b"\n"):
            yield read_message(line)


def early_end(process: Process, said: Sequence[str]) -> WorkerFailed:
    """The error for a worker that ended with work left."""
    code = process.returncode
    manner = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
    return WorkerFailed(f"the worker ended by itself ({manner}). It said last: {' / '.join(said) or 'nothing'}")


async def _listen(process: Process, said: deque[str]) -> None:
    assert process.stderr is not None
    async for line in process.stderr:
        said.append(line.decode(errors="replace").rstrip())
