"""Each law of the ledger: what keeps it is silent, and one planted break is told by its number."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from shoal.client.watching import Change
from shoal.cluster import operation
from shoal.cluster.operation import CHAIN_START, Body, LogEntry, Tip, partition_of
from shoal.crdt.dot import Dot, Origin, VersionVector
from shoal.kinds.journal.state import journal
from shoal.kinds.map.state import Remove
from shoal.kinds.thread.state import dag
from shoal.node import mutation
from shoal.node.mutation import Mutation
from shoal.protocol.position import Position
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from shoal.storage.keys import Kind
from simulation.judging.ledger import Ledger, Shelf

A, B, C = Origin(b"a" * 16), Origin(b"b" * 16), Origin(b"c" * 16)
PARTITION = 3
NODE = b"n" * 16
NO_CHANGES = mutation.encode([])


class Scene:
    """A ledger over the disks of two nodes, and what it found broken."""

    def __init__(self) -> None:
        self.broken: list[tuple[str, str]] = []
        self.ledger = Ledger(lambda invariant, text: self.broken.append((invariant, text)))
        self.n1, self.n2 = (self.ledger.shelf(name, MemoryStorage()) for name in ("n1", "n2"))

    @property
    def invariants(self) -> list[str]:
        return [invariant for invariant, _ in self.broken]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def operation_rows(
    origin: Origin,
    sequence: int,
    *,
    hlc: int = 0,
    after: dict[Origin, int] | None = None,
    key: str | None = None,
    payload: bytes = NO_CHANGES,
    vector: int | None = None,
) -> dict[bytes, bytes | None]:
    """The rows of one operation, as a node writes them."""
    context = sorted((after or {}).items())
    body = operation.encode(Body(hlc or sequence, 0, context, key, payload))
    dot = Dot(origin, sequence)
    chain = operation.chain(CHAIN_START, PARTITION, dot, body)
    tip = Tip(sequence if vector is None else vector, hlc or sequence, chain)
    return {keys.log(PARTITION, dot): LogEntry(chain, body).pack(), keys.vector(PARTITION, origin): tip.pack()}


def write(shelf: Shelf, rows: dict[bytes, bytes | None], *, synced: bool = True) -> None:
    shelf.wrote(rows, [])
    if synced:
        shelf.synced()


def test_operations_in_order_on_every_disk_break_nothing(scene: Scene) -> None:
    for shelf in (scene.n1, scene.n2):
        write(shelf, operation_rows(A, 1))
        write(shelf, operation_rows(A, 2))
        write(shelf, operation_rows(B, 1, hlc=3, after={A: 2}))
    assert scene.broken == []


def test_another_operation_under_a_dot_is_found_even_if_the_first_was_lost(scene: Scene) -> None:
    write(scene.n1, operation_rows(A, 1, payload=b"lost"), synced=False)
    scene.n1.mounted(MemoryStorage())
    write(scene.n1, operation_rows(A, 1, payload=b"another"))
    assert scene.invariants == ["1"]


def test_a_hole_before_an_operation_is_found(scene: Scene) -> None:
    write(scene.n1, operation_rows(A, 2))
    assert scene.invariants == ["2"]


def test_an_operation_that_is_written_twice_is_found(scene: Scene) -> None:
    write(scene.n1, operation_rows(A, 1))
    write(scene.n1, operation_rows(A, 1))
    assert scene.invariants == ["2"]


def test_an_operation_without_what_it_depends_on_is_found(scene: Scene) -> None:
    write(scene.n1, operation_rows(B, 1, after={A: 1}))
    assert scene.invariants == ["2"]


def test_a_vector_that_says_more_than_the_log_holds_is_found(scene: Scene) -> None:
    write(scene.n1, operation_rows(A, 1, vector=2))
    assert scene.invariants == ["2"]


@pytest.mark.answers("seed-375079")
def test_a_record_that_cannot_be_decoded_is_not_the_ledgers_matter(scene: Scene) -> None:
    key = keys.object_rows(PARTITION, Kind.THREAD, "s", "t") + dag.CHECKPOINT + b"i" * dag.ID_BYTES
    scene.n1.wrote({key: b"altered by a disk, and copied by a snapshot"}, [])
    assert scene.broken == []


def test_operations_sent_before_their_origin_is_durable_are_found(scene: Scene) -> None:
    write(scene.n1, {keys.meta("origin"): A, **operation_rows(A, 1)}, synced=False)
    write(scene.n2, operation_rows(A, 1))
    assert scene.invariants == ["2"]
    assert "n2 was sent" in scene.broken[0][1]


def test_operations_of_a_durable_origin_may_be_sent_before_they_are(scene: Scene) -> None:
    write(scene.n1, {keys.meta("origin"): A, **operation_rows(A, 1)})
    write(scene.n1, operation_rows(A, 2), synced=False)
    write(scene.n2, operation_rows(A, 1))
    write(scene.n2, operation_rows(A, 2))
    assert scene.broken == []


def test_sums_sent_before_they_are_durable_are_found(scene: Scene) -> None:
    write(scene.n1, {keys.meta("origin"): A})
    payload = mutation.encode([Mutation(Kind.MAP, "s", "m", Remove("e", (), (), ()))])
    write(scene.n1, operation_rows(A, 1, payload=payload), synced=False)
    write(scene.n2, operation_rows(A, 1, payload=payload))
    assert scene.invariants == ["2"]


def test_a_mark_of_what_was_never_durable_there_is_found(scene: Scene) -> None:
    write(scene.n1, {keys.meta("node"): NODE, **operation_rows(A, 1)})
    write(scene.n1, operation_rows(A, 2), synced=False)
    noted = keys.entry(NODE, PARTITION, A)
    write(scene.n2, {noted: (1).to_bytes(8, "big")})
    assert scene.broken == []
    write(scene.n2, {noted: (2).to_bytes(8, "big")})
    assert scene.invariants == ["2"]


def test_a_time_that_is_not_after_what_its_node_had_applied_is_found(scene: Scene) -> None:
    write(scene.n1, operation_rows(A, 1, hlc=9))
    write(scene.n2, operation_rows(A, 1, hlc=9))
    write(scene.n2, operation_rows(B, 1, hlc=9, after={A: 1}))
    assert scene.invariants == ["4"]


def test_times_of_concurrent_operations_may_cross(scene: Scene) -> None:
    write(scene.n1, operation_rows(A, 1, hlc=9))
    write(scene.n2, operation_rows(B, 1, hlc=5))
    write(scene.n1, operation_rows(B, 1, hlc=5))
    assert scene.broken == []


def test_an_operation_that_does_not_know_of_what_was_there_when_it_was_issued_is_found(scene: Scene) -> None:
    write(scene.n1, operation_rows(A, 1))
    write(scene.n1, operation_rows(B, 1, hlc=2))
    assert "does not know of" in scene.broken[0][1]


def test_knowledge_through_another_operation_counts(scene: Scene) -> None:
    write(scene.n1, operation_rows(A, 1))
    write(scene.n1, operation_rows(B, 1, hlc=2, after={A: 1}))
    write(scene.n1, operation_rows(C, 1, hlc=3, after={B: 1}))
    assert scene.broken == []


def test_a_node_that_lost_its_disk_may_be_given_its_own_operations_back(scene: Scene) -> None:
    write(scene.n2, operation_rows(B, 1, hlc=5))
    for shelf in (scene.n1, scene.n2):
        write(shelf, operation_rows(A, 1))
    scene.n1.mounted(MemoryStorage())
    write(scene.n1, operation_rows(B, 1, hlc=5))
    write(scene.n1, operation_rows(A, 1))
    assert scene.broken == []


@pytest.mark.answers("set-back-directories-do-not-count")
def test_a_node_that_is_told_in_error_that_its_directory_was_set_back_is_found(scene: Scene) -> None:
    told: dict[bytes, bytes | None] = {keys.meta("restored"): b"n1:7400"}
    scene.n2.replaced()
    write(scene.n2, told)
    assert scene.broken == []
    write(scene.n1, {keys.meta("restored"): b"\x01"})  # It says itself that it is a copy.
    write(scene.n1, {keys.meta("restored"): None})
    assert scene.broken == []
    write(scene.n1, told)
    assert scene.invariants == ["19"]


def test_an_answer_that_shows_what_is_not_durable_is_found(scene: Scene) -> None:
    write(scene.n1, operation_rows(A, 1), synced=False)
    scene.ledger.answered("n1", PARTITION, VersionVector({A: 1}), who="agent")
    assert scene.invariants == ["2"]


def test_an_answer_may_show_what_was_durable_once(scene: Scene) -> None:
    write(scene.n1, operation_rows(A, 1))
    scene.n1.mounted(MemoryStorage())
    scene.ledger.answered("n1", PARTITION, VersionVector({A: 1}), who="agent")
    assert scene.broken == []


def test_too_few_copies_are_found(scene: Scene) -> None:
    for shelf in (scene.n1, scene.n2):
        write(shelf, operation_rows(A, 1, key="k"))
    scene.ledger.copied(PARTITION, "k", 2, who="agent")
    assert scene.broken == []
    scene.ledger.copied(PARTITION, "k", 3, who="agent")
    assert scene.invariants == ["3"]


def test_a_copy_that_is_not_durable_does_not_count(scene: Scene) -> None:
    write(scene.n1, operation_rows(A, 1, key="k"))
    write(scene.n2, operation_rows(A, 1, key="k"), synced=False)
    scene.ledger.copied(PARTITION, "k", 2, who="agent")
    assert scene.invariants == ["3"]


@pytest.mark.answers("nothing-is-invented", note="no removal removes data that was written after the removal was answered")
def test_a_removal_that_is_carried_out_after_it_was_answered_and_after_later_writes_is_found(scene: Scene) -> None:
    write(scene.n2, operation_rows(B, 1))
    scene.ledger.found_nothing(PARTITION, "removal", "n2")
    later = operation_rows(B, 2)
    write(scene.n2, later)
    write(scene.n1, operation_rows(B, 1))
    write(scene.n1, later)
    write(scene.n1, operation_rows(A, 1, hlc=3, after={B: 2}, key="removal"))
    assert scene.invariants == ["6"]


def test_a_removal_may_be_carried_out_where_nothing_is_known_of_what_followed_its_answer(scene: Scene) -> None:
    write(scene.n2, operation_rows(B, 1))
    scene.ledger.found_nothing(PARTITION, "removal", "n2")
    write(scene.n2, operation_rows(B, 2))
    write(scene.n1, operation_rows(B, 1))
    write(scene.n1, operation_rows(A, 1, hlc=2, after={B: 1}, key="removal"))
    assert scene.broken == []


def test_a_request_that_wrote_nothing_needs_no_copies(scene: Scene) -> None:
    scene.ledger.copied(PARTITION, "never written", 3, who="agent")
    assert scene.broken == []


# ── what outlives a minority ──────────────────────────────────────────────────


def disk(*operations: dict[bytes, bytes | None]) -> MemoryStorage:
    storage = MemoryStorage()
    for rows in operations:
        storage.write(rows)
    return storage


def lacking(scene: Scene, n1: MemoryStorage, n2: MemoryStorage) -> list[str]:
    return list(scene.ledger.lacking({"n1": n1, "n2": n2}))


def acknowledged_by_two(scene: Scene) -> dict[bytes, bytes | None]:
    rows = operation_rows(A, 1, key="k")
    write(scene.n1, rows)
    write(scene.n2, rows)
    scene.ledger.copied(PARTITION, "k", 2, who="c")
    return rows


@pytest.mark.answers("acknowledged-writes-survive", note="a quorum's")
def test_writes_acknowledged_by_two_must_be_on_two_disks(scene: Scene) -> None:
    rows = acknowledged_by_two(scene)
    assert lacking(scene, disk(rows), disk(rows)) == []
    assert lacking(scene, disk(rows), disk()) == ["the write of c with key k was acknowledged by 2, and is left on n1"]
    assert scene.broken == []


def test_a_disk_that_was_replaced_since_need_not_hold_what_it_held(scene: Scene) -> None:
    rows = acknowledged_by_two(scene)
    scene.n2.replaced()
    assert lacking(scene, disk(rows), disk()) == []
    assert lacking(scene, disk(), disk())


def test_a_disk_that_was_replaced_before_must_hold_what_it_acknowledged(scene: Scene) -> None:
    scene.n2.replaced()
    rows = acknowledged_by_two(scene)
    assert lacking(scene, disk(rows), disk())


# ── watches ───────────────────────────────────────────────────────────────────


PARTITION_OF_A = partition_of("s", "a")


def appended(
    origin: Origin, sequence: int, *, after: dict[Origin, int] | None = None
) -> tuple[dict[bytes, bytes | None], Change]:
    """An operation that appends an event to the journal of a, and what a watcher is told of it."""
    payload = mutation.encode([Mutation(Kind.THREAD, "s", "a", journal.Append(b""))])
    dot, hlc = Dot(origin, sequence), sequence + len(after or {})
    body = operation.encode(Body(hlc, 0, sorted((after or {}).items()), None, payload))
    chain = operation.chain(CHAIN_START, PARTITION_OF_A, dot, body)
    rows: dict[bytes, bytes | None] = {
        keys.log(PARTITION_OF_A, dot): LogEntry(chain, body).pack(),
        keys.vector(PARTITION_OF_A, origin): Tip(sequence, hlc, chain).pack(),
    }
    id = (hlc.to_bytes(8, "big") + dot.pack() + bytes(2)).hex()
    return rows, Change("s", "thread", "a", "append", id, hlc, 0, Position())


def test_a_watcher_may_be_told_of_what_was_appended_and_is_durable(scene: Scene) -> None:
    rows, change = appended(A, 1)
    write(scene.n1, rows)
    scene.ledger.told(change, [], who="w", node="n1")
    assert scene.broken == []


@pytest.mark.answers("watchers-see-each-change-once")
def test_a_change_that_nobody_made_is_found(scene: Scene) -> None:
    scene.ledger.told(appended(A, 1)[1], [], who="w", node="n1")
    assert scene.invariants == ["18"]


@pytest.mark.answers("watchers-see-each-change-once")
@pytest.mark.parametrize("altered", [{"hlc": 7}, {"name": "b"}, {"what": "save"}, {"kind": "counter"}, {"wall_ms": 5}])
def test_a_change_that_is_told_otherwise_than_it_was_made_is_found(scene: Scene, altered: dict[str, object]) -> None:
    rows, change = appended(A, 1)
    write(scene.n1, rows)
    scene.ledger.told(replace(change, **altered), [], who="w", node="n1")
    assert scene.invariants == ["18"]


@pytest.mark.answers("watchers-see-each-change-once")
def test_a_change_that_is_told_before_it_is_durable_is_found(scene: Scene) -> None:
    rows, change = appended(A, 1)
    write(scene.n1, rows, synced=False)
    scene.ledger.told(change, [], who="w", node="n1")
    assert scene.invariants == ["18"]


@pytest.mark.answers("watchers-see-each-change-once")
def test_a_change_that_is_told_where_it_is_not_durable_is_found(scene: Scene) -> None:
    rows, change = appended(A, 1)
    write(scene.n1, rows)
    write(scene.n2, rows, synced=False)
    scene.ledger.told(change, [], who="w", node="n2")
    assert scene.invariants == ["18"]


@pytest.mark.answers("watchers-see-each-change-once")
def test_a_change_that_is_told_after_one_that_builds_on_it_is_found(scene: Scene) -> None:
    (first, change), (second, later) = appended(A, 1), appended(B, 1, after={A: 1})
    write(scene.n1, first)
    scene.ledger.told(change, [], who="w", node="n1")
    write(scene.n1, second)
    scene.ledger.told(later, [change.id], who="w", node="n1")
    assert scene.invariants == []
    scene.ledger.told(change, [later.id], who="v", node="n1")
    assert scene.invariants == ["18"]
