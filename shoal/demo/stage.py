"""The common parts of both forms of the demo: the options, a directory, and the recount beside the survey.

The recount runs on a thread of the supervisor while the agents survey, and
reads only the modules themselves. A temporary directory is removed when
its context is left; one that the user named, or asked to keep, stays.
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

from shoal.demo.supervisor import WORKER
from shoal.demo.survey import Figures, recount
from shoal.errors import InvalidInput
from shoal.records import NamedTuple

CREW = (sys.executable, "-m", "shoal.demo.crew")


class Options(NamedTuple):
    """The options of `shoal demo`; tests replace the commands of the worker processes."""

    agents: int = 9
    limit: int | None = None  # The number of modules; None for all.
    keep: bool = False  # Keep the directory, and let the cluster run.
    data: Path | None = None  # Where to keep the stores; None for a temporary directory.
    worker: Sequence[str] = WORKER  # The command of the embedded form's worker, which is killed.
    crew: Sequence[str] = CREW  # The command of a crew, the agents at one node.

    @property
    def is_kept(self) -> bool:
        """Whether the stores stay after the run."""
        return self.keep or self.data is not None


@contextmanager
def directory(options: Options) -> Iterator[Path]:
    """The directory for the run's stores.

    Raises:
        InvalidInput: `options.data` is not an empty directory. Nothing was written.
    """
    if options.data is not None:
        if options.data.exists() and (not options.data.is_dir() or any(options.data.iterdir())):
            raise InvalidInput(f"{options.data} is not an empty directory. Nothing was written. Name another, or omit --data.")
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
    """Run the recount on a thread; it is stopped when the context is left."""
    stopped = Event()
    task = asyncio.create_task(asyncio.to_thread(recount, root, modules, stopped=stopped.is_set))
    try:
        yield task
    finally:
        # A thread cannot be cancelled; it checks the event after each module.
        stopped.set()
