"""The parts of an event that concern its session, the records in which both are stored, and the names of all of them.

Laws:
- An event that only sets state does not belong to the conversation: it merges, key by key, with what others set.
  Every other event continues the conversation, and only from the event that its writer has seen last.
- The marker of a session names the last event of its conversation. If two nodes that could not reach each other
  both continued it, the marker names both, so that neither writer goes on without having seen the other's event.
- An event says which marker it continues, so what each of the two had said stays together: a call of a tool and its
  result never have an event of the other between them.
- All names of an app begin with its tag, so that an event and the state that it changes are one write.
- A session is a thread `{app}/user/session`, and one item that lists it. A value of state is an item of its own, so that
  two agents that set different keys both have their way, even at nodes that cannot reach each other.
- Ids are arbitrary text; what a name cannot hold is percent-encoded.

Nothing here reads or writes.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from google.adk.events.event import Event
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.state import State

from shoal import values
from shoal.errors import InvalidValue
from shoal.integrations import contents
from shoal.integrations.contents import escaped, id_of, name_of, tag, text_of, unsafe
from shoal.kinds.items.handle.item import Item, Namespace
from shoal.names import check_name
from shoal.records import NamedTuple

_BESIDE_STATE = {"id", "invocation_id", "author", "timestamp", "branch", "node_info", "actions"}


class Head(NamedTuple):
    """A session as its item shows it."""

    marker: str
    newest: frozenset[str]  # The ids of the last events, in the conversation or not.
    updated: float  # The timestamp of the last event, in seconds since the epoch.
    version: str  # Of the item.


class Given(NamedTuple):
    """An event as it is to be stored."""

    id: str
    plain: Any  # JSON.
    packed: bytes
    timestamp: float
    continues: bool  # Whether it continues the conversation.


class Stored(NamedTuple):
    """An event as it is stored."""

    id: str
    after: str | None  # The marker that it continues. None: it only sets state, or is older than this field.
    timestamp: float
    plain: Any  # JSON.


def given(event: Event, after: str) -> Given:
    """An event to store. `after` is the marker of the session that it is appended to.

    Raises:
        InvalidValue: it is no JSON; nothing was written.
    """
    try:
        plain = event.model_dump(mode="json", exclude_none=True)
    except Exception as error:  # Of pydantic, or of a value's own methods.
        raise InvalidValue(
            f"the event {event.id!r} is no JSON: {type(error).__name__}: {error}. Nothing was written."
        ) from error
    continues = not _only_sets_state(event)
    stored = contents.stored(plain, "the event")
    record = {NAME: FORM, "event": stored, **({"after": after} if continues else {})}
    return Given(event.id, contents.shown(stored), values.encode(record, where="the event"), event.timestamp, continues)


def stored_event(record: Any) -> Stored | None:
    """The event in a record; None for an event of the node itself, such as a pause.

    Raises:
        SchemaTooNew: a newer version of Shoal wrote it.
    """
    known = contents.of_form(record, NAME, FORM)
    if known is None:
        return None
    plain = contents.shown(known["event"])
    return Stored(plain["id"], known.get("after"), plain["timestamp"], plain)


def in_lines(stored: Sequence[Stored]) -> list[Stored]:
    """The events, given in the order of their journal, so that each comes after those that it continues.

    Where two continued one event, all that followed the first comes before the second.
    """
    place = {event.id: nth for nth, event in enumerate(stored)}
    following: list[list[int]] = [[] for _ in stored]
    missing = [0] * len(stored)  # Of each event, those before it that are not shown yet.
    for nth, event in enumerate(stored):
        for parent in {nth - 1} if event.after is None else {place.get(id, -1) for id in _named(event.after, place)}:
            if 0 <= parent < nth:
                following[parent].append(nth)
                missing[nth] += 1
    due = [nth for nth in reversed(range(len(stored))) if not missing[nth]]
    shown = []
    while due:
        nth = due.pop()
        shown.append(stored[nth])
        for child in reversed(following[nth]):
            missing[child] -= 1
            if not missing[child]:
                due.append(child)
    return shown


def _named(marker: str, ids: Container[str]) -> list[str]:
    """The events that a marker names. An id may itself have a plus."""
    return [marker] if marker in ids else marker.split("+")


def marker_of(events: Iterable[Event]) -> str:
    """The marker of a session that has these events."""
    return next((event.id for event in reversed(list(events)) if not _only_sets_state(event)), "")


def shown(stored: Sequence[Stored], config: GetSessionConfig | None) -> list[Event]:
    """The events that a reader asks for; only these are made, which costs more than to read them."""
    kept = in_lines(stored)
    if config is not None:
        after, most = config.after_timestamp, config.num_recent_events
        kept = [event for event in kept if after is None or event.timestamp >= after]
        kept = kept if most is None else kept[len(kept) - min(most, len(kept)) :]
    return [Event.model_validate(event.plain) for event in kept]


# ── records ───────────────────────────────────────────────────────────────────


def head_record(user: str, session: str, *, last: str, newest: str, updated: float) -> dict[str, Any]:
    """The item of a session. `last`: the last event of its conversation; `newest`: the last of all."""
    return {NAME: FORM, "user": user, "session": session, "last": last, "newest": newest, "updated": updated}


def head_of(item: Item) -> Head | None:
    """The session that an item lists.

    Raises:
        SchemaTooNew: a newer version of Shoal wrote it.
    """
    records = [contents.of_form(value, NAME, FORM) for value in (item.value, *item.siblings)]
    found = [record for record in records if record is not None]
    if not found:
        return None
    marker = "+".join(sorted({record["last"] for record in found}))
    newest = frozenset(record["newest"] for record in found)
    return Head(marker, newest, max(record["updated"] for record in found), item.version)


def state_record(value: Any, where: str) -> dict[str, Any]:
    """The item of a value of state."""
    return {NAME: FORM, "value": contents.stored(value, where)}


def state_value(stored: Any) -> tuple[Any] | None:
    """The value of `state_record`; None for anything else.

    Raises:
        SchemaTooNew: a newer version of Shoal wrote it.
    """
    record = contents.of_form(stored, NAME, FORM)
    return None if record is None else (contents.shown(record["value"]),)


def merged(app: Mapping[str, Any], user: Mapping[str, Any], session: Mapping[str, Any]) -> dict[str, Any]:
    """The state that a session shows."""
    return {
        **session,
        **{State.APP_PREFIX + key: value for key, value in app.items()},
        **{State.USER_PREFIX + key: value for key, value in user.items()},
    }


def _only_sets_state(event: Event) -> bool:
    said = event.model_dump(exclude_defaults=True, exclude_none=True)
    return said.keys() <= _BESIDE_STATE and set(said.get("actions", {})) == {"state_delta"}


NAME = "adk"
FORM = 1
"""The version of the form in which records are stored."""
_IN_KEY = unsafe()
_IN_LABEL = unsafe(".")
IN_PART = unsafe("/")


class Place(NamedTuple):
    """Where a session is."""

    app: str
    user: str
    session: str

    @property
    def thread(self) -> str:
        """The thread with its events in the journal.

        Raises:
            InvalidName: the ids are too long together; nothing was written.
        """
        parts = (tag(self.app), escaped(self.user, IN_PART), escaped(self.session, IN_PART))
        return check_name("thread", "/".join(parts))

    @property
    def state(self) -> Namespace:
        """The items of its own state."""
        return below(self.app, "state", self.user, self.session)


def app_of(id: object) -> str:
    """The name of an app as text. Raises as `text_of`."""
    return text_of(id, "the name of an app")


def user_of(id: object) -> str:
    """The id of a user as text. Raises as `text_of`."""
    return text_of(id, "the id of a user")


def session_of(id: object) -> str:
    """The id of a session as text, without space around it, as the ADK's own services have it. Raises as `text_of`."""
    return text_of(id, "the id of a session").strip()


def place_of(app: object, user: object, session: object) -> Place:
    """The place of a session. Raises as `text_of`."""
    return Place(app_of(app), user_of(user), session_of(session))


def below(app: str, kind: str, *ids: str) -> Namespace:
    """The namespace of the items of one kind: of an app, of a user, of a session."""
    return (tag(app), kind, *(name_of(id, _IN_LABEL) for id in ids))


def ids_of(namespace: Namespace) -> list[str]:
    """The ids of `below`."""
    return [id_of(label) for label in namespace[2:]]


def key_in(id: str) -> str:
    """The key of an item."""
    return name_of(id, _IN_KEY)


def id_in(key: str) -> str:
    """The id of `key_in`."""
    return id_of(key)
