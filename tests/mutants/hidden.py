"""Bugs that hide: behind what nobody knows the outcome of, behind a read that mends, behind copies that are left."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from shoal.crdt import dot
from shoal.crdt.applier import Applier
from shoal.crdt.dot import COUNTER_BITS, END_MS, HybridClock, VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.kinds.counter import state as counter
from shoal.kinds.counter.handler import Counters
from shoal.kinds.register import state as register
from shoal.kinds.register.state import Assign, AssignBy
from shoal.kinds.worklist import state as queue
from shoal.node.database import Database
from shoal.node.handler import Applied, Place, Target, View
from shoal.node.peers import incoming
from shoal.node.peers.incoming import Incoming
from shoal.node.peers.quorum import Quorum
from shoal.node.turns import Steps
from shoal.node.watching import changelog, feed
from shoal.node.watching.feed import Audience, Feed, Staged
from shoal.node.writes import issuing
from shoal.node.writes.idempotency import Answered, IdempotencyTable
from shoal.protocol import requests
from shoal.protocol.requests import AnyWrite, Change, CounterValue, Durability, ObjectKind, Watch
from shoal.storage.commit import GroupCommit
from shoal.storage.keys import Kind
from tests.mutants.mutant import Mutant, forget_implied_keys, patch_applier

# ── what has an unknown outcome ───────────────────────────────────────────────


def an_add_counts_again_at_another_node(patch: pytest.MonkeyPatch) -> None:
    """What came from a peer does not answer a key, and a counter knows its users' keys alone."""
    patch.setattr(Incoming, "_claim", lambda *_: None)
    forget_implied_keys(patch, Kind.COUNTER)


def a_failed_add_counts_when_it_is_sent_again(patch: pytest.MonkeyPatch) -> None:
    """One that a quorum did not acknowledge in time is issued anew."""
    sound_find, sound_spread = IdempotencyTable.find, Quorum.when_replicated
    late: set[VersionVector] = set()

    def when_replicated(
        self: Quorum, partition: int, wanted: VersionVector, durability: Durability, told: Callable[[Any], None], /
    ) -> Callable[[], None]:
        def noted(error: Any) -> None:
            if error is None:
                late.discard(wanted)
            told(error)

        late.add(wanted)
        return sound_spread(self, partition, wanted, durability, noted)

    def find(self: IdempotencyTable, partition: int, key: str, request: AnyWrite, asked: Any = None) -> Answered | None:
        found = sound_find(self, partition, key, request, asked)
        if found is not None and isinstance(request, requests.Add) and any(wanted.covers(found.dot) for wanted in late):
            return None
        return found

    patch.setattr(Quorum, "when_replicated", when_replicated)
    patch.setattr(IdempotencyTable, "find", find)
    forget_implied_keys(patch, Kind.COUNTER)


def the_last_of_concurrent_assigns_wins(patch: pytest.MonkeyPatch) -> None:
    sound = register.apply

    def apply(rows: Rows, stamp: Stamp, assign: Assign | AssignBy) -> None:
        sound(rows, stamp, assign)
        register.store(rows, register.entries(rows)[-1:])

    # Under its name, too: `apply_by` calls it.
    patch.setattr(register, "apply", apply)
    patch_applier(patch, Assign, apply)


# ── what a read mends ─────────────────────────────────────────────────────────


def a_counter_is_summed_when_it_is_read(patch: pytest.MonkeyPatch) -> None:
    """What peers add is set aside; a read of the counter adds it to the value, on this node."""
    aside = b"W"

    def amount(rows: Any, row: bytes) -> int:
        return counter.unpack(rows.get(row) or b"")

    sound = Incoming._receive

    def receive(self: Incoming, batch: Any, place: Place, applier: Applier, sent: Applied) -> Steps[Applied | None]:
        before = place.rows.get(counter.VALUE)
        applied = yield from sound(self, batch, place, applier, sent)
        if isinstance(sent.change, counter.Add) and before is not None:
            added = amount(place.rows, counter.VALUE) - counter.unpack(before)
            place.rows.put(aside, counter.pack(amount(place.rows, aside) + added))
            place.rows.put(counter.VALUE, before)
        return applied

    def read(self: Counters, view: View, request: requests.ReadCounter) -> CounterValue:
        value = counter.value(view.rows) + amount(view.rows, aside)
        if view.rows.get(aside) is not None:
            storage: Any = view.transaction._storage
            storage.write({view.rows.key(counter.VALUE): counter.pack(value), view.rows.key(aside): None})
            storage.sync()
        return CounterValue(value)

    patch.setattr(Incoming, "_receive", receive)
    patch.setattr(Counters, "_read", read)


# ── what a minority had ───────────────────────────────────────────────────────


def a_quorum_of_what_was_sent(patch: pytest.MonkeyPatch) -> None:
    """A peer that has held anything of the partition is taken to hold what was sent to it."""

    def holders(self: Quorum, partition: int, wanted: VersionVector) -> list[str]:
        held: dict[bytes, str] = {}
        for member in self.members.all:
            known = self._protocol.known(member.node).vector(partition)
            before = VersionVector((origin, sequence - 1) for origin, sequence in wanted.items())
            if self._protocol.is_member(member.node) and known.dominates(before):
                held[member.node] = member.address
        return list(held.values())

    patch.setattr(Quorum, "_holders", holders)


# ── watches ───────────────────────────────────────────────────────────────────


def a_watch_tells_of_other_objects(patch: pytest.MonkeyPatch) -> None:
    def matches(watch: Watch, space: str, kind: ObjectKind, name: str) -> bool:
        return space == watch.space and name[:5] == watch.prefix[:5]

    patch.setattr(feed, "matches", matches)
    patch.setattr(changelog, "matches", matches)
    patch.setattr(Audience, "of", lambda self, kind, name: list(self))


def a_watch_tells_what_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    sound = Feed.stage

    def stage(self: Feed, number: int, staged: list[Staged], vectors: Mapping[int, VersionVector]) -> None:
        sound(self, number, staged, vectors)
        self.publish(number)

    patch.setattr(Feed, "stage", stage)


def a_resumed_watch_reads_origin_after_origin(patch: pytest.MonkeyPatch) -> None:
    def merge(*runs: Iterator[Any], key: Callable[[Any], Any]) -> Iterator[Any]:
        return chain(*runs)

    # Only that: the partitions are merged by a heap of the same module.
    patch.setattr(changelog, "heapq", SimpleNamespace(merge=merge, heappush=heapq.heappush, heappop=heapq.heappop))


def a_resumed_watch_tells_the_time_of_before(patch: pytest.MonkeyPatch) -> None:
    sound = changelog.change_of
    last = [0]

    def change_of(target: Target, stamp: Stamp, change: Any) -> Change:
        hlc, last[0] = last[0], stamp.hlc
        return replace(sound(target, stamp, change), hlc=hlc)

    patch.setattr(changelog, "change_of", change_of)


# ── mends undone ──────────────────────────────────────────────────────────────


def a_resumed_watch_tells_what_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    async def all_durable(self: Database) -> None:
        commit: GroupCommit = self._commit
        if commit.failed is None:
            await commit.wait_durable(commit.written)

    patch.setattr(Database, "all_durable", all_durable)


def a_time_near_the_end_of_the_clock_is_led_past_it(patch: pytest.MonkeyPatch) -> None:
    def issue(self: HybridClock, wall_ms: int) -> int:
        self.last = max(self.last + 1, wall_ms << COUNTER_BITS)
        return self.last

    patch.setattr(HybridClock, "issue", issue)
    patch.setattr(issuing, "END_MS", 1 << 62)
    for module in (dot, incoming):
        patch.setattr(module, "is_plausible", lambda hlc, *, seen: hlc < END_MS << COUNTER_BITS)


def a_put_leaves_the_key_to_who_came_first(patch: pytest.MonkeyPatch) -> None:
    sound = queue.RankedEntry._replace

    def kept(self: queue.RankedEntry, **changes: Any) -> queue.RankedEntry:
        return sound(self, **{name: value for name, value in changes.items() if name != "key"})

    patch.setattr(queue.RankedEntry, "_replace", kept)


MUTANTS = (
    Mutant(
        a_resumed_watch_tells_what_is_not_durable,
        "a resumed watch tells what a failed fsync left",
        ("18",),
        "composed",
        frozenset({"failed_sync"}),
    ),
    Mutant(
        a_time_near_the_end_of_the_clock_is_led_past_it,
        "a time near the end of the clock stops what follows it",
        ("4", "9"),
        "composed",
        frozenset({"years_off"}),
    ),
    Mutant(
        a_put_leaves_the_key_to_who_came_first,
        "a worklist item that was finished before it was put does not learn its key",
        ("4", "16"),
        "composed",
        frozenset({"met_late"}),
    ),
    Mutant(an_add_counts_again_at_another_node, "an add that went to two nodes counts twice", ("5", "10")),
    Mutant(
        a_failed_add_counts_when_it_is_sent_again, "an add that no quorum acknowledged in time counts once more", ("5", "10")
    ),
    Mutant(the_last_of_concurrent_assigns_wins, "of concurrent assigns only the last stays", ("3", "3a", "7")),
    Mutant(a_counter_is_summed_when_it_is_read, "a read mends what a peer's add left undone", ("4",)),
    Mutant(a_quorum_of_what_was_sent, "a quorum counts a peer that holds all but the write itself", ("3",)),
    Mutant(a_watch_tells_of_other_objects, "a watch tells of objects beside those that it is about", ("18",)),
    Mutant(a_watch_tells_what_is_not_durable, "a watch tells of a change before its fsync", ("18",)),
    Mutant(a_resumed_watch_reads_origin_after_origin, "a resumed watch tells a change before those that it builds on", ("18",)),
    Mutant(a_resumed_watch_tells_the_time_of_before, "a resumed watch tells a change with the time of another", ("18",)),
)
