"""The ADK's laws of session services, which hold for its own services too, and then what is ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions, EventCompaction
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.sessions.session import Session
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.genai import types

import shoal
from shoal.client.store import Store
from shoal.config import Config
from shoal.errors import Disconnected, InvalidInput, InvalidName, InvalidValue, SchemaTooNew, TooLarge
from shoal.integrations.adk import ShoalServices, ShoalSessionService
from shoal.integrations.adk.events import head_of, head_record
from shoal.kinds.items.handle.item import Item
from shoal.values import encode
from tests.cli.conftest import served
from tests.integrations.adk.events import WHO, read, said, setting, texts


@pytest.fixture(params=["embedded", "served", "theirs in memory", "theirs in SQLite"])
async def service(request: pytest.FixtureRequest, tmp_path: Path, space: str) -> AsyncIterator[BaseSessionService]:
    if request.param == "theirs in memory":
        yield InMemorySessionService()
    elif request.param == "theirs in SQLite":
        yield SqliteSessionService(str(tmp_path / "sqlite.db"))
    else:
        where = tmp_path / "state"
        store = shoal.open(where) if request.param == "embedded" else shoal.connect(request.getfixturevalue("url"))
        async with store as opened:
            yield ShoalSessionService(opened, space=space)


# ── laws of the framework ─────────────────────────────────────────────────────


async def test_a_session_comes_back_as_it_is(service: BaseSessionService) -> None:
    session = await service.create_session(**WHO, state={"a": 1}, session_id="s")
    call = types.FunctionCall(id="c", name="pay", args={"sum": 5, "to": ["größe\x9b"]})
    answer = types.FunctionResponse(id="c", name="pay", response={"paid": True, "nested": {"none": None}})
    blob = types.Blob(mime_type="image/png", data=bytes(range(256)))
    confirmed = {"c": ToolConfirmation(hint="sure?", confirmed=True, payload={"a": 1})}
    compacted = EventCompaction(start_timestamp=1.5, end_timestamp=2.5, compacted_content=types.Content(role="model"))
    model: dict[str, Any] = {"author": "clerk", "invocation_id": "i"}
    for event in (
        said("hi"),
        Event(**model, content=types.Content(role="model", parts=[types.Part(function_call=call)])),
        Event(**model, content=types.Content(role="user", parts=[types.Part(function_response=answer)])),
        Event(**model, content=types.Content(role="model", parts=[types.Part(inline_data=blob)])),
        Event(**model, actions=EventActions(requested_tool_confirmations=confirmed, compaction=compacted)),
        Event(**model, long_running_tool_ids={"c", "d"}, branch="clerk.other", turn_complete=True, error_code="x"),
        Event(**model, output={"total": 5}, actions=EventActions(artifact_delta={"a.txt": 1}, transfer_to_agent="b")),
        said("bye", actions=EventActions(state_delta={"b": {"c": [None, True, 1.5]}})),
    ):
        await service.append_event(session, event)
    found = await read(service, session)
    assert found == session
    assert found.last_update_time == pytest.approx(session.events[-1].timestamp, abs=1e-6)


async def test_state_has_scopes(service: BaseSessionService) -> None:
    first = {"app:a": 1, "user:u": {"x": 1}, "own": True, "temp:t": 1}
    session = await service.create_session(**WHO, state=first, session_id="1")
    await service.append_event(session, setting(**{"app:b": None, "user:u": {"y": False}, "other": 0, "temp:t": 2}))
    assert session.state["temp:t"] == 2
    shared = {"app:a": 1, "app:b": None, "user:u": {"y": False}}
    found = await read(service, session)
    assert found.state == shared | {"own": True, "other": 0}
    assert type(found.state["own"]) is bool
    assert "temp:t" not in found.events[0].actions.state_delta
    assert (await service.create_session(**WHO, session_id="2")).state == shared
    ben = await service.create_session(app_name="desk", user_id="ben", session_id="1")
    assert ben.state == {"app:a": 1, "app:b": None}
    assert (await service.create_session(app_name="other", user_id="ana", session_id="1")).state == {}


async def test_the_state_of_a_user_needs_no_session(service: BaseSessionService) -> None:
    assert await service.get_user_state(**WHO) == {}
    await service.create_session(**WHO, state={"user:likes": "tea", "app:x": 1, "y": 2})
    assert await service.get_user_state(**WHO) == {"likes": "tea"}
    assert await service.get_user_state(app_name="desk", user_id="ben") == {}


async def test_partial_events_are_not_stored(service: BaseSessionService) -> None:
    session = await service.create_session(**WHO, session_id="s")
    await service.append_event(session, said("h", partial=True))
    assert (await read(service, session)).events == []


async def test_ids_are_of_one_user_and_stripped(service: BaseSessionService) -> None:
    session = await service.create_session(**WHO, session_id="  s ")
    assert session.id == "s"
    with pytest.raises(AlreadyExistsError):
        await service.create_session(**WHO, session_id="s")
    await service.create_session(app_name="desk", user_id="ben", session_id="s")
    await service.append_event(session, said("hi"))
    assert await service.get_session(app_name="desk", user_id="eve", session_id="s") is None
    found = await service.get_session(app_name="desk", user_id="ben", session_id=" s ")
    assert found is not None
    assert found.events == []
    made = await service.create_session(**WHO, session_id="  ")
    assert made.id.strip()
    await service.delete_session(**WHO, session_id=" s")
    assert await service.get_session(**WHO, session_id="s") is None


@pytest.mark.parametrize(
    ("config", "shown"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"num_recent_events": 0}, []),
        ({"num_recent_events": 3}, [2, 3, 4]),
        ({"num_recent_events": 9}, [0, 1, 2, 3, 4]),
        ({"after_timestamp": 13.0}, [3, 4]),
        ({"after_timestamp": 13.0, "num_recent_events": 1}, [4]),
        ({"after_timestamp": 99.0}, []),
    ],
)
async def test_recent_events(service: BaseSessionService, config: dict[str, Any], shown: list[int]) -> None:
    session = await service.create_session(**WHO, session_id="s")
    session.last_update_time = 0.0
    for nth in range(5):
        event = said(f"{nth}", timestamp=10.0 + nth) if nth else said("0", timestamp=10.0)
        if nth == 0 and isinstance(service, SqliteSessionService):
            session = await _begun_early(service, session)
        await service.append_event(session, event)
    found = await read(service, session, config=GetSessionConfig(**config))
    assert texts(found) == [f"{nth}" for nth in shown]


async def _begun_early(service: SqliteSessionService, session: Session) -> Session:
    """Theirs compares clocks, so the session must be older than its first event."""
    async with service._get_db_connection() as db:
        await db.execute("UPDATE sessions SET update_time = 0")
        await db.commit()
    return await read(service, session)


async def test_events_of_one_time_stay_in_order(service: BaseSessionService) -> None:
    session = await service.create_session(**WHO, session_id="s")
    at = session.last_update_time + 1
    for nth in range(10):
        await service.append_event(session, said(f"{nth}", timestamp=at, id=f"{9 - nth}"))
    assert texts(await read(service, session)) == [f"{nth}" for nth in range(10)]


async def test_sessions_are_listed_by_their_last_change(service: BaseSessionService) -> None:
    assert (await service.list_sessions(app_name="desk")).sessions == []
    for user, name in (("ana", "1"), ("ben", "2"), ("ana", "3")):
        state = {"n": name, "app:a": 1, "user:u": user}
        await service.create_session(app_name="desk", user_id=user, session_id=name, state=state)
    first = await service.get_session(**WHO, session_id="1")
    assert first is not None
    await service.append_event(first, said("hi"))
    every = (await service.list_sessions(app_name="desk")).sessions
    assert [(each.user_id, each.id) for each in every] == [("ben", "2"), ("ana", "3"), ("ana", "1")]
    assert every[0].state == {"n": "2", "app:a": 1, "user:u": "ben"}
    assert every[2].events == []
    assert [each.id for each in (await service.list_sessions(**WHO)).sessions] == ["3", "1"]


async def test_a_deleted_session_is_gone_and_takes_no_events(service: BaseSessionService) -> None:
    session = await service.create_session(**WHO, session_id="s", state={"a": 1, "user:b": 2})
    await service.append_event(session, said("a secret"))
    await service.delete_session(**WHO, session_id="s")
    await service.delete_session(**WHO, session_id="s")
    assert await service.get_session(**WHO, session_id="s") is None
    assert (await service.list_sessions(**WHO)).sessions == []
    for event in (said("more"), setting(a=2)):
        with pytest.raises(SessionNotFoundError):
            await service.append_event(session, event)
    again = await service.create_session(**WHO, session_id="s")
    assert (await read(service, again)).events == []
    assert again.state == {"user:b": 2}


async def test_values_that_are_no_json_become_text_and_no_event_is_lost(service: BaseSessionService) -> None:
    if isinstance(service, InMemorySessionService):
        pytest.skip("it keeps the objects themselves")
    session = await service.create_session(**WHO, session_id="s")
    event = said("hi", actions=EventActions(state_delta={"when": datetime(2026, 1, 1, tzinfo=UTC), "fn": print}))
    await service.append_event(session, event)
    found = await read(service, session)
    assert found.state["when"] == "2026-01-01T00:00:00Z"
    assert "print" in found.state["fn"]
    assert texts(found) == ["hi"]


async def test_a_stale_conversation_is_refused(service: BaseSessionService) -> None:
    if isinstance(service, InMemorySessionService):
        pytest.skip("it takes every event, from whomever")
    session = await service.create_session(**WHO, session_id="s")
    stale = await read(service, session)
    await service.append_event(session, said("mine"))
    with pytest.raises(StaleSessionError):
        await service.append_event(stale, said("theirs"))
    assert texts(await read(service, session)) == ["mine"]


# ── ours ──────────────────────────────────────────────────────────────────────


@pytest.mark.answers("two-runs-of-an-agent-mix-their-events")
async def test_of_many_stale_writers_one_wins(sessions: ShoalSessionService) -> None:
    session = await sessions.create_session(**WHO, session_id="s")
    loaded = [await read(sessions, session) for _ in range(8)]
    ended = await asyncio.gather(
        *(sessions.append_event(each, said(f"{nth}")) for nth, each in enumerate(loaded)), return_exceptions=True
    )
    refused = [end for end in ended if isinstance(end, StaleSessionError)]
    assert len(refused) == 7
    assert "modified in storage" in str(refused[0])
    assert "Nothing was written" in str(refused[0])
    assert len((await read(sessions, session)).events) == 1


@pytest.mark.answers("two-runs-of-an-agent-mix-their-events")
async def test_state_merges_and_makes_no_conversation_stale(sessions: ShoalSessionService) -> None:
    session = await sessions.create_session(**WHO, session_id="s")
    stale = await read(sessions, session)
    await sessions.append_event(session, said("hi"))
    await asyncio.gather(*(sessions.append_event(stale, setting(**{f"k{nth}": nth})) for nth in range(8)))
    await sessions.append_event(session, said("and", actions=EventActions(state_delta={"mine": 1})))
    found = await read(sessions, session)
    assert found.state == {f"k{nth}": nth for nth in range(8)} | {"mine": 1}
    assert texts(found) == ["hi", "and"]
    assert len(found.events) == 10
    with pytest.raises(StaleSessionError):
        await sessions.append_event(stale, said("late"))


async def test_an_event_that_is_sent_again_is_there_once(sessions: ShoalSessionService) -> None:
    session = await sessions.create_session(**WHO, session_id="s")
    for event in (said("hi"), setting(a=1), said("and")):
        for _ in range(2):
            await sessions.append_event(session, event)
    assert texts(session) == ["hi", "and"]
    assert (await read(sessions, session)).events == session.events
    with pytest.raises(AlreadyExistsError, match=r"another event with the id.*Nothing was written"):
        await sessions.append_event(session, said("other", id=session.events[0].id))
    assert len((await read(sessions, session)).events) == 3


async def test_another_event_under_the_newest_id_is_refused(sessions: ShoalSessionService) -> None:
    session = await sessions.create_session(**WHO, session_id="s")
    first, state = said("one"), setting(a=1)
    for event, other in ((first, said("two", id=first.id)), (state, said("three", id=state.id))):
        await sessions.append_event(session, event)
        for given in (session, await read(sessions, session)):
            with pytest.raises(AlreadyExistsError, match=r"another event with the id.*Nothing was written"):
                await sessions.append_event(given, other)
    assert (await read(sessions, session)).events == [first, state]
    await sessions.append_event(await read(sessions, session), state)
    assert (await read(sessions, session)).events == [first, state], "the same one again counts once"


async def test_events_without_an_id_get_one(sessions: ShoalSessionService) -> None:
    session = await sessions.create_session(**WHO, session_id="s")
    events = [said("1"), setting(a=1), said("2")]
    for event in events:
        event.id = ""
        for _ in range(2):
            await sessions.append_event(session, event)
    assert all(event.id for event in events)
    assert (await read(sessions, session)).events == events


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1)] if depth else []


@pytest.mark.parametrize("value", [{"k\ud83d": 1}, b"\xff", nested(300)], ids=["key", "bytes", "deep"])
async def test_state_that_is_no_json_is_refused_whole(sessions: ShoalSessionService, value: Any) -> None:
    session = await sessions.create_session(**WHO, session_id="s")
    delta = value if isinstance(value, dict) and "k\ud83d" in value else {"k": value, "other": 1}
    with pytest.raises(InvalidValue, match=r"is no JSON.*Nothing was written"):
        await sessions.append_event(session, said("hi", actions=EventActions(state_delta=delta)))
    found = await read(sessions, session)
    assert (found.events, found.state) == ([], {})
    with pytest.raises(InvalidValue, match="Nothing was written"):
        await sessions.create_session(**WHO, session_id="t", state=delta)
    assert await sessions.get_session(**WHO, session_id="t") is None


@pytest.mark.parametrize("id", [17, UUID(int=5)])
async def test_ints_and_uuids_are_ids(sessions: ShoalSessionService, id: Any) -> None:
    session = await sessions.create_session(app_name=id, user_id=id, session_id=id, state={"user:a": 1})
    assert (session.app_name, session.user_id, session.id) == (str(id),) * 3
    await sessions.append_event(session, said("hi"))
    for given in (id, str(id)):
        found = await sessions.get_session(app_name=given, user_id=given, session_id=given)
        assert found is not None
        assert texts(found) == ["hi"]
        assert await sessions.get_user_state(app_name=given, user_id=given) == {"a": 1}
    assert [each.id for each in (await sessions.list_sessions(app_name=id, user_id=id)).sessions] == [str(id)]
    await sessions.delete_session(app_name=id, user_id=id, session_id=id)
    assert (await sessions.list_sessions(app_name=id)).sessions == []


@pytest.mark.parametrize("id", [True, 1.5, b"s"])
async def test_malformed_ids_are_refused(sessions: ShoalSessionService, id: Any) -> None:
    for who in ({"session_id": id}, {"user_id": id}, {"app_name": id}):
        with pytest.raises(InvalidName, match=r"must be text, an int or a UUID.*Nothing was written"):
            await sessions.create_session(**(WHO | {"session_id": "s"} | who))


async def test_a_repeated_append_after_a_lost_answer_counts_once(sessions: ShoalSessionService) -> None:
    session = await sessions.create_session(**WHO, session_id="s")
    lost, event = await read(sessions, session), said("hi", actions=EventActions(state_delta={"n": 1}))
    await sessions.append_event(session, event)
    await sessions.append_event(lost, event)  # As by a program that never got the answer.
    await sessions.append_event(lost, said("and"))
    assert texts(await read(sessions, session)) == ["hi", "and"]


async def test_a_session_that_came_through_json_goes_on(sessions: ShoalSessionService) -> None:
    session = await sessions.create_session(**WHO, session_id="s")
    await sessions.append_event(session, said("hi"))
    await sessions.append_event(session, setting(a=1))
    copy = Session.model_validate_json(session.model_dump_json())
    stale = Session.model_validate_json(session.model_dump_json())
    await sessions.append_event(copy, said("and"))
    with pytest.raises(StaleSessionError):
        await sessions.append_event(stale, said("late"))


async def test_a_session_without_its_events_goes_on(sessions: ShoalSessionService) -> None:
    session = await sessions.create_session(**WHO, session_id="s")
    await sessions.append_event(session, said("hi"))
    bare = await read(sessions, session, config=GetSessionConfig(num_recent_events=0))
    await sessions.append_event(bare, said("and"))
    assert texts(await read(sessions, session)) == ["hi", "and"]


def test_two_that_continued_apart_make_both_sessions_stale() -> None:
    now = datetime.now(UTC)
    records = [encode(head_record("ana", "s", last=last, newest=last, updated=at)) for last, at in (("e2", 5.0), ("e1", 7.0))]
    head = head_of(Item(("{desk}", "sessions", "ana"), "s", "v", now, now, None, records[0], (records[1],)))
    assert head is not None
    assert head.marker == "e1+e2"
    assert head.newest == {"e1", "e2"}
    assert head.updated == 7.0


async def test_an_event_that_is_no_json_is_refused_whole(sessions: ShoalSessionService) -> None:
    session = await sessions.create_session(**WHO, session_id="s")
    response = types.FunctionResponse(name="f", response={"it": object()})
    bad = Event(author="a", content=types.Content(parts=[types.Part(function_response=response)]))
    with pytest.raises(InvalidValue, match="Nothing was written"):
        await sessions.append_event(session, bad)
    assert session.events == (await read(sessions, session)).events == []


async def test_ids_of_two_kilobytes_are_refused(sessions: ShoalSessionService) -> None:
    for who in ({"session_id": "s" * 2048}, {"user_id": "u" * 2048}, {"app_name": "a" * 2048}):
        with pytest.raises(InvalidName, match="at most 1024 bytes"):
            await sessions.create_session(**(WHO | {"session_id": "s"} | who))
    assert (await sessions.list_sessions(app_name="desk")).sessions == []


@pytest.mark.parametrize("id", ["a/b", "..", "%2f", "größe\x00", "{tag}", "a.b"])
async def test_ids_are_arbitrary_text(sessions: ShoalSessionService, id: str) -> None:
    session = await sessions.create_session(app_name=id, user_id=id, session_id=id, state={id: 1, f"user:{id}": 2})
    await sessions.append_event(session, said("hi"))
    found = await read(sessions, session)
    assert found == session
    assert [each.id for each in (await sessions.list_sessions(app_name=id)).sessions] == [id]
    assert await sessions.get_user_state(app_name=id, user_id=id) == {id: 2}


async def test_a_newer_form_is_refused_and_nothing_is_written(opened: Store, space: str) -> None:
    sessions = ShoalSessionService(opened, space=space)
    session = await sessions.create_session(**WHO, session_id="s")
    newer = {"adk": 2, "something": "else"}
    await opened.space(space).items.put(("{desk}", "sessions", "ana"), "s", newer)
    for call in (read(sessions, session), sessions.list_sessions(**WHO), sessions.append_event(session, said("a"))):
        with pytest.raises(SchemaTooNew, match="Update Shoal here"):
            await call
    assert [each async for each in opened.space(space).thread("{desk}/ana/s").journal.read()] == []


async def test_an_event_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async with ShoalServices.open(tmp_path / "state", config=Config(request_bytes_max=65_536)) as services:
        session = await services.sessions.create_session(**WHO, session_id="s")
        with pytest.raises(TooLarge):
            await services.sessions.append_event(session, said("x" * 70_000, actions=EventActions(state_delta={"a": 1})))
        found = await read(services.sessions, session)
        assert found.events == []
        assert found.state == {}


async def test_a_node_that_is_gone_in_the_middle(tmp_path: Path) -> None:
    quick = Config(request_timeout_s=0.2, failover_timeout_s=0.1)
    with served(tmp_path / "state") as (process, url):
        async with ShoalServices.connect(url, config=quick) as services:
            session = await services.sessions.create_session(**WHO, session_id="s")
            await services.sessions.append_event(session, said("a"))
            await asyncio.to_thread(process.kill)
            await asyncio.to_thread(process.wait)
            with pytest.raises(Disconnected):
                await services.sessions.append_event(session, said("b", actions=EventActions(state_delta={"n": 1})))
    async with ShoalServices.open(tmp_path / "state") as services:
        found = await read(services.sessions, session)
        assert texts(found) == ["a"]
        assert found.state == {}


async def test_a_cancelled_append_is_finished_before_the_cancellation_is_raised(sessions: ShoalSessionService) -> None:
    session = await sessions.create_session(**WHO, session_id="s")
    appending = asyncio.create_task(sessions.append_event(session, said("a")))
    await asyncio.sleep(0)
    appending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await appending
    assert texts(await read(sessions, session)) == ["a"]


def test_a_blocking_program(tmp_path: Path) -> None:
    async def turn(services: ShoalServices) -> list[str]:
        session = await services.sessions.get_session(**WHO, session_id="s")
        session = session or await services.sessions.create_session(**WHO, session_id="s")
        await services.sessions.append_event(session, said("hi"))
        return texts(await read(services.sessions, session))

    for turns in (1, 2):
        with ShoalServices.open(tmp_path / "state") as services:
            assert asyncio.run(turn(services)) == ["hi"] * turns


@pytest.mark.parametrize("given", ["./x", Path("x"), "http://n1:7400", None])
def test_anything_but_an_open_store_is_refused_with_advice(given: Any) -> None:
    with pytest.raises(InvalidInput, match=r"ShoalServices needs an open store"):
        ShoalServices(given)


async def test_only_the_events_that_are_asked_for_are_made(opened: Store, space: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service = ShoalSessionService(opened, space=space)
    session = await service.create_session(**WHO)
    for nth in range(20):
        await service.append_event(session, said(f"{nth}", timestamp=float(nth)))
    made: list[str] = []
    make = Event.model_validate

    def counted(plain: Any) -> Event:
        made.append(plain["content"]["parts"][0]["text"])
        return make(plain)

    monkeypatch.setattr(Event, "model_validate", counted)
    for config, wanted in (
        (GetSessionConfig(num_recent_events=3), ["17", "18", "19"]),
        (GetSessionConfig(after_timestamp=18.0), ["18", "19"]),
        (GetSessionConfig(after_timestamp=10.0, num_recent_events=1), ["19"]),
        (GetSessionConfig(num_recent_events=0), []),
    ):
        made.clear()
        assert texts(await read(service, session, config=config)) == wanted
        assert made == wanted
