"""Errors as problem documents (RFC 9457).

Law: every answer that is not a success is a problem document, including those that the
HTTP layer makes (no such route, wrong method, a malformed request),
and none shows internals: a bug is logged, and its text stays in the log.

`type` is "urn:shoal:error:" and the error's code, and `code` is the code alone.
`written` says whether anything was written ("no", "yes", "unknown"), and `retryable`
whether the same request may succeed later or at another node. The error's detail
fields are further members.
"""

from __future__ import annotations

import math

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage, BadHttpMethod, HttpProcessingError, InvalidURLError, LineTooLong

from shoal.errors import (
    InvalidInput,
    NotFound,
    ShoalError,
    ShuttingDown,
    TooLarge,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from shoal.logs import events
from shoal.logs.lines import log

CONTENT_TYPE = "application/problem+json"
RETRY_AFTER_S = 1.0
"""`Retry-After` if the error itself has no time."""


class MethodNotAllowed(Unsupported):
    """The route exists, but does not support this method."""

    code = "method-not-allowed"
    status = 405


class UnknownMethod(Unsupported):
    """No route supports this method."""

    code = "unknown-method"
    status = 501


class UnsupportedMediaType(Unsupported):
    """The body is neither JSON nor msgpack."""

    code = "unsupported-media-type"
    status = 415


class UnsupportedEncoding(Unsupported):
    """The body has an unknown Content-Encoding."""

    code = "unsupported-encoding"
    status = 415


class RangeNotSatisfiable(InvalidInput):
    """The range that was asked for is beyond the end of the file; `detail` has its `size`."""

    code = "range-not-satisfiable"
    status = 416


class CrossOrigin(Unsupported):
    """A browser sent the request for a page of another origin."""

    code = "cross-origin"
    status = 403


class WrongHost(Unsupported):
    """The request is for a host that is not this node."""

    code = "wrong-host"
    status = 421


class Malformed(InvalidInput):
    """The request is not HTTP, or its path or query is not percent-encoded text."""

    code = "malformed-request"


class UriTooLong(TooLarge):
    """The URL is longer than 8 KiB."""

    code = "uri-too-long"
    status = 414


class HeadersTooLarge(TooLarge):
    """A header is longer than 16 KiB, or there are too many headers."""

    code = "headers-too-large"
    status = 431


class RequestTimeout(InvalidInput):
    """The client stopped sending in the middle of its request."""

    code = "request-timeout"
    status = 408


class ExpectationFailed(Unsupported):
    """The Expect header asks for something other than 100-continue."""

    code = "expectation-failed"
    status = 417


class UpgradeRequired(Unsupported):
    """The route is a WebSocket, but the request does not open one."""

    code = "upgrade-required"
    status = 426


def internal(error: Exception | None, *, where: str) -> ShoalError:
    """Log a bug, and return an error for the caller, whose `written` is "unknown"."""
    log(events.BUG, where=where, bug=error)
    failure = ShoalError("the node met an unexpected error; a write may or may not be applied. See the node's log.")
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
        "retryable": error.retryable,
    }
    return web.Response(
        body=msgspec.json.encode(document), status=error.status, content_type=CONTENT_TYPE, headers=_headers(error)
    )


def _headers(error: ShoalError) -> dict[str, str]:
    match error:
        case Unavailable():
            after_s = error.detail.get("retry_after_s")
            return {"Retry-After": str(max(1, math.ceil(after_s if isinstance(after_s, int | float) else RETRY_AFTER_S)))}
        case Unauthenticated():
            # RFC 6750, section 3; a client of a WebSocket sees nothing else of the answer.
            reason = error.detail.get("reason", "")
            told = error.message.partition(". ")[0].replace('"', "'").replace("\\", "").encode("ascii", "replace").decode()
            named = "" if reason == "missing" else f', error="invalid_token", error_description="{told}"'
            soon = {"Retry-After": str(math.ceil(RETRY_AFTER_S))} if "retry_after_s" in error.detail else {}
            return {"WWW-Authenticate": f'Bearer realm="shoal"{named}', **soon}
        case MethodNotAllowed():
            allowed = error.detail["allowed"]
            return {"Allow": ", ".join(allowed if isinstance(allowed, list) else ())}
        case UnsupportedEncoding():
            return {"Accept-Encoding": "gzip, deflate"}
        case UpgradeRequired():
            return {"Upgrade": "websocket", "Connection": "upgrade"}
        case _:
            return {}


def of_http(error: web.HTTPException, *, method: str, path: str) -> ShoalError:
    """The Shoal error for an HTTP error of aiohttp."""
    match error:
        case web.HTTPNotFound():
            return NotFound(f"there is no route {path[:200]!r}. Nothing was written. See /v1/openapi.json.")
        case web.HTTPMethodNotAllowed():
            allowed = sorted({*error.allowed_methods, "OPTIONS"})
            return MethodNotAllowed(
                f"{method} is not allowed here; allowed: {', '.join(allowed)}. Nothing was written.", allowed=allowed
            )
        case web.HTTPExpectationFailed():
            return ExpectationFailed(f"{error.text}. Nothing was written. Leave out the header Expect.")
        case web.HTTPServiceUnavailable():
            return ShuttingDown("the node is stopping. Nothing was written. Try again later, or at another node.")
        case _:
            return InvalidInput(f"{error.text or error.reason}. Nothing was written.")


def of_parser(error: BaseException | None, *, url_bytes_max: int) -> ShoalError:
    """The Shoal error for a request that aiohttp's parser rejected.

    The parser's own text is left out, because it shows bytes of the request.
    """
    match error:
        case LineTooLong() if error.args[1] == url_bytes_max:
            return UriTooLong(f"the URL has more than {url_bytes_max} bytes. Nothing was written.")
        case LineTooLong():
            return HeadersTooLarge(f"a header has more than {error.args[1]} bytes. Nothing was written.")
        case BadHttpMethod() if "HTTPS" in error.message:
            return Malformed(
                "this port speaks HTTP, but received TLS. Nothing was written. Use http://, or give the node a certificate."
            )
        case BadHttpMethod():
            return UnknownMethod("no route supports this method. Nothing was written. See /v1/openapi.json.")
        case BadHttpMessage() if "Too many headers" in error.message:
            return HeadersTooLarge("the request has too many headers. Nothing was written.")
        case InvalidURLError():
            return Malformed("the URL is malformed or not percent-encoded. Nothing was written.")
        case HttpProcessingError():
            first = error.message.partition("\n")[0].strip(": ")
            return Malformed(f"the request is not valid HTTP: {first[:100]}. Nothing was written.")
        case _:
            return Malformed("the request is not valid HTTP. Nothing was written.")
