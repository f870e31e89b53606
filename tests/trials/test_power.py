"""Promise 1, with the whole node: what was acknowledged or shown survives a power cut; and the planted bugs that do not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from chaos.trials.power_trial import MemoryDisk, RocksDisk, cut_power, slow_environment
from chaos.trials.trial import Tally
from shoal.config import Config
from shoal.crdt.dot import VersionVector
from shoal.errors import Overloaded
from shoal.node.database import Database
from shoal.node.environment import system_environment
from shoal.node.incarnation import Incarnation
from shoal.node.watching.feed import Feed, Staged
from shoal.storage.commit import GroupCommit
from shoal.testing.machines import run
from simulation.judging.checkers import InvariantViolated

ROUNDS = 8


async def in_memory(seed: int, rounds: int = ROUNDS) -> Tally:
    random = Random(seed)
    return await cut_power(
        MemoryDisk(random),
        rounds=rounds,
        random=random,
        environment=lambda: slow_environment(random),
        config=Config(),
        acknowledgements_max=60,
    )


@pytest.mark.parametrize("seed", [2, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (0, 1))])
def test_a_store_in_memory_survives_power_cuts(seed: int) -> None:
    tally = run(in_memory(seed))
    assert tally.lost > 0, "the cuts must take something, or they show nothing"
    assert tally.seen > 0


def test_the_same_seed_gives_the_same_trial() -> None:
    assert run(in_memory(7, 2)) == run(in_memory(7, 2))


@pytest.mark.answers("acknowledged-writes-survive")
async def test_a_store_on_disk_survives_power_cuts(tmp_path: Path) -> None:
    random = Random(11)
    tally = await cut_power(
        RocksDisk(tmp_path, random, Config()),
        rounds=5,
        random=random,
        environment=system_environment,
        config=Config(),
        acknowledgements_max=100,
    )
    assert tally.acknowledged > 0
    assert tally.seen > 0


# ── planted bugs ──────────────────────────────────────────────────────────────


def violated() -> str:
    """The invariant that the trial says is broken."""
    with pytest.raises(InvariantViolated) as caught:
        run(in_memory(1))
    return caught.value.invariant


@pytest.mark.answers("acknowledged-then-lost", "write-is-acknowledged-before-its-fsync")
def test_acknowledging_before_the_sync_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait_durable(commit: GroupCommit, number: int, lane: str = "") -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(GroupCommit, "wait_durable", wait_durable)
    monkeypatch.setattr(GroupCommit, "when_durable", lambda commit, number, waiter, lane="": waiter(None))
    assert violated() in ("2", "3", "3a")


@pytest.mark.answers("read-shows-data-that-is-not-yet-fsynced", "read-shows-data-that-is-not-durable")
def test_reading_what_is_not_durable_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once() -> None:
        return

    def durable_of(database: Database, partition: int, space: str) -> Awaitable[None]:
        return at_once()

    monkeypatch.setattr(Database, "durable_of", durable_of)
    assert violated() in ("2", "3a")


@pytest.mark.answers("read-shows-data-that-is-not-yet-fsynced", "push-shows-data-that-is-not-durable")
def test_pushing_what_is_not_durable_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Feed.stage

    def stage_and_publish(feed: Feed, number: int, staged: list[Staged], vectors: Mapping[int, VersionVector]) -> None:
        stage(feed, number, staged, vectors)
        feed.publish(number)

    monkeypatch.setattr(Feed, "stage", stage_and_publish)
    assert violated() == "3a"


@pytest.mark.answers("sequence-number-is-reused-after-a-lost-fsync", "opening-writes-under-the-last-ones-origin")
def test_writing_under_the_last_origin_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Incarnation.__init__

    def resume(opening: Incarnation, *arguments: object) -> None:
        take(opening, *arguments)  # type: ignore[arg-type]
        opening._origin = opening.previous  # type: ignore[assignment]

    monkeypatch.setattr(Incarnation, "__init__", resume)
    assert violated() == "1"


@pytest.mark.answers("vector-over-a-hole-in-the-log")
def test_a_hole_in_the_log_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    write = GroupCommit.write
    writes = 0

    def without_log(commit: GroupCommit, rows: Mapping[bytes, bytes | None], *others: Any) -> int:
        nonlocal writes
        writes += 1
        kept = {key: value for key, value in rows.items() if writes % 50 or not key.startswith(b"L")}
        return write(commit, kept, *others)

    monkeypatch.setattr(GroupCommit, "write", without_log)
    monkeypatch.setattr("shoal.node.incarnation._check_tail", lambda storage, origin: None)
    assert violated() == "2"


@pytest.mark.answers("state-that-does-not-follow-from-the-log")
def test_state_that_the_log_does_not_make_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    write = GroupCommit.write
    writes = 0

    def without_heads(commit: GroupCommit, rows: Mapping[bytes, bytes | None], *others: Any) -> int:
        nonlocal writes
        writes += 1
        kept = {key: value for key, value in rows.items() if writes % 50 or not key.startswith(b"O")}
        return write(commit, kept, *others)

    monkeypatch.setattr(GroupCommit, "write", without_heads)
    assert violated() == "4"


@pytest.mark.answers("written-is-reported-as-refused")
def test_refusing_a_write_that_was_made_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    write = GroupCommit.write
    writes = 0

    def made_and_refused(commit: GroupCommit, rows: Mapping[bytes, bytes | None]) -> int:
        nonlocal writes
        writes += 1
        number = write(commit, rows)
        if writes % 50 == 0:
            raise Overloaded("Nothing was written.", retry_after_s=0.01)
        return number

    monkeypatch.setattr(GroupCommit, "write", made_and_refused)
    assert violated() in ("2", "4", "13")
