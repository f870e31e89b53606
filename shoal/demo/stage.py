"""What both forms of the demo stand on: the options, a directory, and the recount beside the survey.

The recount runs on a thread of the supervisor while the agents survey, and
reads nothing but the modules themselves. A temporary directory is gone when
its context is left; one that the caller named, or asked to keep, stays.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from threading import Event
from typing import NamedTuple

from shoal.demo.supervisor import WORKER
from shoal.demo.survey import Figures, recount
from shoal.errors import InvalidInput

CREW = (sys.executable, "-m", "shoal.demo.crew")


class Options(NamedTuple):
    agents: int = 9
    limit: int | None = None  # Modules; None for all.
    keep: bool = False  # The directory; and the cluster, running.
    data: Path | None = None  # Where to keep the stores; None for a temporary directory.
    worker: Sequence[str] = WORKER  # Of the embedded form: the process that is killed.
    crew: Sequence[str] = CREW  # Of the cluster's: the agents at one node.

    @property
    def is_kept(self) -> bool:
        return self.keep or self.data is not None


@contextmanager
def directory(options: Options) -> Iterator[Path]:
    """Where the run's stores are to be.

    Raises:
        InvalidInput: `options.data` is not an empty directory. Nothing was written.
    """
    if options.data is not None:
        if options.data.exists() and (not options.data.is_dir() or any(options.data.iterdir())):
            raise InvalidInput(
                f"{options.data} is not an empty directory. Nothing was written; name another, or leave --data out."
            )
        yield options.data
        return
    data = Path(tempfile.mkdtemp(prefix="shoal-demo-"))
    try:
        yield data
    finally:
        if not options.keep:
            shutil.rmtree(data, ignore_errors=True)


@asynccontextmanager
async def recounting(root: Path, modules: Sequence[str]) -> AsyncIterator[asyncio.Task[dict[str, Figures]]]:
    """The recount, under way; it is told to stop when the context is left."""
    stopped = Event()
    task = asyncio.create_task(asyncio.to_thread(recount, root, modules, stopped=stopped.is_set))
    try:
        yield task
    finally:
        # A thread cannot be cancelled: it is told, and ends after the module in hand.
        stopped.set()
