"""One agent: it surveys its share of the modules, and saves a checkpoint of its thread after each.

A crash of the agent or of its node may come between any two writes of a module, and the agent then repeats that module from its
last checkpoint. So each write is idempotent: the event and the adds carry the module as their key, and the document's map has
one entry per module. The checkpoint that says "done" comes last, when the others are acknowledged, under a key of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from shoal.client.store import Space
from shoal.demo.survey import Figures
from shoal.errors import NotFound
from shoal.kinds.document.handle.document import Document

SPACE = "survey"
DOCUMENT = "library"
ROOT = "modules"
OPERATIONS_PER_MODULE = 4  # The event, the document's update, the batch of adds, the checkpoint.


class Rewound(Exception):
    """A store showed an agent an older checkpoint than it had acknowledged, which must never happen."""


def thread_name(agent: int) -> str:
    """The name of an agent's thread. Agents are numbered from 0 in code and from 1 for people."""
    return f"agent-{agent + 1}"


def counter_name(figure: str) -> str:
    """The counter of one figure; the tag puts all of them into one partition, so that they can be added to in one batch."""
    return f"{{totals}}/{figure}"


class Agent:
    """One agent: call `resume()`, then `record(module, figures)` for each of `remaining`, in order."""

    def __init__(self, number: int, *, space: Space, document: Document, modules: Sequence[str]) -> None:
        self.number = number
        self.checkpoint = ""  # The id of the last one that it saved or loaded.
        self._space = space
        self._document = document
        self._modules = modules
        self._thread = space.thread(thread_name(number))
        self._done: list[str] = []
        self._figures = Figures()

    @property
    def remaining(self) -> Sequence[str]:
        """The modules that are not recorded yet, in order."""
        return self._modules[len(self._done) :]

    @property
    def position(self) -> int:
        """How many modules are recorded."""
        return len(self._done)

    async def resume(self) -> None:
        """Continue from the thread's last checkpoint; without one, from the beginning.

        Raises:
            Rewound: that checkpoint is older than the last one that was acknowledged to this agent.
            ShoalError: the store could not be read.
        """
        try:
            found = await self._thread.load()
            done, figures, checkpoint = list(found.state["done"]), Figures(**found.state["figures"]), found.id
        except NotFound:
            done, figures, checkpoint = [], Figures(), ""
        if len(done) < len(self._done):
            raise Rewound(
                f"{thread_name(self.number)} had {len(self._done)} modules acknowledged, "
                f"and was then shown a checkpoint of {len(done)}"
            )
        self._done, self._figures, self.checkpoint = done, figures, checkpoint

    async def record(self, module: str, figures: Figures) -> None:
        """Write one module's figures everywhere, and save a checkpoint, which is then in `checkpoint`.

        Raises:
            ShoalError: some of the writes may have been made. After `resume`, recording the module again is safe.
        """
        writes = (self._write_event(module, figures), self._write_entry(module, figures), self._add(module, figures))
        # Wait for all of them, so that none is still under way when they are repeated.
        for outcome in await asyncio.gather(*writes, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        done, total = [*self._done, module], self._figures.plus(figures)
        state = {"done": done, "position": len(done), "last": module, "figures": total._asdict()}
        saved = await self._thread.save(state, metadata={"module": module}, key=f"{thread_name(self.number)}/{module}")
        self._done, self._figures, self.checkpoint = done, total, saved.id

    async def _write_event(self, module: str, figures: Figures) -> None:
        await self._thread.journal.append({"module": module, "figures": figures._asdict()}, key=module)

    async def _write_entry(self, module: str, figures: Figures) -> None:
        self._document.map(ROOT)[module] = figures._asdict()
        await self._document.flush()

    async def _add(self, module: str, figures: Figures) -> None:
        async with self._space.batch() as batch:
            for name, amount in figures._asdict().items():
                batch.counter(counter_name(name)).add(amount, key=module)
