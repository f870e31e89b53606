"""The OpenAPI 3.1 description, generated from the route table and the types that decode bodies.

Laws:
- No text is written twice. Tags come from the modules of the handlers, descriptions of fields from their
  comments (`shoal.api.glossary`), and errors from the routes (`shoal.api.glossary`).
- Common generators make usable clients of it with their defaults. So a field of a body that may be left out has no
  `default`, of which openapi-typescript makes a field that must be given; its description names it. A field of an answer
  that is always there is required. All errors have one schema, because openapi-python-client makes a class of each.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, get_args

import msgspec
from aiohttp import hdrs
from msgspec import Struct

from shoal.api import glossary, session
from shoal.api.glossary import BODIES, PARTS, clause, failures, of_stream
from shoal.api.http import bodies as deadlines
from shoal.api.http import headers
from shoal.api.http.exchange import JSON, MSGPACK
from shoal.api.http.origins import REQUEST_ID
from shoal.api.http.problems import CONTENT_TYPE
from shoal.api.route import Route
from shoal.api.routes import OPENAPI_PATH, SESSION_PATH
from shoal.api.streams import headers as streams
from shoal.api.streams.headers import STREAMS_PATH
from shoal.api.yjs import door as yjs
from shoal.api.yjs.door import HOCUSPOCUS_PATH, YJS_PATH
from shoal.errors import ShoalError
from shoal.names import KEY_BYTES_MAX, NAME_BYTES_MAX

_EVENTS = "text/event-stream"
_REF = "#/components/schemas/{name}"
_PROBLEM = {"$ref": _REF.format(name="Problem")}
_KEY = "A request that is sent again with the same key is applied once."
_IF_MATCH = "An ETag. The write is rejected (412) if the object has another version on this node."
_IF_ABSENT = "`*`: the write is rejected (412) if the object exists."
_IF_CHANGED = "ETags that the client holds. If one is the answer's, the answer is 304 without a body."
_REQUEST_ID = "A name for this request, for the node's log. The answer repeats it; without one the node makes one."
_ETAG = "The answer's version, a period, and a digest of its bytes; after a write, the version alone."


class Problem(Struct):
    """A problem document (RFC 9457). The error's detail fields are further members."""

    type: str  # "urn:shoal:error:" and the code.
    title: str  # The code as words.
    status: int  # The HTTP status.
    detail: str  # The text: what happened, whether anything was written, and what the caller can do.
    code: str  # The code of the error, such as "not-found".
    written: str  # Whether anything was written: "no", "yes" or "unknown".


def describe(routes: Sequence[Route], *, version: str) -> dict[str, Any]:
    """The whole document, as JSON values."""
    types = [kind for route in routes for kind in (route.body, route.reply, route.query) if kind is not None]
    _, components = msgspec.json.schema_components([*types, Problem], ref_template=_REF)
    given = set(_structs([kind for route in routes for kind in (route.body, route.query) if kind is not None]))
    for kind in set(_structs([*types, Problem])):
        _explain(kind, components[kind.__name__])
        if kind not in given:
            _require(kind, components[kind.__name__])
    _fill(components)
    paths: dict[str, dict[str, Any]] = {
        OPENAPI_PATH: {"get": _own()},
        SESSION_PATH: {
            "get": _socket(
                session.__name__, "get_session", "The pipelined session protocol over a WebSocket; see docs/PROTOCOL.md"
            )
        },
        YJS_PATH: {
            "get": _socket(yjs.__name__, "get_yjs_space_document", "The y-websocket protocol over a WebSocket; see docs/YJS.md")
        },
        HOCUSPOCUS_PATH: {
            "get": _socket(
                yjs.__name__, "get_hocuspocus_space", "The protocol of Hocuspocus's provider over a WebSocket; see docs/YJS.md"
            )
        },
    }
    for path in (YJS_PATH, HOCUSPOCUS_PATH):
        paths[path]["get"]["parameters"] = _path_parameters(path)
    paths[STREAMS_PATH] = {method.lower(): _streaming(method) for method in streams.SUMMARIES}
    refused = [*map(failures, routes), *map(_of_streaming, streams.SUMMARIES)]
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, components)
    refusals = {
        name: _refusal([error for error in errors if str(error.status) == status])
        for errors in refused
        for status, name in _refusals(errors)
    }
    modules = {route.handler.__module__ for route in routes} | {__name__, session.__name__, yjs.__name__, streams.__name__}
    tags = {_tag(module): _heading(module) for module in sorted(modules)}
    for kind in given:  # After the parameters are made of them, whose defaults no generator takes for values to be given.
        _spell_defaults(kind, components[kind.__name__])
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Shoal",
            "version": version,
            "summary": "A durable, replicated state layer for AI agents.",
            "description": "Every error is a problem document (RFC 9457). Every route for GET also answers HEAD.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": tag, "description": heading} for tag, heading in sorted(tags.items())],
        "paths": dict(sorted(paths.items())),
        "components": {"schemas": components, "responses": refusals},
    }


def _tag(module: str) -> str:
    """The kind of object whose folder a module is in, or the door; else the module's own name. Generators name modules so."""
    _, room, *rest = module.split(".")
    return rest[0] if room in ("kinds", "api") else rest[-1]


def _heading(module: str) -> str:
    """The first line of the folder or module that a tag is named after."""
    named = (f"shoal.kinds.{_tag(module)}", f"shoal.api.{_tag(module)}", module)
    return next(sys.modules[name].__doc__ or "" for name in named if name in sys.modules).partition("\n")[0]


def _structs(kinds: Sequence[Any]) -> Iterator[type[Struct]]:
    """The struct classes among these types and their parts."""
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, Struct):
            yield kind
            yield from _structs([field.type for field in msgspec.structs.fields(kind)])
        else:
            yield from _structs(get_args(kind))


def _explain(kind: type[Struct], schema: dict[str, Any]) -> None:
    meanings = glossary.told(kind)
    for field in msgspec.structs.fields(kind):
        shown = schema["properties"][field.encode_name]
        if meanings[field.name]:
            schema["properties"][field.encode_name] = {**shown, "description": meanings[field.name]}
    tag = kind.__struct_config__.tag_field
    if tag is not None:
        schema["properties"][tag] = {**schema["properties"][tag], "description": glossary.NAMES[tag]}


def _require(kind: type[Struct], schema: dict[str, Any]) -> None:
    """Of an answer, list the fields that are always there: all, unless it leaves out defaults."""
    for shown in schema["properties"].values():
        shown.pop("default", None)
    if not kind.__struct_config__.omit_defaults:
        schema["required"] = list(schema["properties"])


def _spell_defaults(kind: type[Struct], schema: dict[str, Any]) -> None:
    """Of a body or a query, name the defaults in the descriptions alone."""
    for field in msgspec.structs.fields(kind):
        shown = schema["properties"][field.encode_name]
        default = shown.pop("default", None)
        # The default of a packed value is bytes, and no JSON; an empty one says nothing.
        if default not in (None, "", [], {}) and not isinstance(field.default, bytes):
            shown["description"] = f"{shown['description']} Default: `{msgspec.json.encode(default).decode()}`."


def _fill(schema: Any) -> None:
    """Say that an array without a type of its items may hold anything, for generators that want to read it.

    Of a tuple `maxItems` says that nothing follows; `items: false`, which says it again, is refused by generators.
    """
    if isinstance(schema, dict):
        if schema.get("type") == "array" and not schema.get("items"):
            schema["items"] = {}
        for part in schema.values():
            _fill(part)
    elif isinstance(schema, list):
        for part in schema:
            _fill(part)


def _operation(route: Route, components: dict[str, Any]) -> dict[str, Any]:
    answer = {
        "description": route.summary,
        "headers": _told(route),
        "content": _content(route.reply, route.content_type),
    }
    operation: dict[str, Any] = {
        "tags": [_tag(route.handler.__module__)],
        "summary": route.summary,
        "operationId": _operation_id(route),
        "parameters": [*_path_parameters(route.path), *_query_parameters(route, components), *_headers(route)],
        "responses": {
            str(route.status): answer,
            **_refused(failures(route)),
        },
    }
    if route.repeats:
        operation["responses"]["200"] = answer
    if route.has_etag:
        operation["responses"]["304"] = _UNCHANGED
    if route.body is not None:
        content = _content(route.body, route.body_type)
        content[route.body_type]["example"] = BODIES[route.body]
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _refused(errors: Sequence[type[ShoalError]]) -> dict[str, Any]:
    """The error answers of an operation."""
    return {
        **{status: {"$ref": f"#/components/responses/{name}"} for status, name in _refusals(errors)},
        "default": {"description": "A problem document", "content": {CONTENT_TYPE: {"schema": _PROBLEM}}},
    }


def _refusals(errors: Sequence[type[ShoalError]]) -> Iterator[tuple[str, str]]:
    """The status of each error answer, and the name of its description, which operations with the same errors share."""
    for status, found in groupby(errors, key=lambda error: error.status):
        yield str(status), ".".join([str(status), *(error.code for error in found)])


def _refusal(found: Sequence[type[ShoalError]]) -> dict[str, Any]:
    return {
        "description": "; ".join(f"`{error.code}`: {clause(error)}" for error in found),
        "content": {CONTENT_TYPE: {"schema": _PROBLEM}},
        "x-codes": [error.code for error in found],
    }


def _operation_id(route: Route) -> str:
    words = re.findall(r"[a-z]+", route.path.removeprefix("/v1").lower())
    return "_".join([route.method.lower(), *words]) if words else f"{route.method.lower()}_root"


def _streaming(method: str) -> dict[str, Any]:
    summary = streams.SUMMARIES[method]
    return {
        "tags": [_tag(streams.__name__)],
        "summary": f"{summary}; see docs/integrations/durable-streams.md",
        "operationId": f"{method.lower()}_streams_space_stream",
        "parameters": _path_parameters(STREAMS_PATH),
        "responses": {
            "2XX": {"description": summary},
            **_refused(_of_streaming(method)),
        },
    }


def _of_streaming(method: str) -> list[type[ShoalError]]:
    return of_stream(writes=method != "GET")


def _path_parameters(path: str) -> list[dict[str, Any]]:
    schema = {"type": "string", "minLength": 1, "maxLength": NAME_BYTES_MAX}
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": schema,
            "description": glossary.NAMES[name],
            "example": PARTS[name],
        }
        for name in re.findall(r"{(\w+)}", path)
    ]


def _query_parameters(route: Route, components: dict[str, Any]) -> list[dict[str, Any]]:
    properties = components[route.query.__name__]["properties"]
    return [
        {
            "name": name,
            "in": "query",
            "required": False,
            "description": schema.get("description", ""),
            "schema": {key: value for key, value in schema.items() if key != "description"},
        }
        for name, schema in properties.items()
    ]


def _headers(route: Route) -> list[dict[str, Any]]:
    text = {"type": "string"}
    named = [_header(REQUEST_ID, _REQUEST_ID, {"type": "string", "maxLength": 128})]
    if route.has_bookmark:
        named.append(_header(headers.BOOKMARK, headers.BOOKMARK_NAMED, text))
    if route.has_etag:
        named.append(_header(hdrs.IF_NONE_MATCH, _IF_CHANGED, text))
    if route.compares:
        named += [_header(hdrs.IF_MATCH, _IF_MATCH, text), _header(hdrs.IF_NONE_MATCH, _IF_ABSENT, text)]
    if route.writes:
        named.append(_header("Idempotency-Key", _KEY, {"type": "string", "minLength": 1, "maxLength": KEY_BYTES_MAX}))
        named.append(_header(deadlines.HEADER, deadlines.NAMED, {"type": "number"}))
        named.append(_header(headers.LEASE, headers.LEASE_NAMED, text))
    return named


def _header(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": str(name), "in": "header", "required": False, "schema": schema, "description": description}


def _told(route: Route) -> dict[str, Any]:
    named = {
        REQUEST_ID: {
            "description": "The id of the request: the caller's, or one that the node made",
            "schema": {"type": "string"},
        }
    }
    if not route.has_bookmark:
        return named
    told = named | {
        headers.BOOKMARK: {"description": headers.TOLD, "schema": {"type": "string"}},
        headers.LEFT_OUT: {"description": headers.SAID, "schema": {"type": "integer", "minimum": 1}},
        headers.REDACTED: {"description": headers.REDACTED_TOLD, "schema": {"type": "string"}},
    }
    if route.has_etag or route.compares:
        told["ETag"] = {"description": _ETAG, "schema": {"type": "string"}}
    return told


def _content(kind: Any, content_type: str) -> dict[str, Any]:
    schema = {"type": "string"} if kind is None else msgspec.json.schema_components([kind], ref_template=_REF)[0][0]
    if content_type == _EVENTS:  # Text, of which generators cannot make values; each event's data is one.
        return {content_type: {"schema": {"type": "string"}, "x-item-schema": schema}}
    content = {content_type: {"schema": schema}}
    if content_type == JSON:
        content[MSGPACK] = {"schema": schema}
    return content


_UNCHANGED = {"description": "The client already holds this answer"}


def _own() -> dict[str, Any]:
    summary = "This document"
    content = {JSON: {"schema": {"type": "object"}}}
    responses = {"200": {"description": summary, "content": content}, "304": _UNCHANGED}
    return {"tags": [_tag(__name__)], "summary": summary, "operationId": "get_openapi", "responses": responses}


def _socket(module: str, operation: str, summary: str) -> dict[str, Any]:
    return {
        "tags": [_tag(module)],
        "summary": summary,
        "operationId": operation,
        "responses": {
            "101": {"description": "Switching to the WebSocket protocol"},
            "default": {"description": "A problem document", "content": {CONTENT_TYPE: {"schema": _PROBLEM}}},
        },
    }
