"""A session that two nodes have continued while they were cut off from each other."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from google.adk.errors import StaleSessionError
from google.adk.events.event import Event
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.session import Session
from google.genai import types

from shoal.integrations.adk import ShoalSessionService
from shoal.integrations.adk.events import Stored, in_lines
from tests.integrations.adk.events import WHO, read, said, setting, texts
from tests.integrations.cutting import both, pair, until


def run_of(name: str) -> list[Event]:
    """The events of a run: a question, the call of a tool, its result, an answer."""
    call = types.Part(function_call=types.FunctionCall(id=name, name="look", args={}))
    result = types.Part(function_response=types.FunctionResponse(id=name, name="look", response={"found": name}))
    return [
        said(f"{name} asks"),
        said(f"{name} calls", "clerk"),
        Event(author="clerk", invocation_id=name, content=types.Content(role="model", parts=[call])),
        Event(author="clerk", invocation_id=name, content=types.Content(role="user", parts=[result])),
        said(f"{name} answers", "clerk"),
    ]


def shape(session: Session) -> list[str]:
    """What its events say: texts, calls and results."""
    parts = [event.content.parts[0] for event in session.events if event.content and event.content.parts]
    return [
        part.text or (f"call {part.function_call.id}" if part.function_call else f"result {part.function_response.id}")
        for part in parts
    ]


def shape_of(name: str) -> list[str]:
    return [f"{name} asks", f"{name} calls", f"call {name}", f"result {name}", f"{name} answers"]


@pytest.mark.answers("two-nodes-that-are-cut-off-from-each-other")
async def test_events_of_separated_nodes_stay_together(tmp_path: Path) -> None:
    async with pair(tmp_path) as nodes:
        one, other = ShoalSessionService(nodes.one), ShoalSessionService(nodes.other)
        mine = await one.create_session(**WHO, session_id="s", state={"at": 0})
        await one.append_event(mine, said("hello"))
        reading: Any = partial(other.get_session, **WHO, session_id="s")
        theirs = await until(reading, lambda found: found is not None and texts(found) == ["hello"])

        await nodes.cut()
        for ours, yours in zip(run_of("one"), run_of("other"), strict=True):
            await one.append_event(mine, ours)
            await other.append_event(theirs, yours)
        await one.append_event(mine, setting(one=1))
        await other.append_event(theirs, setting(other=2))
        assert shape(await read(one, mine)) == ["hello", *shape_of("one")]
        assert shape(await read(other, mine)) == ["hello", *shape_of("other")]

        await nodes.heal()
        everything = ["hello", *shape_of("one"), *shape_of("other")]
        healed = await both([partial(read, one, mine), partial(read, other, mine)], lambda found: len(shape(found)) == 11)
        for found in healed:
            assert shape(found) == everything
            assert found.state == {"at": 0, "one": 1, "other": 2}
        last = await read(other, mine, config=GetSessionConfig(num_recent_events=8))
        assert [event.id for event in last.events] == [event.id for event in healed[0].events[-8:]]
        assert [event.id for event in healed[0].events] == [event.id for event in healed[1].events]

        for service, session in ((one, mine), (other, theirs)):
            with pytest.raises(StaleSessionError, match="Nothing was written"):
                await service.append_event(session, said("on what I have seen"))
        # Whoever has loaded both goes on after both.
        await one.append_event(healed[0], said("I have read both"))
        again = await both([partial(read, one, mine), partial(read, other, mine)], lambda found: len(shape(found)) == 12)
        assert [shape(found) for found in again] == [[*everything, "I have read both"]] * 2


async def test_events_of_a_session_that_the_other_node_deleted_meanwhile_are_deleted_on_both(tmp_path: Path) -> None:
    async with pair(tmp_path) as nodes:
        one, other = ShoalSessionService(nodes.one), ShoalSessionService(nodes.other)
        mine = await one.create_session(**WHO, session_id="s")
        await one.append_event(mine, said("hello"))
        reading: Any = partial(other.get_session, **WHO, session_id="s")
        theirs = await until(reading, lambda found: found is not None and texts(found) == ["hello"])
        await nodes.cut()
        await one.delete_session(**WHO, session_id="s")
        for event in run_of("other"):
            await other.append_event(theirs, event)
        await nodes.heal()
        at_one: Any = partial(one.get_session, **WHO, session_id="s")
        # The session is listed until it is deleted again: the other node has changed it.
        healed = await both([at_one, reading], lambda found: found is not None and not found.events)
        assert [shape(found) for found in healed] == [[], []]
        await other.delete_session(**WHO, session_id="s")
        assert await both([at_one, reading], lambda found: found is None) == [None, None]


def stored(id: str, after: str | None) -> Stored:
    return Stored(id, after, 0.0, {})


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("a: b:a c:b", "a b c"),
        ("a: x:a y:a x2:x y2:y x3:x2", "a x x2 x3 y y2"),
        ("a: x:a y:a x2:x y2:y z:x2+y2", "a x x2 y y2 z"),
        ("x: y: x2:x y2:y", "x x2 y y2"),  # Both began it.
        ("a: x:a y:a set x2:x y2:y", "a x x2 y set y2"),  # It only sets state, and stands behind what it came after.
        ("a b c", "a b c"),  # Older than the field.
        ("a b c:b d:a", "a b c d"),
        ("a: a+b:a c:a+b", "a a+b c"),  # An id with a plus.
        ("b:gone c:b d:e e:d", "b c d e"),  # It names what is not there, and what comes after it.
    ],
)
def test_continuations_stand_behind_their_event(given: str, wanted: str) -> None:
    events = [stored(id, after if colon else None) for id, colon, after in (each.partition(":") for each in given.split())]
    assert [event.id for event in in_lines(events)] == wanted.split()
