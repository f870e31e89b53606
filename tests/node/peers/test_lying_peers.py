"""A member with valid credentials that lies: what the other nodes hold does not change by its word."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from shoal.cluster import messages, operation
from shoal.cluster.consensus.ballots import NO_TERM, NOTHING, Accept, Answer, Ask, Ballot, Known, Prepare, Term, Value, Vote
from shoal.cluster.consensus.recovery import Foundation
from shoal.cluster.membership import epochs
from shoal.cluster.membership.epochs import Change, Record
from shoal.cluster.membership.notices import Founding, Inquiry, Membership, Standing
from shoal.cluster.messages import Push, Shipment, SnapshotRequest, Supply, Truncated, Vectors, Want
from shoal.cluster.operation import partition_of
from shoal.crdt.applier import Blobs, What
from shoal.crdt.dot import HORIZON, Dot, Origin, VersionVector
from shoal.errors import BadOperation, NoQuorum
from shoal.node import transaction
from shoal.node.collection.entries import Garbage
from shoal.node.retired import Summary
from shoal.node.snapshots.exchange import SnapshotSender
from shoal.node.snapshots.receiving import taken
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from simulation.world.fleet import Fleet, Member

pytestmark = pytest.mark.virtual_time

N = partition_of("crew", "n")
TRUE, FALSE = b"ORIGINAL", b"TAMPERED"
NOBODY = Origin(b"\x00" * 15 + b"\x07")


async def say(fleet: Fleet, liar: str, target: str, *said: messages.Message) -> None:
    """Let a member say this to another one, as if its program had."""
    for message in said:
        packed = messages.stamped(messages.encode(message), fleet[liar].identity().epoch)
        await fleet[target].replicator.received(fleet[liar].identity(), packed)


def asked_by(fleet: Fleet, name: str, kind: type[messages.Message]) -> list[messages.Message]:
    """Everything of this kind that a node sends from now on."""
    seen: list[messages.Message] = []
    before = fleet.spoil

    def listen(source: str, target: str, message: bytes) -> bytes | None:
        found = messages.decode(messages.unstamped(message)[1])
        if source == name and isinstance(found, kind):
            seen.append(found)
        return before(source, target, message)

    fleet.spoil = listen
    return seen


async def test_a_truncation_that_answers_nothing_is_ignored() -> None:
    async with Fleet("abc") as fleet:
        await fleet["a"].store().space("crew").counter("n").add(1)
        await fleet.converged()
        asked = asked_by(fleet, "a", SnapshotRequest)
        await say(fleet, "c", "a", Truncated(N, VersionVector({NOBODY: 1}).pack()))
        await asyncio.sleep(1)
        assert (asked, fleet["a"].replicator.quorum.view().truncated) == ([], [])


async def test_a_truncation_of_what_one_peer_claims_is_ignored() -> None:
    async with Fleet("abc") as fleet:
        await fleet["a"].store().space("crew").counter("n").add(1)
        await fleet.converged()
        base = VersionVector({NOBODY: 1}).pack()

        def claim(source: str, target: str, message: bytes) -> bytes | None:
            found = messages.decode(message)
            if target == "c" and isinstance(found, Want) and any(origin == NOBODY for _, origin, *_ in found.ranges):
                wanted.append(found)
            return message

        wanted: list[Want] = []
        fleet.spoil = claim
        asked = asked_by(fleet, "a", SnapshotRequest)
        held = fleet["a"].node._database.vector_of(N)
        await say(fleet, "c", "a", Vectors([(N, held.join(VersionVector({NOBODY: 1})).pack())], False))
        await fleet.until(lambda: wanted, 5)
        await say(fleet, "c", "a", Truncated(N, base))
        await asyncio.sleep(1)
        assert (asked, fleet["a"].replicator.quorum.view().truncated) == ([], [])


def altering(monkeypatch: pytest.MonkeyPatch, liar: Callable[[], Member]) -> None:
    """Let a member alter the objects in each snapshot that it sends. All hashes that it names are those of what it sends."""
    read = SnapshotSender._read

    def altered(self: SnapshotSender, kept: Any, start: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
        rows, following = read(self, kept, start)
        if self._storage is not liar().storage:
            return rows, following
        return [(key, value.replace(TRUE, FALSE) if key[:1] == keys.OBJECT else value) for key, value in rows], following

    monkeypatch.setattr(SnapshotSender, "_read", altered)


def by_snapshot(fleet: Fleet, *, sender: str = "") -> None:
    """Lose all operations from logs, and all requests for snapshots but those to one member, if one is named."""
    before = fleet.spoil

    def lose(source: str, target: str, message: bytes) -> bytes | None:
        found = messages.decode(messages.unstamped(message)[1])
        if isinstance(found, Supply) or (isinstance(found, SnapshotRequest) and sender not in ("", target)):
            return None
        return before(source, target, message)

    fleet.spoil = lose


async def wiped(fleet: Fleet, name: str) -> None:
    """Write a register everywhere, and lose a member's disk."""
    for nth in range(3):
        await fleet["b"].store().space("crew").register("n").set(f"{TRUE.decode()} {nth}")
    await fleet.converged()
    await fleet.crash(name)
    fleet.start(name, MemoryStorage())


def holds(member: Member, text: bytes) -> bool:
    return any(text in value for _, value in member.storage.scan(keys.OBJECT, None))


async def test_altered_rows_in_a_snapshot_are_not_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with Fleet("abc", snapshot_operations_min=1, snapshot_idle_s=0.2) as fleet:
        altering(monkeypatch, lambda: fleet["c"])
        by_snapshot(fleet, sender="c")
        await wiped(fleet, "a")
        await asyncio.sleep(5)
        assert not holds(fleet["a"], FALSE)
    assert "b:1 has others (objects)" in caplog.text


async def test_an_honest_owner_brings_what_a_liar_altered(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Fleet("abc", snapshot_operations_min=1) as fleet:
        altering(monkeypatch, lambda: fleet["c"])
        by_snapshot(fleet)
        await wiped(fleet, "a")
        await fleet.admitted()
        assert (holds(fleet["a"], TRUE), holds(fleet["a"], FALSE)) == (True, False)


async def test_a_snapshot_that_nobody_can_confirm_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """b is away: nothing tells whether c lies. The log, which hash chains prove, is fetched meanwhile."""
    async with Fleet("abc", snapshot_operations_min=1) as fleet:
        altering(monkeypatch, lambda: fleet["c"])
        asked = asked_by(fleet, "a", SnapshotRequest)
        await wiped(fleet, "a")
        await fleet.isolate("b")
        asked.clear()
        await asyncio.sleep(5)
        assert (asked, holds(fleet["a"], FALSE)) == ([], False)


async def test_the_only_other_owner_is_believed_and_named() -> None:
    async with Fleet("ab", snapshot_operations_min=1) as fleet:
        by_snapshot(fleet)
        await wiped(fleet, "a")
        await fleet.admitted()
        [record] = taken(fleet["a"].storage).values()
        assert (record.sender, record.confirmed_by, holds(fleet["a"], TRUE)) == ("b:1", [], True)


async def test_confirmed_rows_name_the_owners_that_have_them() -> None:
    async with Fleet("abc", snapshot_operations_min=1) as fleet:
        by_snapshot(fleet)
        await wiped(fleet, "a")
        await fleet.admitted()
        [record] = taken(fleet["a"].storage).values()
        assert {record.sender, *record.confirmed_by} == {"b:1", "c:1"}


@pytest.mark.answers("seed-2033")
async def test_owners_that_heard_deletions_late_confirm_each_other() -> None:
    """After a deletion, a trim leaves another entry of garbage than before it, and an append leaves one instead of none."""
    async with Fleet("abc", snapshot_operations_min=1) as fleet:
        spaces = {name: fleet[name].store().space("crew") for name in "abc"}
        for _ in range(3):
            await spaces["a"].thread("n").journal.append({"text": TRUE.decode()})
        await fleet.converged()
        await fleet.isolate("b")
        await fleet.isolate("c")
        await spaces["c"].thread("n").journal.trim(keep=1)
        await spaces["a"].thread("n").delete()
        await spaces["c"].thread("n").journal.append({"text": TRUE.decode()})
        await fleet.crash("b")
        fleet.link_all("c")
        await fleet.converged()
        by_snapshot(fleet)
        fleet.start("b", MemoryStorage())
        await fleet.admitted()
        await fleet.until(lambda: not any(key[:1] == keys.GARBAGE for key, _ in fleet["b"].storage.scan(b"", None)), 20)


@pytest.mark.parametrize("table", [keys.KEY, keys.GARBAGE, keys.RETIRED], ids=["key", "garbage", "retired"])
async def test_rows_that_a_sender_adds_are_not_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, table: bytes
) -> None:
    """A key would answer a later request, garbage would be swept, and a forgotten time would refuse operations."""
    read = SnapshotSender._read

    def added(self: SnapshotSender, kept: Any, start: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
        rows, following = read(self, kept, start)
        if self._storage is not fleet["c"].storage:
            return rows, following
        dot = next(Dot.unpack(key[3:27]) for key, _ in rows if key[:1] == keys.LOG)
        forged = {
            keys.KEY: (keys.request_key(N, "user-key"), dot.pack()),
            keys.GARBAGE: (
                keys.garbage(N, dot, 0),
                msgspec.msgpack.encode(Garbage(What.GENERATION, keys.Kind.REGISTER, "crew", "n", 0)),
            ),
            keys.RETIRED: (keys.retired(N, HORIZON), Summary(forgotten_hlc=1 << 40).pack()),
        }
        order = keys.PARTITION_TABLES.index
        return sorted([*rows, forged[table]], key=lambda row: (order(row[0][:1]), row[0])), following

    async with Fleet("abc", snapshot_operations_min=1, snapshot_idle_s=0.2) as fleet:
        monkeypatch.setattr(SnapshotSender, "_read", added)
        by_snapshot(fleet, sender="c")
        await wiped(fleet, "a")
        await asyncio.sleep(5)
        assert not taken(fleet["a"].storage)
    assert "b:1 has others" in caplog.text


# ── origins and operations that a member makes up ─────────────────────────────


async def test_a_member_that_invents_origins_is_refused() -> None:
    async with Fleet("abc", peer_logs_max=1000) as fleet:
        invented = [VersionVector((Origin((n << 32 | m).to_bytes(16, "big")), 1) for m in range(1, 501)) for n in range(3)]
        for vector in invented[:2]:
            await say(fleet, "c", "a", Vectors([(N, vector.pack())], False))
        with pytest.raises(BadOperation, match="makes them up"):
            await say(fleet, "c", "a", Vectors([(N + 1, invented[2].pack())], False))


async def test_an_operation_forged_at_the_next_number_is_noticed_by_both() -> None:
    """b applies it, as nothing tells it from a true one. Its issuer refuses whoever holds it, and b what it writes itself."""
    async with Fleet("abc") as fleet:
        register = fleet["a"].store().space("crew").register("n")
        await register.set(TRUE.decode())
        await fleet.converged()
        [last] = [
            Shipment(N, dot.origin, dot.sequence, entry.chain, entry.packed, transaction.pack_blobs([Blobs()]))
            for key, stored in fleet["a"].storage.scan(*keys.rows_of(keys.LOG, N))
            for _, dot in [keys.split_log(key)]
            for entry in [operation.LogEntry.unpack(stored)]
        ]
        body = msgspec.structs.replace(operation.decode(last.packed), key=None)
        packed = operation.encode(msgspec.structs.replace(body, hlc=body.hlc + 1, payload=body.payload.replace(TRUE, FALSE)))
        dot = Dot(Origin(last.origin), last.sequence + 1)
        forged = Shipment(N, *dot, operation.chain(last.chain, N, dot, packed), packed, last.attached)
        await say(fleet, "c", "b", Push([forged]))
        await fleet.until(lambda: holds(fleet["b"], FALSE), 5)
        await fleet.until(lambda: fleet.refusals, 5)
        assert fleet.refusals[0].detail["reason"] == "claim", "a has not issued what b says that it holds"
        assert holds(fleet["a"], TRUE)
        assert not holds(fleet["a"], FALSE)
        await register.set("later")
        await fleet.until(lambda: fleet["b"].replicator.quorum.view().quarantined, 5)
        assert "two nodes write under one origin" in fleet["b"].replicator.quorum.view().quarantined[0]
        assert holds(fleet["a"], b"later")
        assert holds(fleet["b"], FALSE)


# ── the list of members ───────────────────────────────────────────────────────

REGISTER: dict[str, Any] = {
    "quorum_register_retry_s": 0.01,
    "quorum_register_hello_s": 0.05,
    "quorum_register_found_s": 0.05,
    "members_tell_s": 0.05,
}


async def founded(fleet: Fleet) -> None:
    """Return once all vote in the register, and know that the others do."""
    await fleet.until(lambda: all(member.replicator.register.can_decide for member in fleet.members.values()))
    await fleet.until(lambda: all(member.replicator.register.is_voting for member in fleet.members.values()))


def epoch(fleet: Fleet, name: str) -> int:
    return fleet[name].replicator.quorum.members.roster.epoch


async def test_a_record_that_one_member_tells_changes_no_list() -> None:
    async with Fleet("abc", **REGISTER) as fleet:
        await founded(fleet)
        for record in (Record(1, ("a:1", "c:1")), Record(1, ("a:1", "b:1", "c:1"), {}, Change("forget", "", "b:1"))):
            await say(fleet, "c", "a", Membership(record), Standing(0, True, True, voted=record))
        await asyncio.sleep(2)
        assert (epoch(fleet, "a"), epoch(fleet, "b")) == (0, 0)
        await fleet["a"].store().space("crew").counter("n").add(1, durability="quorum")


async def test_a_member_that_was_admitted_has_its_word() -> None:
    """b said that it had no part in any epoch, when the cluster began: that is over."""
    async with Fleet("abc", quorum_timeout_s=0.5, **REGISTER) as fleet:
        await founded(fleet)
        await say(fleet, "b", "a", Standing(0, False, False, is_unaware=True))
        await say(fleet, "c", "a", Membership(Record(1, ("a:1", "b:1", "c:1"), {}, Change("add", "d:1", ""))))
        await asyncio.sleep(2)
        assert epoch(fleet, "a") == 0


async def test_an_epoch_that_one_member_names_stops_nobody() -> None:
    async with Fleet("abc", **REGISTER) as fleet:
        await founded(fleet)
        packed = messages.stamped(messages.encode(Vectors([], False)), 1 << 40)
        for name in "ab":
            await fleet[name].replicator.received(fleet["c"].identity(), packed)
        await fleet["a"].store().space("crew").counter("n").add(1, durability="quorum")
        await fleet.crash("c")
        await fleet.until(lambda: "c:1" not in fleet["a"].replicator.quorum.members.reached)
        await fleet["a"].replicator.memberships.changes.change("forget", leaves="c:1")
        await fleet.until(lambda: fleet["b"].replicator.quorum.members.roster.record.members == ("a:1", "b:1"))


@pytest.mark.parametrize(
    "record",
    [
        Record(1, ("a:1", "c:1")),
        Record(1, ("a:1", "b:1", "c:1"), {}, Change("forget", "", "b:1")),
        Record(1, ("a:1", "c:1", "x:1"), {}, Change("add", "y:1", "")),
    ],
)
async def test_a_step_that_no_operator_can_make_gets_no_vote(record: Record) -> None:
    async with Fleet("abc", **REGISTER) as fleet:
        await founded(fleet)
        ballot = Ballot(1 << 20, b"z" * 16)
        for name in "ab":
            await say(fleet, "c", name, Accept(epochs.KEY, ballot, Value(1, epochs.encode(record), ()), {}))
            assert fleet[name].replicator.register.value_here(epochs.KEY) == NOTHING
        await say(fleet, "c", "a", Membership(record))
        await asyncio.sleep(2)
        assert (epoch(fleet, "a"), epoch(fleet, "b")) == (0, 0)


async def test_a_vote_for_an_invented_record_is_not_proposed() -> None:
    async with Fleet("abc", **REGISTER) as fleet:
        await founded(fleet)
        invented = Value(1, epochs.encode(Record(1, ("a:1", "c:1"))), ())

        def lie(source: str, target: str, message: bytes) -> bytes | None:
            stamp, packed = messages.unstamped(message)
            found = messages.decode(packed)
            if source != "c" or not isinstance(found, Vote) or found.accepting:
                return None if source == "b" and isinstance(found, Vote) and not found.accepting else message
            forged = msgspec.structs.replace(found, refusal="", accepted=Ballot(1 << 20, b"z" * 16), value=invented)
            return messages.stamped(messages.encode(forged), stamp)

        fleet.spoil = lie
        assert (await fleet["a"].replicator.register.read(epochs.KEY)).version == 0


async def test_answers_to_recovering_nodes_change_no_list() -> None:
    """A later term makes a node ask for what it may have forgotten, and one answer says that b is to be forgotten."""
    async with Fleet("abc", **REGISTER) as fleet:
        await founded(fleet)
        record = Record(1, ("a:1", "b:1", "c:1"), {}, Change("forget", "", "b:1"))
        ballot = Ballot(1 << 20, b"z" * 16)

        def lie(source: str, target: str, message: bytes) -> bytes | None:
            stamp, packed = messages.unstamped(message)
            found = messages.decode(packed)
            if source != "c" or target != "a" or not isinstance(found, Answer) or not found.grants:
                return message
            slots = [(epochs.KEY, ballot, ballot, Value(1, epochs.encode(record), ()))]
            told.append(found)
            return messages.stamped(messages.encode(msgspec.structs.replace(found, slots=slots)), stamp)

        told: list[Answer] = []
        fleet.spoil = lie
        await say(fleet, "c", "a", Known({"a:1": Term(9, b"z" * 16, 0)}, False))
        await fleet.until(lambda: told and fleet["a"].replicator.register.is_voting)
        await say(fleet, "c", "a", Membership(record))
        await asyncio.sleep(1)
        assert (epoch(fleet, "a"), epoch(fleet, "b")) == (0, 0)
        assert (await fleet["a"].replicator.register.read(epochs.KEY)).version == 0


async def test_a_later_term_for_all_stops_no_data() -> None:
    """The register waits for a rebuild, as SECURITY.md says; quorum writes go on."""
    async with Fleet("abc", **REGISTER) as fleet:
        await founded(fleet)
        for name in "ab":
            await say(fleet, "c", name, Known({f"{name}:1": Term(9, b"z" * 16, 0)}, False))
        await fleet.until(lambda: not any(fleet[name].replicator.register.is_voting for name in "ab"))
        with pytest.raises(NoQuorum):
            await fleet["a"].replicator.register.read(epochs.KEY)
        await fleet["a"].store().space("crew").counter("n").add(1, durability="quorum")


async def test_numbers_of_a_liar_leave_a_key_usable() -> None:
    async with Fleet("abc", **REGISTER) as fleet:
        await founded(fleet)
        ballot, far = Ballot((1 << 62) - 2, b"z" * 16), Term((1 << 62) - 2, b"z" * 16, 0)
        for name in "ab":
            await say(
                fleet, "c", name, Prepare("k", ballot, {}), Accept("k", ballot, Value((1 << 62) - 2, b"", ()), {}, ballot)
            )
        await say(fleet, "c", "a", Known({"a:1": far}, False))
        await asyncio.sleep(1)
        register = fleet["a"].replicator.register
        await fleet.until(lambda: all(fleet[each].replicator.register.is_voting for each in "abc"))
        assert await register.change("k", 0, b"one") == (1, b"one")
        assert await fleet["b"].replicator.register.change("k", 1, b"two") == (2, b"two")


async def test_one_member_founds_nothing_while_there_is_a_quorum() -> None:
    async with Fleet("abc", **REGISTER) as fleet:
        await founded(fleet)
        id, record = b"i" * 16, Record(epochs.REBUILD_AHEAD, ("a:1", "c:1"), {"a:1": fleet["a"].identity().node})
        terms = {address: Term(9, id, 0) for address in record.members}
        await say(fleet, "c", "a", Ask(NO_TERM, {}), Inquiry(id, record.epoch))
        await asyncio.sleep(0.1)
        await say(fleet, "c", "a", Founding(id, record, Foundation(id, terms, [])), Membership(record))
        await asyncio.sleep(2)
        assert epoch(fleet, "a") == 0
        assert fleet["a"].replicator.register.is_voting
