"""Writes in a space with rules: whatever holds a secret, nothing of it is stored."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pycrdt
import pytest

import shoal
from shoal import values
from shoal.config import Config
from shoal.errors import (
    InvalidInput,
    KeyReused,
    RedactionFailed,
    RedactionRefused,
    RegisterChanged,
    SchemaViolation,
    ShoalError,
)
from shoal.kinds.label.state import Note
from shoal.kinds.list.requests import InsertElements
from shoal.kinds.redaction.serving import fields
from shoal.kinds.redaction.serving.patterns import Engine
from shoal.kinds.redaction.state import rules
from shoal.names import RESERVED
from shoal.protocol import requests
from shoal.protocol.base import ObjectWrite, Shape
from shoal.protocol.requests import Replaced
from shoal.protocol.requests.families import operations
from shoal.storage.interface import MemoryStorage
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench, Opener

SECRET = "sk-ant-" + "Zq7" * 12
CORE = b"Zq7Zq7Zq7"
CARD = 4111111111111111
PACKED = values.encode({"a": [f"use {SECRET} now"]})
TEXT = json.dumps({"a": [SECRET]}).encode()


def enc(value: Any) -> bytes:
    return values.encode(value)


@pytest.fixture
async def guarded(bench: Bench) -> Bench:
    await bench.space.redaction.set(credentials=True, cards=True)
    return bench


def rows(storage: MemoryStorage) -> Iterator[bytes]:
    """All that a store holds: the log, the rows, the answers to keys, whatever it is."""
    for key, value in storage.scan(b"", b"\xff" * 64):
        yield key
        yield value


def is_clean(storage: MemoryStorage, *secrets: bytes) -> bool:
    return not any(secret in row for row in rows(storage) for secret in (CORE, *secrets))


def yjs(text: str, *, doc: pycrdt.Doc[Any] | None = None) -> bytes:
    made = pycrdt.Doc() if doc is None else doc
    before = made.get_state()
    body = made.get("body", type=pycrdt.Text)
    body += text
    return made.get_update(before)


# What is stored with its replacements.
REPLACED: list[requests.Request[Any]] = [
    requests.Save("crew", "t", {"messages": PACKED}),
    requests.Save("crew", "t", {"messages": enc([])}, metadata=PACKED),
    requests.Save("crew", "t", {"messages": enc([])}, setting=PACKED),
    requests.Append("crew", "t", PACKED),
    requests.PutSnapshot("crew", "t", "sum", b"", PACKED),
    requests.BeginStep("crew", "t", "pay", "pay", arguments=PACKED),
    requests.Annotate("crew", "t", "here", [Note(b"n", PACKED)]),
    requests.Assign("crew", "r", PACKED),
    requests.CompareAndSet("crew", "r", enc(None), PACKED),
    requests.PutEntry("crew", "m", "k", PACKED),
    requests.AlterEntry("crew", "m", "k", add=[PACKED]),
    requests.AlterSet("crew", "s", add=[PACKED]),
    InsertElements("crew", "l", [PACKED]),
    requests.PutItem("crew", "memories", ["ada"], "k", PACKED),
    requests.Enqueue("crew", "t", "todo", [requests.QueueItem("k", PACKED)]),
    requests.Dequeue("crew", "t", "todo", "00", "ada", PACKED, False),
    requests.Begin("crew", "d", TEXT),
    requests.Replace("crew", "d", TEXT),
    requests.Patch("crew", "d", json.dumps([{"op": "add", "path": "/root", "value": {"a": SECRET}}]).encode()),
    requests.MoveThread("crew", "t", "paused", f"because {SECRET}", "ada"),
    requests.Announce("crew", "", [requests.Present(7, 1, TEXT)]),
    requests.EndStep("crew", "t", "pay", "", "result", PACKED),
    requests.ProgressStep("crew", "t", "pay", "", PACKED),
    requests.ResolveStep("crew", "t", "pay", "result", PACKED, "ada", f"it was {SECRET}"),
    requests.CompleteItem("crew", "t", "todo", "00" * 32, 1, "00" * 16, PACKED, "ada"),
    requests.FailItem("crew", "t", "todo", "00" * 32, 1, "00" * 16, f"why {SECRET}", 0, "ada"),
    requests.RecallTry("crew", "t", "todo", "00" * 32, 1, "waiting", "ada", f"why {SECRET}"),
    requests.Move("crew", "t", "main", "here", reason=f"why {SECRET}"),
    requests.EndLease("crew", "lease", 1, reason=f"why {SECRET}", by="ada"),
    requests.Swap("crew", "r", PACKED, PACKED, 1, "00" * 16),
]


@pytest.mark.answers("pasted-secret-is-stored-for-ever")
@pytest.mark.parametrize("request_", REPLACED, ids=lambda each: type(each).__name__)
async def test_no_content_of_a_write_is_stored(guarded: Bench, request_: Any) -> None:
    """Some are refused, as they build on what is not there: what they make of the write is looked at all the same."""
    session = guarded.node.session()
    await session.call(requests.Save("crew", "t", {"messages": enc([])}, label="here"))
    with shoal.redactions() as found:
        try:
            await session.call(request_, key="user-key")
        except (RedactionFailed, RedactionRefused):
            raise
        except ShoalError:
            made, seen = await guarded.node.service.redactor.redacted(request_, None)
            assert seen is not None
            assert CORE not in msgspec.msgpack.encode(made)
            found.extend(seen.replaced)
    assert {each.rule for each in found} == {"credentials"}
    assert all(each.path.startswith("/") and CORE not in each.path.encode() for each in found)
    assert is_clean(guarded.storage)
    assert is_clean(guarded.storage.left_by_crash(None))


NAMED: list[requests.Request[Any]] = [
    requests.Save("crew", SECRET, {}),
    requests.Save("crew", "t", {SECRET: enc(1)}),
    requests.Save("crew", "t", {}, branch=SECRET),
    requests.Save("crew", "t", {}, label=SECRET),
    requests.Save("crew", "t", {}, author=SECRET),
    requests.Save("crew", "t", {}, secret=[f"/{SECRET}"]),
    requests.Append("crew", SECRET, enc(1)),
    requests.Append("crew", "t", enc(1), key=SECRET),
    requests.Ack("crew", "t", SECRET, b""),
    requests.BeginStep("crew", "t", SECRET, "pay"),
    requests.BeginStep("crew", "t", "pay", SECRET),
    requests.BeginStep("crew", "t", "pay", "pay", holder=SECRET),
    requests.BeginStep("crew", "t", "pay", "pay", parent=SECRET),
    requests.Assign("crew", SECRET, enc(1)),
    requests.Assign("crew", "r", enc(1), by=SECRET),
    requests.PutEntry("crew", "m", SECRET, enc(1)),
    requests.AlterSet("crew", SECRET, add=[enc(1)]),
    requests.Add("crew", SECRET, 1),
    requests.Add("crew", "c", 1, key=SECRET),
    requests.AddEntry("crew", "m", SECRET, 1),
    requests.Grant("crew", SECRET, 1),
    InsertElements("crew", SECRET, [enc(1)]),
    requests.PutItem("crew", "memories", [SECRET], "k", enc(1)),
    requests.PutItem("crew", "memories", [], SECRET, enc(1)),
    requests.Enqueue("crew", "t", "todo", [requests.QueueItem(SECRET, enc(1))]),
    requests.Enqueue("crew", "t", SECRET, [requests.QueueItem("k", enc(1))]),
    requests.Enqueue("crew", "t", "todo", [requests.QueueItem("k", enc(1))], plan=requests.QueuePlan(group=SECRET)),
    requests.Annotate("crew", "t", "here", [Note(SECRET.encode(), enc(1))]),
    requests.Begin("crew", SECRET, b"{}"),
    requests.Begin("crew", "d", b"{}", author=SECRET),
    requests.Patch("crew", "d", json.dumps([{"op": "add", "path": f"/{SECRET}", "value": 1}]).encode()),
    requests.PutSchema("crew", "plan", 1, json.dumps({"default": SECRET}).encode()),
    requests.IndexItems("crew", "memories", [SECRET]),
    requests.AcquireLease("crew", "lease", 1000, holder=SECRET),
    requests.Update("crew", "d", yjs(SECRET), {"body": "text"}),
    requests.Updates("crew", "d", [yjs("fine"), yjs(SECRET)]),
    requests.Update("crew", "d", yjs("fine"), {"body": "text"}, {1: SECRET}),
    requests.KeepChunks("crew", "t", [b"anything"]),
    requests.PutFile("crew", "t", "a", "0" * 64, 1, "text/plain", b"", [b"anything"]),
    requests.CompleteItem("crew", "t", "todo", "00" * 32, 1, "00" * 16, enc(1), SECRET),
]


@pytest.mark.parametrize("request_", NAMED, ids=lambda each: type(each).__name__)
async def test_a_secret_that_cannot_be_replaced_is_refused(guarded: Bench, request_: Any) -> None:
    with pytest.raises(RedactionRefused) as caught:
        await guarded.node.session().call(request_)
    assert "Nothing was written" in caught.value.message
    assert CORE not in repr((caught.value.message, caught.value.detail)).encode()
    assert is_clean(guarded.storage)
    status = await guarded.store.status()
    assert status.redaction_refused == 1


def test_every_field_of_every_write_has_a_treatment() -> None:
    for kind in fields.CONCERNED:
        fields.treatments(kind)  # Raises if a field has none.
    unseen = {
        (kind.__name__, field.name)
        for kind in operations(ObjectWrite)
        for field in msgspec.structs.fields(kind)
        if _holds_values(field.type) and field.name not in fields.treatments(kind)
    }
    assert unseen == set()


def _holds_values(annotation: Any) -> bool:
    return Shape.VALUE in getattr(annotation, "__metadata__", ()) or any(map(_holds_values, get_args(annotation)))


def test_each_kind_with_contents_is_tried() -> None:
    contents = {kind for kind in fields.CONCERNED if set(fields.treatments(kind).values()) & fields._CONTENTS}
    assert {type(each) for each in REPLACED} == contents


def test_a_field_of_an_unknown_kind_is_refused() -> None:
    class Later(ObjectWrite[requests.Deleted], array_like=True, frozen=True, tag="later"):
        thread: str
        blob: bytes = b""

    field = msgspec.structs.fields(Later)[2]
    with pytest.raises(TypeError, match="no treatment"):
        fields._treatment(Later, field)
    del Later


async def test_a_space_without_rules_stores_as_before(bench: Bench) -> None:
    await bench.store.space("other").redaction.set(credentials=True)
    with shoal.redactions() as found:
        await bench.space.register("r").set(SECRET)
    assert await bench.space.register("r").get() == SECRET
    assert found == []


async def test_rules_count_from_now_on_until_they_are_gone(bench: Bench) -> None:
    register = bench.space.register("r")
    told = await bench.space.redaction.set(patterns={"mail": r"[a-z]+@[a-z]+\.org"})
    assert [(each.name, each.replace) for each in told.patterns] == [("mail", "[mail]")]
    await register.set("to ada@example.org")
    assert await register.get() == "to [mail]"
    assert (await bench.space.redaction.get()).replaced == 1
    await bench.space.redaction.unset()
    await register.set("to ada@example.org")
    assert await register.get() == "to ada@example.org"


async def test_the_answer_says_what_was_replaced(guarded: Bench) -> None:
    with shoal.redactions() as found:
        await guarded.space.thread("t").save({"a": [1, SECRET], "b": CARD})
        await guarded.space.register("r").set("fine")
    assert found == [Replaced("/channels/a/1", "credentials", 1), Replaced("/channels/b", "cards", 1)]
    state = (await guarded.space.thread("t").load()).state
    assert state == {"a": [1, "[credentials]"], "b": "[card]"}


async def test_the_time_line_says_what_was_replaced(guarded: Bench) -> None:
    thread = guarded.space.thread("t")
    await thread.save({"a": SECRET})
    await thread.save({"a": "fine"})
    told = [each.redacted async for each in guarded.space.audit()]
    assert sorted(told, key=len) == [[], [Replaced("/channels/a", "credentials", 1)]]


async def test_a_batch_is_replaced_write_by_write(guarded: Bench) -> None:
    space = guarded.store.space("{crew}", colocated=True)
    await space.redaction.set(credentials=True)
    with shoal.redactions() as found:
        async with space.batch() as batch:
            batch.register("a").set("fine")
            batch.register("b").set(SECRET)
    assert [each.path for each in found] == ["/writes/1/value"]
    assert await space.register("b").get() == "[credentials]"
    assert is_clean(guarded.storage)


async def test_a_delta_and_appended_elements_are_replaced(guarded: Bench) -> None:
    thread = guarded.space.thread("t")
    await thread.save({"messages": ["a"], "other": 1})
    await thread.save({"messages": ["a", SECRET], "other": 1})
    await thread.save({"messages": ["a", SECRET, {"role": "user", "text": SECRET}], "other": 1})
    loaded = await thread.load()
    assert loaded.state["messages"] == ["a", "[credentials]", {"role": "user", "text": "[credentials]"}]
    assert is_clean(guarded.storage)


async def test_compare_and_set_compares_what_is_stored(guarded: Bench) -> None:
    register = guarded.space.register("r")
    await register.compare_and_set(None, {"key": SECRET})
    await register.compare_and_set({"key": SECRET}, {"key": SECRET, "n": 2})
    with pytest.raises(RegisterChanged):
        await register.compare_and_set({"key": SECRET}, 3)
    assert await register.get() == {"key": "[credentials]", "n": 2}
    assert is_clean(guarded.storage)


async def test_an_element_is_removed_by_what_it_was(guarded: Bench) -> None:
    members = guarded.space.set("s")
    await members.add(SECRET, "b")
    assert await members.remove(SECRET) == 1
    assert await members.pop(9) == ["b"]


# ── repeats ───────────────────────────────────────────────────────────────────


async def test_a_repeat_is_the_same_write(guarded: Bench) -> None:
    session = guarded.node.session()
    first = await session.call(requests.Append("crew", "t", PACKED), key="k")
    assert await session.call(requests.Append("crew", "t", PACKED), key="k") == first
    assert is_clean(guarded.storage)
    crashed = guarded.crashed(None)
    assert await crashed.node.session().call(requests.Append("crew", "t", PACKED), key="k") == first
    await crashed.node.stop()


async def test_a_repeat_under_other_rules_is_the_same_write(guarded: Bench) -> None:
    session = guarded.node.session()
    before = await session.call(requests.Append("crew", "t", enc("Ada was here")), key="before")
    first = await session.call(requests.Append("crew", "t", PACKED), key="k")
    await guarded.space.redaction.set(credentials=True, patterns={"name": "Ada|use|now"})
    assert await session.call(requests.Append("crew", "t", PACKED), key="k") == first
    assert await session.call(requests.Append("crew", "t", enc("Ada was here")), key="before") == before
    await guarded.space.redaction.unset()
    assert await session.call(requests.Append("crew", "t", PACKED), key="k") == first


async def test_another_write_under_the_key_conflicts(guarded: Bench) -> None:
    session = guarded.node.session()
    await session.call(requests.Append("crew", "t", PACKED), key="k")
    with pytest.raises(KeyReused):
        await session.call(requests.Save("crew", "t", {"a": PACKED}), key="k")
    await session.call(requests.Append("crew", "t", enc("plain")), key="plain")
    with pytest.raises(KeyReused):
        await session.call(requests.Append("crew", "t", enc("other")), key="plain")


async def test_the_record_of_a_key_says_nothing_of_a_secret(guarded: Bench) -> None:
    """A hash of a card's number is as good as the number: what is kept is the same for every number."""

    async def kept(card: int) -> set[bytes]:
        bench = Bench(MemoryStorage(), type(guarded.simulated)(1), Config())
        await bench.space.redaction.set(cards=True)
        await bench.node.session().call(requests.Append("crew", "t", enc({"card": card})), key="k")
        kept = set(rows(bench.storage))
        await bench.node.stop()
        return kept

    assert await kept(CARD) == await kept(5555555555554444)


async def test_a_key_that_a_user_chose_is_a_name(guarded: Bench) -> None:
    with pytest.raises(RedactionRefused, match="idempotency key"):
        await guarded.node.session().call(requests.Add("crew", "c", 1), key=SECRET)


# ── documents ─────────────────────────────────────────────────────────────────


async def test_a_document_is_replaced_as_json(guarded: Bench) -> None:
    session = guarded.node.session()
    content = json.dumps({"note": {"text": f"use {SECRET}", "n": CARD}}).encode()
    shown = json.loads((await session.call(requests.Replace("crew", "d", content))).json)
    assert shown["note"] == {"text": "use [credentials]", "n": "[card]"}
    patch = json.dumps([{"op": "add", "path": "/note/more", "value": [SECRET]}]).encode()
    shown = json.loads((await session.call(requests.Patch("crew", "d", patch))).json)
    assert shown["note"]["more"] == ["[credentials]"]
    assert is_clean(guarded.storage)


async def test_a_secret_put_together_in_two_edits_is_refused(guarded: Bench) -> None:
    session = guarded.node.session()
    doc: pycrdt.Doc[Any] = pycrdt.Doc()
    await session.call(requests.Update("crew", "d", yjs(SECRET[:12], doc=doc), {"body": "text"}))
    before = set(rows(guarded.storage))
    with pytest.raises(RedactionRefused, match="put together"):
        await session.call(requests.Update("crew", "d", yjs(SECRET[12:], doc=doc), {"body": "text"}))
    assert set(rows(guarded.storage)) == before
    shown = json.loads((await session.call(requests.ReadDocumentJson("crew", "d"))).json)
    assert shown == {"body": SECRET[:12]}
    other: pycrdt.Doc[Any] = pycrdt.Doc()
    await session.call(requests.Update("crew", "d", yjs("more ", doc=other), {"body": "text"}))


async def test_a_patch_whose_result_holds_a_secret_is_refused(bench: Bench) -> None:
    """No part of the edit holds what its result does."""
    await bench.space.redaction.set(patterns={"pair": "left right"})
    session = bench.node.session()
    doc: pycrdt.Doc[Any] = pycrdt.Doc()
    await session.call(requests.Update("crew", "e", yjs("left ", doc=doc), {"body": "text"}))
    with pytest.raises(RedactionRefused):
        await session.call(requests.Updates("crew", "e", [yjs("right", doc=doc)]))


async def test_a_document_from_before_the_rules_stays_editable(bench: Bench) -> None:
    session = bench.node.session()
    doc: pycrdt.Doc[Any] = pycrdt.Doc()
    await session.call(requests.Update("crew", "d", yjs(SECRET, doc=doc), {"body": "text"}))
    await bench.space.redaction.set(credentials=True)
    await session.call(requests.Update("crew", "d", yjs(" more", doc=doc), {"body": "text"}))
    with pytest.raises(RedactionRefused):
        await session.call(requests.Update("crew", "d", yjs(f" {SECRET}", doc=doc), {"body": "text"}))


async def test_a_large_document_is_not_edited(open_bench: Opener) -> None:
    bench = open_bench(DOCUMENT_BYTES_MAX=200)
    await bench.space.redaction.set(credentials=True)
    with pytest.raises(RedactionRefused, match="not edited"):
        await bench.node.session().call(requests.Update("crew", "d", yjs("x" * 500), {"body": "text"}))


# ── positive knowledge ────────────────────────────────────────────────────────


async def test_rules_that_cannot_be_read_stop_writes(bench: Bench) -> None:
    session = bench.node.session()
    await session.call(requests.PutEntry(RESERVED, rules.RULES, rules.key_of("crew"), enc({"space": "crew", "later": 1})))
    with pytest.raises(RedactionFailed, match="later"):
        await session.call(requests.Assign("crew", "r", enc("plain")))
    await session.call(requests.Assign("other", "r", enc("plain")))
    assert (await bench.space.redaction.get()).trouble
    await bench.space.redaction.set(credentials=True)
    await session.call(requests.Assign("crew", "r", enc("plain")))


async def test_a_pattern_that_cannot_be_compiled_stops_writes(bench: Bench) -> None:
    record = rules.packed(rules.Rules("crew", patterns=(rules.Pattern("p", "(", "[p]"),)))
    session = bench.node.session()
    await session.call(requests.PutEntry(RESERVED, rules.RULES, rules.key_of("crew"), record))
    with pytest.raises(RedactionFailed, match="RE2"):
        await session.call(requests.Append("crew", "t", enc("plain")))
    with pytest.raises(RedactionFailed):
        await session.call(requests.Batch([requests.Assign("crew", "r", enc(1))]))


@pytest.mark.parametrize(
    "told",
    [{}, {"files": True}, {"patterns": {"p": "("}}, {"hooks": ["none"]}, {"patterns": [1]}, {"patterns": {"p": 1}}],
)
async def test_rules_that_no_node_keeps_are_not_set(bench: Bench, told: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        await bench.space.redaction.set(**told)
    assert (await bench.space.redaction.get()).wall_ms == 0


async def test_the_nodes_own_space_has_no_rules(bench: Bench) -> None:
    with pytest.raises(InvalidInput, match="nodes themselves"):
        await bench.store.space(RESERVED).redaction.set(credentials=True)


async def test_the_space_of_the_nodes_is_never_asked(bench: Bench) -> None:
    """Else a record about it, from an older program or a peer, would stop the nodes themselves."""
    session = bench.node.session()
    await session.call(requests.PutEntry(RESERVED, rules.RULES, rules.key_of(RESERVED), enc({"later": 1})))
    await session.call(requests.PutEntry(RESERVED, "anything", "k", enc(SECRET)))


async def test_bad_names_can_be_deleted(bench: Bench) -> None:
    await bench.space.register(SECRET).set(1)
    await bench.space.redaction.set(credentials=True)
    assert await bench.space.register(SECRET).delete()


async def test_files_are_refused_unless_allowed(bench: Bench) -> None:
    await bench.space.redaction.set(credentials=True)
    with pytest.raises(RedactionRefused, match="nothing looks into files"):
        await bench.space.thread("t").put_file("a.txt", b"x" * 100)
    await bench.space.redaction.set(credentials=True, files=True)
    await bench.space.thread("t").put_file("a.txt", b"x" * 100)


async def test_a_test_says_what_would_be_replaced(bench: Bench) -> None:
    tried = await bench.space.redaction.test(f"use {SECRET}", "plain", credentials=True)
    assert tried.texts == ["use [credentials]", "plain"]
    assert tried.replaced == [Replaced("0", "credentials", 1)]
    assert (await bench.space.redaction.test("x 1")).texts == ["x 1"]
    await bench.space.redaction.set(patterns={"n": r"\d"})
    assert (await bench.space.redaction.test("x 1")).texts == ["x [n]"]
    assert is_clean(bench.storage)


async def test_a_schema_is_checked_against_what_is_stored(bench: Bench) -> None:
    schema = {"type": "object", "properties": {"key": {"type": "string", "maxLength": 5}}}
    await bench.space.schemas.put("plan", 1, schema, threads="t")
    await bench.space.redaction.set(patterns={"long-name": "ab"})
    with pytest.raises(SchemaViolation):
        await bench.space.thread("t").save({"key": "ab"})


async def test_much_text_is_looked_through_elsewhere(open_bench: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = open_bench(AT_ONCE_BYTES=100)
    await bench.space.redaction.set(credentials=True)
    redactor = bench.node.service.redactor
    run_apart, apart = redactor._run_apart, list[Any]()

    def noted(function: Any) -> Any:
        apart.append(function)
        return run_apart(function)

    await redactor._kept("crew")  # Else that would count.
    monkeypatch.setattr(redactor, "_run_apart", noted)
    await bench.space.register("r").set(SECRET)
    assert len(apart) == 0
    await bench.space.thread("t").save({"a": "x" * 500 + " " + SECRET})
    assert len(apart) == 1
    assert is_clean(bench.storage)


# ── imports ───────────────────────────────────────────────────────────────────


async def test_an_import_goes_through_the_rules(guarded: Bench) -> None:
    session = guarded.node.session()
    await session.call(requests.Import([requests.Imported(requests.Append("crew", "t", PACKED), 1)]))
    save = requests.Save("crew", "t", {"a": PACKED})
    with pytest.raises(RedactionRefused, match="imported"):
        await session.call(requests.Import([requests.Imported(save, 1, id="00" * 32)]))
    await session.call(requests.Import([requests.Imported(save, 1)]))
    assert is_clean(guarded.storage)


# ── the cluster ───────────────────────────────────────────────────────────────


@pytest.mark.virtual_time
async def test_a_node_keeps_rules_that_were_set_at_another() -> None:
    async with Fleet("abc") as fleet:
        record = rules.packed(rules.Rules("crew", credentials=True))
        put = requests.PutEntry(RESERVED, rules.RULES, rules.key_of("crew"), record)
        await fleet["a"].node.session().call(put, durability="all")
        for name in "abc":
            await fleet[name].node.session().call(requests.Assign("crew", name, PACKED))
        await asyncio.sleep(1)
        for name in "abc":
            assert is_clean(fleet[name].storage)
            for other in "abc":
                found = await fleet[name].node.session().call(requests.ReadRegister("crew", other))
                assert values.decode(found.value) == {"a": ["use [credentials] now"]}


async def test_rules_are_compiled_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[rules.Rules] = []
    sound = Engine.__init__

    def counted(self: Engine, told: rules.Rules) -> None:
        made.append(told)
        sound(self, told)

    monkeypatch.setattr(Engine, "__init__", counted)
    await bench.space.redaction.set(patterns={"n": r"\d"})
    await bench.space.register("r").set("a 1")
    await bench.store.space("other").redaction.set(cards=True)
    await bench.space.register("r").set("b 1")
    assert await bench.space.register("r").get() == "b [n]"
    assert len(made) == 2


async def test_patterns_that_are_tried_are_compiled_apart(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    apart: list[Any] = []
    run_apart = bench.node.service.redactor._run_apart

    def noted(function: Any) -> Any:
        apart.append(function)
        return run_apart(function)

    monkeypatch.setattr(bench.node.service.redactor, "_run_apart", noted)
    await bench.space.redaction.test("a 1", patterns={"n": r"\d"})
    assert len(apart) == 1


async def test_rules_that_were_set_elsewhere_are_compiled_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Fleet("abc") as fleet:
        space = fleet["a"].store().space("crew")
        await space.redaction.set(patterns={"n": r"\d"})
        await fleet.converged()
        redactor, apart = fleet["b"].node.service.redactor, []
        run_apart = redactor._run_apart

        def noted(function: Any) -> Any:
            apart.append(function)
            return run_apart(function)

        monkeypatch.setattr(redactor, "_run_apart", noted)
        there = fleet["b"].store().space("crew")
        for _ in range(2):
            await there.register("r").set("a 1")
            assert await there.register("r").get() == "a [n]"
        assert len(apart) == 1


async def test_an_edit_whose_rules_change_under_way_is_not_written_unseen(bench: Bench) -> None:
    """The rules that it was looked through by are others by the time it is written, and are not compiled."""
    redactor = bench.node.service.redactor
    assert redactor.guard("crew") is None
    await bench.space.redaction.set(patterns={"n": r"\d"})
    assert redactor.guard("crew") is not None
    redactor._engines.clear()
    redactor._known.clear()
    with pytest.raises(RedactionFailed, match="changed meanwhile"):
        redactor.guard("crew")
