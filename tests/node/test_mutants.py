"""Planted bugs: each law of replication has a check that holds, and that finds the bug which breaks the law."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import msgspec
import pytest

from shoal.cluster import messages, operation
from shoal.cluster.knowledge import Knowledge
from shoal.cluster.messages import Vectors
from shoal.cluster.operation import partition_of
from shoal.config import Config
from shoal.crdt.applier import NOTHING, Blobs
from shoal.crdt.dot import Dot, Origin
from shoal.errors import PeerRefused, ShoalError
from shoal.node import transaction
from shoal.node.peers import incoming
from shoal.node.peers.incoming import Incoming
from shoal.node.peers.members import Members
from shoal.node.peers.quorum import Quorum
from shoal.node.transaction import Transaction
from shoal.node.verification.verify import verify
from shoal.protocol import requests
from shoal.storage import keys
from simulation.world.fleet import Fleet
from tests.cluster.test_replication import run
from tests.mutants.delivery import (
    a_hole_under_the_vector,
    applied_again,
    early_operations_without_a_bound,
    vectors_are_not_asked_about,
)
from tests.mutants.durability import had_before_the_fsync, pushed_before_the_fsync, vectors_told_before_the_fsync
from tests.mutants.retries import the_greatest_dot_of_a_key_is_kept
from tests.node.peers import test_bad_peers, test_incoming, test_random_faults
from tests.node.wiretap import BRINGER, Tap, issued_by, take

Check = Callable[[], Awaitable[None]]
Plant = Callable[[pytest.MonkeyPatch], None]


# ── the checks ────────────────────────────────────────────────────────────────


async def nothing_leaves_before_it_is_durable() -> None:
    async with Fleet("ab") as fleet:
        tap = Tap()
        fleet["a"].replicator.linked(BRINGER, tap)
        fleet["a"].simulated.hold_syncs()
        writing = asyncio.create_task(fleet["a"].store().space("crew").counter("n").add(1))
        await asyncio.sleep(0.01)
        fleet["a"].simulated.release_syncs()
        early = tap.shipments()
        await writing
        assert early == []


async def a_copy_counts_once_it_is_durable() -> None:
    async with Fleet(quorum_timeout_s=0.03) as fleet:
        for name in "bc":
            fleet[name].simulated.hold_syncs()
        answer = asyncio.create_task(fleet["a"].store().space("crew").counter("n").add(1, durability="quorum"))
        [ended] = await asyncio.gather(answer, return_exceptions=True)
        for name in "bc":
            fleet[name].simulated.release_syncs()
        assert isinstance(ended, ShoalError), "no other node holds it durably"


async def a_copied_directory_is_refused() -> None:
    async with Fleet() as fleet:
        original = fleet["b"].identity()
        for copy in (
            original._replace(name="c:1"),  # Under another member's name,
            original._replace(name="n9:7400"),  # under one that nobody configured,
            original._replace(name=""),
            original._replace(opening=b"o" * 16),  # and under its original's, in a process of its own.
        ):
            with pytest.raises(PeerRefused):
                fleet["a"].replicator.admit(copy)


async def a_retry_elsewhere_is_one() -> None:
    async with Fleet() as fleet:
        await fleet.isolate("a")
        append = requests.Append("crew", "t", b"\x01")
        for name in "ab":
            await fleet[name].node.session().call(append, key="key")
        fleet.link_all("a")
        await fleet.converged()
        assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")
        [event] = [event async for event in fleet["a"].store().space("crew").thread("t").journal.read()]
        again = await fleet["c"].node.session().call(append, key="key")
        assert isinstance(again, requests.Appended)
        assert again.id == event.id, "what is answered is what counts"


async def a_snapshot_covers_all_below_it() -> None:
    async with Fleet("ab", document_snapshot_updates=1) as fleet:
        await fleet.isolate("a")
        for name in "ab":
            document = await fleet[name].store().space("crew").document("d")
            document.map("m")[name] = 1
            await document.close()
        fleet.link_all("a")
        await fleet.converged()
        for name in "ab":
            assert verify(fleet[name].storage, config=Config()).problems == []


async def what_is_early_waits() -> None:
    async with Fleet("ab") as fleet:
        await fleet.isolate("b")
        session = fleet["a"].node.session()
        shipments = await issued_by(fleet["a"], [session.call(requests.Add("crew", "n", 1)) for _ in range(3)])
        await take(fleet["b"], shipments[::-1])
        assert verify(fleet["b"].storage, config=Config()).problems == []
        assert await fleet["b"].store().space("crew").counter("n").value() == 3


async def what_is_refused_leaves_no_trace() -> None:
    async with Fleet("ab") as fleet:
        await fleet.isolate("b")
        writes: list[requests.AnyRequest] = [
            requests.Batch([requests.Add("crew", "{x}n", 1), requests.Append("crew", "{x}t", b"\x01")]),
            requests.Add("crew", "other", 1),
        ]
        whole, other = await issued_by(fleet["a"], [fleet["a"].node.session().call(write) for write in writes])
        beside = transaction.pack_blobs([NOTHING, Blobs(b"\x02")])
        assert await take(fleet["b"], [msgspec.structs.replace(whole, attached=beside), other])
        assert await fleet["b"].store().space("crew").counter("{x}n").value() == 0


async def a_vector_names_nothing_that_is_not_durable() -> None:
    async with Fleet("ab") as fleet:
        tap = Tap()
        fleet["a"].replicator.linked(BRINGER, tap)
        fleet["a"].simulated.hold_syncs()
        writing = asyncio.create_task(fleet["a"].store().space("crew").counter("n").add(1))
        await asyncio.sleep(0)
        await fleet["a"].replicator.received(BRINGER, messages.encode(Vectors([(partition_of("crew", "n"), b"")], True)))
        fleet["a"].simulated.release_syncs()
        await writing
        [told] = [message for message in tap.messages if isinstance(message, Vectors)]
        assert told.vectors[0][1] == b""


async def a_broken_chain_is_refused() -> None:
    async with Fleet("ab") as fleet:
        await fleet.isolate("b")
        session = fleet["a"].node.session()
        [shipment] = await issued_by(fleet["a"], [session.call(requests.Add("crew", "n", 1))])
        assert await take(fleet["b"], [msgspec.structs.replace(shipment, chain=bytes(32))])


async def lost_pushes_are_fetched() -> None:
    run(1).settle(rounds=60)


async def a_time_at_the_end_of_time_is_refused() -> None:
    await test_incoming.test_impossible_operations_are_refused_with_a_reason("a time at the end of time")


async def who_claims_too_much_is_refused() -> None:
    await test_bad_peers.test_claims_of_operations_never_issued_are_refused("have")


async def what_is_early_is_bounded() -> None:
    await test_bad_peers.test_operations_that_wait_for_a_lost_one_are_bounded_and_fetched_once_it_is_there()


# ── the bugs ──────────────────────────────────────────────────────────────────


def keep_the_first_dot_of_a_key(patch: pytest.MonkeyPatch) -> None:
    def first(self: Incoming, own: Transaction, number: int, key: str, dot: Dot, wall_ms: int) -> bool:
        row = keys.request_key(number, key)
        claimed = own.get(row)
        own.put(row, claimed or dot.pack())
        return claimed is None

    patch.setattr(Incoming, "_claim", first)


def keep_a_snapshot_that_misses_an_update(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Transaction, "delete", lambda self, key: None)


def leave_what_was_refused_in_the_batch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(incoming._Batch, "drop", incoming._Batch.take_over)


def take_any_chain(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(operation, "chain_at", lambda *_: bytes(32))


def take_any_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(incoming, "is_plausible", lambda hlc, seen: True)


def take_any_claim(patch: pytest.MonkeyPatch) -> None:
    def take(self: Knowledge, held: Iterable[tuple[int, Origin, int]], *, proven: bool = False) -> None:
        for partition, origin, sequence in held:
            self._fresh.setdefault(partition, {})[origin] = sequence
            self.advanced.add(partition)

    patch.setattr(Knowledge, "take", take)


def take_a_copy_for_its_original(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Members, "check", lambda self, peer, own: None)


def take_silence_for_loss(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Quorum, "_is_lost", lambda self, *_: True)


PLANTED: dict[Plant, Check] = {
    pushed_before_the_fsync: nothing_leaves_before_it_is_durable,
    had_before_the_fsync: a_copy_counts_once_it_is_durable,
    vectors_told_before_the_fsync: a_vector_names_nothing_that_is_not_durable,
    a_hole_under_the_vector: what_is_early_waits,
    applied_again: test_incoming.test_redelivered_operations_change_nothing,
    the_greatest_dot_of_a_key_is_kept: a_retry_elsewhere_is_one,
    keep_the_first_dot_of_a_key: a_retry_elsewhere_is_one,
    keep_a_snapshot_that_misses_an_update: a_snapshot_covers_all_below_it,
    leave_what_was_refused_in_the_batch: what_is_refused_leaves_no_trace,
    take_any_chain: a_broken_chain_is_refused,
    take_any_time: a_time_at_the_end_of_time_is_refused,
    take_any_claim: who_claims_too_much_is_refused,
    take_a_copy_for_its_original: a_copied_directory_is_refused,
    early_operations_without_a_bound: what_is_early_is_bounded,
    vectors_are_not_asked_about: lost_pushes_are_fetched,
    take_silence_for_loss: test_random_faults.test_a_node_not_heard_has_not_lost_its_writes,
}


@pytest.mark.answers("copied-directory-is-admitted-as-its-original")
@pytest.mark.answers("bugs-in-replication", note="each check holds without its bug")
@pytest.mark.parametrize("check", dict.fromkeys(PLANTED.values()), ids=lambda check: check.__name__)
async def test_the_law_holds(check: Check) -> None:
    await check()


@pytest.mark.answers("snapshot-drops-updates-that-wait", "bugs-in-replication")
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
async def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    # An assertion of the check or of the code, or what `pytest.raises` says where nothing was raised.
    with pytest.raises((AssertionError, ShoalError, ValueError, pytest.fail.Exception)):
        await PLANTED[plant]()
