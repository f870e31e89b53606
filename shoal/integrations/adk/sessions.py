"""`ShoalSessionService`: sessions of the Agent Development Kit on Shoal; and `ShoalServices`, its services on one store.

A list of events in a checkpoint could be guarded in the same way, but has no keys of events, and the bound of one state.

Laws:
- An append is one write: the event, the state that it sets, and the item that lists the session. All or nothing.
- An event is there once: its id is its key, so an append that is repeated after a lost answer counts once.
- An event that continues the conversation is rejected (`StaleSessionError`) if its session was loaded before somebody
  else's. An event that only sets state is not: it merges with what others set, key by key, and makes no session stale.
- Deleted sessions stay deleted: an append to it is rejected (`SessionNotFoundError`).

`ShoalServices`: the three services of the Agent Development Kit on one store, and `shoal://` for its command line.

Law: of one URI there is one store in a process, on a loop of its own. So the three services that `adk web` makes of a
directory do not lock each other out. The ADK closes no service; the store ends with the process, as if that was killed:
what was acknowledged is on disk.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

from google.adk.cli.service_registry import get_service_registry
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.platform import time as platform_time
from google.adk.platform import uuid as platform_uuid
from google.adk.sessions._session_util import extract_json_safe_state_delta
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig, ListSessionsResponse
from google.adk.sessions.session import Session

from shoal.client.connection import contended
from shoal.client.store import Store
from shoal.errors import InvalidInput, InvalidValue, ItemChanged, KeyReused
from shoal.integrations.adk import events
from shoal.integrations.adk.artifacts import ShoalArtifactService
from shoal.integrations.adk.events import Given, Head, Place, Stored, app_of, below, place_of, user_of
from shoal.integrations.adk.memories import ShoalMemoryService
from shoal.integrations.base import Bridge, OnStore, Opening, checked_store, pieces, remember, settled
from shoal.integrations.contents import key_of
from shoal.kinds.items.handle.item import Namespace, delete_request, put_request
from shoal.protocol import requests
from shoal.protocol.requests import NO_ITEM
from shoal.raising import partly

HEADS_MAX = 4096  # Sessions whose item is remembered; for others an append needs one read more.
Deltas = Mapping[str, Mapping[str, Any]]  # Scope ("app", "user", "session") → key → value.


class ShoalSessionService(BaseSessionService):
    """Keeps sessions in one space. Its methods work on any event loop."""

    def __init__(self, store: Store, *, space: str = "adk") -> None:
        """A service on a store that is open on the running loop, and that the caller closes.

        Raises:
            InvalidInput: `store` is not an open store. With a path, use `ShoalServices.open`.
        """
        self._connection = checked_store(store, "ShoalServices").connection
        self._space = store.space(space)
        self._bridge = Bridge()
        self._heads: OrderedDict[Place, Head] = OrderedDict()

    # ── the ADK's service ─────────────────────────────────────────────────────

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None
    ) -> Session:
        """Create a session, and set its first state.

        Raises:
            AlreadyExistsError: the user has a session with this id; nothing was written.
            InvalidName: an id is no text, int or UUID, or the ids are longer than a name; nothing was written.
            InvalidValue: the state is no JSON; nothing was written.
            TooLarge: the state has more keys, or is larger, than one batch; nothing was written.
        """
        place = place_of(app_name, user_id, "" if session_id is None else session_id)
        place = place if place.session else place._replace(session=platform_uuid.new_uuid())
        deltas, now = _scoped(state or {}), platform_time.get_time()
        shown = await settled(self._bridge.awaited(lambda: self._create(place, deltas, now)))
        session = Session(app_name=place.app, user_id=place.user, id=place.session, state=shown, last_update_time=now)
        session._storage_update_marker = ""
        return session

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """A session with its events and all state that it can see; None if there is none.

        Raises:
            SchemaTooNew: a newer version of Shoal wrote it.
        """
        place = place_of(app_name, user_id, session_id)
        found = await self._bridge.awaited(lambda: self._read(place))
        if found is None:
            return None
        head, shown, said = found
        session = _shown(place, head, shown)
        session.events = events.shown(said, config)
        session._storage_update_marker = head.marker
        return session

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """The sessions of a user, or of all, without their events; those that were changed first come first."""
        app, user = app_of(app_name), None if user_id is None else user_of(user_id)
        found = await self._bridge.awaited(lambda: self._list(app, user))
        found.sort(key=lambda session: (session.last_update_time, session.user_id, session.id))
        return ListSessionsResponse(sessions=found)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session with its events and its own state, on every node; nothing if there is none.

        Raises:
            OutcomeUnknown: a part of it is deleted; delete it again.
        """
        place = place_of(app_name, user_id, session_id)
        await settled(self._bridge.awaited(lambda: self._delete(place)))

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """The state of a user, in all sessions of an app, without the prefix `user:`."""
        app, user = app_of(app_name), user_of(user_id)
        return await self._bridge.awaited(lambda: self._values(below(app, "users", user)))

    async def append_event(self, session: Session, event: Event) -> Event:
        """Append an event and set the state of its delta, on every node or not at all. Partial events are not stored.

        An event without an id gets one, as the ADK gives it to an event that is made without one.

        Raises:
            StaleSessionError: the conversation went on since the session was loaded; nothing was written.
            SessionNotFoundError: the session does not exist, or was deleted; nothing was written.
            AlreadyExistsError: another event of the session has this id; nothing was written.
            InvalidValue: the event, or the state that it sets, is no JSON; nothing was written.
            OutcomeUnknown: it may be appended. Append the same event again: it counts once.
        """
        if event.partial:
            return event
        if not event.id:
            event.id = platform_uuid.new_uuid()
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        place = place_of(session.app_name, session.user_id, session.id)
        seen = session._storage_update_marker
        if seen is None:  # A session that somebody made by hand, or that came through JSON.
            seen = events.marker_of(session.events)
        deltas, stored = _scoped(event.actions.state_delta), events.given(event, seen)
        marker = await settled(self._bridge.awaited(lambda: self._append(place, stored, deltas, seen)))
        session._storage_update_marker = marker
        session.last_update_time = event.timestamp
        if any(known.id == event.id for known in session.events):
            return event  # It was repeated.
        return self._commit_event_to_session(session, event)

    # ── on the store's loop: writing ──────────────────────────────────────────

    async def _create(self, place: Place, deltas: Deltas, now: float) -> dict[str, Any]:
        assert place.thread
        record = events.head_record(place.user, place.session, last="", newest="", updated=now)
        writes: list[requests.BatchWrite] = [self._put_head(place, record, NO_ITEM), *self._sets(place, deltas)]
        try:
            reply = await self._connection.write(requests.Batch(writes), key=None, durability=None)
        except ItemChanged:
            raise AlreadyExistsError(f"Session with id {place.session} already exists. Nothing was written.") from None
        self._remember(place, Head("", frozenset([""]), now, _version(reply)))
        return events.merged(*await self._shared(place), deltas["session"])

    async def _append(self, place: Place, stored: Given, deltas: Deltas, seen: str) -> str:
        """Append an event; the marker of the session that has it."""
        pauses = contended(self._connection)
        while True:
            head = await self._fresh(place, seen if stored.continues else None)
            if stored.id in head.newest:
                if not await self._is_there(place, stored):
                    raise _taken(place, stored)
                return head.marker if stored.continues else seen
            if stored.continues and head.marker != seen:
                raise StaleSessionError(
                    f"The session {place.session} was modified in storage since it was loaded: its conversation went on. "
                    "Nothing was written. Load it with get_session, and run the turn on it as it is now."
                )
            try:
                written = await self._write(place, stored, deltas, head)
            except ItemChanged:
                self._heads.pop(place, None)
                if (pause := next(pauses, None)) is None:
                    raise
                await asyncio.sleep(pause)
            except KeyReused:
                raise _taken(place, stored) from None
            else:
                return written.marker if stored.continues else seen

    async def _write(self, place: Place, stored: Given, deltas: Deltas, head: Head) -> Head:
        last = stored.id if stored.continues else head.marker
        record = events.head_record(place.user, place.session, last=last, newest=stored.id, updated=stored.timestamp)
        writes: list[requests.BatchWrite] = [
            self._put_head(place, record, head.version),
            requests.Append(self._space.name, place.thread, stored.packed, key_of(stored.id)),
            *self._sets(place, deltas),
        ]
        self._heads.pop(place, None)  # If this fails, nobody knows.
        reply = await self._connection.write(requests.Batch(writes), key=None, durability=None)
        made = Head(last, frozenset([stored.id]), stored.timestamp, _version(reply))
        self._remember(place, made)
        return made

    async def _delete(self, place: Place) -> None:
        pauses = contended(self._connection)
        while True:
            self._heads.pop(place, None)
            item = await self._item(place)
            if item is None:
                return
            await self._space.thread(place.thread).delete()
            with partly(True, "the session's events are deleted", "Delete it again."):
                try:
                    await self._delete_items(place, item.version)
                    return
                except ItemChanged:  # Somebody has appended meanwhile: that is deleted too.
                    if (pause := next(pauses, None)) is None:
                        raise
                    await asyncio.sleep(pause)

    async def _delete_items(self, place: Place, version: str) -> None:
        """Delete the session's state and, with the last of it, the item that lists it."""
        keys = [item.key async for item in self._space.items.scan(place.state)]
        deletes = [delete_request(self._space.name, place.state, key) for key in keys]
        namespace, key = _listed(place)
        deletes.append(delete_request(self._space.name, namespace, key, expect=version))
        for piece in pieces(deletes, lambda each: len(each.key), self._connection.config):
            await self._connection.write(requests.Batch([*piece]), key=None, durability=None)

    def _put_head(self, place: Place, record: Mapping[str, Any], expect: str) -> requests.PutItem:
        namespace, key = _listed(place)
        return put_request(self._space.name, namespace, key, record, expect=expect)

    def _sets(self, place: Place, deltas: Deltas) -> Iterator[requests.PutItem]:
        scopes = {
            "app": below(place.app, "app"),
            "user": below(place.app, "users", place.user),
            "session": place.state,
        }
        for scope, namespace in scopes.items():
            for key, value in deltas[scope].items():
                record = events.state_record(value, f"the state {key!r}")
                yield put_request(self._space.name, namespace, events.key_in(key), record)

    # ── on the store's loop: reading ──────────────────────────────────────────

    async def _item(self, place: Place) -> Any:
        return await self._space.items.get(*_listed(place))

    async def _fresh(self, place: Place, wanted: str | None) -> Head:
        """The session's item: as it is remembered if it then has the marker that is wanted, else as the node has it.

        Raises:
            SessionNotFoundError: there is none.
        """
        known = self._heads.get(place)
        if known is not None and wanted in (None, known.marker):
            return known
        item = await self._item(place)
        head = None if item is None else events.head_of(item)
        if head is None:
            raise SessionNotFoundError(f"Session {place.session} not found. Nothing was written.")
        self._remember(place, head)
        return head

    async def _read(self, place: Place) -> tuple[Head, dict[str, Any], list[Stored]] | None:
        # The item first: what is read later may be newer. A marker that is older than the events makes the session
        # stale at worst; one that is newer would let it go on without an event that it has not seen.
        item = await self._item(place)
        head = None if item is None else events.head_of(item)
        if head is None:
            return None
        (app, user), own, said = await asyncio.gather(
            self._shared(place), self._values(place.state), self._events(place.thread)
        )
        return head, events.merged(app, user, own), said

    async def _events(self, thread: str) -> list[Stored]:
        read = [events.stored_event(each.event) async for each in self._space.thread(thread).journal.read()]
        return [event for event in read if event is not None]

    async def _is_there(self, place: Place, given: Given) -> bool:
        """Whether the session has this very event, and no other one under its id."""
        return any(event.id == given.id and event.plain == given.plain for event in await self._events(place.thread))

    async def _list(self, app: str, user: str | None) -> list[Session]:
        of_user = () if user is None else (user,)
        heads = {}
        async for item in self._space.items.scan(below(app, "sessions", *of_user)):
            head = events.head_of(item)
            if head is not None:
                (owner,) = events.ids_of(item.namespace)
                heads[Place(app, owner, events.id_in(item.key))] = head
        in_app, users, own = await asyncio.gather(
            self._values(below(app, "app")),
            self._by_place(below(app, "users", *of_user)),
            self._by_place(below(app, "state", *of_user)),
        )
        return [
            _shown(place, head, events.merged(in_app, users.get((place.user,), {}), own.get(place[1:], {})))
            for place, head in heads.items()
        ]

    async def _shared(self, place: Place) -> tuple[dict[str, Any], dict[str, Any]]:
        """The state of the app, and of the user."""
        app, user = await asyncio.gather(
            self._values(below(place.app, "app")), self._values(below(place.app, "users", place.user))
        )
        return app, user

    async def _values(self, namespace: Namespace) -> dict[str, Any]:
        found = await self._by_place(namespace)
        return found.get(tuple(events.ids_of(namespace)), {})

    async def _by_place(self, namespace: Namespace) -> dict[tuple[str, ...], dict[str, Any]]:
        """The values of state below a namespace: the ids in its name → key → value."""
        found: dict[tuple[str, ...], dict[str, Any]] = {}
        async for item in self._space.items.scan(namespace):
            value = events.state_value(item.value)
            if value is not None:
                found.setdefault(tuple(events.ids_of(item.namespace)), {})[events.id_in(item.key)] = value[0]
        return found

    def _remember(self, place: Place, head: Head) -> None:
        remember(self._heads, place, head, HEADS_MAX)


def _scoped(state: Mapping[str, Any]) -> Deltas:
    """The state by its scopes, as JSON.

    Raises:
        InvalidValue: the ADK cannot make JSON of it; nothing was written.
    """
    try:
        deltas: Deltas = extract_json_safe_state_delta({**state})
    except Exception as error:  # Of its serialiser, or of a value's own methods.
        raise InvalidValue(
            f"the state is no JSON: {type(error).__name__}: {error}. Nothing was written. Set values that JSON has."
        ) from error
    return deltas


def _taken(place: Place, event: Given) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"The session {place.session} has another event with the id {event.id}. Nothing was written. "
        "Give each event an id of its own."
    )


def _listed(place: Place) -> tuple[Namespace, str]:
    """The item that lists a session."""
    return below(place.app, "sessions", place.user), events.key_in(place.session)


def _version(reply: requests.BatchReply) -> str:
    """The version of the item that a batch has put first."""
    return cast("requests.ItemPut", reply.replies[0]).version


def _shown(place: Place, head: Head, state: dict[str, Any]) -> Session:
    return Session(app_name=place.app, user_id=place.user, id=place.session, state=state, last_update_time=head.updated)


_WAIT_S = 30.0  # A node that starts together with `adk web` has this long.
_OPTIONS = {"space", "durability", "tls_ca"}


class ShoalServices(OnStore):
    """The `sessions`, `memories` and `artifacts` of one space, for a `Runner`."""

    SPACE = "adk"

    def __init__(self, store: Store, *, space: str | None = None) -> None:
        """Services on a store that is open on the running loop, and that the caller closes.

        Raises:
            InvalidInput: `store` is not an open store. With a path, use `ShoalServices.open`.
        """
        name = space or self.SPACE
        self.sessions = ShoalSessionService(store, space=name)
        self.memories = ShoalMemoryService(store, space=name)
        self.artifacts = ShoalArtifactService(store, space=name)


def register() -> None:
    """Have the ADK's command line make services of `shoal://` and `shoals://` (TLS).

    Call it in the `services.py` of the folder of agents. `shoal://n1:7400,n2:7400` is one of two nodes, `shoal:./state` a
    directory. `?space=…&durability=quorum&tls_ca=ca.pem` are those of `ShoalServices`; the token is that of SHOAL_TOKEN_FILE.
    """
    registry = get_service_registry()
    for scheme in ("shoal", "shoals"):
        registry.register_session_service(scheme, lambda uri, **_: shared(uri).sessions)
        registry.register_memory_service(scheme, lambda uri, **_: shared(uri).memories)
        registry.register_artifact_service(scheme, lambda uri, **_: shared(uri).artifacts)


_guard = threading.Lock()
_shared: dict[tuple[int, str], tuple[Opening[ShoalServices], ShoalServices]] = {}  # By process: a forked one opens its own.


def shared(uri: str) -> ShoalServices:
    """The services of a URI, which are opened once in a process, and end with it.

    Raises:
        InvalidInput: the URI names neither a node nor a directory, or has an unknown option; nothing was opened.
    """
    with _guard:
        mine = os.getpid(), uri
        if mine not in _shared:
            opened = opening_of(uri)
            _shared[mine] = opened, opened.begin()
        return _shared[mine][1]


def opening_of(uri: str) -> Opening[ShoalServices]:
    """The opening of the services of a URI. Raises as `shared`."""
    parts = urlsplit(uri)
    given = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    directory = unquote(parts.path)
    if given.keys() - _OPTIONS or bool(parts.netloc) == bool(directory.strip("/")):
        raise InvalidInput(
            f"{uri!r} is no URI of Shoal. Nothing was opened. Write `shoal://n1:7400,n2:7400` for nodes (`shoals://` with TLS) "
            "or `shoal:./state` for a directory; after a question mark space=, durability= or tls_ca=."
        )
    options: dict[str, Any] = {"space": given.get("space", "adk"), "durability": given.get("durability", "local")}
    if not parts.netloc:
        return ShoalServices.open(directory, **options)
    scheme = "https" if parts.scheme == "shoals" else "http"
    urls = [f"{scheme}://{address}" for address in parts.netloc.split(",")]
    return ShoalServices.connect(urls, tls_ca=given.get("tls_ca"), wait=_WAIT_S, **options)
