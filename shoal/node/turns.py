"""Work in steps: a generator that yields between them, so that one large object does not delay requests for others.

Law: a step looks at a bounded number of rows and bytes, never at a clock, so that a simulated run
can be repeated. Between two steps anything may change: a step reads what it needs anew.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import closing
from typing import TypeVar

from shoal.config import Config
from shoal.crdt.document.document import Pace
from shoal.node.environment import turn

T = TypeVar("T")

Steps = Generator[None, None, T]


def document_pace(config: Config) -> Pace:
    """What one step of work on a document may take."""
    return Pace(config.document_step_updates_max, config.document_step_bytes_max, config.document_whole_bytes_max)


async def in_turns(steps: Steps[T], pause: Callable[[], Awaitable[None]] = turn) -> T:
    """Take the steps, and return their result; others get a turn between them. `pause` waits for the end of theirs."""
    with closing(steps):
        while True:
            try:
                next(steps)
            except StopIteration as done:
                outcome: T = done.value
                return outcome
            await pause()


def at_once(steps: Steps[T]) -> T:
    """Take the steps without a turn for others, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            outcome: T = done.value
            return outcome
