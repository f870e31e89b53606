"""Errors as problem documents (RFC 9457).

Law: every answer that is no success is a problem document, also those that the
HTTP layer makes by itself (no such route, wrong method, body over its bound),
and none shows internals: a bug is logged here, and its text stays in the log.

`type` is "urn:shoal:error:" and the error's code, `code` the same code alone,
`written` says whether anything was written ("no", "yes", "unknown"), and the
error's detail fields stand beside them.
"""

from __future__ import annotations

import math

import msgspec
import structlog
from aiohttp import web

from shoal.errors import InvalidInput, NotFound, ShoalError, ShuttingDown, TooLarge, Unavailable, Unsupported

CONTENT_TYPE = "application/problem+json"
RETRY_AFTER_S = 1.0
"""What a caller is told to wait where the error itself does not say."""

_log = structlog.get_logger("shoal.api")


class MethodNotAllowed(Unsupported):
    """The route exists, and does not take this method."""

    code = "method-not-allowed"
    status = 405


class UnsupportedMediaType(Unsupported):
    """The body is neither JSON nor msgpack."""

    code = "unsupported-media-type"
    status = 415


class CrossOrigin(Unsupported):
    """A browser asks on behalf of a page of another origin."""

    code = "cross-origin"
    status = 403


def internal(error: Exception, *, where: str) -> ShoalError:
    """Log a bug, and return what the caller may know of it."""
    _log.error("unexpected error", where=where, exc_info=error)
    failure = ShoalError("the node met an error that it did not expect; a write may or may not be applied. See the node's log.")
    failure.written = "unknown"
    return failure


def response(error: ShoalError) -> web.Response:
    """The problem document of `error`."""
    document: dict[str, object] = {
        **error.detail,
        "type": f"urn:shoal:error:{error.code}",
        "title": error.code.replace("-", " ").capitalize(),
        "status": error.status,
        "detail": error.message,
        "code": error.code,
        "written": error.written,
    }
    return web.Response(
        body=msgspec.json.encode(document), status=error.status, content_type=CONTENT_TYPE, headers=_headers(error)
    )


def _headers(error: ShoalError) -> dict[str, str]:
    if not isinstance(error, Unavailable):
        return {}
    after_s = error.detail.get("retry_after_s")
    return {"Retry-After": str(max(1, math.ceil(after_s if isinstance(after_s, int | float) else RETRY_AFTER_S)))}


def of_http(error: web.HTTPException, *, method: str, path: str) -> ShoalError:
    """What aiohttp refused, in Shoal's words."""
    match error:
        case web.HTTPNotFound():
            return NotFound(f"there is no route {path[:200]!r}. Nothing was written. See /v1/openapi.json.")
        case web.HTTPMethodNotAllowed():
            allowed = sorted(error.allowed_methods)
            return MethodNotAllowed(
                f"{method} is not allowed here; allowed: {', '.join(allowed)}. Nothing was written.", allowed=allowed
            )
        case web.HTTPRequestEntityTooLarge():
            return TooLarge(f"the body is too large: {error.text}. Nothing was written. Split it, or raise request_bytes_max.")
        case web.HTTPServiceUnavailable():
            return ShuttingDown("the node is stopping. Nothing was written. Try again later, or elsewhere.")
        case _:
            return InvalidInput(f"{error.text or error.reason}. Nothing was written.")
