from __future__ import annotations

from random import Random
from typing import Any

import pytest

from shoal.node.handler import Target
from shoal.node.tiering.mover import Mover
from shoal.storage import cold, keys
from shoal.storage.keys import Kind
from simulation.world.bucket import SimulatedBucket
from simulation.world.environment import SimulatedEnvironment
from tests.node.conftest import Bench

URL = "s3://simulated/cold"
TARGET = Target(Kind.THREAD, "crew", "a")
OF = keys.object_rows(TARGET.partition, *TARGET)
TEXTS = [Random(n).randbytes(60_000).hex() for n in range(6)]


@pytest.fixture
def bucket(bench: Bench) -> SimulatedBucket:
    bench.simulated.bucket = made = SimulatedBucket(now_ms=lambda: bench.simulated.now_ms)
    return made


def mover_of(bench: Bench) -> Mover:
    """A mover of its own: the node's has no rules, so it moves nothing."""
    return Mover(bench.node._context, bench.node._database)


async def filled(bench: Bench, thread: str = "a") -> list[str]:
    """A thread of some checkpoints, each with its own text, and a file. Returns the checkpoints."""
    handle = bench.space.thread(thread)
    found = [(await handle.save({"text": text, "step": step})).id for step, text in enumerate(TEXTS)]
    await handle.put_file("f.bin", Random(99).randbytes(200_000))
    return found


def crashed(bench: Bench, keep: int | None = 0) -> Bench:
    """The same directory, not a copy, after a power cut."""
    left = bench.storage.left_by_crash(keep)
    left.identity = bench.storage.identity
    return Bench(left, SimulatedEnvironment(7), bench.config)


def stubs(bench: Bench, of: bytes = OF) -> dict[bytes, cold.Stub]:
    """The stubs of an object, by key."""
    found = {key: cold.stub_of(key, value) for key, value in bench.storage.scan(of, of + b"\xff")}
    return {key: stub for key, stub in found.items() if stub is not None}


def large(bench: Bench, of: bytes = OF) -> dict[bytes, bytes]:
    """The chunks of an object that are here and would be moved."""
    rows = bench.storage.scan(of, of + b"\xff")
    chunk = ((key, value) for key, value in rows if cold.digest_in(key[len(of) :]) and cold.stub_of(key, value) is None)
    return {key: value for key, value in chunk if len(value) > cold.NODE_BYTES}


def forget(bench: Bench) -> None:
    """Drop what the node has in memory of checkpoints."""
    bench.node._database._kinds.shapes._entries.clear()


async def states(bench: Bench, ids: list[str], thread: str = "a") -> list[dict[str, Any]]:
    """The states of these checkpoints, as somebody reads them who has nothing in memory."""
    forget(bench)
    return [(await bench.space.thread(thread).load(id)).state for id in ids]


EXPECTED = [{"text": text, "step": step} for step, text in enumerate(TEXTS)]
