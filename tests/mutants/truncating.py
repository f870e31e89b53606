"""Bugs in truncating logs, and in what answers for the operations that have left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from shoal.cluster import truncation
from shoal.cluster.operation import Body
from shoal.cluster.truncation import Holding, Reach
from shoal.config import Config
from shoal.crdt.dot import Dot, Origin, VersionVector
from shoal.node.collection import answers
from shoal.node.collection.answers import Expiry
from shoal.node.database import Database
from shoal.node.handler import Target
from shoal.node.watching.changelog import Changelog, Logged
from shoal.storage import keys
from shoal.storage.commit import GroupCommit
from shoal.storage.interface import Storage
from tests.mutants.mutant import Mutant

TRUNCATED = frozenset({"truncated"})


def an_owner_that_lacks_it_does_not_hold_the_log_up(patch: pytest.MonkeyPatch) -> None:
    sound = truncation.reach

    def reach(origin: Origin, owners: Sequence[Holding]) -> Reach:
        found = sound(origin, owners)
        return found._replace(by_all=found.by_quorum)

    patch.setattr(truncation, "reach", reach)


def the_base_is_moved_in_a_write_of_its_own(patch: pytest.MonkeyPatch) -> None:
    sound = GroupCommit.write

    def write(
        self: GroupCommit, rows: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]] = (), /, *begun: Any
    ) -> int:
        bases = {key: value for key, value in rows.items() if key.startswith(keys.BASE)}
        if not bases:
            return sound(self, rows, ranges, *begun)
        sound(self, {key: value for key, value in rows.items() if key not in bases}, ranges)
        return sound(self, bases)

    patch.setattr(GroupCommit, "write", write)


def a_key_is_left_without_its_answer(patch: pytest.MonkeyPatch) -> None:
    def truncated(dot: Dot, body: Body) -> bytes:
        return dot.pack()

    patch.setattr(answers, "truncated", truncated)


def a_key_expires_with_its_operation(patch: pytest.MonkeyPatch) -> None:
    sound = Expiry.__init__

    def init(self: Expiry, storage: Storage, config: Config) -> None:
        sound(self, storage, config)
        self._window_ms = self._forget_ms = 1

    patch.setattr(Expiry, "__init__", init)


def a_watch_skips_what_has_left(patch: pytest.MonkeyPatch) -> None:
    sound = Changelog.since

    def since(self: Changelog, number: int, seen: VersionVector, target: VersionVector, *, limit: int) -> list[Logged] | None:
        return sound(self, number, seen.join(self._partitions.load(number).base), target, limit=limit)

    patch.setattr(Changelog, "since", since)


def a_journal_is_read_from_the_oldest_operation_in_the_log(patch: pytest.MonkeyPatch) -> None:
    sound = Database._floor_hlc

    def floor(self: Database, target: Target, seen: VersionVector) -> int | None:
        return sound(self, target, seen.join(self.partitions.load(target.partition).base))

    patch.setattr(Database, "_floor_hlc", floor)


MUTANTS = (
    Mutant(
        an_owner_that_lacks_it_does_not_hold_the_log_up,
        "an operation leaves the log before every owner holds it",
        ("22", "4"),
        composites=TRUNCATED,
        nodes_min=3,
    ),
    Mutant(
        the_base_is_moved_in_a_write_of_its_own,
        "operations leave the log, and the base moves in another write",
        ("22", "2"),
        composites=TRUNCATED,
    ),
    Mutant(
        a_key_is_left_without_its_answer,
        "the answer to a key leaves with its operation",
        ("4", "5", "6"),
        composites=TRUNCATED,
    ),
    Mutant(
        a_key_expires_with_its_operation,
        "a key expires as soon as its operation has left the log",
        ("5", "6", "22", "4"),
        composites=TRUNCATED,
    ),
    Mutant(
        a_watch_skips_what_has_left,
        "a resumed watch goes on behind what has left the log",
        ("18",),
        composites=TRUNCATED,
    ),
    Mutant(
        a_journal_is_read_from_the_oldest_operation_in_the_log,
        "a journal's reader skips events whose operations have left the log",
        ("3", "6", "7"),
        composites=TRUNCATED,
    ),
)
