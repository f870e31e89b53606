from __future__ import annotations

import asyncio

import msgspec
import pytest

import shoal
from shoal.cluster import operation
from shoal.cluster.operation import partition_of
from shoal.crdt.dot import Dot
from shoal.errors import (
    HeadMoved,
    InvalidInput,
    InvalidName,
    InvalidValue,
    KeyExpired,
    KeyReused,
    NotFound,
    StoreCorrupt,
    TooLarge,
)
from shoal.kinds.thread.state import dag
from shoal.protocol import requests
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from tests.node.conftest import Bench, Opener


async def test_a_state_loads_as_it_was_saved(bench: Bench) -> None:
    state = {"messages": [{"role": "user", "content": "hi"}], "plan": {"a": (1, 2)}, "step": 3, "none": None}
    saved = await bench.space.thread("a").save(state, metadata={"source": "loop"})
    loaded = await bench.space.thread("a").load()
    assert (loaded.id, loaded.state, loaded.metadata) == (saved.id, state, {"source": "loop"})


async def test_channels_come_back_in_the_order_in_which_they_were_saved(bench: Bench) -> None:
    await bench.space.thread("a").save({"z": 1, "a": 2, "m": 3})
    assert list((await bench.space.thread("a").load()).state) == ["z", "a", "m"]


async def test_a_growing_state_loads_at_every_checkpoint(bench: Bench) -> None:
    thread, saved = bench.space.thread("a"), {}
    for turn in range(60):
        state = {"messages": [f"message {n} " * 40 for n in range(turn)], "step": turn}
        saved[(await thread.save(state)).id] = state
    cold = bench.space.thread("a")
    assert {id: (await cold.load(id)).state for id in saved} == saved


async def test_a_cold_cache_loads_the_same(bench: Bench, open_bench: Opener) -> None:
    thread, saved = bench.space.thread("a"), {}
    for turn in range(70):
        state = {"messages": [f"message {n} " * 40 for n in range(turn)]}
        saved[(await thread.save(state)).id] = state
    again = open_bench(bench.storage.left_by_crash(0), seed=2)
    thread = again.space.thread("a")
    assert {id: (await thread.load(id)).state for id in saved} == saved


async def test_a_value_of_another_size_than_its_record_says_is_refused(bench: Bench, open_bench: Opener) -> None:
    saved = await bench.space.thread("a").save({"text": "the quick brown fox " * 1000})
    storage = bench.storage.left_by_crash(0)
    row = keys.object_rows(partition_of("crew", "a"), keys.Kind.THREAD, "crew", "a") + dag.CHECKPOINT + bytes.fromhex(saved.id)
    stored = storage.get(row) or b""
    record = dag.unpack(bytes.fromhex(saved.id), stored).record
    packed = dag.encode_record(record)
    assert stored.endswith(packed)
    larger = msgspec.structs.replace(record.channels["text"], size=record.channels["text"].size + 1)
    damaged = dag.encode_record(msgspec.structs.replace(record, channels={"text": larger}))
    storage.write({row: stored.removesuffix(packed) + damaged})
    with pytest.raises(StoreCorrupt, match="its size does not match"):
        await open_bench(storage, seed=2).space.thread("a").load()


class CountingStorage(MemoryStorage):
    gets = 0

    def get(self, key: bytes, /) -> bytes | None:
        self.gets += 1
        return super().get(key)


@pytest.mark.parametrize(("saves", "gets"), [(1, 5), (10, 14), (33, 37), (60, 37), (100, 37)])
async def test_a_cold_load_reads_few_rows_whatever_the_history(open_bench: Opener, saves: int, gets: int) -> None:
    """The retired origins, the generation, the branch, whether the checkpoint was pruned, and at most 33 records."""
    first = open_bench()
    for number in range(saves):
        await first.space.thread("a").update({"n": number}, append={"messages": [f"message {number} " * 10]})
    counting = CountingStorage(dict(first.storage.left_by_crash(None).scan(b"", None)))
    cold = open_bench(counting, seed=2)
    counting.gets = 0
    assert (await cold.space.thread("a").load()).state["n"] == saves - 1
    assert counting.gets <= gets


async def test_a_thread_without_checkpoints_is_not_found(bench: Bench) -> None:
    with pytest.raises(NotFound, match="no checkpoint on branch 'main'"):
        await bench.space.thread("nobody").load()


async def test_an_unknown_checkpoint_is_not_found(bench: Bench) -> None:
    await bench.space.thread("a").save({})
    with pytest.raises(NotFound, match="no checkpoint 0000"):
        await bench.space.thread("a").load("00" * 32)


@pytest.mark.parametrize("id", ["x", "00", "zz" * 32])
async def test_neither_id_nor_label_is_not_found(bench: Bench, id: str) -> None:
    with pytest.raises(NotFound, match=r"not an id, which has 64 hex digits, .* no such label"):
        await bench.space.thread("a").load(id)


async def test_an_empty_id_is_refused(bench: Bench) -> None:
    with pytest.raises(InvalidInput, match="must not be empty"):
        await bench.space.thread("a").load("")


async def test_a_label_names_a_checkpoint_wherever_an_id_does(bench: Bench) -> None:
    thread = bench.space.thread("a")
    first = await thread.save({"n": 1}, label="approved")
    second = await thread.save({"n": 2})
    assert (await thread.load("approved")).state == {"n": 1}
    assert (await thread.branch("side", at="approved")).head == first.id
    assert [found.id async for found in thread.history(before="approved")] == []
    for before, after in (("approved", "main"), ("approved", second.id), (first.id, "main")):
        found = await thread.diff(before, after)
        assert (found.before, found.after) == (first.id, second.id)
    assert (await thread.why("approved")).checkpoint.id == first.id
    assert (await thread.rollback("approved")).head == first.id
    [event] = [event.event async for event in thread.journal.read()]
    assert event["to"] == first.id
    third = await thread.save({"n": 3}, parent="approved")
    assert third.parents == (first.id,)
    with pytest.raises(NotFound, match="no checkpoint 'aproved'"):
        await thread.rollback("aproved")


async def test_history_is_newest_first_and_pages(bench: Bench) -> None:
    thread = bench.space.thread("a")
    ids = [(await thread.save({"n": n})).id for n in range(230)]
    assert [cp.id async for cp in thread.history()] == ids[::-1]
    assert [cp.id async for cp in thread.history(limit=3)] == ids[:-4:-1]
    assert [cp.id async for cp in thread.history(before=ids[2])] == ids[1::-1]


async def test_history_has_states_only_when_asked(bench: Bench) -> None:
    thread = bench.space.thread("a")
    await thread.save({"n": 1})
    (with_state,) = [cp async for cp in thread.history(states=True)]
    assert with_state.state == {"n": 1}
    (without,) = [cp async for cp in thread.history()]
    with pytest.raises(InvalidInput, match="without its state"):
        without.state  # noqa: B018


async def test_a_save_on_what_the_branch_has_moved_on_from_is_refused_with_the_head(bench: Bench) -> None:
    first, second = bench.space.thread("a"), bench.space.thread("a")
    await first.save({"n": 0})
    await second.load()
    left = await first.save({"n": 1})
    with pytest.raises(HeadMoved) as refused:
        await second.save({"n": 2})
    assert refused.value.detail["heads"] == [left.id]
    assert (await first.heads())["main"] == [left.id]
    await second.load()
    assert (await second.save({"n": 2})).parents == (left.id,)


async def test_a_first_save_is_refused_where_there_is_one_already(bench: Bench) -> None:
    head = await bench.space.thread("a").save({"n": 0})
    with pytest.raises(HeadMoved, match="builds on no checkpoint") as refused:
        await bench.space.thread("a").save({"n": 1}, parent=shoal.NO_HEAD)
    assert refused.value.detail["heads"] == [head.id]


@pytest.mark.answers("two-writers-extend-one-thread")
async def test_two_handles_that_ask_for_a_fork_get_it_and_are_told(bench: Bench) -> None:
    first, second = bench.space.thread("a"), bench.space.thread("a")
    root = await first.save({"n": 0})
    await second.load()
    left = await first.save({"n": 1})
    right = await second.save({"n": 2}, on_conflict="fork")
    assert not left.forked
    assert right.forked
    assert set(right.heads) == {left.id, right.id}
    assert left.parents == right.parents == (root.id,)
    assert set((await first.heads())["main"]) == {left.id, right.id}
    assert (await first.load(left.id)).state == {"n": 1}


async def test_a_writer_on_one_head_learns_of_the_fork(bench: Bench) -> None:
    first, second = bench.space.thread("a"), bench.space.thread("a")
    await first.save({"n": 0})
    await second.load()
    left = await first.save({"n": 1})
    await second.save({"n": 2}, on_conflict="fork")
    next_left = await first.save({"n": 3})
    assert next_left.parents == (left.id,)
    assert next_left.forked
    assert (await second.save({"n": 4})).forked


async def test_a_save_on_another_branchs_checkpoint_begins_a_branch_there(bench: Bench) -> None:
    thread = bench.space.thread("a")
    root = await thread.save({"n": 0})
    await thread.save({"n": 1})
    side = await thread.save({"n": 2}, branch="side", parent=root.id)
    assert (side.parents, side.heads) == ((root.id,), (side.id,))


async def test_on_conflict_is_one_of_two_words(bench: Bench) -> None:
    with pytest.raises(InvalidInput, match="'refuse', 'fork'"):
        await bench.space.thread("a").save({}, on_conflict="overwrite")  # type: ignore[arg-type]


async def test_a_request_that_names_no_parent_builds_on_the_winner(bench: Bench) -> None:
    head = await bench.space.thread("a").save({"n": 0})
    saved = await bench.node.session().call(requests.Save("crew", "a", {"n": b"\x01"}))
    assert isinstance(saved, requests.Saved)
    assert saved.parents == [head.id]


async def test_concurrent_saves_of_one_handle_follow_each_other(bench: Bench) -> None:
    thread = bench.space.thread("a")
    saved = await asyncio.gather(*(thread.save({"n": n}) for n in range(10)))
    assert [cp.id async for cp in thread.history()] == [cp.id for cp in reversed(saved)]


async def test_expect_head_passes_on_the_only_head(bench: Bench) -> None:
    thread = bench.space.thread("a")
    first = await thread.save({"n": 0}, expect_head=shoal.NO_HEAD)
    second = await bench.space.thread("a").save({"n": 1}, expect_head=first.id)
    assert second.parents == (first.id,)


@pytest.mark.answers("two-writers-extend-one-thread")
async def test_a_wrong_expect_head_is_refused_and_writes_nothing(bench: Bench) -> None:
    thread = bench.space.thread("a")
    first = await thread.save({"n": 0})
    second = await thread.save({"n": 1})
    with pytest.raises(HeadMoved) as refused:
        await thread.save({"n": 2}, expect_head=first.id)
    assert refused.value.detail["heads"] == [second.id]
    with pytest.raises(HeadMoved):
        await thread.save({"n": 2}, expect_head=shoal.NO_HEAD)
    assert (await thread.heads())["main"] == [second.id]


async def test_expect_head_refuses_a_forked_branch(bench: Bench) -> None:
    first, second = bench.space.thread("a"), bench.space.thread("a")
    await first.save({"n": 0})
    await second.load()
    await first.save({"n": 1})
    right = await second.save({"n": 2}, on_conflict="fork")
    with pytest.raises(HeadMoved):
        await first.save({"n": 3}, expect_head=right.id)


async def test_branches_have_heads_of_their_own(bench: Bench) -> None:
    thread = bench.space.thread("a")
    main = await thread.save({"n": 0})
    other = await thread.save({"n": 1}, branch="what-if")
    assert await thread.heads() == {"main": [main.id], "what-if": [other.id]}
    assert (await thread.load(branch="what-if")).state == {"n": 1}


@pytest.mark.answers("retry-makes-a-second-checkpoint")
async def test_the_same_key_makes_the_same_checkpoint_once(bench: Bench) -> None:
    first = await bench.space.thread("a").save({"n": 0}, key="k1")
    again = await bench.space.thread("a").save({"n": 0}, key="k1")
    assert again.id == first.id
    assert len([cp async for cp in bench.space.thread("a").history()]) == 1


@pytest.mark.answers("retry-makes-a-second-checkpoint")
async def test_the_key_is_looked_up_before_expect_head(bench: Bench) -> None:
    thread = bench.space.thread("a")
    first = await thread.save({"n": 0}, key="k1", expect_head=shoal.NO_HEAD)
    assert (await thread.save({"n": 0}, key="k1", expect_head=shoal.NO_HEAD)).id == first.id


async def test_a_handle_that_found_its_own_save_repeats_it_all_the_same(bench: Bench) -> None:
    first = await bench.space.thread("a").save({"n": 0}, key="k1")
    later = bench.space.thread("a")
    await later.load()
    assert (await later.save({"n": 0}, key="k1")).id == first.id


async def test_a_save_can_say_that_it_has_no_parent(bench: Bench) -> None:
    first = await bench.space.thread("a").save({"n": 0})
    reply = await bench.node.session().call(requests.Save("crew", "a", {}, parent=shoal.NO_HEAD, fork=True))
    assert isinstance(reply, requests.Saved)
    assert reply.parents == []
    assert set(reply.heads) == {first.id, reply.id}


async def test_a_key_with_another_request_is_refused(bench: Bench) -> None:
    await bench.space.thread("a").save({"n": 0}, key="k1")
    with pytest.raises(KeyReused, match="Nothing was written"):
        await bench.space.thread("a").save({"n": 1}, key="k1")


@pytest.mark.answers("retry-makes-a-second-checkpoint")
async def test_a_key_is_remembered_across_a_crash(bench: Bench) -> None:
    first = await bench.space.thread("a").save({"n": 0}, key="k1")
    again = bench.crashed()
    assert (await again.space.thread("a").save({"n": 0}, key="k1")).id == first.id
    await again.node.stop()


async def test_a_client_made_key_past_the_window_is_expired(bench: Bench) -> None:
    from shoal.protocol.session import make_key

    old = make_key(bench.simulated.now_ms - 25 * 3600 * 1000, bytes(10))
    with pytest.raises(KeyExpired):
        await bench.space.thread("a").save({"n": 0}, key=old)


@pytest.mark.answers("node-whose-clock-is-before-1970-fails")
@pytest.mark.parametrize("now_ms", [-5000, 1 << 60])
async def test_a_clock_that_shows_what_no_clock_can_stops_no_write(bench: Bench, now_ms: int) -> None:
    bench.simulated.now_ms = now_ms
    thread = bench.space.thread("a")
    for n in range(3):
        await thread.save({"n": n}, key=f"save-{n}")
        await thread.journal.append({"n": n}, key=f"event-{n}")
    await bench.space.items.put(("notes",), "n", {"n": 1}, ttl=60)
    await thread.prune(keep_last=1, older_than=5)
    await thread.journal.trim(older_than=5)
    assert await thread.load() is not None


async def test_an_unknown_parent_is_refused(bench: Bench) -> None:
    request = requests.Save("crew", "a", {}, parent="ab" * 32)
    with pytest.raises(NotFound, match="to save on"):
        await bench.node.session().call(request)


@pytest.mark.parametrize("name", ["", "x" * 1025, "a\nb", "\x00", "..", "é" * 513])
async def test_bad_names_are_refused(bench: Bench, name: str) -> None:
    with pytest.raises(InvalidName, match="Nothing was written"):
        await bench.node.session().call(requests.Save("crew", name, {}))
    with pytest.raises(InvalidName):
        await bench.node.session().call(requests.Save("crew", "a", {name: b"\x01"}))


async def test_a_slash_in_a_name_is_legal(bench: Bench) -> None:
    await bench.space.thread("{crew-7}/planner").save({"n": 1})
    assert [name async for name in bench.space.threads()] == ["{crew-7}/planner"]


async def test_a_value_that_cannot_be_serialised_shows_the_line_that_registers_it(bench: Bench) -> None:
    class Plan:
        pass

    with pytest.raises(InvalidValue, match=r"register\("):
        await bench.space.thread("a").save({"plan": Plan()})
    assert [name async for name in bench.space.threads()] == []


@pytest.mark.parametrize("packed", [b"", b"\xc1", b"\x01\x02", b"\x92\x01", b"\xdf\xff\xff\xff\xff"])
async def test_channel_bytes_that_are_no_msgpack_are_refused(bench: Bench, packed: bytes) -> None:
    with pytest.raises(InvalidValue):
        await bench.node.session().call(requests.Save("crew", "a", {"x": packed}))


async def test_too_many_channels_are_refused(open_bench: Opener) -> None:
    small = open_bench(channels_max=3)
    with pytest.raises(TooLarge, match="at most 3 channels"):
        await small.space.thread("a").save({str(n): n for n in range(4)})


async def test_a_state_over_the_bound_is_refused(open_bench: Opener) -> None:
    small = open_bench(request_bytes_max=1000)
    with pytest.raises(TooLarge, match="at most 1000 bytes"):
        await small.space.thread("a").save({"x": bytes(1001)})


async def test_a_state_must_be_a_mapping(bench: Bench) -> None:
    with pytest.raises(InvalidValue, match="mapping"):
        await bench.space.thread("a").save(["not", "a", "mapping"])  # type: ignore[arg-type]


async def test_threads_with_equal_checkpoint_ids_do_not_mix(bench: Bench, open_bench: Opener) -> None:
    """One key for the same save to two threads makes equal ids; each thread has its own recipes and chunks."""
    messages = [f"message {n} " * 300 for n in range(12)]
    for size in (9, 10, 11):
        state = {"m": messages[:size]}
        ids = {(await bench.space.thread(n).save(state, overwrite=True, key=f"k{size}")).id for n in ("one", "two")}
        assert len(ids) == 1
    await bench.space.thread("two").save({"m": messages}, overwrite=True)
    again = open_bench(bench.storage.left_by_crash(0), seed=2)
    assert (await again.space.thread("one").load()).state == {"m": messages[:11]}
    assert (await again.space.thread("two").load()).state == {"m": messages}


async def test_the_same_save_on_two_threads_makes_two_checkpoints(bench: Bench) -> None:
    saved = [await bench.space.thread(f"thread-{n}").save({"n": 0}) for n in range(20)]
    assert len({checkpoint.id for checkpoint in saved}) == 20


async def test_a_channel_that_does_not_change_is_stored_once(bench: Bench, open_bench: Opener) -> None:
    plan = {"steps": [f"step {n}" for n in range(60)]}
    thread = bench.space.thread("a")
    for turn in range(20):
        await thread.save({"plan": plan, "turn": turn})
    again = open_bench(bench.storage.left_by_crash(0), seed=2)
    resumed = again.space.thread("a")
    assert (await resumed.load()).state == {"plan": plan, "turn": 19}
    ids = [(await resumed.save({"plan": plan, "turn": turn})).id for turn in range(20, 25)]
    stored = sum(value.count(b"step 59") for _, value in again.storage.scan(b"", None))
    assert stored == 1
    fresh = open_bench(again.storage.left_by_crash(0), seed=3).space.thread("a")
    assert [(await fresh.load(id)).state["turn"] for id in ids] == list(range(20, 25))
    assert (await fresh.load(ids[0])).state["plan"] == plan


async def test_a_damaged_answer_under_a_key_is_refused_by_name(bench: Bench) -> None:
    await bench.space.thread("a").save({"n": 0}, key="k1")
    partition = partition_of("crew", "a")
    dot = Dot.unpack(bench.storage.get(keys.request_key(partition, "k1")) or b"")
    stored = bench.storage.get(keys.log(partition, dot)) or b""
    body = operation.decode(operation.LogEntry.unpack(stored).packed)
    damaged = operation.encode(msgspec.structs.replace(body, receipt=b"\xc1"))
    bench.storage.write({keys.log(partition, dot): operation.LogEntry(bytes(32), damaged).pack()})
    with pytest.raises(StoreCorrupt, match="idempotency key 'k1': the stored answer cannot be decoded"):
        await bench.space.thread("a").save({"n": 0}, key="k1")


@pytest.mark.answers("journal-since-a-time-beyond-all-clocks")
@pytest.mark.parametrize(("since_ms", "count"), [(1 << 62, 0), (1 << 63, 0), (1, 1), (-1, 1)])
async def test_events_since_any_time_are_read(bench: Bench, since_ms: int, count: int) -> None:
    await bench.space.thread("t").journal.append(1)
    page = await bench.node.session().call(requests.ReadJournal("crew", "t", since_ms=since_ms))
    assert len(page.events) == count
