"""Events and sessions for the tests."""

from __future__ import annotations

from typing import Any

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.session import Session
from google.genai import types

WHO: dict[str, Any] = {"app_name": "desk", "user_id": "ana"}


def said(text: str, author: str = "user", **more: Any) -> Event:
    content = types.Content(role="user" if author == "user" else "model", parts=[types.Part(text=text)])
    return Event(author=author, invocation_id="i", content=content, **more)


def setting(**delta: Any) -> Event:
    """An event that only sets state."""
    return Event(author="system", invocation_id="i", actions=EventActions(state_delta=delta))


async def read(service: BaseSessionService, session: Session, **config: Any) -> Session:
    found = await service.get_session(app_name=session.app_name, user_id=session.user_id, session_id=session.id, **config)
    assert found is not None
    return found


def texts(session: Session) -> list[str]:
    return [event.content.parts[0].text for event in session.events if event.content]
