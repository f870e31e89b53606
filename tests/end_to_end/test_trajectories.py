"""Trajectories replayed as checkpoints: each loads back as it was, at once and in another opening."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from random import Random

import pytest

import shoal
from benchmarks import trajectories
from benchmarks.trajectories import Message

_PER_FILE = 3


def made_up() -> list[tuple[str, list[Message]]]:
    """Conversations of all sizes of messages, some of which are repeated."""
    random = Random(5)
    texts = [random.randbytes(size).hex() for size in (3, 40, 300, 900, 5000, 30_000)]
    return [
        (f"made-up-{length}", [{"role": "user", "content": random.choice(texts), "calls": [n % 3]} for n in range(length)])
        for length in (1, 10, 80)
    ]


def real() -> list[tuple[str, list[Message]]]:
    source = trajectories.directory()
    if source is None:
        pytest.skip(f"the real trajectories are no part of the project; {trajectories.VARIABLE} says where they are")
    taken: dict[str, int] = {}
    chosen = []
    for name, messages in trajectories.read(source):
        of = name.rpartition("-")[0]
        taken[of] = taken.get(of, 0) + 1
        if taken[of] <= _PER_FILE:
            chosen.append((name, messages))
    return chosen


@pytest.mark.parametrize("source", [made_up, real])
async def test_every_checkpoint_of_a_trajectory_loads_as_it_was_saved(tmp_path: Path, source: object) -> None:
    assert callable(source)
    conversations = source()
    assert conversations
    kept: dict[str, list[str]] = {}
    async with shoal.open(tmp_path / "store", durability="memory") as store:
        for number, (name, messages) in enumerate(conversations):
            space = store.space("replayed")
            kept[name] = (await trajectories.replay(space, name, messages, whole=number % 2 == 0)).checkpoints
    async with shoal.open(tmp_path / "store") as store:
        for name, messages in conversations:
            await trajectories.check(store.space("replayed"), name, messages, kept[name])


async def test_a_replay_notices_what_is_not_as_it_was_saved(tmp_path: Path) -> None:
    [(name, messages)] = islice(made_up(), 1, 2)
    async with shoal.open(tmp_path / "store", durability="memory") as store:
        space = store.space("replayed")
        ids = (await trajectories.replay(space, name, messages, whole=True)).checkpoints
        with pytest.raises(AssertionError, match="step 9"):
            await trajectories.check(space, name, messages, ids[::-1])
