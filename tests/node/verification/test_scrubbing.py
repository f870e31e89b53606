"""Nodes that hold the same operations compare their rows, name what differs, and replace what is wrong."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from shoal.cluster import messages, operation
from shoal.cluster.operation import partition_of
from shoal.cluster.scrub import Piece
from shoal.config import Config
from shoal.crdt.rows import successor
from shoal.kinds.thread.state import dag
from shoal.node.verification import rebuilding
from shoal.node.verification.evidence import bounds
from shoal.node.verification.majority import Majority, _Poll
from shoal.node.verification.rebuilding import Outcome
from shoal.node.verification.scrubbing import Scrubber, place_of
from shoal.node.verification.verify import verify
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from shoal.storage.keys import Kind
from simulation.world.fleet import Fleet

SETTINGS: dict[str, Any] = {"scrub_interval_s": 0.02, "scrub_bytes_per_s": 1 << 30, "rights_spread_s": 1e6}
WAIT_S = 30.0


async def written(fleet: Fleet) -> None:
    """Objects of every kind."""
    space = fleet["a"].store().space("crew")
    thread = space.thread("t")
    await thread.save({"messages": [f"message {number} " * 20 for number in range(200)], "plan": {"x": 1}}, label="first")
    await thread.save({"messages": ["another"], "plan": {"x": 2}})
    await thread.branch("what-if", at=(await thread.load()).id)
    await thread.journal.append({"kind": "note"}, key="k1")
    await thread.inbox.send({"task": 1})
    await space.counter("tokens").add(512)
    await space.set("urls").add("http://one")
    await space.register("goal").set({"aim": "high"})
    await space.map("settings").set("colour", "red")
    await space.budget("money").grant(100)
    await space.items.put(("memory", "user-1"), "likes", {"tea": True})
    async with await space.document("plan") as document:
        document.map("tasks")["t1"] = {"done": False}
    await fleet.converged()


async def _equal(fleet: Fleet) -> None:
    """Wait until all nodes have the same rows, and nothing is reported any more."""
    async with asyncio.timeout(WAIT_S):
        while len({str(sorted(objects(fleet, name).items())) for name in fleet.members}) > 1 or any(
            fleet[name].replicator.scrubber.told for name in fleet.members
        ):
            await asyncio.sleep(0.01)


def objects(fleet: Fleet, name: str) -> dict[bytes, bytes]:
    return dict(fleet[name].storage.scan(keys.OBJECT, successor(keys.OBJECT)))


def altered(value: bytes) -> bytes:
    return value[:-1] + bytes([value[-1] ^ 1]) if value else b"\x00"


async def test_the_last_comparison_of_all_rows_is_told() -> None:
    async with Fleet("abc", **SETTINGS) as fleet:
        await written(fleet)
        async with asyncio.timeout(WAIT_S):
            while sum(fleet[name].replicator.quorum.view().compared_ms is None for name in "abc") > 1:
                await asyncio.sleep(0.01)
        told = [fleet[name].replicator.quorum.view().compared_ms for name in "abc"]
        assert told.count(None) == 1  # Of two nodes the one whose id is less sends its rows.
        assert all(ms >= 0 for ms in told if ms is not None)


@pytest.mark.answers("differing-rows-are-replaced", "scrub-repairs-by-merging")
async def test_a_row_that_was_altered_silently_is_found_named_and_replaced_whatever_it_holds() -> None:
    async with Fleet("abc", **SETTINGS) as fleet:
        await written(fleet)
        before = objects(fleet, "b")
        kinds = {(keys.split_object(key)[1], keys.split_object(key)[4][:2]): key for key in before}
        missed = []
        for number, key in enumerate(kinds.values(), 1):
            fleet["b"].storage.write({key: altered(before[key])})
            try:
                async with asyncio.timeout(WAIT_S):
                    while fleet["b"].replicator.scrubber.replaced < number:
                        await asyncio.sleep(0.005)
            except TimeoutError:
                missed.append((key, fleet["b"].replicator.scrubber.told))
                break
            await _equal(fleet)
            assert objects(fleet, "b") == before
        assert not missed
        assert [fleet[name].replicator.scrubber.replaced for name in "ac"] == [0, 0]
        for name in "abc":
            assert verify(fleet[name].storage, config=Config()).problems == []


@pytest.mark.answers("differing-rows-are-reported-for-ever")
async def test_differences_from_a_replaced_directory_are_dropped() -> None:
    async with Fleet("abc", **SETTINGS | {"scrub_interval_s": 1e6}) as fleet:
        await fleet["a"].store().space("crew").counter("tokens").add(1)
        await fleet.converged()
        key = next(iter(objects(fleet, "a")))
        node, scrubber = fleet["c"].identity().node, fleet["a"].replicator.scrubber
        piece = scrubber._database.exchange.evidence.next(int.from_bytes(key[1:3], "big"), b"")
        assert piece is not None
        assert scrubber._differences.compare(node, piece, {}, now=0.0)
        await fleet.crash("c")
        assert len(scrubber.told) == 1
        fleet.start("c", MemoryStorage())
        async with asyncio.timeout(WAIT_S):
            while scrubber.told:
                await asyncio.sleep(0.01)


# ── where operations have left the log ────────────────────────────────────────


async def truncated(fleet: Fleet, names: str = "") -> None:
    """Let these nodes truncate all of their logs, or all nodes."""
    members = [fleet[name] for name in names or fleet.members]
    async with asyncio.timeout(WAIT_S):
        while any(list(member.storage.scan(keys.LOG, successor(keys.LOG), limit=1)) for member in members):
            for member in members:
                member.simulated.now_ms += 2 * 3_600_000
                truncator = member.node._database.truncator
                await truncator.look(truncator.due())
            await asyncio.sleep(0.01)


@pytest.mark.answers("rows-are-rebuilt-from-a-log-that-lacks-operations")
async def test_a_row_that_was_altered_below_the_base_is_replaced_by_that_of_most_owners() -> None:
    async with Fleet("abc", **SETTINGS) as fleet:
        await written(fleet)
        await truncated(fleet)
        await _equal(fleet)
        before = objects(fleet, "b")
        kinds = {(keys.split_object(key)[1], keys.split_object(key)[4][:2]): key for key in before}
        for number, key in enumerate(list(kinds.values())[::4], 1):
            fleet["b"].storage.write({key: altered(before[key])})
            async with asyncio.timeout(WAIT_S):
                while fleet["b"].replicator.scrubber.replaced < number:
                    await asyncio.sleep(0.005)
            await _equal(fleet)
            assert objects(fleet, "b") == before
        assert [fleet[name].replicator.scrubber.replaced for name in "ac"] == [0, 0]
        for name in "abc":
            assert verify(fleet[name].storage, config=Config()).problems == []


async def test_a_row_that_is_missing_or_new_below_the_base_is_settled_too() -> None:
    async with Fleet("abc", **SETTINGS) as fleet:
        await written(fleet)
        await truncated(fleet)
        before = objects(fleet, "b")
        key = next(key for key in before if keys.split_object(key)[1] == keys.Kind.SET)
        fleet["b"].storage.write({key: None, key + b"x": b"y"})
        async with asyncio.timeout(WAIT_S):
            while objects(fleet, "b") != before:
                await asyncio.sleep(0.005)


@pytest.mark.answers("rows-are-rebuilt-from-a-log-that-lacks-operations")
async def test_without_a_majority_a_difference_below_the_base_is_reported_on_all_sides() -> None:
    async with Fleet("ab", **SETTINGS) as fleet:
        await written(fleet)
        await truncated(fleet)
        before = objects(fleet, "b")
        key = next(iter(before))
        fleet["b"].storage.write({key: altered(before[key])})
        async with asyncio.timeout(WAIT_S):
            for name in "ab":
                while not any("no majority of the owners" in text for text in fleet[name].replicator.scrubber.told):
                    await asyncio.sleep(0.005)
        assert [fleet[name].replicator.scrubber.replaced for name in "ab"] == [0, 0]
        assert objects(fleet, "a") == before


async def test_three_owners_of_three_opinions_do_not_ask_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, sound = [0], Majority.settle

    async def counted(self: Majority, *where: Any) -> Outcome:
        looked[0] += 1
        return await sound(self, *where)

    async with Fleet("abc", **SETTINGS) as fleet:
        await written(fleet)
        await truncated(fleet)
        key, value = next(iter(objects(fleet, "b").items()))
        monkeypatch.setattr(Majority, "settle", counted)
        fleet["b"].storage.write({key: altered(value)})
        fleet["c"].storage.write({key: altered(value)[::-1]})
        async with asyncio.timeout(WAIT_S):
            for name in "abc":
                while not any("no majority of the owners" in text for text in fleet[name].replicator.scrubber.told):
                    await asyncio.sleep(0.005)
        await asyncio.sleep(1)
    assert looked[0] <= 6


@pytest.mark.answers("rows-are-rebuilt-from-a-log-that-lacks-operations")
async def test_nothing_is_rebuilt_from_a_log_that_lacks_operations() -> None:
    """Its other operations do not make the rows: they would be taken for wrong, and deleted."""
    async with Fleet("abc", **SETTINGS | {"scrub_interval_s": 1e6}) as fleet:
        await fleet["a"].store().space("crew").thread("t").journal.append(1)
        await fleet.converged()
        await truncated(fleet)
        await fleet["a"].store().space("crew").thread("t").journal.append(2)
        await fleet.converged()
        before = objects(fleet, "b")
        scrubber = fleet["b"].replicator.scrubber
        place = place_of(keys.object_rows(*keys.split_object(next(iter(before)))[:4]))
        assert await scrubber._database.exchange.rebuilder.rebuild(place, scrubber._fetch) is Outcome.SOUND
        assert objects(fleet, "b") == before


@pytest.mark.answers("seed-300683", "rows-are-rebuilt-from-a-log-that-lacks-operations")
async def test_a_whole_log_outweighs_two_copies_of_an_altered_row() -> None:
    """As when a lost disk was filled by the node whose disk had altered the row."""
    async with Fleet("abc", **SETTINGS) as fleet:
        await written(fleet)
        await truncated(fleet, "ab")
        await _equal(fleet)
        before = objects(fleet, "c")
        key = next(key for key in before if keys.split_object(key)[1] == keys.Kind.REGISTER)
        for name in "ab":
            fleet[name].storage.write({key: altered(before[key])})
        async with asyncio.timeout(WAIT_S):
            while any(fleet[name].replicator.scrubber.replaced < 1 for name in "ab"):
                await asyncio.sleep(0.005)
        await _equal(fleet)
        assert [objects(fleet, name)[key] for name in "abc"] == [before[key]] * 3
        assert fleet["c"].replicator.scrubber.replaced == 0


@pytest.mark.parametrize("holder", "abc")
async def test_a_log_that_is_read_after_a_majority_was_found_decides_too(monkeypatch: pytest.MonkeyPatch, holder: str) -> None:
    """Whichever of two nodes asks the other, and whoever is done first."""
    async with Fleet("abc", **SETTINGS) as fleet:
        await fleet["a"].store().space("crew").register("goal").set("aim")
        await fleet.converged()
        others = "abc".replace(holder, "")
        await truncated(fleet, others)
        await _equal(fleet)
        [(key, right)] = [row for row in objects(fleet, holder).items() if keys.split_object(row[0])[4]][-1:]
        scrubber = fleet[holder].replicator.scrubber
        proved = scrubber._proved
        confirmed: set[str] = set()

        def later(number: int) -> list[bytes]:
            confirmed.update(name for name in others if Outcome.CONFIRMED in fleet[name].replicator.scrubber._outcomes.values())
            return proved(number) if len(confirmed) == len(others) else []

        monkeypatch.setattr(scrubber, "_proved", later)
        for name in others:
            fleet[name].storage.write({key: altered(right)})
        async with asyncio.timeout(WAIT_S):
            while any(fleet[name].replicator.scrubber.replaced < 1 for name in others):
                await asyncio.sleep(0.005)
        assert [objects(fleet, name)[key] for name in "abc"] == [right] * 3


@pytest.mark.answers("seed-361119")
async def test_a_log_without_the_operations_of_forgotten_origins_makes_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although nothing was truncated."""
    async with Fleet("abc", **SETTINGS) as fleet:
        await fleet["a"].store().space("crew").register("goal").set("aim")
        await fleet.converged()
        monkeypatch.setattr(rebuilding, "is_whole", lambda storage, partition: False)
        [(key, right)] = [row for row in objects(fleet, "c").items() if keys.split_object(row[0])[4]][-1:]
        fleet["c"].storage.write({key: altered(right)})
        async with asyncio.timeout(WAIT_S):
            while fleet["c"].replicator.scrubber.replaced < 1:
                await asyncio.sleep(0.005)
        assert objects(fleet, "c")[key] == right


@pytest.mark.answers("seed-361895", "seed-375079")
@pytest.mark.parametrize("table", [dag.CHUNK, dag.CHECKPOINT])
async def test_content_that_does_not_match_its_hash_has_no_vote_and_is_replaced_by_any_owners_that_does(table: bytes) -> None:
    """As when a lost disk was filled by the node whose disk had altered it, and the log is gone everywhere."""
    async with Fleet("abc", **SETTINGS) as fleet:
        await written(fleet)
        await truncated(fleet)
        await _equal(fleet)
        before = objects(fleet, "b")
        content = next(key for key in before if keys.split_object(key)[4].startswith(table))
        for name in "ac":
            fleet[name].storage.write({content: altered(before[content])})
        async with asyncio.timeout(WAIT_S):
            while any(fleet[name].replicator.scrubber.replaced < 1 for name in "ac"):
                await asyncio.sleep(0.005)
        await _equal(fleet)
        assert [objects(fleet, name)[content] for name in "abc"] == [before[content]] * 3
        assert fleet["b"].replicator.scrubber.replaced == 0


async def test_a_claim_that_no_log_shows_replaces_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A member has altered its rows, says that its whole log makes them, and has no such log."""
    async with Fleet("abc", **SETTINGS | {"repair_wait_s": 0.2}) as fleet:
        await fleet["a"].store().space("crew").register("goal").set("aim")
        await fleet.converged()
        await truncated(fleet)
        await _equal(fleet)
        [(key, right)] = [row for row in objects(fleet, "c").items() if keys.split_object(row[0])[4]][-1:]
        name = keys.object_rows(*keys.split_object(key)[:4])
        lies(monkeypatch, fleet, "c", {key: altered(right)})
        async with asyncio.timeout(WAIT_S):
            while any(fleet[honest].replicator.scrubber.unshown < 1 for honest in "ab"):
                await asyncio.sleep(0.005)
        await asyncio.sleep(5)
        assert [objects(fleet, honest)[key] for honest in "ab"] == [right] * 2
        assert [fleet[honest].replicator.scrubber.replaced for honest in "ab"] == [0, 0]
        assert fleet["a"].replicator.scrubber._outcomes[name] is Outcome.CONFIRMED
    assert "c:1 says that its log makes its rows of register 'goal' of space 'crew', and did not show it" in caplog.text


@pytest.mark.parametrize("forgery", ["payload", "all"])
async def test_a_log_that_is_not_the_one_that_left_shows_nothing(monkeypatch: pytest.MonkeyPatch, forgery: str) -> None:
    """It makes the rows of the member that lies, with hashes that follow from each other."""
    async with Fleet("abc", **SETTINGS | {"repair_wait_s": 0.2}) as fleet:
        await fleet["a"].store().space("crew").register("goal").set("aim")
        await fleet.converged()
        await truncated(fleet, "ab")
        await _equal(fleet)
        [(key, right)] = [row for row in objects(fleet, "c").items() if keys.split_object(row[0])[4]][-1:]
        lies(monkeypatch, fleet, "c", {key: right.replace(b"aim", b"lie")})

        def forged(source: str, _target: str, message: bytes) -> bytes | None:
            found = messages.decode(message)
            if source != "c" or not isinstance(found, messages.Supply):
                return message
            return messages.encode(messages.Supply(found.id, [_forged(each, forgery) for each in found.operations]))

        fleet.spoil = forged
        async with asyncio.timeout(WAIT_S):
            while any(fleet[honest].replicator.scrubber.unshown < 1 for honest in "ab"):
                await asyncio.sleep(0.005)
        assert [objects(fleet, honest)[key] for honest in "ab"] == [right] * 2
        assert fleet["b"].replicator.scrubber.replaced == 0


def _forged(shipment: messages.Shipment | Raw, forgery: str) -> messages.Shipment:
    assert isinstance(shipment, messages.Shipment)
    packed = shipment.packed.replace(b"aim", b"lie")
    chain = operation.chain(operation.CHAIN_START, shipment.partition, shipment.dot, packed)
    return msgspec.structs.replace(shipment, packed=packed, chain=chain if forgery == "all" else shipment.chain)


def lies(monkeypatch: pytest.MonkeyPatch, fleet: Fleet, liar: str, rows: dict[bytes, bytes | None]) -> None:
    """Let a member alter its rows, say that its log makes them, and never replace them."""
    names = [keys.object_rows(*keys.split_object(key)[:4]) for key in rows]
    monkeypatch.setattr(fleet[liar].replicator.scrubber, "_proved", lambda _number: names)
    monkeypatch.setattr(fleet[liar].replicator.scrubber, "_examine_soon", lambda _name: None)
    fleet[liar].storage.write(rows)


@pytest.mark.answers("rows-are-rebuilt-from-a-log-that-lacks-operations")
async def test_a_false_claim_does_not_hide_a_log_that_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three with altered rows one says that its log makes them: the one whose log is whole decides all the same."""
    async with Fleet("abcde", **SETTINGS | {"scrub_interval_s": 1e6, "repair_wait_s": 0.2}) as fleet:
        await fleet["a"].store().space("crew").register("goal").set("aim")
        await fleet.converged()
        await truncated(fleet, "abce")
        [(key, value)] = [row for row in objects(fleet, "a").items() if keys.split_object(row[0])[4]][-1:]
        for node in "abe":
            fleet[node].storage.write({key: altered(value)})
        name = keys.object_rows(*keys.split_object(key)[:4])
        for node in "de":
            monkeypatch.setattr(fleet[node].replicator.scrubber, "_proved", lambda _number: [name])
        scrubber = fleet["a"].replicator.scrubber
        settled = await scrubber.majority.settle(place_of(name), name, *bounds(place_of(name).partition))
        assert (settled, objects(fleet, "a")[key]) == (Outcome.MENDED, value)


async def test_hashes_of_another_vector_are_ignored() -> None:
    async with Fleet("ab", **SETTINGS | {"scrub_interval_s": 1e6}) as fleet:
        await written(fleet)
        scrubber = fleet["a"].replicator.scrubber
        place = keys.split_object(next(iter(objects(fleet, "a"))))
        piece = scrubber._database.exchange.evidence.next(place[0], b"")
        assert piece is not None
        other = Piece(piece.partition, b"another vector", piece.start, piece.stop, 0, [], frozenset())
        scrubber.heard(fleet["b"].identity().node, other.told_of_objects(answer=False), 0.0)
        assert scrubber.told == []


def test_a_vote_of_another_vector_does_not_count() -> None:
    def nobody(*_: object) -> Any:
        raise AssertionError

    place = bounds(3)[0], bounds(3)[1]
    majority = Majority(nobody, owners=nobody, send=nobody, ask=nobody, named=nobody, config=Config())  # type: ignore[arg-type]
    piece = Piece(3, b"now", *place, 0, [], frozenset())
    majority._poll = poll = _Poll(b"name", piece, {}, set(), 2, asyncio.Event())
    majority.heard(b"b", piece._replace(vector=b"another").told_of_objects(answer=False))
    assert poll.votes == {}
    majority.heard(b"b", piece.told_of_objects(answer=False))
    majority.heard(b"b", piece.told_of_objects(answer=False))
    assert (poll.votes, poll.done.is_set()) == ({b"b": None}, False)


async def test_an_object_that_changes_while_it_is_rebuilt_is_rebuilt_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Fleet("a", **SETTINGS | {"scrub_interval_s": 1e6}) as fleet:
        counter = fleet["a"].store().space("crew").counter("n")
        await counter.add(1)
        rebuilder = fleet["a"].replicator.scrubber._database.exchange.rebuilder
        folded, begun = rebuilding.Rebuilder._folded, list[object]()

        async def meanwhile(self: rebuilding.Rebuilder, *of: Any) -> Any:
            made = await folded(self, *of)
            begun.append(made)
            if len(begun) == 1:
                await counter.add(1)
            return made

        async def nothing(*_: object) -> dict[Any, Any]:
            return {}

        monkeypatch.setattr(rebuilding.Rebuilder, "_folded", meanwhile)
        place = place_of(keys.object_rows(partition_of("crew", "n"), Kind.COUNTER, "crew", "n"))
        assert await rebuilder.rebuild(place, nothing) is Outcome.SOUND
        assert (len(begun), await counter.value()) == (2, 2)


async def test_of_two_nodes_the_lesser_asks_and_objects_are_rebuilt_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[bytes, list[bytes]]] = []
    under_way: list[bytes] = []  # By node.
    most = 0
    send, examine = Scrubber._send_piece, Scrubber._examine_one

    def sent(self: Scrubber, number: int, start: bytes, peers: list[bytes], now: float) -> None:
        asked.append((self._own, peers))
        send(self, number, start, peers, now)

    async def examined(self: Scrubber, name: bytes) -> None:
        nonlocal most
        under_way.append(self._own)
        most = max(most, under_way.count(self._own))
        try:
            await asyncio.sleep(0)
            await examine(self, name)
        finally:
            under_way.remove(self._own)

    monkeypatch.setattr(Scrubber, "_send_piece", sent)
    monkeypatch.setattr(Scrubber, "_examine_one", examined)
    async with Fleet("ab", **SETTINGS) as fleet:
        for n in range(8):  # In one partition, so that all of them are found at once.
            await fleet["a"].store().space("{crew}").counter(f"n{n}").add(1)
        await fleet.converged()
        storage = fleet["b"].storage
        storage.write({key: altered(value) for key, value in list(objects(fleet, "b").items())[:40]})
        await _equal(fleet)
    assert asked
    assert all(peer > own for own, peers in asked for peer in peers)
    assert most == 1
