"""What every test relies on, however the suite was started."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable, Generator, Iterator
from functools import cache, partial
from pathlib import Path
from random import Random

import pytest
import typer.main
import typer.testing
from hypothesis import Phase, settings

from shoal import opening
from shoal.config import Config
from shoal.logs.lines import counting_anew
from simulation.world.environment import SimulatedEnvironment
from tests.support.examples import WHOLE
from tests.support.pacing import loop_factories

# No example has a deadline: how long one takes says more of the machine than of the program. Each run draws the same
# examples, so that it fails where a change is wrong, and not by chance; `pytest --hypothesis-profile=explore` draws new ones.
# `make test` draws a quarter of them and shows a failing one as it was drawn; `make thorough` draws all, and shrinks it.
settings.register_profile("explore", deadline=None, max_examples=WHOLE)
settings.register_profile("thorough", deadline=None, max_examples=WHOLE, derandomize=True)
settings.register_profile(
    "shoal", deadline=None, max_examples=WHOLE // 4, derandomize=True, phases=(Phase.explicit, Phase.generate)
)
settings.load_profile("shoal")

# Its runner makes all commands of an application anew for each call, which takes ten times as long as most calls.
typer.testing._get_command = cache(typer.main.get_command)  # type: ignore[attr-defined]

# No test trusts whom this machine trusts. aiohttp loads all their certificates twice when it is imported, in each process that
# tests start: an eighth of the time of a command.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "support" / "nobody.pem")


# A client gives up a node that does not answer within 1.8 s, and a busy machine lets a process stand still for longer.
opening.Config = partial(Config, reach_timeout_s=30.0)  # type: ignore[attr-defined, assignment]


@pytest.fixture(autouse=True)
def _lines_are_counted_anew() -> Iterator[None]:
    """Of an event there are so many lines a minute in one process; tests are hundreds in a minute."""
    with counting_anew():
        yield


@pytest.fixture(autouse=True, scope="module")
def _what_is_left_open_is_named_here() -> Iterator[None]:
    """A socket in a cycle that nobody closed fails the module that opened it, and not the next test that looks for cycles."""
    yield
    gc.collect()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Two options that find tests which rely on what is not promised.

    `--sync-s 0.03`: each fsync of simulated nodes takes that long, so that a test that relies on a fast disk fails.
    `--shuffle 7`: an order of this seed, so that a test that relies on another one fails. Workers take tests from each other,
    so the usual order is not the same in each run either.
    """
    parser.addoption("--shuffle", type=int, help="the seed of the order of the tests")
    parser.addoption("--sync-s", type=float, default=0.0, help="how long each fsync of simulated nodes takes, in seconds")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # These wait for processes and clocks for most of their time. Begun first, by one worker, they do so while others compute;
    # at the end, where the workers share what is left, all would wait.
    items.sort(key=lambda item: not item.nodeid.startswith("tests/end_to_end/"))
    if (seed := config.getoption("--shuffle")) is not None:
        Random(seed).shuffle(items)
    SimulatedEnvironment.sync_s = config.getoption("--sync-s")
    if SimulatedEnvironment.sync_s:
        for item in items:
            if (marker := item.get_closest_marker("instant_syncs")) is not None:
                item.add_marker(pytest.mark.skip(reason=marker.args[0]))


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return loop_factories(item)


def pytest_configure() -> None:
    """Let SIGINT interrupt, also in the processes that tests start.

    A shell without job control starts `make test &` with SIGINT ignored, and Python leaves it so.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_teardown() -> None:
    """A command of the simulator says nothing of what its nodes log: for the rest of its process, which is the tests'."""
    logging.disable(logging.NOTSET)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Ten thousand tests and what they import stay to the end; a collector that looks at them takes a tenth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(5000, 20, 20)  # Tests leave little in cycles, so looking for them less often costs a few megabytes.
