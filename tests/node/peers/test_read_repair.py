"""What one node's disk has damaged is fetched again from a peer, checked, and whole from then on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from hashlib import sha256
from random import Random

import pytest

from shoal.cluster import messages
from shoal.cluster.messages import Message, RepairReply, RepairRequest
from shoal.cluster.operation import partition_of
from shoal.config import Config
from shoal.errors import NotFound, StoreCorrupt, Unavailable
from shoal.kinds.thread.state import chunking as tree
from shoal.kinds.thread.state import dag
from shoal.kinds.thread.state.dag import CHECKPOINT, CHUNK
from shoal.node.handler import Target
from shoal.node.peers import read_repair
from shoal.node.peers.read_repair import Verdict
from shoal.node.verification.verify import verify
from shoal.protocol import requests
from shoal.storage import keys
from shoal.storage.cold import FILE_CHUNKS
from simulation.world.fleet import Fleet, Member
from tests.node.conftest import Bench

STATE = {"m": [f"message {n} " * 40 for n in range(60)], "n": 1}
Damage = Callable[[bytes], bytes | None]
DAMAGES: dict[str, Damage] = {
    "flipped": lambda value: value[:-1] + bytes([value[-1] ^ 1]),
    "cut": lambda value: value[:10],
    "deleted": lambda value: None,
}


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet(repair_wait_s=0.05) as fleet:
        yield fleet


def rows_of(member: Member | Bench, first: bytes, thread: str = "t") -> dict[bytes, bytes]:
    table = keys.object_rows(partition_of("crew", thread), keys.Kind.THREAD, "crew", thread)
    return {key: value for key, value in member.storage.scan(table, None) if key.startswith(table + first)}


def spoil(member: Member | Bench, damage: Damage, *firsts: bytes) -> dict[bytes, bytes]:
    """Damage all rows of some kinds of a thread; returns them as they were."""
    sound = {key: value for first in firsts for key, value in rows_of(member, first).items()}
    assert sound
    member.storage.write({key: damage(value) for key, value in sound.items()})
    return sound


def listen(fleet: Fleet) -> list[tuple[str, str, Message]]:
    """The questions and answers about damage, as they come through."""
    heard: list[tuple[str, str, Message]] = []

    def spoil(source: str, target: str, message: bytes) -> bytes:
        decoded = messages.decode(message)
        if isinstance(decoded, RepairRequest | RepairReply):
            heard.append((source, target, decoded))
        return message

    fleet.spoil = spoil
    return heard


async def saved(fleet: Fleet, name: str = "a", *, count: int = 1) -> None:
    thread = fleet[name].store().space("crew").thread("t")
    for n in range(count):
        await thread.save({"m": STATE["m"][: 60 - count + 1 + n], "n": 1})  # type: ignore[index]
    await fleet.converged()


async def load(member: Member) -> object:
    return (await member.store().space("crew").thread("t").load()).state


async def status(member: Member) -> requests.NodeStatus:
    found = await member.node.session().call(requests.Status())
    assert isinstance(found, requests.NodeStatus)
    return found


@pytest.mark.answers("scrub-repairs-by-merging", note="checkpoints are repaired when they are read")
@pytest.mark.parametrize("first", [CHUNK, CHECKPOINT], ids=["chunks", "record"])
@pytest.mark.parametrize("damage", DAMAGES)
async def test_damaged_rows_are_whole_again_after_one_question(fleet: Fleet, damage: str, first: bytes) -> None:
    await saved(fleet)
    sound = spoil(fleet["b"], DAMAGES[damage], first)
    heard = listen(fleet)
    assert await load(fleet["b"]) == STATE
    assert rows_of(fleet["b"], first) == sound
    assert [type(message) for _, _, message in heard] == [RepairRequest, RepairReply]
    assert await load(fleet["b"]) == STATE
    assert len(heard) == 2, "it is mended for good"
    assert fleet.rows("a") == fleet.rows("b")
    assert verify(fleet["b"].storage, config=Config()).problems == []
    told = await status(fleet["b"])
    assert (told.repaired, told.repairs_failed) == (len(sound), 0)


@pytest.mark.answers("scrub-repairs-by-merging", note="files are repaired when they are read")
@pytest.mark.parametrize("damage", DAMAGES)
async def test_damaged_chunks_of_files_are_whole_again(fleet: Fleet, damage: str) -> None:
    content = Random(1).randbytes(3 << 20)
    await fleet["a"].store().space("crew").thread("t").put_file("page", content)
    await fleet.converged()
    sound = spoil(fleet["b"], DAMAGES[damage], FILE_CHUNKS)
    assert len(sound) > 1
    for _ in range(2):
        async with fleet["b"].store().space("crew").thread("t").open_file("page") as stream:
            assert await stream.read() == content
    assert rows_of(fleet["b"], FILE_CHUNKS) == sound
    told = await status(fleet["b"])
    assert (told.repaired, told.repairs_failed) == (len(sound), 0)


async def test_a_put_fetches_a_chunk_that_it_shares_and_that_is_missing(fleet: Fleet) -> None:
    content = Random(1).randbytes(3 << 20)
    await fleet["a"].store().space("crew").thread("t").put_file("page", content)
    await fleet.converged()
    sound = spoil(fleet["b"], DAMAGES["deleted"], FILE_CHUNKS)
    thread = fleet["b"].store().space("crew").thread("t")
    await thread.put_file("longer", content + b"more")
    assert (await status(fleet["b"])).repaired > 0
    async with thread.open_file("longer") as stream:
        assert await stream.read() == content + b"more"
    async with thread.open_file("page") as stream:
        assert await stream.read() == content
    assert rows_of(fleet["b"], FILE_CHUNKS).items() >= sound.items()


async def test_a_missing_chunk_that_nobody_has_is_damage_until_it_is_sent_again(bench: Bench) -> None:
    content = Random(1).randbytes(3 << 20)
    thread = bench.space.thread("t")
    await thread.put_file("page", content)
    spoil(bench, DAMAGES["deleted"], FILE_CHUNKS)
    with pytest.raises(StoreCorrupt, match="is missing"):
        async with thread.open_file("page") as stream:
            await stream.read()
    await thread.put_file("longer", content + b"more")
    async with thread.open_file("longer") as stream:
        assert await stream.read() == content + b"more"


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_record_whose_save_has_left_the_log_is_mended(fleet: Fleet, damage: str) -> None:
    await saved(fleet)
    for member in fleet.members.values():
        member.simulated.now_ms += 8 * 24 * 3_600_000  # So long that a quorum is enough.
        truncator = member.node._database.truncator
        async with asyncio.timeout(30):
            while list(member.storage.scan(keys.LOG, keys.META, limit=1)):  # M follows L.
                await truncator.look(truncator.due())
                await asyncio.sleep(0.01)
    sound = spoil(fleet["b"], DAMAGES[damage], CHECKPOINT)
    assert await load(fleet["b"]) == STATE
    assert rows_of(fleet["b"], CHECKPOINT) == sound


async def test_mended_rows_survive_a_crash(fleet: Fleet) -> None:
    await saved(fleet)
    sound = spoil(fleet["b"], DAMAGES["deleted"], CHUNK)
    await load(fleet["b"])
    left = await fleet.crash("b")
    assert rows_of(fleet.start("b", left), CHUNK) == sound


async def test_records_chunks_and_the_nodes_over_them_are_mended_in_one_read() -> None:
    state = {"m": [sha256(bytes([n % 256, n // 256])).hexdigest() * 100 for n in range(200)]}
    async with Fleet("ab") as fleet:
        thread = fleet["a"].store().space("crew").thread("t")
        await thread.save(state)
        await thread.append("m", "more")
        await fleet.converged()
        sound = spoil(fleet["b"], DAMAGES["deleted"], CHUNK, CHECKPOINT)
        assert any(len(value) == tree.FANOUT * tree.DIGEST_BYTES for value in sound.values()), "the tree has nodes"
        loaded = await fleet["b"].store().space("crew").thread("t").load()
        assert loaded.state == {"m": [*state["m"], "more"]}
        assert {**rows_of(fleet["b"], CHUNK), **rows_of(fleet["b"], CHECKPOINT)} == sound


@pytest.mark.parametrize("first", [CHUNK, CHECKPOINT], ids=["chunks", "record"])
async def test_rows_in_a_block_that_cannot_be_read_are_written_anew(
    fleet: Fleet, first: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    await saved(fleet)
    storage = fleet["b"].storage
    bad = set(rows_of(fleet["b"], first))
    get, write = storage.get, storage.write

    def unreadable(key: bytes, /) -> bytes | None:
        if key in bad:
            raise StoreCorrupt("a block does not pass its checksum.")
        return get(key)

    def healing(rows: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]] = (), /) -> int:
        bad.difference_update(rows)
        return write(rows, ranges)

    monkeypatch.setattr(storage, "get", unreadable)
    monkeypatch.setattr(storage, "write", healing)
    assert await load(fleet["b"]) == STATE
    assert not bad


async def test_damage_that_no_peer_can_prove_is_not_asked_for(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    await saved(fleet)
    [heads] = rows_of(fleet["b"], dag.BRANCH)
    get = fleet["b"].storage.get

    def unreadable(key: bytes, /) -> bytes | None:
        if key == heads:
            raise StoreCorrupt("a block does not pass its checksum.")
        return get(key)

    monkeypatch.setattr(fleet["b"].storage, "get", unreadable)
    heard = listen(fleet)
    with pytest.raises(StoreCorrupt, match="not asked for rows of this kind"):
        await load(fleet["b"])
    assert heard == []


async def test_a_history_does_not_end_where_a_record_is_missing(fleet: Fleet) -> None:
    await saved(fleet, count=4)
    for key, stored in rows_of(fleet["b"], CHECKPOINT).items():
        if len(dag.unpack(key[-32:], stored).record.parents) == 0:
            fleet["b"].storage.write({key: None})
    history = fleet["b"].store().space("crew").thread("t").history(limit=10)
    assert len([found async for found in history]) == 4


async def test_a_save_on_what_is_damaged_mends_it(fleet: Fleet) -> None:
    await saved(fleet)
    spoil(fleet["b"], DAMAGES["cut"], CHECKPOINT)
    thread = fleet["b"].store().space("crew").thread("t")
    await thread.append("m", "more")
    assert (await thread.load()).state == {"m": [*STATE["m"], "more"], "n": 1}  # type: ignore[misc]
    assert (await status(fleet["b"])).repaired == 1


async def test_readers_of_the_same_share_one_question(fleet: Fleet) -> None:
    await saved(fleet)
    spoil(fleet["b"], DAMAGES["flipped"], CHUNK)
    heard = listen(fleet)
    assert await asyncio.gather(*[load(fleet["b"]) for _ in range(5)]) == [STATE] * 5
    assert [type(message) for _, _, message in heard] == [RepairRequest, RepairReply]


async def test_a_peer_that_has_it_damaged_too_gives_nothing_and_the_next_is_asked(fleet: Fleet) -> None:
    await saved(fleet)
    for name in "ab":
        spoil(fleet[name], DAMAGES["flipped"], CHUNK)
    heard = listen(fleet)
    assert await load(fleet["b"]) == STATE
    given = {source: len(message.rows) for source, _, message in heard if isinstance(message, RepairReply)}
    assert given.get("a", 0) == 0
    assert given["c"] > 0
    assert await load(fleet["a"]) == STATE


async def test_a_missing_row_names_the_peers_that_were_asked(fleet: Fleet) -> None:
    await saved(fleet)
    for name in "abc":
        spoil(fleet[name], DAMAGES["deleted"], CHUNK)
    await fleet.isolate("c")
    with pytest.raises(Unavailable) as later:
        await load(fleet["b"])
    assert "a:1 does not have it" in later.value.message
    assert "c:1 cannot be reached" in later.value.message
    fleet.link_all("c")
    with pytest.raises(StoreCorrupt) as refused:
        await load(fleet["b"])
    text = refused.value.message
    assert "thread 't' of space 'crew'" in text
    assert "channel 'm' of checkpoint" in text
    assert "a:1 does not have it" in text
    assert "c:1 does not have it" in text
    assert refused.value.detail["asked"] in (["a:1", "c:1"], ["c:1", "a:1"])
    assert (await status(fleet["b"])).repairs_failed == 2


async def test_operations_that_peers_hold_are_no_corruption(fleet: Fleet) -> None:
    """Just after a start no link is there, and both peers have the row."""
    await saved(fleet)
    spoil(fleet["b"], DAMAGES["flipped"], CHUNK)
    fleet.start("b", await fleet.crash("b", None), linked=False)
    with pytest.raises(Unavailable, match="could not be fetched again yet") as later:
        await load(fleet["b"])
    assert later.value.retryable
    assert later.value.written == "no"
    fleet.link_all("b")
    assert await load(fleet["b"]) == STATE


async def test_a_silent_peer_is_waited_for_once(fleet: Fleet) -> None:
    await saved(fleet)
    spoil(fleet["b"], DAMAGES["deleted"], CHUNK)
    fleet.spoil = lambda source, target, message: None if isinstance(messages.decode(message), RepairReply) else message
    with pytest.raises(Unavailable, match=r"a:1 did not answer within 0.05 s; c:1 did not answer"):
        await load(fleet["b"])
    fleet.spoil = lambda source, target, message: message
    assert await load(fleet["b"]) == STATE


async def test_a_peer_that_could_not_answer_yet_is_asked_again_once_its_link_is_there() -> None:
    async with Fleet("ab", repair_wait_s=10.0) as fleet:
        await saved(fleet)
        spoil(fleet["b"], DAMAGES["deleted"], CHUNK)
        heard = listen(fleet)
        await fleet.cut("a", "b")
        reading = asyncio.create_task(load(fleet["b"]))
        while not heard:
            await asyncio.sleep(0.001)
        fleet.link("a", "b")
        assert await reading == STATE
        assert [(source, type(message)) for source, _, message in heard[-2:]] == [("b", RepairRequest), ("a", RepairReply)]


def lying(*liars: str) -> Callable[[str, str, bytes], bytes]:
    def spoil(source: str, target: str, message: bytes) -> bytes:
        decoded = messages.decode(message)
        if source in liars and isinstance(decoded, RepairReply):
            return messages.encode(RepairReply(decoded.id, [(row, value[:-1] + b"?") for row, value in decoded.rows]))
        return message

    return spoil


async def a_liar_is_refused_and_named(first: bytes) -> None:
    async with Fleet() as fleet:
        await saved(fleet)
        sound = spoil(fleet["b"], DAMAGES["cut"], first)
        damaged = rows_of(fleet["b"], first)
        fleet.spoil = lying("a", "c")
        with pytest.raises(StoreCorrupt, match=r"a:1 sent other rows than those asked for; c:1 sent other rows"):
            await load(fleet["b"])
        assert rows_of(fleet["b"], first) == damaged
        fleet.spoil = lying("a")
        assert await load(fleet["b"]) == STATE
        assert rows_of(fleet["b"], first) == sound


@pytest.mark.answers("scrub-repairs-by-merging", note="checkpoints are repaired when they are read")
@pytest.mark.parametrize("first", [CHUNK, CHECKPOINT], ids=["chunks", "record"])
async def test_a_lying_peer_is_refused_and_named_and_the_next_is_asked(first: bytes) -> None:
    await a_liar_is_refused_and_named(first)


@pytest.mark.parametrize("first", [CHUNK, CHECKPOINT], ids=["chunks", "record"])
async def test_an_asker_that_checks_no_hash_would_be_found(first: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_repair, "judge", lambda transaction, place, row, value: Verdict.WHOLE)
    with pytest.raises(BaseException, match=r"DID NOT RAISE|did not match"):
        await a_liar_is_refused_and_named(first)


async def test_a_row_that_was_not_asked_for_is_refused(fleet: Fleet) -> None:
    await saved(fleet)
    spoil(fleet["b"], DAMAGES["deleted"], CHUNK)
    planted = CHUNK + sha256(b"planted").digest()

    def plant(source: str, target: str, message: bytes) -> bytes:
        decoded = messages.decode(message)
        return (
            messages.encode(RepairReply(decoded.id, [(planted, b"planted")])) if isinstance(decoded, RepairReply) else message
        )

    fleet.spoil = plant
    with pytest.raises(StoreCorrupt, match="sent other rows than those asked for"):
        await load(fleet["b"])
    assert not any(key.endswith(planted) for key in rows_of(fleet["b"], CHUNK))


async def test_a_record_of_another_time_than_the_log_says_is_refused(fleet: Fleet) -> None:
    await saved(fleet)
    spoil(fleet["b"], DAMAGES["deleted"], CHECKPOINT)

    def shift(source: str, target: str, message: bytes) -> bytes:
        decoded = messages.decode(message)
        if not isinstance(decoded, RepairReply):
            return message
        return messages.encode(
            RepairReply(decoded.id, [(row, value[:39] + b"\x01" + value[40:]) for row, value in decoded.rows])
        )

    fleet.spoil = shift
    with pytest.raises(StoreCorrupt, match="sent other rows than those asked for"):
        await load(fleet["b"])


async def test_a_deletion_during_a_question_to_a_peer_stands(fleet: Fleet) -> None:
    await saved(fleet)
    spoil(fleet["b"], DAMAGES["deleted"], CHUNK)
    asked = asyncio.Event()

    def hear(source: str, target: str, message: bytes) -> bytes:
        if isinstance(messages.decode(message), RepairRequest):
            asked.set()
        return message

    fleet.spoil = hear
    fleet.wires["a", "b"].open.clear()
    fleet.wires["c", "b"].open.clear()
    reading = asyncio.create_task(load(fleet["b"]))
    await asked.wait()
    await fleet["b"].store().space("crew").thread("t").delete()
    for source in "ac":
        fleet.wires[source, "b"].open.set()
    with pytest.raises(NotFound):
        await reading
    await fleet.converged()
    assert (await status(fleet["b"])).repaired == 0


async def test_values_that_cannot_be_written_back_are_not_shown(fleet: Fleet) -> None:
    await saved(fleet)
    spoil(fleet["b"], DAMAGES["deleted"], CHUNK)
    fleet["b"].storage.fail_next("write")
    with pytest.raises(StoreCorrupt, match="could not be written here"):
        await load(fleet["b"])


async def test_of_one_save_at_two_nodes_the_record_that_counts_is_brought(fleet: Fleet) -> None:
    await fleet.isolate("a")
    for name in "ab":
        save = requests.Save("crew", "t", {"m": b"\xc4\x40" + bytes(64)})
        await fleet[name].node.session().call(save, key="one-request")
    fleet.link_all("a")
    await fleet.converged()
    for name in "abc":
        sound = spoil(fleet[name], DAMAGES["deleted"], CHECKPOINT)
        await fleet[name].node.session().call(requests.Load("crew", "t"))
        assert rows_of(fleet[name], CHECKPOINT) == sound


async def test_without_peers_the_error_stands(bench: Bench) -> None:
    await bench.space.thread("t").save(STATE)
    spoil(bench, DAMAGES["cut"], CHECKPOINT)
    with pytest.raises(StoreCorrupt, match=r"thread 't' of space 'crew'.*no peers that could be asked"):
        await bench.space.thread("t").load()


async def test_a_damaged_record_that_can_be_decoded_is_never_shown(bench: Bench) -> None:
    await bench.space.thread("t").save(STATE, metadata={"by": "planner"})
    [(key, stored)] = rows_of(bench, CHECKPOINT).items()
    bench.storage.write({key: stored.replace(b"planner", b"plunder")})
    with pytest.raises(StoreCorrupt, match="id does not match"):
        await bench.space.thread("t").load()
    with pytest.raises(StoreCorrupt, match="id does not match"):
        [found async for found in bench.space.thread("t").history()]


async def test_only_rows_that_can_be_checked_are_given(fleet: Fleet) -> None:
    await saved(fleet)
    assert rows_of(fleet["a"], dag.BRANCH + b"main")
    answer = fleet["a"].replicator._mender.answer(
        RepairRequest(7, keys.Kind.THREAD, "crew", "t", 0, [b"Bmain", CHUNK + bytes(32)])
    )
    assert answer == RepairReply(7, [])


async def test_a_damaged_row_is_not_given(fleet: Fleet) -> None:
    await saved(fleet)
    digests = [key.partition(b"crew")[2][3:] for key in rows_of(fleet["a"], CHUNK)]
    assert all(digest.startswith(CHUNK) for digest in digests)
    request = RepairRequest(7, keys.Kind.THREAD, "crew", "t", 0, digests)
    mender = fleet["a"].replicator._mender
    assert len(mender.answer(request).rows) == len(digests) > 0
    spoil(fleet["a"], DAMAGES["flipped"], CHUNK)
    assert mender.answer(request) == RepairReply(7, [])


async def test_peers_that_failed_are_not_asked_again(fleet: Fleet) -> None:
    await saved(fleet)
    mender = fleet["a"].replicator._mender
    heard = listen(fleet)
    place = read_repair.DamagedObject(Target(keys.Kind.THREAD, "crew", "t"), 0)
    brought = await mender._fetch(place, (CHUNK + bytes(32),), frozenset(["b:1", "c:1"]))
    assert (brought.rows, brought.failed, heard) == ({}, {}, [])
