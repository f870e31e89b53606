"""Whoever may write to a thread chooses the bytes that its readers decode: they make values, and nothing runs."""

from __future__ import annotations

import dataclasses
import pickle
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph
from langgraph.types import Interrupt, Send

import shoal
from shoal.client.store import Store
from shoal.errors import InvalidInput, InvalidValue, ShoalError
from shoal.integrations.langgraph import ShoalSaver, ShoalStore, encoding
from shoal.integrations.langgraph.encoding import StrictSerializer, serialiser
from shoal.protocol import requests
from tests.integrations.langgraph.test_encoding import Reversed
from tests.support.audited import RUNS_CODE, audited
from tests.support.examples import examples
from tests.support.hostile import CANARY, lying, read_hostile

STRICT = StrictSerializer()
ran: list[str] = []


@dataclasses.dataclass
class Plan:
    """A type of a graph's state."""

    text: str

    def __post_init__(self) -> None:
        ran.append(self.text)


def called(name: str) -> str:
    ran.append(name)
    return name


def naming(code: int, *parts: Any) -> bytes:
    """What the serialiser writes for an object, with a name of the attacker's choice."""
    return ormsgpack.packb(ormsgpack.Ext(code, ormsgpack.packb(list(parts))))


def typed(kind: str, data: bytes) -> bytes:
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(83, msgspec.msgpack.encode((kind, data))))


HERE = __name__
NAMED = [
    naming(0, HERE, "called", "single"),
    naming(1, HERE, "called", ["positional"]),
    naming(2, HERE, "called", {"name": "keyword"}),
    naming(3, HERE, "Plan", "method", "__new__"),
    naming(4, HERE, "Plan", {"text": "pydantic 1"}),
    naming(5, HERE, "Plan", {"text": "pydantic 2"}, "model_validate_json"),
    naming(0, CANARY, "anything", 1),
    naming(0, "os", "system", "false"),
    naming(1, "builtins", "eval", ["1 + 1"]),
    # Inside of a type that is safe.
    naming(2, "langgraph.types", "Interrupt", {"value": ormsgpack.Ext(0, ormsgpack.packb([HERE, "called", "inner"]))}),
]
HOSTILE = [
    *NAMED,
    naming(0, ["os"], "system", "false"),
    naming(7, HERE, "called", "snapshot"),
    typed("pickle", pickle.dumps(print)),
    typed("json", b'{"lc": 1, "type": "constructor", "id": ["langchain_core", "prompts", "PromptTemplate"], "kwargs": {}}'),
    typed("msgpack", NAMED[0]),
    typed("", b""),
    b"",
    b"\xc1",
    b"\xc7\x05S",
    b"\xdd\xff\xff\xff\xff",
    b"\x91" * 5000,
    *(ormsgpack.packb(ormsgpack.Ext(code, b"\xc0")) for code in range(128)),
]


@pytest.fixture(autouse=True)
def _nothing_ran() -> Iterator[None]:
    ran.clear()
    yield
    assert ran == []
    assert CANARY not in sys.modules


def decoded(packed: bytes) -> list[str]:
    with audited(("import", *RUNS_CODE)) as seen, suppress(ShoalError):
        encoding.unpack_value(STRICT, packed)
    return seen


@pytest.mark.parametrize("packed", HOSTILE)
def test_no_known_trick_runs_code(packed: bytes) -> None:
    if find_spec("numpy"):  # An array makes LangGraph import it, whoever wrote it.
        import_module("numpy")
    encoding.unpack_value(STRICT, encoding.pack_value(STRICT, [HumanMessage("hi"), AIMessage("ho"), Interrupt(1, id="i")]))
    assert decoded(packed) == []


@pytest.mark.parametrize("packed", NAMED)
def test_a_type_that_may_not_be_made_is_named(packed: bytes) -> None:
    with pytest.raises(InvalidValue, match=r"may not make: .*allowed_msgpack_modules=|cannot be decoded"):
        encoding.unpack_value(STRICT, packed)


@pytest.mark.answers("bytes-of-a-state-run-code-when-they")
@examples(400)
@given(st.binary(max_size=200))
def test_no_bytes_run_code(packed: bytes) -> None:
    assert decoded(packed) == []


@examples(300)
@given(st.sampled_from(HOSTILE), st.data())
def test_no_mutation_runs_code(packed: bytes, data: st.DataObject) -> None:
    changed = bytearray(packed or b"\x90")
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    assert decoded(bytes(changed)) == []


@examples(200)
@given(st.binary(max_size=80))
def test_frames_of_the_saver_are_read_or_refused(packed: bytes) -> None:
    for read in (
        lambda: encoding.unpack_metadata(STRICT, b"\x81\xa9langgraph" + packed),
        lambda: encoding.unpack_metadata(STRICT, packed),
        lambda: encoding.unpack_write(packed),
        lambda: encoding.unpack_note_name(packed),
    ):
        with suppress(ShoalError):
            read()


class State(TypedDict):
    plan: Plan


async def _run(saver: ShoalSaver) -> Any:
    built = StateGraph(State).add_node("n", lambda state: {"plan": Plan("made")}).add_edge(START, "n")
    graph = built.compile(checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "t"}}
    await graph.ainvoke({"plan": Plan("given")}, config)
    ran.clear()
    return (await graph.aget_state(config)).values["plan"]


@pytest.mark.answers("bytes-of-a-state-run-code-when-they")
async def test_saved_bytes_run_in_no_reader(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "s") as store:
        saver = ShoalSaver(store, allowed_msgpack_modules=[Plan])
        await _run(saver)
        (name,) = (await store.connection.read(requests.ListObjects("langgraph", "thread"))).names
        page = await store.connection.read(requests.ReadLabels("langgraph", name, reverse=True, limit=1, channels=True))
        found = page.items[0].checkpoint
        channels = {**found.channels, "plan": naming(0, HERE, "called", "saved")}
        label = page.items[0].label[:-1] + "z"
        save = requests.Save(
            "langgraph",
            name,
            channels,
            found.metadata,
            found.branch,
            found.id,
            schema="langgraph",
            schema_version=1,
            label=label,
        )
        await store.connection.write(save, key=None, durability=None)
        with pytest.raises(InvalidValue, match="called"):
            await saver.aget_tuple({"configurable": {"thread_id": "t"}})
    ran.clear()


async def test_a_type_of_the_graph_is_readable_by_choice(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "s") as store:
        with pytest.raises(InvalidValue, match=rf"{HERE}.Plan.*allowed_msgpack_modules=\[\('{HERE}', 'Plan'\)\]"):
            await _run(ShoalSaver(store))
        for allowed in ([Plan], [(HERE, "Plan")], True):
            assert await _run(ShoalSaver(store, space="other", allowed_msgpack_modules=allowed)) == Plan("made")
        assert await _run(ShoalSaver(store, space="third").with_allowlist([(HERE, "Plan")])) == Plan("made")  # type: ignore[arg-type]
    ran.clear()


async def test_both_rules_at_once_are_refused(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "s") as store:
        with pytest.raises(InvalidInput, match="Nothing was opened"):
            ShoalSaver(store, serde=JsonPlusSerializer(), allowed_msgpack_modules=[Plan])


@pytest.mark.answers("bytes-of-a-state-run-code-when-they")
def test_encryption_cannot_be_gone_around() -> None:
    sealing = serialiser(EncryptedSerializer(Reversed(), JsonPlusSerializer(pickle_fallback=True)), None)
    assert encoding.unpack_value(sealing, encoding.pack_value(sealing, [Send("n", 1)])) == [Send("n", 1)]
    assert encoding.unpack_value(sealing, encoding.pack_value(STRICT, ["from before"])) == ["from before"]
    for packed in (NAMED[0], typed("msgpack", NAMED[1]), typed("pickle", pickle.dumps(called))):
        with pytest.raises(InvalidValue):
            encoding.unpack_value(sealing, packed)


async def test_hostile_memories_are_read_or_refused(opened: Store, space: str) -> None:
    session = lying(opened)
    memory = ShoalStore(opened, space=space)
    await memory.aput(("people", "ana"), "likes", {"text": "tea"})

    async def read() -> None:
        await memory.aget(("people", "ana"), "likes")
        await memory.asearch(("people",))

    await read_hostile(session, read)


@pytest.mark.parametrize("kind", ["json", "pickle", "", "msgpack+pickle"])
def test_a_kind_that_is_never_written_is_refused(kind: str) -> None:
    with pytest.raises(InvalidValue, match="never writes"):
        StrictSerializer().loads_typed((kind, b"{}"))
