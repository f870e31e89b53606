"""The tools of documents, which people edit at the same time."""

from __future__ import annotations

import json
from typing import Annotated, Any

from msgspec import Meta

from shoal.errors import InvalidInput, NotFound
from shoal.integrations.mcp.views import Answer, Arguments, Call, Writing, reads, writes
from shoal.protocol import requests
from shoal.protocol.requests import document_version

Name = Annotated[str, Meta(description="The document's name.")]


class ReadDocument(Arguments):
    """Which document, and which part of it."""

    document: Name
    root: Annotated[str, Meta(description="Only this part, for example a text; left out: all.")] = ""


@reads
async def read_document(call: Call, given: ReadDocument) -> Answer:
    """Read a shared document as JSON: its texts are strings, its maps objects, its lists arrays. A new one is empty."""
    reply = await call.connection.read(requests.ReadDocumentJson(call.space.name, given.document))
    content = json.loads(reply.json)
    if given.root:
        if given.root not in content:
            raise NotFound(f"document {given.document!r} has no root {given.root!r}. It has: {', '.join(content) or 'none'}.")
        content = content[given.root]
    return {"content": content, "version": document_version(reply.json)}


class EditDocument(Writing):
    """A new content, or a patch."""

    document: Name
    content: Annotated[dict[str, Any] | None, Meta(description="The whole new content; only what differs is changed.")] = None
    patch: Annotated[
        list[dict[str, Any]] | None, Meta(description="A JSON Patch (RFC 6902), which changes the places that it names.")
    ] = None
    expect_version: Annotated[str | None, Meta(description='Only if this is its `version`; "" if it must not exist.')] = None


@writes(destructive=True)
async def edit_document(call: Call, given: EditDocument) -> Answer:
    """Edit a shared document in place, by a patch or a new content. Edits that others make at the same time are kept."""
    expect = given.expect_version
    place = call.space.name, given.document
    request: requests.Patch | requests.Replace
    if (given.content is None) == (given.patch is None):
        raise InvalidInput("give either `content` or `patch`. Nothing was written.")
    if given.patch is not None:
        request = requests.Patch(*place, _packed(given.patch), call.author, expect)
    else:
        request = requests.Replace(*place, _packed(given.content), call.author, expect)
    reply = await call.connection.write(request, key=call.key, durability=None)
    return {"content": json.loads(reply.json), "version": document_version(reply.json)}


TOOLS = (read_document, edit_document)


def _packed(given: object) -> bytes:
    return json.dumps(given).encode()
