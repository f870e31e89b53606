"""Histories that are filtered, and branches as of a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import msgspec
import pytest

from shoal.errors import InvalidInput, NotFound, TooLarge
from shoal.node.handler import target_of
from shoal.node.turns import at_once
from shoal.protocol import requests
from shoal.protocol.bookmark import Bookmark
from tests.node.conftest import Bench, Opener


async def test_only_what_matches_is_listed(bench: Bench) -> None:
    planner, writer = (bench.space.thread("a", author=name) for name in ("planner", "writer"))
    ids: list[str] = []
    for n in range(12):
        handle = planner if n % 2 else writer
        metadata = {"step": n % 3, "tags": ["x"]}
        ids.append((await handle.save({"n": n}, metadata=metadata, parent=ids[-1] if ids else None)).id)
    thread = bench.space.thread("a")
    assert [cp.id async for cp in thread.history(filter={"step": 0})] == ids[9::-3]
    assert [cp.id async for cp in thread.history(author="planner")] == ids[11::-2]
    assert [cp.id async for cp in thread.history(filter={"step": 0, "tags": ["x"]}, author="writer", limit=1)] == [ids[6]]
    assert [cp.id async for cp in thread.history(filter={"step": "0"})] == []
    assert [cp.id async for cp in thread.history(filter={"step": {"$gte": 1}}, limit=3)] == [ids[11], ids[10], ids[8]]
    assert [cp.author async for cp in thread.history(limit=2)] == ["planner", "writer"]


async def test_a_filter_reaches_into_nested_metadata(bench: Bench) -> None:
    thread = bench.space.thread("a")
    found = await thread.save({}, metadata={"run": {"score": 7, "by": "ana"}, "a.b": 1})
    for filter in ({"run.score": {"$gt": 6}}, {"run": {"by": "ana"}}, {"a.b": 1}, {"absent": None}):
        assert [cp.id async for cp in thread.history(filter=filter)] == [found.id], filter
    assert [cp.id async for cp in thread.history(filter={"run.score": {"$gt": 7}})] == []


async def test_a_condition_of_an_unknown_class_is_met_by_equal_bytes(bench: Bench) -> None:
    thread = bench.space.thread("a")
    await thread.save({}, metadata={"who": "ana"})
    unknown = msgspec.msgpack.encode(msgspec.msgpack.Ext(16, b"\x92\xa8Stranger\x80"))
    page = await bench.node.session().call(requests.History("crew", "a", filter={"who": unknown}))
    assert page.items == []


async def test_a_page_looks_at_so_many_and_says_where_to_go_on(open_bench: Opener) -> None:
    small = open_bench(history_scan_max=3)
    thread = small.space.thread("a")
    ids = [(await thread.save({"n": n}, metadata={"first": n == 0})).id for n in range(10)]
    page = await small.node.session().call(requests.History("crew", "a", filter={"first": b"\xc3"}))
    assert isinstance(page, requests.Checkpoints)
    assert (page.items, page.more, page.next) == ([], True, ids[7])
    assert [cp.id async for cp in thread.history(filter={"first": True})] == [ids[0]]


async def test_a_branch_is_loaded_as_of_a_time(bench: Bench) -> None:
    thread, saved = bench.space.thread("a"), []
    for n in range(4):
        saved.append(await thread.save({"n": n}))
        bench.simulated.now_ms += 1000
    await thread.rollback(saved[0].id)
    for checkpoint in saved:
        assert (await thread.load(as_of=checkpoint.time + timedelta(milliseconds=500))).id == checkpoint.id
        assert (await thread.load(as_of=checkpoint.time.timestamp() + 0.5)).id == checkpoint.id
    assert (await thread.load(as_of=saved[3].time + timedelta(hours=1))).id == saved[0].id
    assert (await thread.load(as_of=1e300)).id == saved[0].id
    with pytest.raises(NotFound, match="had no checkpoint then"):
        await thread.load(as_of=saved[0].time - timedelta(hours=1))


async def test_a_time_needs_a_zone_and_goes_with_no_id(bench: Bench) -> None:
    saved = await bench.space.thread("a").save({})
    with pytest.raises(InvalidInput, match="time zone"):
        await bench.space.thread("a").load(as_of=datetime(2026, 1, 1))  # noqa: DTZ001
    for nonsense in ("yesterday", float("nan"), True):
        with pytest.raises(InvalidInput, match="seconds since 1970"):
            await bench.space.thread("a").load(as_of=nonsense)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="only one of"):
        await bench.space.thread("a").load(saved.id, as_of=datetime(2026, 1, 1, tzinfo=UTC))
    with pytest.raises(InvalidInput, match="give only one"):
        await bench.space.thread("a").load(saved.id, label="good")


async def test_a_named_caller_tells_what_it_had_read(bench: Bench) -> None:
    await bench.space.counter("tokens").add(1)
    thread = bench.space.thread("a", author="planner")
    first, second = await thread.save({"n": 0}), await thread.save({"n": 1})
    await bench.space.counter("tokens").add(1)
    third = await thread.save({"n": 2})
    loaded = [await bench.space.thread("a").load(cp.id) for cp in (first, second, third)]
    here = bench.store._connection.session.bookmark
    assert [len(Bookmark.parse(cp.seen)) for cp in loaded] == [1, 0, 1]
    [(partition, vector)] = Bookmark.parse(loaded[2].seen)
    assert here.vector(partition) == vector


async def test_a_nameless_caller_tells_nothing(bench: Bench) -> None:
    await bench.space.counter("tokens").add(1)
    await bench.space.thread("a").save({"n": 0})
    loaded = await bench.space.thread("a").load()
    assert (loaded.author, loaded.setting, list(Bookmark.parse(loaded.seen))) == ("", {}, [])


async def test_bookmarks_without_room_go_with_the_next_checkpoint(open_bench: Opener) -> None:
    small = open_bench(seen_bytes_max=120)
    for n in range(7):
        await small.space.counter(f"c{n}").add(1)
    thread = small.space.thread("a", author="planner")
    seen: set[int] = set()
    sizes = []
    for n in range(5):
        saved = await thread.save({"n": n})
        found = [number for number, _ in Bookmark.parse((await small.space.thread("a").load(saved.id)).seen)]
        sizes.append(len(found))
        seen.update(found)
    assert max(sizes) <= 3
    assert len(seen) == 7
    assert sizes[-1] == 0


async def test_a_setting_is_kept_where_it_is_said_anew(bench: Bench) -> None:
    thread = bench.space.thread("a", configuration={"b": 1, "a": {"y": 2, "x": 1}}, dependencies={"openai": "1.2"})
    same = bench.space.thread("b", configuration={"a": {"x": 1, "y": 2}, "b": 1})
    for handle in (thread, same):
        await handle.save({"n": 0})
    first, second = await bench.space.thread("a").load(), await thread.save({"n": 1})
    assert first.setting["dependencies"] == {"openai": "1.2"}
    assert first.setting["configuration"] == (await bench.space.thread("b").load()).setting["configuration"]
    assert (await bench.space.thread("a").load(second.id)).setting == {}


async def test_metadata_beside_a_save_is_bounded(bench: Bench) -> None:
    with pytest.raises(TooLarge, match="a setting"):
        await bench.space.thread("a", dependencies={str(n): "1" * 50 for n in range(100)}).save({})
    with pytest.raises(TooLarge, match="an author"):
        await bench.space.thread("a", author="x" * 5000).save({})


async def test_a_save_that_is_sent_again_by_who_has_read_more_is_one(bench: Bench) -> None:
    first = await bench.space.thread("a", author="planner").save({"n": 0}, key="k")
    await bench.space.counter("tokens").add(1)
    again = await bench.space.thread("a", author="planner", dependencies={"x": "1"}).save({"n": 0}, key="k")
    assert again.id == first.id


def steps(bench: Bench, request: requests.ObjectRead[Any]) -> int:
    """How often others get a turn while this is answered."""
    scan = bench.node._database.scan(request, target_of(request))
    return 0 if scan is None else sum(1 for _ in scan)


async def test_a_long_history_is_read_in_steps(open_bench: Opener) -> None:
    bench = open_bench(read_step_rows_max=4, read_step_bytes_max=2000)
    thread = bench.space.thread("a")
    for n in range(20):
        await thread.save({"n": n}, metadata={"step": n})
    assert steps(bench, requests.History("crew", "a", filter={"step": msgspec.msgpack.encode(1)})) == 5
    for n in range(20):
        await thread.save({"n": n}, metadata={"text": "x" * 1000})
    assert steps(bench, requests.History("crew", "a", limit=10)) >= 5
    assert len([cp async for cp in thread.history()]) == 40


async def test_a_thread_that_is_deleted_while_its_history_is_read_lacks_nothing(open_bench: Opener) -> None:
    bench = open_bench(read_step_rows_max=4)
    thread = bench.space.thread("a")
    for n in range(20):
        await thread.save({"n": n})
    request = requests.History("crew", "a")
    scan = bench.node._database.scan(request, target_of(request))
    assert scan is not None
    next(scan)
    await thread.delete()
    page = at_once(scan)
    assert isinstance(page, requests.Checkpoints)
    assert len(page.items) == 4


async def test_a_large_checkpoint_is_verified_in_steps(bench: Bench) -> None:
    thread = bench.space.thread("a")
    await thread.save({"text": Random(1).randbytes(1 << 20)})
    assert steps(bench, requests.VerifyCheckpoints("crew", "a")) >= 8
    assert not (await thread.verify()).damage


async def test_pruning_during_verification_is_no_damage(bench: Bench) -> None:
    thread = bench.space.thread("a")
    await thread.save({"text": Random(1).randbytes(1 << 20)})
    request = requests.VerifyCheckpoints("crew", "a")
    scan = bench.node._database.scan(request, target_of(request))
    assert scan is not None
    next(scan)
    prefix = bench.node._database.document(target_of(request)).rows.key(b"")
    bench.node._commit.write(
        dict.fromkeys(key for key, _ in bench.storage.scan(prefix, prefix + b"\xff"))
    )  # As the sweep does.
    found = at_once(scan)
    assert isinstance(found, requests.Verified)
    assert found.damage == []
