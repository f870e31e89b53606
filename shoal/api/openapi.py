"""The OpenAPI 3.1 description, made from the route table and the types that decode its bodies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from shoal.api import bookmarks
from shoal.api.problems import CONTENT_TYPE
from shoal.api.route import Route
from shoal.api.routes import OPENAPI_PATH, SESSION_PATH
from shoal.api.yjs import YJS_PATH
from shoal.names import KEY_BYTES_MAX, NAME_BYTES_MAX

_REF = "#/components/schemas/{name}"
_PROBLEM = {"$ref": _REF.format(name="Problem")}


class Problem(Struct):
    """RFC 9457; the error's detail fields stand beside these."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    written: str  # "no", "yes" or "unknown".
    retryable: bool  # Whether the same request may succeed later, or at another node.


def describe(routes: Sequence[Route], *, version: str) -> dict[str, Any]:
    """The whole document, as JSON values."""
    types = [kind for route in routes for kind in (route.body, route.reply, route.query) if kind is not None]
    _, components = msgspec.json.schema_components([*types, Problem], ref_template=_REF)
    session = _socket("get_session", "The pipelined session protocol over a WebSocket; see docs/PROTOCOL.md")
    yjs = _socket("get_yjs_space_document", "The y-websocket protocol over a WebSocket; see docs/YJS.md")
    yjs["parameters"] = _path_parameters(YJS_PATH)
    paths: dict[str, dict[str, Any]] = {
        OPENAPI_PATH: {"get": _plain("This document")},
        SESSION_PATH: {"get": session},
        YJS_PATH: {"get": yjs},
    }
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Shoal", "version": version, "description": "A durable, replicated state layer for AI agents."},
        "paths": dict(sorted(paths.items())),
        "components": {"schemas": components},
    }


def _operation(route: Route, components: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": _operation_id(route),
        "parameters": [*_path_parameters(route.path), *_query_parameters(route, components), *_headers(route)],
        "responses": {
            str(route.status): {
                "description": route.summary,
                "headers": _told(route),
                "content": _content(route.reply, route.content_type),
            },
            "default": {"description": "A problem document", "content": {CONTENT_TYPE: {"schema": _PROBLEM}}},
        },
    }
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": _content(route.body, route.body_type)}
    return operation


def _operation_id(route: Route) -> str:
    words = re.findall(r"[a-z]+", route.path.removeprefix("/v1").lower())
    return "_".join([route.method.lower(), *words])


def _path_parameters(path: str) -> list[dict[str, Any]]:
    schema = {"type": "string", "minLength": 1, "maxLength": NAME_BYTES_MAX}
    names = re.findall(r"{(\w+)}", path)
    return [{"name": name, "in": "path", "required": True, "schema": schema} for name in names]


def _query_parameters(route: Route, components: dict[str, Any]) -> list[dict[str, Any]]:
    properties = components[route.query.__name__]["properties"]
    return [{"name": name, "in": "query", "required": False, "schema": schema} for name, schema in properties.items()]


def _headers(route: Route) -> list[dict[str, Any]]:
    named = [_header(bookmarks.HEADER, bookmarks.NAMED, {"type": "string"})] if route.has_bookmark else []
    if not route.writes:
        return named
    schema = {"type": "string", "minLength": 1, "maxLength": KEY_BYTES_MAX}
    return [*named, _header("Idempotency-Key", "The same key again, with the same request, is applied once.", schema)]


def _header(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "schema": schema, "description": description}


def _told(route: Route) -> dict[str, Any]:
    if not route.has_bookmark:
        return {}
    return {
        bookmarks.HEADER: {"description": bookmarks.TOLD, "schema": {"type": "string"}},
        bookmarks.LEFT_OUT: {"description": bookmarks.SAID, "schema": {"type": "integer", "minimum": 1}},
    }


def _content(kind: Any, content_type: str) -> dict[str, Any]:
    schema = {"type": "string"} if kind is None else msgspec.json.schema_components([kind], ref_template=_REF)[0][0]
    content = {content_type: {"schema": schema}}
    if content_type == "application/json":
        content["application/msgpack"] = {"schema": schema}
    return content


def _plain(summary: str) -> dict[str, Any]:
    return {
        "summary": summary,
        "operationId": "get_openapi",
        "responses": {"200": {"description": summary, "content": {"application/json": {"schema": {"type": "object"}}}}},
    }


def _socket(operation: str, summary: str) -> dict[str, Any]:
    return {
        "summary": summary,
        "operationId": operation,
        "responses": {
            "101": {"description": "Switching to the WebSocket protocol"},
            "default": {"description": "A problem document", "content": {CONTENT_TYPE: {"schema": _PROBLEM}}},
        },
    }
