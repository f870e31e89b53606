"""Saves that say what changed: what they make, what they refuse, and what they write and read."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from shoal.config import Config
from shoal.errors import HeadMoved, InvalidInput, InvalidName, InvalidValue, KeyReused, NotFound, StoreCorrupt, TooLarge
from shoal.kinds.thread.handle.thread import Thread
from shoal.kinds.thread.state import chunking as tree
from shoal.node.verification.verify import verify
from shoal.protocol import requests
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from simulation.world.environment import SimulatedEnvironment
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench, Opener
from tests.support.examples import examples

POOL = ["x" * n for n in (1, 30, 70, 500)] + [Random(n).randbytes(600 + 300 * n).hex() for n in range(6)]


async def changed(bench: Bench, **change: Any) -> requests.Saved:
    """A change of thread a's winner as it comes over the wire."""
    saved = await bench.node.session().call(requests.Save("crew", "a", **{"channels": {}, "delta": True, **change}))
    assert isinstance(saved, requests.Saved)
    return saved


async def test_channels_that_a_change_does_not_name_stay(bench: Bench) -> None:
    thread = bench.space.thread("a")
    await thread.save({"messages": ["a"], "plan": {"n": 1}, "tiny": None, "long": POOL[9]})
    await thread.update({"plan": {"n": 2}, "new": 7})
    assert (await thread.load()).state == {"messages": ["a"], "plan": {"n": 2}, "tiny": None, "long": POOL[9], "new": 7}
    await thread.update(append={"messages": ["b", "c"]}, remove=["tiny"])
    await thread.append("messages", "d")
    await thread.extend("messages", iter("ef"))
    loaded = (await thread.load()).state
    assert loaded == {"messages": list("abcdef"), "plan": {"n": 2}, "long": POOL[9], "new": 7}
    assert list(loaded) == ["messages", "plan", "long", "new"], "channels keep their places"


async def test_a_change_builds_on_the_position_of_its_handle(bench: Bench) -> None:
    thread = bench.space.thread("a")
    root = await thread.append("log", 1)
    assert root.parents == ()
    assert (await thread.append("log", 2)).parents == (root.id,)
    with pytest.raises(HeadMoved):
        await thread.append("log", 3, parent=root.id)
    fork = await thread.append("log", 3, parent=root.id, on_conflict="fork", metadata={"why": "x"}, key="k")
    assert (fork.parents, fork.forked, fork.metadata) == ((root.id,), True, {"why": "x"})
    assert (await thread.load(fork.id)).state == {"log": [1, 3]}


async def test_a_change_is_answered_without_the_state(bench: Bench) -> None:
    saved = await bench.space.thread("a").append("log", 1)
    with pytest.raises(InvalidInput, match=rf"Get it with load\('{saved.id}'\)"):
        saved.state  # noqa: B018


async def test_a_change_makes_the_checkpoint_that_the_whole_state_makes(bench: Bench) -> None:
    """Equal ids under one key: what a checkpoint is does not depend on how it was told."""
    ids = []
    messages = [POOL[n % 10] for n in range(30)]
    for name, whole in (("one", True), ("two", False)):
        thread = bench.space.thread(name)
        await thread.save({"m": messages, "n": 1}, key="k1")
        if whole:
            ids.append((await thread.save({"m": [*messages, "new"], "n": 1}, key="k2")).id)
        else:
            ids.append((await thread.append("m", "new", key="k2")).id)
    assert ids[0] == ids[1]


steps = st.lists(
    st.tuples(st.sampled_from("aaaaessurcw"), st.sampled_from("xyz"), st.integers(0, 9), st.booleans()), min_size=1, max_size=30
)


@examples(60, suppress_health_check=list(HealthCheck))
@given(steps)
async def test_changes_make_what_a_model_makes_whatever_is_cached(steps: list[tuple[str, str, int, bool]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree, "FANOUT", 2)  # So that there are many nodes.
        await check_changes(steps)


async def check_changes(steps: list[tuple[str, str, int, bool]]) -> None:
    bench = Bench(MemoryStorage(), SimulatedEnvironment(1), Config())
    model: dict[str, Any] = {}
    saved: dict[str, dict[str, Any]] = {}
    for what, name, which, cold in steps:
        if cold:
            left = bench.storage.left_by_crash(0)
            await bench.node.stop()
            bench = Bench(left, SimulatedEnvironment(which), Config())
        thread = bench.space.thread("t")
        model, checkpoint = await step(thread, model, what, name, POOL[which])
        saved[checkpoint] = dict(model)
    reader = bench.space.thread("t")
    assert {id: (await reader.load(id)).state for id in saved} == saved
    assert verify(bench.storage, config=Config()).problems == []
    await bench.node.stop()


async def step(thread: Thread, model: dict[str, Any], what: str, name: str, value: str) -> tuple[dict[str, Any], str]:
    """One change of `model`, made in both; the new model and the checkpoint's id."""
    there = model.get(name)
    if what == "u":
        return {**model, name: value}, (await thread.update({name: value})).id
    if what == "r" and name in model:
        return {n: v for n, v in model.items() if n != name}, (await thread.update(remove=[name])).id
    if what in "ae" and isinstance(there, list | None):
        elements = [value] * (1 if what == "a" else 12)
        return {**model, name: [*(there or []), *elements]}, (await thread.extend(name, elements)).id
    if what == "c":
        return model, (await thread.update()).id
    if what == "w":
        model = {**model, name: [value, *there[1:]] if isinstance(there, list) else [value]}
    return model, (await thread.save(model, overwrite=True)).id


async def test_a_change_reaches_the_peers(bench: Bench) -> None:
    async with Fleet() as fleet:
        thread = fleet["a"].store().space("crew").thread("t")
        for n in range(40):
            await thread.append("m", Random(n).randbytes(700).hex())
        await fleet.isolate("c")
        await thread.update({"n": 1}, remove=[])
        await thread.extend("m", [Random(-n).randbytes(700).hex() for n in range(40)])
        fleet.link_all("c")
        await fleet.converged()
        assert fleet.rows("c") == fleet.rows("a")
        there = fleet["c"].store().space("crew").thread("t")
        assert (await there.load()).state == (await thread.load()).state


@pytest.mark.parametrize("channel", ["map", "text", "number", "tuple"])
async def test_only_a_list_takes_elements(bench: Bench, channel: str) -> None:
    thread = bench.space.thread("a")
    head = await thread.save({"map": {}, "text": "t" * 100, "number": 1, "tuple": (1, 2)})
    with pytest.raises(InvalidInput, match=rf"channel '{channel}' is not a list.*Nothing was written"):
        await thread.append(channel, 1)
    assert (await thread.heads())["main"] == [head.id]


async def test_a_missing_file_cannot_be_removed(bench: Bench) -> None:
    thread = bench.space.thread("a")
    await thread.save({"x": 1})
    with pytest.raises(InvalidInput, match=r"no channel 'y' to remove; the channels are 'x'"):
        await thread.update({"x": 2}, remove=["y"])
    with pytest.raises(InvalidInput, match=r"the channels are none"):
        await bench.space.thread("b").update(remove=["y"])
    assert (await thread.load()).state == {"x": 1}


BAD_CHANGES: dict[str, dict[str, Any]] = {
    "a channel that is set and appended to": {"channels": {"x": b"\x01"}, "appended": {"x": b"\x90"}},
    "a channel that is set and removed": {"channels": {"x": b"\x01"}, "removed": ["x"]},
    "a channel that is removed twice": {"removed": ["x", "x"]},
    "elements that are no list": {"appended": {"x": b"\x80"}},
    "an append to a whole state": {"delta": False, "appended": {"x": b"\x90"}},
    "a removal from a whole state": {"delta": False, "removed": ["x"]},
}


@pytest.mark.parametrize("what", BAD_CHANGES)
async def test_a_change_that_makes_no_sense_is_refused(bench: Bench, what: str) -> None:
    with pytest.raises(InvalidInput, match="Nothing was written"):
        await changed(bench, **BAD_CHANGES[what])


async def test_elements_that_are_no_msgpack_are_refused(bench: Bench) -> None:
    for packed in (b"", b"\x92\x01", b"\xdd\xff\xff\xff\xff", b"\x91\x01\x01"):
        with pytest.raises(InvalidValue):
            await changed(bench, appended={"x": packed})


async def test_bad_names_in_a_change_are_refused(bench: Bench) -> None:
    for change in ({"appended": {"": b"\x90"}}, {"removed": ["a\nb"]}):
        with pytest.raises(InvalidName):
            await changed(bench, **change)


async def test_appends_cannot_make_a_state_that_no_answer_holds(open_bench: Opener) -> None:
    small = open_bench(request_bytes_max=2000)
    thread = small.space.thread("a")
    for n in range(3):
        head = await thread.append("m", f"{n}" * 600)
    with pytest.raises(TooLarge, match="a state may have at most 2000 bytes"):
        await thread.append("m", "x" * 600)
    with pytest.raises(TooLarge, match="a checkpoint may have"):
        await thread.extend("m", ["x" * 600] * 4)
    assert (await thread.load()).id == head.id


async def test_a_change_cannot_make_too_many_channels(open_bench: Opener) -> None:
    thread = open_bench(channels_max=3).space.thread("a")
    await thread.save({str(n): n for n in range(3)})
    with pytest.raises(TooLarge, match="at most 3 channels"):
        await thread.update({"one more": 1})


async def test_one_element_is_not_taken_for_many(bench: Bench) -> None:
    for elements in ("text", b"bytes", {"role": "user"}):
        with pytest.raises(InvalidInput, match=r"thread\.append"):
            await bench.space.thread("a").update(append={"m": elements})
    with pytest.raises(InvalidInput, match="a list of names"):
        await bench.space.thread("a").load(channels="plan")


async def test_a_repeated_append_counts_once(bench: Bench) -> None:
    thread = bench.space.thread("a")
    first = await thread.append("m", 1, key="k")
    assert (await thread.append("m", 1, key="k")).id == first.id
    with pytest.raises(KeyReused):
        await thread.append("m", 2, key="k")
    assert (await thread.load()).state == {"m": [1]}


async def test_a_batch_changes_states(bench: Bench) -> None:
    await bench.space.thread("{t}/a").save({"m": [1], "n": 1})
    async with bench.space.batch() as batch:
        batch.thread("{t}/a").update({"n": 2}, append={"m": [2]})
        batch.thread("{t}/a").append("m", 3)
        batch.thread("{t}/a").journal.append("done")
    assert (await bench.space.thread("{t}/a").load()).state == {"m": [1, 2, 3], "n": 2}


# ── what is written ───────────────────────────────────────────────────────────


def chunk_rows(bench: Bench) -> set[bytes]:
    rows = {keys.split_object(key)[4] for key, _ in bench.storage.scan(keys.OBJECT, b"P")}
    return {row for row in rows if row[:1] == b"D"}


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("save", ["whole", "update", "change of another"])
async def test_an_unchanged_state_writes_no_chunk_and_no_value(bench: Bench, open_bench: Opener, cold: bool, save: str) -> None:
    state = {"m": [Random(n).randbytes(700).hex() for n in range(40)], "plan": "p" * 3000, "n": 1}
    await bench.space.thread("a").save(state)
    here = open_bench(bench.storage.left_by_crash(0), seed=2) if cold else bench
    chunks, before = chunk_rows(here), sum(len(value) for _, value in here.storage.scan(b"", None))
    assert chunks
    thread = here.space.thread("a")
    if save == "whole":
        await thread.save(state, overwrite=True)
    else:
        await thread.update({} if save == "update" else {"n": 2})
    assert chunk_rows(here) == chunks
    assert sum(len(value) for _, value in here.storage.scan(b"", None)) - before < 1000


# ── what is read ──────────────────────────────────────────────────────────────


class Counted:
    """Counts a storage's reads of checkpoints and chunks."""

    def __init__(self, storage: MemoryStorage) -> None:
        self.rows: list[bytes] = []
        get = storage.get

        def counted(key: bytes, /) -> bytes | None:
            if key.startswith(keys.OBJECT):
                self.rows.append(keys.split_object(key)[4][:1])
            return get(key)

        storage.get = counted  # type: ignore[method-assign]


async def of_length(checkpoints: int, open_bench: Opener) -> Bench:
    """A thread that never held more than 30 messages: cold, after so many checkpoints."""
    bench = open_bench()
    thread = bench.space.thread("a")
    for n in range(checkpoints):
        if n % 30:
            await thread.append("m", f"{n} " * 50, durability="memory")
        else:
            await thread.save({"m": [], "plan": "p" * 400}, durability="memory")
    return open_bench(bench.storage.left_by_crash(None), seed=2)


ACTS: dict[str, Callable[[Thread], Any]] = {
    "load": lambda thread: thread.load(),
    "append": lambda thread: thread.append("m", "x"),
    "update": lambda thread: thread.update({"n": 1}),
}


@pytest.mark.parametrize("act", ACTS)
async def test_reads_do_not_grow_with_the_history(open_bench: Opener, act: str) -> None:
    counts = []
    for checkpoints in (10, 300, 900):
        bench = await of_length(checkpoints + 28 - (checkpoints % 30), open_bench)
        counted = Counted(bench.storage)
        await ACTS[act](bench.space.thread("a"))
        counts.append(len(counted.rows))
    assert max(counts) <= 50
    assert counts[1] == counts[2]


async def test_a_cold_append_reads_no_chunk_of_a_long_value(bench: Bench, open_bench: Opener) -> None:
    await bench.space.thread("a").save({"m": [Random(n).randbytes(700).hex() for n in range(2000)]})
    cold = open_bench(bench.storage.left_by_crash(0), seed=2)
    counted = Counted(cold.storage)
    await cold.space.thread("a").append("m", "x")
    assert counted.rows.count(b"D") == 0
    assert counted.rows.count(b"C") <= 3


async def test_only_the_channels_that_are_asked_for_are_read(bench: Bench, open_bench: Opener) -> None:
    state = {"m": [Random(n).randbytes(700).hex() for n in range(200)], "plan": {"n": 1}, "notes": POOL[3]}
    await bench.space.thread("a").save(state)
    cold = open_bench(bench.storage.left_by_crash(0), seed=2)
    counted = Counted(cold.storage)
    thread = cold.space.thread("a")
    assert (await thread.load(channels=["notes", "plan"])).state == {"plan": {"n": 1}, "notes": POOL[3]}
    assert counted.rows.count(b"D") == 0
    assert (await thread.load()).state == state
    assert (await thread.load(channels=[])).state == {}


async def test_a_channel_that_is_not_there_is_not_found(bench: Bench) -> None:
    thread = bench.space.thread("a")
    await thread.save({"plan": 1, "m": 2})
    with pytest.raises(NotFound, match="no channel 'plans'; it has 'plan', 'm'"):
        await thread.load(channels=["m", "plans"])


async def test_a_damaged_tail_is_not_served(bench: Bench, open_bench: Opener) -> None:
    await bench.space.thread("a").save({"m": ["a" * 300, "b" * 300], "n": 1})
    storage = bench.storage.left_by_crash(0)
    [row] = [key for key, value in storage.scan(keys.OBJECT, b"P") if keys.split_object(key)[4][:1] == b"C"]
    stored = storage.get(row) or b""
    storage.write({row: stored.replace(b"a" * 300, b"a" * 299 + b"c")})
    with pytest.raises(StoreCorrupt, match="channel 'm' of checkpoint"):
        await open_bench(storage, seed=2).space.thread("a").load()
    with pytest.raises(StoreCorrupt, match="channel 'm' of checkpoint"):
        await open_bench(storage, seed=2).space.thread("a").append("m", 1)


def test_the_news_of_a_change_is_small() -> None:
    packed = msgspec.msgpack.encode(requests.Save("s", "t", {}, delta=True, appended={"m": b"\x91\x01"}))
    assert len(packed) < 60
