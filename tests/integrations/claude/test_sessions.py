"""What the SDK's suite leaves open: entries that come twice, bad input, two writers, and the way through the SDK itself."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    MirrorErrorMessage,
    ResultMessage,
    get_session_messages_from_store,
    list_sessions_from_store,
    project_key_for_directory,
    rename_session_via_store,
)

import shoal
from shoal.client.store import Store
from shoal.config import Config
from shoal.errors import InvalidInput, InvalidName, InvalidValue, OutcomeUnknown, SchemaTooNew, TooLarge
from shoal.integrations.claude import ShoalSessionStore
from tests.integrations.claude.scripted import SESSION, ScriptedTransport, turn_entries

KEY: Any = {"project_key": "p", "session_id": "s"}
SUB: Any = {**KEY, "subpath": "subagents/agent-1"}


def entry(n: int, **more: Any) -> Any:
    return {"type": "user", "uuid": f"u{n}", "n": n, **more}


@pytest.mark.answers("transcript-that-is-mirrored-again-has-entries-twice")
async def test_an_entry_that_is_sent_again_is_there_once(sessions: ShoalSessionStore) -> None:
    await sessions.append(KEY, [entry(1), entry(2)])
    await sessions.append(KEY, [entry(2), entry(3), entry(3)])
    assert await sessions.load(KEY) == [entry(1), entry(2), entry(3)]


async def test_an_entry_that_changed_under_its_uuid_is_ignored_and_the_others_are_kept(sessions: ShoalSessionStore) -> None:
    await sessions.append(KEY, [entry(1)])
    await sessions.append(KEY, [entry(1, changed=True), entry(2)])
    await sessions.append(KEY, [entry(1, changed=True)])
    assert await sessions.load(KEY) == [entry(1), entry(2)]


async def test_entries_without_a_uuid_are_appended_each_time(sessions: ShoalSessionStore) -> None:
    title: Any = {"type": "custom-title", "customTitle": "t"}
    await sessions.append(KEY, [title])
    await sessions.append(KEY, [title, title])
    assert await sessions.load(KEY) == [title, title, title]


async def test_any_json_comes_back(sessions: ShoalSessionStore) -> None:
    given: list[Any] = [
        {"type": "x", "uuid": "\ud800", "text": "half a pair: \ud83d", "big": 2**70, "nested": [[None, True, 1.5, "ü"]]},
        {"type": "x", "uuid": "k" * 3000, "deep": json.loads("[" * 900 + "]" * 900)},
        {"type": "x", "uuid": 7},
        {"type": "x", "uuid": ""},
    ]
    await sessions.append(KEY, given)
    await sessions.append(KEY, given[:2])
    assert await sessions.load(KEY) == given


@pytest.mark.parametrize("bad", [object(), {1, 2}, b"x"])
async def test_values_without_a_json_form_are_refused_whole(sessions: ShoalSessionStore, bad: object) -> None:
    with pytest.raises(InvalidValue, match=r"entries\[1\] is no JSON.*Nothing was written"):
        await sessions.append(KEY, [entry(1), entry(2, bad=bad)])
    assert await sessions.load(KEY) is None
    assert await sessions.list_sessions("p") == []


async def test_a_cycle_is_no_json(sessions: ShoalSessionStore) -> None:
    cycle: Any = {"type": "x"}
    cycle["self"] = cycle
    with pytest.raises(InvalidValue, match="is no JSON"):
        await sessions.append(KEY, [cycle])


@pytest.mark.parametrize(
    "key",
    [
        {"project_key": "p", "session_id": ""},
        {"project_key": "", "session_id": "s"},
        {"project_key": "p"},
        {"project_key": "p", "session_id": True},
        {"project_key": "p", "session_id": "s", "subpath": ""},
        {"project_key": "p", "session_id": "s" * 2048},
    ],
)
async def test_a_key_that_is_none_is_refused(sessions: ShoalSessionStore, key: Any) -> None:
    with pytest.raises(InvalidName, match="Nothing was written"):
        await sessions.append(key, [entry(1)])
    with pytest.raises(InvalidName):
        await sessions.load(key)


async def test_an_int_is_an_id(sessions: ShoalSessionStore) -> None:
    key: Any = {"project_key": 7, "session_id": 5}
    await sessions.append(key, [entry(1)])
    assert await sessions.load({"project_key": "7", "session_id": "5"}) == await sessions.load(key) == [entry(1)]


async def test_ids_are_arbitrary_text(sessions: ShoalSessionStore) -> None:
    odd = ["a/b", "a", "{x}", "..", "%2f", "a.b", "größe\x00"]
    for project in odd:
        for session in odd:
            await sessions.append({"project_key": project, "session_id": session}, [entry(1, at=[project, session])])
            await sessions.append({"project_key": project, "session_id": session, "subpath": "x/%/\n"}, [entry(2)])
    for project in odd:
        assert sorted(found["session_id"] for found in await sessions.list_sessions(project)) == sorted(odd)
        for session in odd:
            key: Any = {"project_key": project, "session_id": session}
            assert await sessions.load(key) == [entry(1, at=[project, session])]
            assert await sessions.list_subkeys(key) == ["x/%/\n"]


async def test_an_append_to_a_deleted_session_begins_it_anew(opened: Store, sessions: ShoalSessionStore) -> None:
    other = ShoalSessionStore(opened, space=sessions._space.name)
    await sessions.append(KEY, [entry(1, timestamp="2024-01-01T00:00:00Z", customTitle="old")])
    await sessions.append(SUB, [entry(1)])
    await other.delete(KEY)
    assert await sessions.load(KEY) is None
    assert await sessions.list_subkeys(KEY) == []
    await sessions.append(KEY, [entry(1), entry(2)])
    assert await sessions.load(KEY) == [entry(1), entry(2)]
    assert "custom_title" not in (await sessions.list_session_summaries("p"))[0]["data"]


async def test_two_processes_append_to_one_session(opened: Store, sessions: ShoalSessionStore) -> None:
    other = ShoalSessionStore(opened, space=sessions._space.name)
    for n in range(0, 20, 2):
        await asyncio.gather(
            sessions.append(KEY, [entry(n, customTitle=f"{n}")]), other.append(KEY, [entry(n + 1, aiTitle=f"{n + 1}")])
        )
    loaded = await sessions.load(KEY)
    assert loaded is not None
    found: list[Any] = list(loaded)
    assert sorted(each["n"] for each in found) == list(range(20))
    (summary,) = await sessions.list_session_summaries("p")
    assert (summary["data"]["custom_title"], summary["data"]["ai_title"]) == ("18", "19")


async def test_appends_of_one_process_keep_the_order_of_the_calls(sessions: ShoalSessionStore) -> None:
    await asyncio.gather(*(sessions.append(KEY, [entry(n)]) for n in range(30)))
    assert await sessions.load(KEY) == [entry(n) for n in range(30)]


async def test_more_entries_than_a_batch_can_hold(sessions: ShoalSessionStore) -> None:
    entries = [entry(n) for n in range(2500)]
    await sessions.append(KEY, entries)
    await sessions.append(KEY, entries)
    assert await sessions.load(KEY) == entries


async def test_an_append_that_fails_half_way_says_so_and_can_be_repeated(tmp_path: Path) -> None:
    async with ShoalSessionStore.open(tmp_path / "state", config=Config(request_bytes_max=65_536)) as sessions:
        entries = [entry(1, text="x" * 30_000), entry(2, text="y" * 30_000), entry(3, text="z" * 70_000)]
        with pytest.raises(OutcomeUnknown, match=r"the first 2 of 3 entries are appended.*Append them all again"):
            await sessions.append(KEY, entries)
        with pytest.raises(TooLarge):
            await sessions.append(KEY, entries[2:])
        await sessions.append(KEY, [*entries[:2], entry(3)])
        assert await sessions.load(KEY) == [*entries[:2], entry(3)]


async def test_a_newer_form_is_refused(opened: Store, sessions: ShoalSessionStore) -> None:
    space = sessions._space
    await space.thread("{p}/s").journal.append({"claude": 2, "entry": {"type": "x"}})
    with pytest.raises(SchemaTooNew, match="Update Shoal here"):
        await sessions.load(KEY)


async def test_events_of_the_node_are_no_entries(sessions: ShoalSessionStore) -> None:
    await sessions.append(KEY, [entry(1)])
    await sessions._space.thread("{p}/s").pause("too dear", by="ana")
    assert await sessions.load(KEY) == [entry(1)]


@pytest.mark.answers("transcript-that-is-mirrored-again-has-entries-twice")
async def test_an_append_of_unknown_outcome_is_not_doubled_when_it_is_repeated(
    sessions: ShoalSessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    title: Any = {"type": "custom-title", "customTitle": "t"}
    connection = sessions._connection
    write = type(connection).write
    lost = iter([True, True])

    async def loses_the_answer(self: Any, request: Any, *, key: str | None, durability: Any) -> Any:
        key = key or "a-key-of-the-client"
        reply = await write(self, request, key=key, durability=durability)
        if next(lost, False):
            raise OutcomeUnknown("no reply came", key=key)
        return reply

    monkeypatch.setattr(type(connection), "write", loses_the_answer)
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            await sessions.append(KEY, [title])
    await sessions.append(KEY, [title])
    monkeypatch.undo()
    assert await sessions.load(KEY) == [title]
    await sessions.append(KEY, [title])
    assert await sessions.load(KEY) == [title, title]


@pytest.mark.parametrize("flush", ["batched", "eager"])
async def test_the_sdk_mirrors_a_session_and_reads_it(flush: Any, sessions: ShoalSessionStore, tmp_path: Path) -> None:
    project = project_key_for_directory(str(tmp_path))
    options = ClaudeAgentOptions(
        session_store=sessions, session_store_flush=flush, env={"CLAUDE_CONFIG_DIR": str(tmp_path / "config")}
    )
    transport = ScriptedTransport(tmp_path / "config" / "projects", project, 0)
    async with ClaudeSDKClient(options, transport=transport) as client:
        for _ in range(2):
            await client.query("go on")
            messages = [message async for message in client.receive_response()]
            assert isinstance(messages[-1], ResultMessage)
            assert not any(isinstance(message, MirrorErrorMessage) for message in messages)
    key: Any = {"project_key": project, "session_id": SESSION}
    assert await sessions.load(key) == [*turn_entries(0), *turn_entries(1)]
    assert len(await get_session_messages_from_store(sessions, SESSION, directory=str(tmp_path))) > 0
    await rename_session_via_store(sessions, SESSION, "renamed", directory=str(tmp_path))
    (info,) = await list_sessions_from_store(sessions, directory=str(tmp_path))
    assert (info.session_id, info.custom_title) == (SESSION, "renamed")


async def test_an_append_that_fails_is_reported_by_the_sdk(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state", config=Config(request_bytes_max=65_536)) as store:
        sessions = ShoalSessionStore(store)
        options = ClaudeAgentOptions(session_store=sessions, env={"CLAUDE_CONFIG_DIR": str(tmp_path)})
        transport = ScriptedTransport(tmp_path / "projects", "p" * 2000, 0)
        async with ClaudeSDKClient(options, transport=transport) as client:
            await client.query("go on")
            messages = [message async for message in client.receive_response()]
        assert any(isinstance(message, MirrorErrorMessage) for message in messages)
        assert [name async for name in store.space("claude").threads()] == []


@pytest.mark.parametrize("given", ["./x", Path("x"), "http://n1:7400", None])
def test_anything_but_an_open_store_is_refused_with_advice(given: Any) -> None:
    with pytest.raises(InvalidInput, match=r"needs an open store"):
        ShoalSessionStore(given)


def test_a_blocking_program(tmp_path: Path) -> None:
    with ShoalSessionStore.open(tmp_path / "state") as sessions:
        asyncio.run(sessions.append(KEY, [entry(1)]))
        assert asyncio.run(sessions.load(KEY)) == [entry(1)]
        assert [each["session_id"] for each in asyncio.run(sessions.list_sessions("p"))] == ["s"]
