"""The laws of a conversation store: each holds for pydantic_ai's own store in memory, and for ours."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation, ConversationTypeAdapter
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
    InMemoryConversationStore,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.usage import RunUsage

from shoal.client.store import Store
from shoal.errors import InvalidInput, InvalidName, InvalidValue, SchemaTooNew, ShoalError, TooLarge
from shoal.integrations.pydantic import ShoalConversationStore
from shoal.integrations.pydantic.conversations import ENTRIES, FAMILIES, RECORDS, shown_record


@pytest.fixture(params=["theirs", "embedded", "served"])
async def store(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    if request.param == "theirs":
        yield InMemoryConversationStore()
        return
    of = ShoalConversationStore.open(tmp_path / "s") if request.param == "embedded" else None
    opening = of or ShoalConversationStore.connect(request.getfixturevalue("url"), space=str(request.node.name)[:200])
    async with opening as each:
        yield each


def said(text: str) -> ModelMessage:
    return ModelRequest(parts=[UserPromptPart(text)])


def answered(text: str) -> ModelMessage:
    return ModelResponse(parts=[TextPart(text)])


def talk(*texts: str) -> list[ModelMessage]:
    return [said(text) if nth % 2 == 0 else answered(text) for nth, text in enumerate(texts)]


async def saved(store: ConversationStore, id: str, *texts: str, scope: str | None = None) -> Conversation:
    conversation = Conversation(conversation_id=id, messages=talk(*texts))
    await store.save(conversation, scope=scope)
    return conversation


async def texts(store: ConversationStore, id: str, **how: Any) -> list[str] | None:
    loaded = await store.load(id, **how)
    return None if loaded is None else [str(each.parts[0].content) for each in loaded.messages]


async def test_a_saved_conversation_comes_back(store: ConversationStore) -> None:
    usage = RunUsage(requests=2, input_tokens=10, output_tokens=20, tool_calls=1, details={"reasoning": 3})
    waits = DeferredToolRequests(
        approvals=[ToolCallPart("pay", {"amount": 5}, tool_call_id="c")], metadata={"c": {"why": "dear"}}
    )
    parts: list[Any] = [
        SystemPromptPart("be kind"),
        UserPromptPart(
            ["look", BinaryContent(b"\x00\xff", media_type="image/png")], timestamp=datetime(2026, 1, 2, tzinfo=UTC)
        ),
        ToolReturnPart("look", {"at": [1, 2.5, None, "\ud800"]}, tool_call_id="d", metadata={"m": 1}),
        ToolReturnPart("look", "again", tool_call_id="e", outcome="retried"),
    ]
    answer = ModelResponse(
        parts=[ThinkingPart("hm", signature="s"), TextPart("é\u2028"), ToolCallPart("pay", '{"amount": 5}', tool_call_id="c")],
        model_name="m",
        provider_details={"id": 2**70},
        finish_reason="stop",
    )
    conversation = Conversation(
        conversation_id="c/1", messages=[ModelRequest(parts=parts), answer], usage=usage, deferred_tool_requests=waits
    )
    stored = await store.save(conversation, scope="ann")
    loaded = await store.load("c/1")
    assert loaded is not None
    as_json = ConversationTypeAdapter.validate_python(ConversationTypeAdapter.dump_python(conversation, mode="json"))
    assert loaded == (conversation if isinstance(store, InMemoryConversationStore) else as_json)
    assert [entry.id for entry in await store.load_entries("c/1") or []] == [entry.id for entry in stored]


async def test_an_unknown_conversation_is_none(store: ConversationStore) -> None:
    assert await store.load("nobody") is None
    assert await store.load_entries("nobody") is None
    await store.delete("nobody")
    with pytest.raises(LookupError):
        await store.read_entry("nobody")


async def test_a_save_appends_only_what_is_new(store: ConversationStore) -> None:
    conversation = await saved(store, "c", "a", "b")
    conversation.messages += talk("c", "d")
    assert len(await store.save(conversation)) == 2
    assert await texts(store, "c") == ["a", "b", "c", "d"]
    assert await store.save(conversation) == []


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 4, 9])
async def test_a_limit_loads_the_last_messages(store: ConversationStore, limit: int) -> None:
    await saved(store, "c", "a", "b", "c", "d")
    assert await texts(store, "c", limit=limit) == ["a", "b", "c", "d"][4 - min(limit, 4) :]


async def test_a_conversation_loaded_with_a_limit_is_appended_to(store: ConversationStore) -> None:
    await saved(store, "c", "a", "b", "c", "d")
    loaded = await store.load("c", limit=1)
    assert loaded is not None
    loaded.messages.append(said("e"))
    await store.save(loaded)
    assert await texts(store, "c") == ["a", "b", "c", "d", "e"]


async def test_of_two_writers_one_is_refused(store: ConversationStore) -> None:
    await saved(store, "c", "a")
    one, other = await store.load("c"), await store.load("c")
    assert one is not None
    assert other is not None
    for each, text in ((one, "one"), (other, "other")):
        each.messages.append(answered(text))
    results = await asyncio.gather(store.save(one), store.save(other), return_exceptions=True)
    assert sorted(type(each).__name__ for each in results) == ["ConversationConflict", "list"]
    assert await texts(store, "c") in (["a", "one"], ["a", "other"])
    record = await store.read_record("c")
    assert record is not None
    assert record.branches == []


async def test_a_conversation_that_was_not_loaded_is_not_overwritten(store: ConversationStore) -> None:
    await saved(store, "c", "a")
    with pytest.raises(ConversationConflict):
        await saved(store, "c", "b")
    assert await texts(store, "c") == ["a"]


async def test_a_deleted_conversation_is_not_appended_to(store: ConversationStore) -> None:
    conversation = await saved(store, "c", "a")
    await store.delete("c")
    conversation.messages.append(answered("b"))
    with pytest.raises(ConversationConflict):
        await store.save(conversation)
    assert await store.load("c") is None
    again = await saved(store, "c", "x")
    with pytest.raises(ConversationConflict):
        await store.save(conversation)
    assert again.revision != conversation.revision
    assert await texts(store, "c") == ["x"]


async def test_a_record_that_follows_an_entry_that_is_not_there_is_refused(store: ConversationStore) -> None:
    record = ConversationRecord(conversation_id="c", head_id="nowhere")
    with pytest.raises(ConversationConflict):
        await store.write_record(record, expected_revision=None)
    assert await store.read_record("c") is None


async def test_a_history_that_was_rewritten_is_a_branch(store: ConversationStore) -> None:
    conversation = await saved(store, "c", "a", "b", "c")
    conversation.messages[1:] = [answered("B")]
    await store.save(conversation)
    assert await texts(store, "c") == ["a", "B"]
    record = await store.read_record("c")
    assert record is not None
    left = [entry.message.parts[0].content for entry in await store.read_history(record.branches[-1])]
    assert left == ["a", "b", "c"]


async def test_a_conversation_goes_on_from_an_earlier_message_and_back(store: ConversationStore) -> None:
    conversation = await saved(store, "c", "a", "b", "c", "d")
    entries = await store.load_entries("c")
    assert entries is not None
    branched = await store.branch("c", at=2, expected_revision=conversation.revision)
    branched.messages.append(said("e"))
    await store.save(branched)
    assert await texts(store, "c") == ["a", "b", "e"]
    back = await store.branch("c", from_entry=entries[-1].id, expected_revision=branched.revision)
    assert [str(each.parts[0].content) for each in back.messages] == ["a", "b", "c", "d"]
    with pytest.raises(ConversationConflict):
        await store.branch("c", at=1, expected_revision=branched.revision)
    with pytest.raises(UserError):
        await store.branch("c", at=99, expected_revision=back.revision)


@pytest.mark.answers("conversation-is-forked-and-deleted-at-once")
async def test_a_fork_shares_and_survives_what_it_was_forked_from(store: ConversationStore) -> None:
    await saved(store, "c", "a", "b", "c", "d")
    fork = await store.fork("c", at=3, new_conversation_id="f")
    fork.messages.append(answered("F"))
    assert len(await store.save(fork)) == 1
    grandchild = await store.fork("f", new_conversation_id="g")
    grandchild.messages.append(said("G"))
    await store.save(grandchild)
    entries = await store.load_entries("c")
    assert entries is not None
    await store.delete("f")
    await store.delete("c")
    assert await texts(store, "g") == ["a", "b", "c", "F", "G"]
    assert await texts(store, "g", limit=3) == ["c", "F", "G"]
    with pytest.raises(LookupError):
        await store.read_entry(entries[-1].id)  # "d", which no fork shares.
    await store.delete("g")
    for entry in entries:
        with pytest.raises(LookupError):
            await store.read_entry(entry.id)


async def test_a_branch_that_was_left_is_kept_by_others_deletions(store: ConversationStore) -> None:
    conversation = await saved(store, "c", "a", "b")
    await store.fork("c", new_conversation_id="f")
    branched = await store.branch("c", at=1, expected_revision=conversation.revision)
    branched.messages.append(answered("B"))
    await store.save(branched)
    await store.delete("f")
    record = await store.read_record("c")
    assert record is not None
    assert len(await store.read_history(record.branches[0])) == 2


async def test_a_fork_under_an_id_that_exists_is_refused(store: ConversationStore) -> None:
    await saved(store, "c", "a")
    await saved(store, "d", "a")
    with pytest.raises(ConversationConflict):
        await store.fork("c", new_conversation_id="d")


async def test_conversations_are_listed_last_saved_first_by_scope(store: ConversationStore) -> None:
    for nth, scope in enumerate(("ann", "bo", "ann", None)):
        await saved(store, f"c{nth}", "a", scope=scope)
    loaded = await store.load("c0")
    assert loaded is not None
    await store.save(loaded)
    listed = await store.list_conversations()
    assert [record.conversation_id for record in listed] == ["c0", "c3", "c2", "c1"]
    assert [record.conversation_id for record in await store.list_conversations(scope="ann")] == ["c0", "c2"]
    assert [record.conversation_id for record in await store.list_conversations(scope="ann", limit=1)] == ["c0"]
    assert await store.list_conversations(scope="nobody") == []


async def test_another_scope_sees_nothing(store: ConversationStore) -> None:
    await saved(store, "c", "a", scope="ann")
    assert await store.load("c", scope="bo") is None
    await store.delete("c", scope="bo")
    assert await texts(store, "c", scope="ann") == ["a"]


async def test_a_changed_revision_is_not_deleted(store: ConversationStore) -> None:
    conversation = await saved(store, "c", "a")
    old = conversation.revision
    assert old is not None
    await store.save(conversation)
    with pytest.raises(ConversationConflict):
        await store.delete_record("c", expected_revision=old)
    assert await texts(store, "c") == ["a"]


async def test_a_run_is_continued_and_saved(store: ConversationStore) -> None:
    agent = Agent(TestModel(call_tools=["look"]))

    @agent.tool_plain
    def look() -> str:
        return "rain"

    result = await agent.run("what is the weather?", conversation=Conversation(conversation_id="c"))
    await store.save(result)
    loaded = await store.load("c")
    assert loaded is not None
    again = await agent.run("and now?", conversation=loaded)
    await store.save(again)
    final = await store.load("c")
    assert final is not None
    assert final.messages == again.conversation.messages
    assert final.usage.requests == 3
    assert final.usage == again.conversation.usage


# ── ours alone ────────────────────────────────────────────────────────────────


async def test_ids_are_arbitrary_text(opened: Store, space: str) -> None:
    ours = ShoalConversationStore(opened, space=space)
    for id in ("", ".", "a/b.c", "%", "a\nb", "\ud800", "{x}"):
        await saved(ours, id, "a", "b")
        assert await texts(ours, id) == ["a", "b"]
    assert len(await ours.list_conversations()) == 7


async def test_more_than_one_batch_is_saved_and_erased(opened: Store, space: str) -> None:
    ours = ShoalConversationStore(opened, space=space)
    many = [f"{nth}" for nth in range(1200)]
    await saved(ours, "c", *many)
    assert await texts(ours, "c") == many
    assert await texts(ours, "c", limit=5) == many[-5:]
    entries = await ours.load_entries("c")
    assert entries is not None
    await ours.delete("c")
    assert await ours.read_record("c") is None
    assert await left(opened, space) == []


async def test_a_deletion_that_ended_half_way_is_finished_by_the_next(
    opened: Store, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = ShoalConversationStore(opened, space=space)
    await saved(ours, "c", *(f"{nth}" for nth in range(1200)))
    await saved(ours, "d", "a")
    with monkeypatch.context() as patched:
        patched.setattr(ShoalConversationStore, "_erased", _dies)
        with pytest.raises(ConnectionError):
            await ours.delete("c")
    assert await ours.load("c") is None
    assert [record.conversation_id for record in await ours.list_conversations()] == ["d"]
    await ours.delete("d")
    assert await left(opened, space) == []


async def left(opened: Store, space: str) -> list[tuple[str, ...]]:
    """What the store holds of conversations, but for the marks that keep late forks away."""
    return [item.namespace async for item in opened.space(space).items.scan() if item.namespace != FAMILIES]


async def _dies(*_: Any) -> None:
    raise ConnectionError


@pytest.mark.answers("conversation-is-forked-and-deleted-at-once")
async def test_a_fork_and_a_deletion_at_once_leave_no_hole(opened: Store, space: str) -> None:
    ours = ShoalConversationStore(opened, space=space)
    for nth in range(8):
        await saved(ours, f"c{nth}", "a", "b", "c")
        fork: Any
        fork, _ = await asyncio.gather(
            ours.fork(f"c{nth}", new_conversation_id=f"f{nth}"), ours.delete(f"c{nth}"), return_exceptions=True
        )
        assert isinstance(fork, Conversation | ConversationConflict | UserError), fork
        assert await texts(ours, f"f{nth}") == (["a", "b", "c"] if isinstance(fork, Conversation) else None)
        assert await ours.load(f"c{nth}") is None


async def test_an_entry_of_a_known_id_does_not_replace_another(opened: Store, space: str) -> None:
    ours = ShoalConversationStore(opened, space=space)
    await saved(ours, "c", "a")
    [entry] = await ours.load_entries("c") or []
    other = replace(entry, message=said("other"), parent_id=None)
    record = ConversationRecord(conversation_id="d", head_id=other.id)
    with pytest.raises(ConversationConflict):
        await ours.write_record(record, new_entries=[other], expected_revision=None)
    assert await texts(ours, "c") == ["a"]
    assert isinstance(entry, ConversationEntry)


async def test_saves_of_two_separated_nodes_are_kept(opened: Store, space: str) -> None:
    ours = ShoalConversationStore(opened, space=space)
    await saved(ours, "c", "a")
    one, other = await ours.load("c"), await ours.load("c")
    assert one is not None
    assert other is not None
    one.messages.append(answered("one"))
    await ours.save(one)
    mine = await opened.space(space).items.get(RECORDS, "c")
    assert mine is not None
    lost = await ours.branch("c", at=1, expected_revision=one.revision)
    lost.messages.append(answered("other"))
    await ours.save(lost)
    theirs = await opened.space(space).items.get(RECORDS, "c")
    assert theirs is not None
    kept = shown_record(replace(mine, _siblings=(theirs._value,)))
    tips = [str((await ours.read_entry(tip)).message.parts[0].content) for tip in kept.record.branches]
    assert tips == ["other"]


async def test_an_id_of_two_kilobytes_is_refused(opened: Store, space: str) -> None:
    ours = ShoalConversationStore(opened, space=space)
    with pytest.raises(InvalidName):
        await saved(ours, "x" * 2048, "a")
    with pytest.raises(InvalidName):
        await ours.load("x" * 2048)
    entry = ConversationEntry(id="x" * 2048, parent_id=None, message=said("a"))
    with pytest.raises(InvalidName):
        await ours.write_record(
            ConversationRecord(conversation_id="c", head_id=entry.id), new_entries=[entry], expected_revision=None
        )
    assert await left(opened, space) == []


async def test_a_message_that_is_no_json_is_refused_whole(opened: Store, space: str) -> None:
    ours = ShoalConversationStore(opened, space=space)
    bad: list[ModelMessage] = [said("a"), ModelRequest(parts=[ToolReturnPart("look", {"at": object()}, tool_call_id="c")])]
    with pytest.raises(InvalidValue, match=r"new_entries\[1\]"):
        await ours.save(Conversation(conversation_id="c", messages=bad))
    waits = DeferredToolRequests(metadata={"c": {"bad": object()}})
    record = ConversationRecord(conversation_id="c", head_id=None, deferred_tool_requests=waits)
    with pytest.raises(InvalidValue, match="the record"):
        await ours.write_record(record, expected_revision=None)
    assert await left(opened, space) == []


async def test_a_message_that_is_too_large_is_refused_whole(opened: Store, space: str) -> None:
    ours = ShoalConversationStore(opened, space=space)
    with pytest.raises(TooLarge):
        await saved(ours, "c", "a", "x" * 2**26)
    assert await left(opened, space) == []


@pytest.mark.parametrize("change", [{"pydantic": 99}, {"record": {"format_version": 2}}, {"record": {"usage": 7}}])
async def test_a_record_of_a_newer_form_is_refused(change: dict[str, Any], opened: Store, space: str) -> None:
    ours, items = ShoalConversationStore(opened, space=space), opened.space(space).items
    conversation = await saved(ours, "c", "a")
    item = await items.get(RECORDS, "c")
    assert item is not None
    value = dict(item.value)
    record = {**value["record"], **change.get("record", {})}
    await items.put(RECORDS, "c", {**value, **change, "record": record})
    conversation.messages.append(answered("b"))
    for call in (ours.load("c"), ours.save(conversation), ours.list_conversations(), ours.delete("c")):
        with pytest.raises(SchemaTooNew):
            await call
    assert sorted(await left(opened, space)) == [ENTRIES, RECORDS]


@pytest.mark.parametrize(
    "change", [{"pydantic": 99}, {"kind": "image"}, {"message": {"kind": "request", "parts": [{"part_kind": "x"}]}}]
)
async def test_an_entry_of_a_newer_form_is_refused(change: dict[str, Any], opened: Store, space: str) -> None:
    ours, items = ShoalConversationStore(opened, space=space), opened.space(space).items
    await saved(ours, "c", "a")
    [entry] = await ours.load_entries("c") or []
    item = await items.get(ENTRIES, entry.id)
    assert item is not None
    await items.put(ENTRIES, entry.id, {**item.value, **change})
    with pytest.raises(SchemaTooNew):
        await ours.load("c")


async def test_an_item_that_somebody_else_put_is_told(opened: Store, space: str) -> None:
    ours = ShoalConversationStore(opened, space=space)
    await opened.space(space).items.put(RECORDS, "c", {"mine": True})
    with pytest.raises(InvalidValue, match="not written by this integration"):
        await ours.load("c")


async def test_a_store_that_is_closed_says_so(tmp_path: Any) -> None:
    async with ShoalConversationStore.open(tmp_path / "s") as ours:
        conversation = await saved(ours, "c", "a")
    conversation.messages.append(answered("b"))
    with pytest.raises(ShoalError):
        await ours.save(conversation)
    async with ShoalConversationStore.open(tmp_path / "s") as ours:
        assert await texts(ours, "c") == ["a"]
        await ours.save(conversation)
        assert await texts(ours, "c") == ["a", "b"]


def test_a_path_is_no_store() -> None:
    bad: Any = "./state"
    with pytest.raises(InvalidInput, match=r"ShoalConversationStore\.open"):
        ShoalConversationStore(bad)


def test_a_blocking_program_uses_it_on_loops_of_its_own(tmp_path: Any) -> None:
    with ShoalConversationStore.open(tmp_path / "s") as ours:
        agent = Agent(TestModel())
        result = asyncio.run(agent.run("hello", conversation=Conversation(conversation_id="c")))
        asyncio.run(ours.save(result))
        assert asyncio.run(texts(ours, "c")) == ["hello", "success (no tool calls)"]
