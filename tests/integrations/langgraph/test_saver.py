from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

import shoal
from shoal.client.store import Space
from shoal.config import Config
from shoal.errors import InvalidInput, InvalidName, OwnerSuperseded, StoreClosed
from shoal.integrations.langgraph import ShoalSaver
from shoal.integrations.langgraph.encoding import Place
from shoal.kinds.thread.flows.checkpoints import shown_checkpoint
from shoal.protocol.requests import Save
from shoal.storage.interface import MemoryStorage
from simulation.world.environment import SimulatedEnvironment
from tests.node.conftest import Bench

HOSTILE = ["", ".", "..", "a/b", "%2e", "\x00nul", "x' OR '1'='1", "*", "größe\x85", "{tag}"]


def config(thread_id: str = "t", namespace: str = "", id: str | None = None) -> RunnableConfig:
    named = {} if id is None else {"checkpoint_id": id}
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace, **named}}


def checkpoint(number: int, values: dict[str, Any], versions: dict[str, Any]) -> Checkpoint:
    return {**empty_checkpoint(), "id": f"{number:04}", "channel_values": values, "channel_versions": versions}


async def put(
    saver: Any,
    number: int,
    values: dict[str, Any],
    versions: dict[str, Any],
    *,
    new: dict[str, Any] | None = None,
    parent: int | None = None,
    thread_id: str = "t",
    namespace: str = "",
    **metadata: Any,
) -> RunnableConfig:
    at = config(thread_id, namespace, None if parent is None else f"{parent:04}")
    made = checkpoint(number, values, versions)
    found: RunnableConfig = await saver.aput(at, made, {"step": number, **metadata}, versions if new is None else new)
    return found


def comparable(found: CheckpointTuple | None) -> Any:
    if found is None:
        return None
    bare = {name: value for name, value in found.checkpoint.items() if name != "ts"}
    return found.config, bare, found.metadata, found.parent_config, found.pending_writes


# ── what a put asks of the store ──────────────────────────────────────────────


def counted(way: Any, asked: Counter[str]) -> Any:
    def asking(self: Any, request: Any, /, *rest: Any, **options: Any) -> Any:
        asked[type(request).__name__] += 1
        assert options.get("key") is None
        return way(self, request, *rest, **options)

    return asking


async def test_a_put_is_one_request_and_reads_nothing(saver: ShoalSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()
    session = type(saver._checkpoints.connection.session)
    for way in ("begin", "call"):
        monkeypatch.setattr(session, way, counted(getattr(session, way), asked))
    for number in range(50):
        await put(saver, number, {"n": number}, {"n": str(number)}, parent=number - 1 if number else None)
    assert asked == {"Save": 50}
    await saver.aget_tuple(config())
    assert asked == {"Save": 50, "ReadLabels": 1}


async def test_only_new_versions_are_serialised_and_once_each(tmp_path: Path) -> None:
    class Counting(JsonPlusSerializer):
        dumped: ClassVar[Counter[str]] = Counter()

        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            self.dumped[str(obj) if isinstance(obj, str) else type(obj).__name__] += 1
            return super().dumps_typed(obj)

    async with ShoalSaver.open(tmp_path / "state", serde=Counting()) as saver:
        await put(saver, 1, {"a": "one", "b": "two"}, {"a": "1", "b": "1"})
        await put(saver, 2, {"a": "changed", "b": "two"}, {"a": "2", "b": "1"}, new={"a": "2"}, parent=1)
        assert Counting.dumped == {"one": 1, "two": 1, "changed": 1, "dict": 4}


async def test_another_process_goes_on_from_what_is_there(tmp_path: Path) -> None:
    async with ShoalSaver.open(tmp_path / "state") as saver:
        await put(saver, 1, {"a": 1, "b": 2}, {"a": "1", "b": "1"})
    async with ShoalSaver.open(tmp_path / "state") as saver:
        # Without a read before it: the put finds out itself what its parent has.
        await put(saver, 2, {"a": 3}, {"a": "2", "b": "1"}, new={"a": "2"}, parent=1)
        found = await saver.aget_tuple(config())
        assert found is not None
        assert found.checkpoint["channel_values"] == {"a": 3, "b": 2}


@pytest.mark.answers("whole-history-is-stored-again-at-each-step")
async def test_storage_grows_with_new_data_only() -> None:
    storage = MemoryStorage()
    bench = Bench(storage, SimulatedEnvironment(1), Config())
    saver = ShoalSaver(bench.store)
    messages = [HumanMessage(f"message {n} " * 60, id=str(n)) for n in range(300)]
    sizes = []
    for number in range(1, 301):
        await put(saver, number, {"m": messages[:number]}, {"m": str(number)}, parent=number - 1 if number > 1 else None)
        if number % 100 == 0:
            sizes.append(sum(len(key) + len(value) for key, value in storage.scan(b"", None)))
    await bench.node.stop()
    later, latest = sizes[1] - sizes[0], sizes[2] - sizes[1]
    new = sum(len(saver.serde.dumps_typed([message])[1]) for message in messages[200:])
    assert latest < 1.1 * later  # Whole states would grow by five thirds.
    assert latest - new < 100 * 2000  # Ids, versions, hashes: uncompressed, for each put.


# ── differences from the reference ────────────────────────────────────────────


async def test_reads_equal_the_reference(saver: ShoalSaver) -> None:
    memory = InMemorySaver()
    for each in (saver, memory):
        await put(each, 1, {"a": [1], "gone": 1}, {"a": "1", "gone": "1", "empty": "1"}, run_id="r1")
        await put(each, 3, {"a": [1, 2]}, {"a": "2", "empty": "1"}, new={"a": "2"}, parent=1)
        # Another branch, from the first; and one that was written later with a lesser id.
        await put(each, 4, {"a": [1, 3], "gone": 1}, {"a": "3", "gone": "1"}, new={"a": "3"}, parent=1)
        await put(each, 2, {"a": [0]}, {"a": "0"}, parent=None)
        # A copy beside its source: the versions are not those of the parent.
        await put(each, 5, {"a": [1, 2]}, {"a": "2"}, new={}, parent=1)
        # A channel that was emptied, and a parent that is not there.
        await put(each, 6, {}, {"a": "9"}, parent=5)
        await put(each, 7, {"a": [7]}, {"a": "10"}, new={"a": "10"}, parent=77)
        await each.aput_writes(config(id="0007"), [("x", 1), ("__interrupt__", "q")], "task", "path")
        await each.aput_writes(config(id="0007"), [("x", 2), ("__interrupt__", "r")], "task", "path")
        await each.aput_writes(config(id="0009"), [("early", HumanMessage("hi", id="1"))], "task-2")
        await put(each, 9, {"a": [9]}, {"a": "11"}, parent=7)
    for number in range(10):
        at = config(id=f"{number:04}")
        assert comparable(await saver.aget_tuple(at)) == comparable(memory.get_tuple(at)), number
    assert comparable(await saver.aget_tuple(config())) == comparable(memory.get_tuple(config()))
    options: list[dict[str, Any]] = [{}, {"limit": 2}, {"before": config(id="0004")}, {"filter": {"run_id": "r1"}}]
    for option in options:
        ours = [comparable(found) async for found in saver.alist(config(), **option)]
        assert ours == [comparable(found) for found in memory.list(config(), **option)], option


async def test_lists_are_filtered_by_operators_too(saver: ShoalSaver) -> None:
    for number in range(4):
        await put(saver, number, {"a": number}, {"a": str(number)})
    every = [found async for found in saver.alist(config())]
    later = [found async for found in saver.alist(config(), filter={"step": {"$gte": every[1].metadata["step"]}})]
    assert [found.checkpoint["id"] for found in later] == [found.checkpoint["id"] for found in every[:2]]
    with pytest.raises(InvalidInput, match=r"'\$near' is not a filter operator"):
        await anext(aiter(saver.alist(config(), filter={"step": {"$near": 1}})))


async def test_a_checkpoint_that_is_put_again_is_replaced(saver: ShoalSaver) -> None:
    await put(saver, 1, {"a": 1}, {"a": "1"})
    await put(saver, 1, {"a": 2}, {"a": "2"})
    assert [found.checkpoint["channel_values"] async for found in saver.alist(config())] == [{"a": 2}]


@pytest.mark.parametrize("version", [None, 3, "00000000000000000000000000000003.0.25"])
def test_versions_grow_and_never_repeat(version: Any) -> None:
    class Random:
        class connection:
            taken = 0

            @classmethod
            def entropy(cls, size: int) -> bytes:
                cls.taken += 1
                return cls.taken.to_bytes(size, "big")

    saver = ShoalSaver.__new__(ShoalSaver)
    saver._checkpoints = Random()  # type: ignore[assignment]
    number = 1 if version is None else 4
    made = [saver.get_next_version(version, None) for _ in range(3)]
    assert [len(text) for text in made] == [49] * 3
    assert {int(text.split(".")[0]) for text in made} == {number}
    assert len(set(made)) == 3


@pytest.mark.answers("injection-through-an-id")
async def test_ids_are_arbitrary_text(saver: ShoalSaver) -> None:
    for thread_id in HOSTILE:
        for namespace in HOSTILE:
            await put(saver, 1, {"a": [thread_id, namespace]}, {"a": "1"}, thread_id=thread_id, namespace=namespace)
    for thread_id in HOSTILE:
        for namespace in HOSTILE:
            found = await saver.aget_tuple(config(thread_id, namespace))
            assert found is not None
            assert found.checkpoint["channel_values"] == {"a": [thread_id, namespace]}
        assert len([found async for found in saver.alist({"configurable": {"thread_id": thread_id}})]) == len(HOSTILE)
    with pytest.raises(InvalidName):
        await put(saver, 1, {}, {}, thread_id="x" * 2000)


async def test_channels_of_any_name_are_kept(saver: ShoalSaver) -> None:
    values = {name: name for name in ["branch:to:a", "%", "..", "", "\x00", "langgraph"]}
    await put(saver, 1, values, dict.fromkeys(values, "1"))
    await put(saver, 2, {"%": "new"}, dict.fromkeys([*values, "more"], "1") | {"%": "2"}, new={"%": "2"}, parent=1)
    found = await saver.aget_tuple(config())
    assert found is not None
    assert found.checkpoint["channel_values"] == {**values, "%": "new"}


async def test_a_thread_is_read_by_shoals_own_handles(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state") as store:
        saver = ShoalSaver(store, space="graphs")
        await put(saver, 1, {"a": ["x"]}, {"a": "1"}, source="input")
        await put(saver, 2, {"a": ["x", "y"]}, {"a": "2"}, parent=1, source="loop")
        thread = store.space("graphs").thread("t")
        assert (await thread.load()).state == {"a": ["x", "y"]}
        history = [found async for found in thread.history()]
        assert [(found.metadata["source"], found.metadata["step"]) for found in history] == [("loop", 2), ("input", 1)]
        assert [label async for label, _ in thread.labels()] == ["/0001", "/0002"]


async def test_shoals_own_handles_show_messages_as_plain_values(saver: ShoalSaver) -> None:
    thread = Space(saver._checkpoints.connection, "langgraph").thread("t")
    talk = [HumanMessage("hi", id="1"), HumanMessage("there", id="2")]
    await put(saver, 1, {"messages": talk[:1], "raw": b"x"}, {"messages": "1", "raw": "1"})
    await put(saver, 2, {"messages": talk, "raw": b"x"}, {"messages": "2", "raw": "1"}, new={"messages": "2"}, parent=1)
    state = (await thread.load()).state
    assert [message["value"]["content"] for message in state["messages"]] == ["hi", "there"]
    assert state["raw"] == b"x"
    before, after = [id async for _, id in thread.labels()]
    change = (await thread.diff(before, after)).channels["messages"][0]
    assert (change.op, change.after["value"]["content"]) == ("add", "there")


# ── whole threads ─────────────────────────────────────────────────────────────


async def delta_thread(each: Any) -> None:
    """A snapshot at 2 and at 6, writes at each; and a branch beside, which does not count."""
    for number in range(1, 10):
        values: dict[str, Any] = {"d": _DeltaSnapshot([number])} if number in (2, 6) else {}
        counters = {"d": (1, 1)}
        await put(
            each,
            number,
            {**values, "n": number},
            {"d": str(number), "n": str(number)},
            parent=number - 1 if number > 1 else None,
            counters_since_delta_snapshot=counters,
        )
        for task in ("b", "a"):
            await each.aput_writes(config(id=f"{number:04}"), [("d", f"{number}{task}"), ("n", 0)], task, f"~{task}")
    await put(each, 19, {"n": 0}, {"n": "0", "d": "0"}, parent=1, counters_since_delta_snapshot={"d": (1, 1)})
    await each.aput_writes(config(id="0019"), [("d", "beside")], "a")


@pytest.mark.parametrize("target", [1, 2, 4, 6, 7, 9, 19, None])
async def test_the_history_of_delta_channels_equals_the_reference(saver: ShoalSaver, target: int | None) -> None:
    memory = InMemorySaver()
    for each in (saver, memory):
        await delta_thread(each)
    at = config(id=None if target is None else f"{target:04}")
    ours = await saver.aget_delta_channel_history(config=at, channels=["d", "none"])
    assert ours == memory.get_delta_channel_history(config=at, channels=["d", "none"])
    assert await saver.aget_delta_channel_history(config=at, channels=[]) == {}


@pytest.mark.answers("retention-breaks-what-it-keeps")
async def test_pruning_keeps_what_a_delta_channel_is_made_from(saver: ShoalSaver) -> None:
    await delta_thread(saver)
    # Its channel was last stored at 6.
    await put(saver, 20, {}, {"d": "20"}, parent=9, counters_since_delta_snapshot={"d": (1, 1)})
    before = await saver.aget_delta_channel_history(config=config(), channels=["d"])
    await saver.aprune(["t", "no-such-thread"])
    kept = [found.checkpoint["id"] async for found in saver.alist(config())]
    assert kept == ["0020", "0009", "0008", "0007", "0006"]
    assert await saver.aget_delta_channel_history(config=config(), channels=["d"]) == before
    assert before["d"]["seed"] == _DeltaSnapshot([6])


async def test_pruning_frees_its_rows_and_spares_the_rest() -> None:
    storage = MemoryStorage()
    bench = Bench(storage, SimulatedEnvironment(1), Config())
    saver = ShoalSaver(bench.store)
    for number in range(1, 41):
        value = [f"{number}-{part} " * 100 for part in range(20)]
        await put(saver, number, {"m": value, "same": "x" * 5000}, {"m": str(number), "same": "1"}, parent=number - 1)
    before = sum(len(key) + len(row) for key, row in storage.scan(b"", None))
    await saver.aprune(["t"])
    async with asyncio.timeout(30):
        while sum(len(key) + len(row) for key, row in storage.scan(b"", None)) > before / 4:
            await asyncio.sleep(0.01)
    found = await saver.aget_tuple(config())
    assert found is not None
    assert found.checkpoint["channel_values"] == {"m": value, "same": "x" * 5000}
    # The graph goes on from it, and from one that is gone: what it gives is then saved as a whole.
    await put(saver, 41, {"m": [1], "same": "x"}, {"m": "41", "same": "1"}, new={"m": "41"}, parent=40)
    await put(saver, 42, {"m": [2], "same": "y"}, {"m": "42", "same": "1"}, new={"m": "42"}, parent=7)
    assert [each.checkpoint["id"] async for each in saver.alist(config())] == ["0042", "0041", "0040"]
    await bench.node.stop()


@pytest.mark.answers("writes-stored-before-or-after-their-checkpoint")
async def test_writes_that_come_before_their_checkpoint_are_there_as_those_after_it(saver: ShoalSaver) -> None:
    writes: list[tuple[str, Any]] = [("a", 2), ("b", [3])]
    for thread_id in ("early", "late"):
        await put(saver, 1, {"a": 1}, {"a": "1"}, thread_id=thread_id)
        if thread_id == "early":
            await saver.aput_writes(config(thread_id, id="0002"), writes, "task")
        await put(saver, 2, {"a": 1}, {"a": "1"}, new={}, parent=1, thread_id=thread_id)
        if thread_id == "late":
            await saver.aput_writes(config(thread_id, id="0002"), writes, "task")
    early, late = await saver.aget_tuple(config("early")), await saver.aget_tuple(config("late"))
    assert early is not None
    assert late is not None
    assert early.pending_writes == late.pending_writes == [("task", "a", 2), ("task", "b", [3])]
    assert comparable(early)[1:3] == comparable(late)[1:3]


async def test_deleting_takes_the_writes_along(saver: ShoalSaver) -> None:
    await put(saver, 1, {"a": 1}, {"a": "1"}, run_id="r")
    await saver.aput_writes(config(id="0001"), [("a", 1)], "task")
    await saver.adelete_for_runs(["r"])
    assert await saver.aget_tuple(config()) is None
    await put(saver, 1, {"a": 2}, {"a": "1"}, parent=0)
    found = await saver.aget_tuple(config())
    assert found is not None
    assert (found.checkpoint["channel_values"], found.pending_writes) == ({"a": 2}, [])
    await saver.aprune(["t"], strategy="delete")
    assert [found async for found in saver.alist(None)] == []
    with pytest.raises(InvalidInput, match="keep_latest"):
        await saver.aprune(["t"], strategy="all")


async def test_a_copy_stands_by_itself(saver: ShoalSaver) -> None:
    memory = InMemorySaver()
    await delta_thread(saver)
    await delta_thread(memory)
    await saver.acopy_thread("t", "copy")
    await saver.adelete_thread("t")
    assert await saver.aget_tuple(config()) is None
    copied = [comparable(found)[1:3] async for found in saver.alist(config("copy"))]
    assert copied == [comparable(found)[1:3] for found in memory.list(config())]
    assert await saver.aget_delta_channel_history(
        config=config("copy", id="0009"), channels=["d"]
    ) == memory.get_delta_channel_history(config=config(id="0009"), channels=["d"])


async def test_secret_fields_stay_secret_in_later_puts_and_copies(saver: ShoalSaver) -> None:
    await put(saver, 1, {"key": "hunter2", "n": 1}, {"key": "1", "n": "1"})
    held = saver._checkpoints
    [item] = (await held.read("t", channels=True)).items
    found = item.checkpoint
    marked = Save(
        held.space,
        "t",
        {},
        found.metadata,
        found.branch,
        found.id,
        schema=found.schema,
        delta=True,
        secret=["key"],
        label=item.label,
    )
    await held.connection.write(marked, key=None, durability=None)
    held.bases.forget(Place("t", ""), "0001")
    await put(saver, 2, {"key": "hunter2", "n": 2}, {"key": "1", "n": "2"}, new={"n": "2"}, parent=1)
    await saver.acopy_thread("t", "copy")
    for thread in ("t", "copy"):
        assert [each.checkpoint.secret for each in (await held.read(thread)).items] == [["key"], ["key"]]
        shown = await shown_checkpoints(held, thread)
        assert [each.redacted["key"] for each in shown] == ["«secret»", "«secret»"]


async def shown_checkpoints(held: Any, thread: str) -> list[Any]:
    return [shown_checkpoint(each.checkpoint, channels=True) for each in (await held.read(thread, channels=True)).items]


async def test_a_thread_that_another_process_deleted_begins_anew(url: str) -> None:
    async with ShoalSaver.connect(url, space="deleted") as ours, ShoalSaver.connect(url, space="deleted") as theirs:
        await put(ours, 1, {"a": 1, "b": 1}, {"a": "1", "b": "1"})
        await ours.aput_writes(config(id="0002"), [("early", 1)], "task")
        await theirs.adelete_thread("t")
        # A graph that was under way goes on: it gives whole states, of which all is saved again.
        await put(ours, 2, {"a": 2, "b": 1}, {"a": "2", "b": "1"}, new={"a": "2"}, parent=1)
        found = [found async for found in theirs.alist(config())]
        assert [(each.checkpoint["channel_values"], each.pending_writes) for each in found] == [({"a": 2, "b": 1}, [])]


# ── who may write ─────────────────────────────────────────────────────────────


async def test_a_superseded_owner_writes_nothing_and_is_told(saver: ShoalSaver) -> None:
    stale = await saver.aclaim_write_ownership("t")
    await put(stale, 1, {"a": 1}, {"a": "1"})
    current = await saver.aclaim_write_ownership("t")
    await put(current, 2, {"a": 2}, {"a": "2"}, parent=1)
    for _ in range(2):  # It stays refused.
        with pytest.raises(OwnerSuperseded) as refused:
            await put(stale, 3, {"a": 3}, {"a": "3"}, parent=1)
        assert refused.value.is_stale_write_owner_error is True
        with pytest.raises(OwnerSuperseded):
            await stale.aput_writes(config(id="0001"), [("__resume__", "stale")], "task")
    assert [found.checkpoint["id"] async for found in saver.alist(config())] == ["0002", "0001"]
    # Another thread, and a saver that never claimed, are of no concern.
    await put(stale, 1, {}, {}, thread_id="other")
    await put(saver, 4, {}, {}, parent=2)


# ── from other threads and loops ──────────────────────────────────────────────


def test_every_blocking_form_does_what_the_other_does(tmp_path: Path) -> None:
    with ShoalSaver.open(tmp_path / "state") as saver:
        first = saver.put(config(), checkpoint(1, {"a": 1}, {"a": "1"}), {"run_id": "r"}, {"a": "1"})
        saver.put_writes(first, [("a", 2)], "task")
        found = saver.get_tuple(config())
        assert found is not None
        assert (found.checkpoint["channel_values"], found.pending_writes) == ({"a": 1}, [("task", "a", 2)])
        assert saver.get_delta_channel_history(config=config(), channels=["a"]) == {"a": {"writes": []}}
        saver.copy_thread("t", "copy")
        saver.prune(["t"])
        assert [found.config["configurable"]["thread_id"] for found in saver.list(None)] == ["copy", "t"]
        saver.delete_for_runs(["r"])
        assert list(saver.list(None)) == []
        owner = saver.claim_write_ownership("t")
        owner.put(config(), checkpoint(2, {}, {}), {}, {})
        saver.claim_write_ownership("t")
        with pytest.raises(OwnerSuperseded):
            owner.put(config(), checkpoint(3, {}, {}), {}, {})
        saver.delete_thread("t")
        assert saver.get_tuple(config()) is None
        # Asynchronous calls on another loop reach the same store.
        asyncio.run(put(saver, 1, {"a": 1}, {"a": "1"}))
        assert saver.get_tuple(config()) is not None
    with pytest.raises(StoreClosed, match="closed"):
        saver.get_tuple(config())
    assert not [thread for thread in threading.enumerate() if thread.name == "shoal-loop"]


async def test_a_blocking_call_on_the_stores_own_loop_is_refused(saver: ShoalSaver) -> None:
    with pytest.raises(InvalidInput, match="ainvoke"):
        saver.get_tuple(config())
    assert await asyncio.to_thread(saver.get_tuple, config()) is None
    assert await asyncio.to_thread(lambda: list(saver.list(config()))) == []


async def test_another_loop_may_list_too(saver: ShoalSaver) -> None:
    await put(saver, 1, {"a": 1}, {"a": "1"})

    async def ids() -> list[str]:
        return [found.checkpoint["id"] async for found in saver.alist(config())]

    assert await asyncio.to_thread(asyncio.run, ids()) == ["0001"]


async def test_a_connection_string_is_a_directory_or_a_url(tmp_path: Path, url: str) -> None:
    for conn_string in (str(tmp_path / "state"), url):
        async with ShoalSaver.from_conn_string(conn_string) as saver:
            await put(saver, 1, {"a": 1}, {"a": "1"}, thread_id="by-string")
            assert await saver.aget_tuple(config("by-string")) is not None


async def test_the_allow_list_is_the_serialisers(tmp_path: Path) -> None:
    strict = JsonPlusSerializer(allowed_msgpack_modules=None)
    async with ShoalSaver.open(tmp_path / "state", serde=strict) as saver:
        allowed = saver.with_allowlist([("tests", "Thing")])
        assert isinstance(allowed, ShoalSaver)
        assert allowed.serde is not saver.serde
        await put(allowed, 1, {"a": 1}, {"a": "1"})
        assert await saver.aget_tuple(config()) is not None


# ── ids ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("id", [17, UUID(int=5)], ids=repr)
async def test_ints_and_uuids_are_ids_everywhere(saver: ShoalSaver, id: Any) -> None:
    for given in (id, str(id)):
        await put(saver, 1, {"a": 1}, {"a": "1"}, thread_id=given, run_id=id)
        await put(saver, 2, {"a": 2}, {"a": "2"}, thread_id=given, parent=1)
        found = await saver.aget_tuple(config(given))
        assert found is not None
        assert found.config["configurable"]["thread_id"] == str(id)
        await saver.aprune([given])
        assert len([each async for each in saver.alist(config(given))]) == 1
        owner = await saver.aclaim_write_ownership(given)
        async with owner.lease(given):
            await put(owner, 3, {"a": 3}, {"a": "3"}, thread_id=id)
        copy: Any = UUID(int=9)
        await saver.acopy_thread(given, copy)
        await put(saver, 4, {"a": 4}, {"a": "4"}, thread_id=given, run_id=id)
        await saver.adelete_for_runs([given])
        assert [each.checkpoint["id"] async for each in saver.alist(config(given))] == ["0003", "0002"]
        await saver.adelete_thread(given)
        assert await saver.aget_tuple(config(id)) is None


@pytest.mark.parametrize("id", [None, True, 1.5, b"t"], ids=repr)
async def test_malformed_thread_ids_are_refused(saver: ShoalSaver, id: Any) -> None:
    for call in (
        lambda: put(saver, 1, {}, {}, thread_id=id),
        lambda: saver.aget_tuple(config(id)),
        lambda: saver.adelete_thread(id),
        lambda: saver.acopy_thread("t", id),
        lambda: saver.aprune(["t", id]),
        lambda: saver.aclaim_write_ownership(id),
    ):
        with pytest.raises(InvalidName, match=r"the id of a thread must be text, an int or a UUID.*Nothing was written"):
            await call()
    with pytest.raises(InvalidName, match="must be text"):
        saver.lease(id)
