"""Where the parts of an app are stored.

Laws:
- All names of an app begin with its tag, so that an event and the state that it changes are one write.
- A session is a thread `{app}/user/session`, and one item that lists it. A value of state is an item of its own, so that
  two agents that set different keys both have their way, even at nodes that cannot reach each other.
- Ids are arbitrary text; what a name cannot hold is percent-encoded.
"""

from __future__ import annotations

from shoal.integrations.escaping import escaped, id_of, name_of, tag, text_of, unsafe
from shoal.kinds.items.handle.item import Namespace
from shoal.names import check_name
from shoal.records import NamedTuple

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
