"""Which event loop a test runs on.

Laws:
- Tests of simulated nodes run in virtual time: it passes when all wait, so that no test depends on how fast the machine is.
- Those are all tests of `tests/node`, and others marked `virtual_time`. A test marked `real_time` uses
  sockets, files or threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.testing.machines import VirtualLoop

TURNS_MAX = 500_000
"""Far more than any test needs; one that waits for what never comes ends soon."""

LOOK_S = 0.001
"""Between two looks of a test that waits for something."""

TURNS = 20
"""In which what is due at one time is done."""

_NODE = Path(__file__).parents[1] / "node"


def loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    is_real = item.get_closest_marker("real_time") is not None
    is_virtual = item.get_closest_marker("virtual_time") is not None or _NODE in item.path.parents
    if is_virtual and not is_real:
        return {"virtual": lambda: VirtualLoop(steps_max=TURNS_MAX)}
    return {"real": asyncio.new_event_loop}


async def reached(is_true: Callable[[], object]) -> None:
    """Return in the very turn in which this is true."""
    turns = 0
    while not is_true():
        turns += 1
        await asyncio.sleep(0 if turns % TURNS else LOOK_S)
