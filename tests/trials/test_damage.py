"""Invariant 10: a flipped bit, anywhere in the files, is noticed or does no harm."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path
from random import Random

import pytest

from shoal.config import Config
from shoal.node.environment import system_environment
from shoal.node.node import open_node
from shoal.storage.rocks import RocksStorage
from simulation.judging.checkers import InvariantViolated, check_damage_noticed
from simulation.judging.history import History
from simulation.workload.random_agents import working

FLIPS = 12


async def written(directory: Path, random: Random) -> dict[bytes, bytes]:
    """A store that has seen work in two openings, and its rows: some are in tables by then, some in the log."""
    history = History()
    for _ in range(2):
        node = await open_node(directory, config=Config(), environment=system_environment())
        async with working(
            node.session(), agents=4, numbers=count(history.next_number), note=history.note, random=random
        ) as work:
            await history.grown(60)
            await work.finish()
        await node.stop()
    storage = reopened(directory)
    rows = dict(storage.scan(b"", None))
    storage.close()
    return rows


def reopened(directory: Path) -> RocksStorage:
    return RocksStorage.open(directory, config=Config(), now_ms=0)


def flip(path: Path, random: Random) -> None:
    content = bytearray(path.read_bytes())
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    path.write_bytes(content)


@pytest.mark.answers("damage-is-detected")
async def test_a_flipped_bit_is_noticed_or_harmless(tmp_path: Path) -> None:
    random = Random(8)
    rows = await written(tmp_path / "sound", random)
    for nth in range(FLIPS):
        copy = tmp_path / f"copy-{nth}"
        shutil.copytree(tmp_path / "sound", copy)
        files = [path for path in sorted((copy / "db").iterdir()) if path.stat().st_size and path.name != "LOCK"]
        flip(random.choice([copy / "WITNESS", *files]), random)
        check_damage_noticed(rows, lambda copy=copy: reopened(copy), config=Config())  # type: ignore[misc]


@pytest.mark.answers("store-without-its-last-writes-passes-as-undamaged")
async def test_a_store_without_its_last_writes_is_not_taken_for_sound(tmp_path: Path) -> None:
    rows = await written(tmp_path / "sound", Random(9))
    rows[b"V"] = b"one more row, which was lost"
    with pytest.raises(InvariantViolated):
        check_damage_noticed(rows, lambda: reopened(tmp_path / "sound"), config=Config())
