"""Long edits are made before they are decided: on a copy, in steps, so that none of them holds the loop for long.

An edit of thousands of values takes the engine and its checks a tenth of a second: it is put into a copy, the update is read,
and its place is found. All of that follows from the request and the document alone.

Laws:
- What was made is used for the very request, and only if the document has taken nothing since; else it is made anew.
- A draft writes nothing and raises nothing: whoever carries out the request says what is wrong with it.
- A request that never comes leaves a draft of the last `_KEPT_MAX`.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Generic, TypeVar

from shoal.kinds.document.serving.opening import ROOTS_MAX
from shoal.kinds.document.state import editing, genesis, patch
from shoal.kinds.document.state.editing import Edited, Editor
from shoal.kinds.document.state.genesis import Genesis
from shoal.kinds.document.state.live import Checked, LiveDocument
from shoal.node.handler import Preparation
from shoal.protocol import requests
from shoal.records import NamedTuple

_KEPT_MAX = 4
_SHORT_BYTES = 4096  # A request of so many bytes takes a few milliseconds, and is carried out as it comes.

Made = TypeVar("Made", Genesis, Edited)


class Draft(NamedTuple, Generic[Made]):
    """An edit that was made for a request."""

    request: Any
    of: tuple[object, ...]  # What it depends on.
    made: Made
    checked: Checked | None = None  # Against the document as it was then; None: there was none.


def is_long(request: object) -> bool:
    """Whether a request edits a document, and has so many bytes that it is worth a draft."""
    if isinstance(request, requests.Patch):
        return len(request.patch) > _SHORT_BYTES
    return isinstance(request, requests.Replace | requests.Begin) and len(request.content) > _SHORT_BYTES


def edit(live: LiveDocument, request: requests.Patch | requests.Replace, client_id: int) -> Edited:
    """The update that makes of the document what the request wants.

    Raises:
        ShoalError: as `editing.Editor.replace`, or `patch.patch`. The document is as it was.
    """
    if isinstance(request, requests.Patch):
        return patch.patch(live, request.patch, client_id=client_id)
    content = editing.read_content(request.content)
    return editing.on_copy(
        live, lambda doc, turn: Editor(turn=turn, walk=live.walk()).replace(doc, live.roots, content), client_id=client_id
    )


class Drafts:
    """The drafts of requests that are about to be carried out."""

    def __init__(self) -> None:
        self._begun: deque[Draft[Genesis]] = deque(maxlen=_KEPT_MAX)
        self._edited: deque[Draft[Edited]] = deque(maxlen=_KEPT_MAX)

    def beginning(self, request: requests.Replace | requests.Begin, generation: int, *, bytes_max: int) -> Preparation:
        """Make the beginning of a document that does not exist."""
        made = genesis.begin(editing.read_content(request.content), generation)
        yield
        # A document that does not exist is as any empty one.
        checked = yield from LiveDocument(bytes_max=bytes_max, roots_max=ROOTS_MAX).checking(made.update, made.roots)
        self._begun.append(Draft(request, (generation,), made, checked))
        yield

    def editing(self, request: requests.Patch | requests.Replace, live: LiveDocument, client_id: int) -> Preparation:
        """Make the edit of a document."""
        if isinstance(request, requests.Begin):
            return
        fed = live.fed
        edited = edit(live, request, client_id)
        yield
        checked = yield from live.checking(edited.update, edited.roots)
        self._edited.append(Draft(request, (live, fed, client_id), edited, checked))
        yield

    def begun(self, request: object, generation: int) -> Draft[Genesis] | None:
        """The draft for a request, if it is still what would be made."""
        return _taken(self._begun, request, (generation,))

    def edited(self, request: object, live: LiveDocument, client_id: int) -> Draft[Edited] | None:
        """The draft for a request, if it is still what would be made."""
        return _taken(self._edited, request, (live, live.fed, client_id))


def _taken(drafts: deque[Draft[Made]], request: object, of: tuple[object, ...]) -> Draft[Made] | None:
    found = next((draft for draft in drafts if draft.request is request), None)
    if found is None:
        return None
    drafts.remove(found)
    return found if all(one is other or one == other for one, other in zip(found.of, of, strict=True)) else None
