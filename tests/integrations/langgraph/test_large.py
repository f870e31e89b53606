"""Values that are too large for a request: files of the thread, with no change of the graph."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict

import shoal
import shoal.kinds.file.handle
from shoal.config import Config
from shoal.errors import InvalidValue, TooLarge
from shoal.integrations import contents
from shoal.integrations.langgraph import ShoalSaver, encoding
from shoal.kinds.file.state import FILES
from shoal.protocol import requests
from shoal.storage.rocks import RocksStorage
from shoal.values.codec import LANGGRAPH_FILE
from shoal.values.registry import FileRef
from shoal.workflows.transfer.exporting import Wanted, export
from shoal.workflows.transfer.importing import Aim, import_from
from tests.integrations.langgraph.test_encoding import Reversed

MOST = 256 * 1024
SMALL = Config(request_bytes_max=MOST)
ROOT: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
METADATA: Any = {"source": "loop", "step": 1}


@pytest.fixture
async def saver(tmp_path: Path) -> AsyncIterator[ShoalSaver]:
    async with ShoalSaver.open(tmp_path / "state", config=SMALL) as opened:
        yield opened


def text(size: int) -> str:
    return os.urandom(size // 2).hex()


async def put(saver: ShoalSaver, values: dict[str, Any], version: str = "1", parent: Any = ROOT, id: str = "") -> Any:
    made = empty_checkpoint()
    checkpoint: Any = {**made, "channel_values": values, "channel_versions": dict.fromkeys(values, version)}
    checkpoint["id"] = id or made["id"]
    return await saver.aput(parent, checkpoint, METADATA, dict.fromkeys(values, version))


async def values_of(saver: ShoalSaver, config: Any) -> dict[str, Any]:
    found = await saver.aget_tuple(config)
    assert found is not None
    return found.checkpoint["channel_values"]


def store_of(saver: ShoalSaver) -> Any:
    return saver._checkpoints.connection


async def contents_of(saver: ShoalSaver, thread: str = "t") -> int:
    found = await store_of(saver).read(requests.ReadLabels("langgraph", thread, channels=True))
    return sum(encoding.reference_of(value) is not None for item in found.items for value in item.checkpoint.channels.values())


async def test_a_value_above_a_request_comes_back(saver: ShoalSaver) -> None:
    state = {"page": text(3 * MOST), "raw": os.urandom(2 * MOST), "small": [1, 2]}
    config = await put(saver, state)
    assert await values_of(saver, config) == state
    assert await contents_of(saver) == 2
    [listed] = [each async for each in saver.alist(config)]
    assert listed.checkpoint["channel_values"] == state


async def test_the_files_have_no_names(saver: ShoalSaver) -> None:
    await put(saver, {"page": text(MOST)})
    listed = await store_of(saver).read(requests.ListFiles("langgraph", "t"))
    assert listed.files == []


async def test_many_values_that_are_too_large_together(saver: ShoalSaver) -> None:
    state = {f"c{nth}": text(MOST // 20) for nth in range(60)}
    config = await put(saver, state)
    assert await values_of(saver, config) == state


async def test_a_state_that_grows_channel_by_channel(saver: ShoalSaver) -> None:
    """Each put is small, and what all channels have together is not."""
    state: dict[str, Any] = {}
    config: Any = ROOT
    versions: dict[str, Any] = {}
    for nth in range(40):
        state[f"c{nth}"] = text(MOST // 20)
        versions[f"c{nth}"] = "1"
        checkpoint: Any = {**empty_checkpoint(), "channel_values": dict(state), "channel_versions": dict(versions)}
        config = await saver.aput(config, checkpoint, METADATA, {f"c{nth}": "1"})
    assert await values_of(saver, config) == state


async def test_a_list_that_grows_beyond_a_request(saver: ShoalSaver) -> None:
    config, items = ROOT, list[str]()
    for nth in range(1, 30):
        items.append(text(MOST // 10))
        config = await put(saver, {"messages": list(items)}, str(nth), config)
    assert await values_of(saver, config) == {"messages": items}


async def test_pending_writes_above_a_request_come_back(saver: ShoalSaver) -> None:
    config = await put(saver, {"a": 1})
    page, raw = text(2 * MOST), os.urandom(2 * MOST)
    await saver.aput_writes(config, [("page", page), ("raw", raw), ("n", 3)], "task")
    found = await saver.aget_tuple(config)
    assert found is not None
    assert found.pending_writes == [("task", "page", page), ("task", "raw", raw), ("task", "n", 3)]


async def test_a_pending_write_and_its_channel_share_one_file(saver: ShoalSaver) -> None:
    config = await put(saver, {"a": 1})
    page = text(2 * MOST)
    await saver.aput_writes(config, [("page", page)], "task")
    await put(saver, {"page": page}, "2", config)
    shown = await store_of(saver).read(requests.ReadLabels("langgraph", "t", channels=True, notes=True))
    refs = {encoding.reference_of(value) for item in shown.items for value in item.checkpoint.channels.values()}
    refs |= {encoding.reference_in(encoding.unpack_write(note.value)) for item in shown.items for note in item.notes}
    assert len({ref.sha256 for ref in refs if ref is not None}) == 1


async def test_an_encrypting_serialiser_encrypts_the_file(tmp_path: Path) -> None:
    async with ShoalSaver.open(tmp_path / "state", config=SMALL, serde=EncryptedSerializer(Reversed())) as saver:
        state = {"page": "a secret that is kept " * (MOST // 10)}
        config = await put(saver, state)
        assert await contents_of(saver) == 1
        assert await values_of(saver, config) == state
    storage = RocksStorage.open(tmp_path / "state", config=Config(), now_ms=0)
    try:
        rows = list(storage.scan(b"", None))
    finally:
        storage.close()
    assert any(FILES + b"c" in key for key, _ in rows)
    assert not any(b"a secret that is kept" in value for _, value in rows)


def test_blocking_programs_keep_them_too(tmp_path: Path) -> None:
    with ShoalSaver.open(tmp_path / "state", config=SMALL) as saver:
        page = text(2 * MOST)
        checkpoint: Any = {**empty_checkpoint(), "channel_values": {"page": page}, "channel_versions": {"page": "1"}}
        config = saver.put(ROOT, checkpoint, METADATA, {"page": "1"})
        saver.put_writes(config, [("page", page)], "task")
        found = saver.get_tuple(config)
        assert found is not None
        assert found.checkpoint["channel_values"] == {"page": page}
        assert found.pending_writes == [("task", "page", page)]
        saver.copy_thread("t", "u")
        saver.delete_thread("t")
        copied = saver.get_tuple({"configurable": {"thread_id": "u"}})
        assert copied is not None
        assert copied.checkpoint["channel_values"] == {"page": page}
        assert copied.pending_writes == [("task", "page", page)]


async def test_a_copy_has_files_of_its_own(saver: ShoalSaver) -> None:
    page = text(2 * MOST)
    config = await put(saver, {"page": page})
    await saver.aput_writes(config, [("page", page + "!")], "task")
    await saver.acopy_thread("t", "u")
    await saver.adelete_thread("t")
    found = await saver.aget_tuple({"configurable": {"thread_id": "u"}})
    assert found is not None
    assert found.checkpoint["channel_values"] == {"page": page}
    assert found.pending_writes == [("task", "page", page + "!")]


async def test_an_export_brings_them(saver: ShoalSaver, tmp_path: Path) -> None:
    page = text(2 * MOST)
    config = await put(saver, {"page": page})
    await saver.aput_writes(config, [("page", page + "!")], "task")
    lines = [line async for line in export(store_of(saver), Wanted("langgraph", "t"))]

    async def blocks() -> AsyncIterator[bytes]:
        for line in lines:
            yield line

    async with shoal.open(tmp_path / "there", config=SMALL) as store:
        report = await import_from(store.connection, blocks(), Aim())
        assert report.whole, report
        found = await ShoalSaver(store).aget_tuple(config)
        assert found is not None
        assert found.checkpoint["channel_values"] == {"page": page}
        assert found.pending_writes == [("task", "page", page + "!")]
        assert [file async for file in store.space("langgraph").thread("t").files()] == []


async def test_where_rules_look_into_values_they_stay_values(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state", config=SMALL) as store:
        await store.space("langgraph").redaction.set(credentials=True, files=True)
        saver = ShoalSaver(store)
        secret = "sk-ant-" + "Zq7" * 12
        config = await put(saver, {"page": secret + " " + "a" * (MOST // 4)})
        assert await contents_of(saver) == 0
        assert secret not in (await values_of(saver, config))["page"]
        with pytest.raises(TooLarge):
            await put(saver, {"page": text(2 * MOST)}, "2", config)


async def test_a_put_whose_parent_another_process_wrote(tmp_path: Path) -> None:
    page = text(2 * MOST)
    async with ShoalSaver.open(tmp_path / "state", config=SMALL) as saver:
        config = await put(saver, {"page": page, "n": 1})
    async with ShoalSaver.open(tmp_path / "state", config=SMALL) as saver:
        checkpoint: Any = {
            **empty_checkpoint(),
            "channel_values": {"page": page, "n": 2},
            "channel_versions": {"page": "1", "n": "2"},
        }
        config = await saver.aput(config, checkpoint, METADATA, {"n": "2"})
        assert await values_of(saver, config) == {"page": page, "n": 2}


async def test_a_reference_that_is_none_is_refused(saver: ShoalSaver) -> None:
    config = await put(saver, {"page": "small"})
    id = config["configurable"]["checkpoint_id"]
    thread = shoal.kinds.file.handle.ThreadFiles(store_of(saver), "langgraph", "t")
    lies = encoding.referring(await thread.put_file("x", b"\xc1"))
    hostile = [b"", b"\xc1", shoal.values.encode("text"), shoal.values.encode(FileRef("", 1, ""))]
    for value in [lies, *(encoding.typed(LANGGRAPH_FILE, data) for data in hostile)]:
        write = requests.Save(
            "langgraph", "t", {"page": value}, schema="langgraph", delta=True, label=encoding.label_of("", id), fork=True,
            parent=(await saver._checkpoints.read("t")).items[0].checkpoint.id,
            metadata=(await saver._checkpoints.read("t")).items[0].checkpoint.metadata,
        )  # fmt: skip
        await store_of(saver).write(write, key=None, durability=None)
        with pytest.raises(InvalidValue):
            await saver.aget_tuple(config)


async def test_a_reference_to_more_than_is_read_is_refused(saver: ShoalSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    config = await put(saver, {"page": text(2 * MOST)})
    monkeypatch.setattr(contents, "CONTENT_BYTES_MAX", MOST)
    with pytest.raises(InvalidValue, match="at most"):
        await saver.aget_tuple(config)
    with pytest.raises(TooLarge, match="put_file"):
        await put(saver, {"page": text(2 * MOST)}, "2", config)


@pytest.fixture
def files_go_once(saver: ShoalSaver, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The first file of a value goes before anything refers to it: somebody deletes one of the same content."""
    gone = list[str]()
    put_part = contents.Contents.put

    async def putting(self: Any, thread: str, content: bytes, **options: Any) -> FileRef:
        ref = await put_part(self, thread, content, **options)
        if not gone:
            gone.append(ref.sha256)
            files = shoal.kinds.file.handle.ThreadFiles(store_of(saver), "langgraph", thread)
            await files.put_file("mine", content)
            await files.delete_file("mine")
        return ref

    monkeypatch.setattr(contents.Contents, "put", putting)
    return gone


async def test_a_file_that_goes_before_its_put_is_kept_again(saver: ShoalSaver, files_go_once: list[str]) -> None:
    page = text(2 * MOST)
    config = await put(saver, {"page": page})
    assert files_go_once
    assert await values_of(saver, config) == {"page": page}


async def test_a_file_that_goes_before_its_pending_write_is_kept_again(saver: ShoalSaver, files_go_once: list[str]) -> None:
    config, page = await put(saver, {"a": 1}), text(2 * MOST)
    await saver.aput_writes(config, [("page", page), ("n", 3)], "task")
    assert files_go_once
    found = await saver.aget_tuple(config)
    assert found is not None
    assert found.pending_writes == [("task", "page", page), ("task", "n", 3)]


async def test_a_file_is_as_durable_as_its_checkpoint(saver: ShoalSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """What names it is acknowledged no sooner than the saver's own, and before the put is sent; its chunks are earlier
    writes of the same log."""
    sent: list[tuple[str, Any]] = []
    write, put_one = type(store_of(saver)).write, type(saver._checkpoints._writes).put

    async def writing(self: Any, request: Any, *, key: Any, durability: Any) -> Any:
        reply = await write(self, request, key=key, durability=durability)
        sent.append((type(request).__name__, durability))
        return reply

    async def putting(self: Any, request: Any) -> Any:
        sent.append((type(request).__name__, None))
        return await put_one(self, request)

    monkeypatch.setattr(type(store_of(saver)), "write", writing)
    monkeypatch.setattr(type(saver._checkpoints._writes), "put", putting)
    await put(saver, {"page": text(2 * MOST)})
    assert {durability for name, durability in sent if name != "KeepChunks"} == {None}
    assert {durability for name, durability in sent if name == "KeepChunks"} == {"memory"}
    assert [name for name, _ in sent if name != "KeepChunks"] == ["PutFile", "RemoveFile", "Save"]


class State(TypedDict):
    page: str
    answer: str


async def test_a_graph_goes_on_from_a_large_state(saver: ShoalSaver) -> None:
    page = text(3 * MOST)

    def look(state: State) -> dict[str, Any]:
        return {"page": page}

    def ask(state: State) -> dict[str, Any]:
        return {"answer": f"{interrupt('sure?')}: {len(state['page'])}"}

    built: Any = StateGraph(State)
    built.add_node("look", look)
    built.add_node("ask", ask)
    built.add_edge(START, "look")
    built.add_edge("look", "ask")
    graph = built.compile(checkpointer=saver)
    await graph.ainvoke({"page": ""}, ROOT)
    from langgraph.types import Command

    done = await graph.ainvoke(Command(resume="yes"), ROOT)
    assert done == {"page": page, "answer": f"yes: {len(page)}"}
    assert [len(each.values.get("page", "")) async for each in graph.aget_state_history(ROOT)][:2] == [len(page)] * 2
