"""The SDK's session keys as Shoal's names, and back.

Laws:
- A transcript is a thread `{project}/session` or, of a subagent, `{project}/session/subpath`. The braces are the tag of
  the name: a project's threads and its index of sessions share a partition, so that one batch can write both.
- A session id holds no `/` in a name, so no transcript's name is the beginning of another session's.
- The first label of the project's items is `{project}`, and labels hold no period.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.errors import InvalidName
from shoal.integrations.escaping import escaped, name_of, tag, text_of, unescaped, unsafe
from shoal.names import check_name
from shoal.records import NamedTuple

_IN_SESSION = unsafe("/")
_IN_SUBPATH = unsafe()
INDEX = "sessions"


class Transcript(NamedTuple):
    """The place of one transcript."""

    project: str
    session: str
    subpath: str | None  # None for the session's own transcript.

    @property
    def thread(self) -> str:
        """The name of its thread."""
        own = session_thread(self.project, self.session)
        return check_name("thread", own if self.subpath is None else f"{own}/{escaped(self.subpath, _IN_SUBPATH)}")

    @property
    def below(self) -> str:
        """The prefix of the threads of its subagents."""
        return session_thread(self.project, self.session) + "/"

    def subpath_of(self, thread: str) -> str:
        """The subpath of a thread whose name begins with `below`."""
        return unescaped(thread.removeprefix(self.below))


def transcript_of(key: Mapping[str, Any]) -> Transcript:
    """The place that a `SessionKey` names.

    Raises:
        InvalidName: a part of it is missing, empty, or no text, int or UUID.
    """
    parts = []
    for name in ("project_key", "session_id", "subpath"):
        part = key.get(name, "-" if name == "subpath" else None)
        text = "" if part is None else text_of(part, f"the {name} of a session key")
        if not text:
            raise InvalidName(
                f"the {name} of a session key must be a string that is not empty; got {part!r:.80}. Nothing was written. "
                "Leave subpath out for a session's own transcript."
            )
        parts.append(text)
    project, session, subpath = parts
    return Transcript(project, session, subpath if "subpath" in key else None)


def session_thread(project: str, session: str) -> str:
    """The thread of a session's own transcript."""
    return f"{tag(project)}/{escaped(session, _IN_SESSION)}"


def item_key(session: str) -> str:
    """The key of a session in the index of its project."""
    return name_of(session, _IN_SESSION)
