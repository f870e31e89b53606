"""Threads and documents as resources: their URIs, pages of them, and their contents.

    shoal://SPACE/threads/NAME        the newest state of the branch `main`, as JSON
    shoal://SPACE/documents/NAME      the content, as JSON

Law: names are percent-encoded in URIs. Each name has one URI that is listed, and every spelling of it is understood.
"""

from __future__ import annotations

import json
from typing import Literal, get_args
from urllib.parse import quote, unquote

from mcp.types import Resource, ResourceTemplate, TextResourceContents

from shoal import values
from shoal.client.connection import StoreConnection
from shoal.client.store import Space
from shoal.errors import InvalidInput, InvalidValue
from shoal.names import check_name
from shoal.protocol import requests
from shoal.records import NamedTuple

Kind = Literal["thread", "document"]

KINDS: tuple[Kind, ...] = get_args(Kind)

_SCHEME = "shoal://"
_JSON = "application/json"
_SAID = {"thread": "the newest state of this thread", "document": "the content of this shared document"}


class Place(NamedTuple):
    """The object that a URI names."""

    space: str
    kind: Kind
    name: str

    @property
    def uri(self) -> str:
        """Its URI."""
        return f"{_SCHEME}{quote(self.space, safe='')}/{self.kind}s/{quote(self.name, safe='')}"


def place_of(uri: str, space: str) -> Place:
    """The object that `uri` names in the space that is served.

    Raises:
        InvalidInput: it is no URI of a thread or document, or one of another space.
        InvalidName: it holds a name that is not legal.
    """
    head, _, rest = uri.partition(_SCHEME)
    parts = rest.split("/", 2)
    if head or len(parts) != 3 or parts[1] not in ("threads", "documents"):
        raise InvalidInput(
            f"{uri[:200]!r} names no resource of this server. Nothing was read. A URI is "
            f"shoal://{quote(space, safe='')}/threads/NAME or …/documents/NAME, with the name percent-encoded."
        )
    named = check_name("space", unquote(parts[0]))
    if named != space:
        raise InvalidInput(
            f"this server serves the space {space!r}, not {named!r}. Nothing was read. Start another with --space {named}."
        )
    kind: Kind = "thread" if parts[1] == "threads" else "document"
    return Place(space, kind, check_name(kind, unquote(parts[2])))


def templates(space: str) -> list[ResourceTemplate]:
    """The forms of the URIs."""
    at = f"{_SCHEME}{quote(space, safe='')}"
    return [
        ResourceTemplate(uri_template=f"{at}/{kind}s/{{name}}", name=f"{kind}s", description=_SAID[kind], mime_type=_JSON)
        for kind in KINDS
    ]


async def page(connection: StoreConnection, space: str, cursor: str | None) -> tuple[list[Resource], str | None]:
    """A page of the resources, threads first, and the cursor of the next one; None if it is the last.

    Raises:
        InvalidValue: `cursor` is none that was answered.
    """
    kind, after = _position(cursor)
    limit = connection.config.page_items_max
    reply = await connection.read(requests.ListObjects(space, kind, "", after, limit))
    found = [
        Resource(uri=Place(space, kind, name).uri, name=name, description=_SAID[kind], mime_type=_JSON) for name in reply.names
    ]
    if reply.more and reply.names:
        return found, json.dumps([kind, reply.names[-1]])
    return found, json.dumps(["document", None]) if kind == "thread" else None


async def contents(connection: StoreConnection, space: Space, uri: str) -> TextResourceContents:
    """The contents of a resource.

    Raises:
        NotFound: there is no such thread. A document that was never written is empty.
        InvalidInput: the URI names nothing here.
    """
    place = place_of(uri, space.name)
    if place.kind == "thread":
        found = await space.thread(place.name).load()
        text = json.dumps({"id": found.id, "state": values.to_json(found.redacted)}, ensure_ascii=False)
    else:
        text = (await connection.read(requests.ReadDocumentJson(space.name, place.name))).json.decode()
    return TextResourceContents(uri=uri, mime_type=_JSON, text=text)


def _position(cursor: str | None) -> tuple[Kind, str | None]:
    if cursor is None:
        return "thread", None
    try:
        kind, after = json.loads(cursor)
    except (ValueError, TypeError):
        kind, after = "", None
    if kind not in KINDS or not isinstance(after, str | None):
        raise InvalidValue(f"{cursor[:80]!r} is no cursor of this list. Nothing was read. Begin without one.")
    return kind, after
