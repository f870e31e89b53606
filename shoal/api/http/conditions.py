"""Conditional requests (RFC 9110, section 13): ETags of answers, and writes that depend on one.

Laws:

- An answer's ETag is `"VERSION.DIGEST"`: the version that nodes compare, and a digest of the answer's bytes in
  its format, so that equal tags mean equal answers. Without a version it is `-`, and the tag is of use for
  `If-None-Match` alone. The ETag of a write is the version alone, because the answer does not show the whole.
- `If-Match` becomes the version that the write expects; the node compares it in the same step as it writes.
  It is the digest of a document's content as JSON, the version of an item or a register, or a branch's only head.
  The comparison covers the node that is asked: concurrent writes at other nodes are merged as always.
- A condition that cannot be compared is rejected, never ignored.
"""

from __future__ import annotations

import re
from hashlib import blake2b

from aiohttp import hdrs, web

from shoal.errors import InvalidInput, Unsupported

ABSENT = ""
"""The expected version of an object that must not exist yet."""
_UNNAMED = "-"
_DIGEST_BYTES = 12
_TAG = re.compile(r'"([^".\s]*)(?:\.([0-9a-f]+))?"')


def expected(request: web.Request, given: str | None, *, field: str) -> str | None:
    """The version that a write expects: from its headers, or `given` as `field` in its body or query.

    Raises:
        InvalidInput, Unsupported: the condition cannot be compared; nothing was written.
    """
    named = _expected(request)
    if named is not None and given is not None and named != given:
        raise InvalidInput(f"the headers and `{field}` expect different versions. Nothing was written.", field=field)
    return given if named is None else named


def check_none(request: web.Request) -> None:
    """Reject a condition on a route that compares none.

    Raises:
        Unsupported: the request has one.
    """
    if hdrs.IF_MATCH in request.headers or hdrs.IF_NONE_MATCH in request.headers:
        raise Unsupported("this route compares no version. Nothing was written. Leave out If-Match and If-None-Match.")


def tagged(request: web.Request, response: web.StreamResponse, version: str | None) -> web.StreamResponse:
    """`response` with its ETag, or 304 in its place if the client holds the same."""
    if not isinstance(response, web.Response) or not isinstance(response.body, bytes) or response.status >= 300:
        return response
    if request.method not in ("GET", "HEAD"):
        if version:
            response.headers[hdrs.ETAG] = f'"{version}"'
        return response
    digest = blake2b(response.body, digest_size=_DIGEST_BYTES).hexdigest()
    tag = f'"{_UNNAMED if version is None else version}.{digest}"'
    held = request.headers.get(hdrs.IF_NONE_MATCH, "")
    if held.strip() == "*" or tag in re.findall(r'"[^"]*"', held):
        response = web.Response(status=304)
    response.headers[hdrs.ETAG] = tag
    response.headers[hdrs.CACHE_CONTROL] = "no-cache"  # Ask each time; the answer is 304 if nothing changed.
    return response


def _expected(request: web.Request) -> str | None:
    match, none_match = (request.headers.get(name) for name in (hdrs.IF_MATCH, hdrs.IF_NONE_MATCH))
    if match is not None and none_match is not None:
        raise InvalidInput("give either If-Match or If-None-Match, not both. Nothing was written.")
    if none_match is not None:
        if none_match.strip() != "*":
            raise Unsupported(
                "a write supports only `If-None-Match: *`, for an object that must not exist yet. Nothing was written."
            )
        return ABSENT
    if match is None:
        return None
    tag = _TAG.fullmatch(match.strip())
    if tag is None or tag[1] == _UNNAMED:
        raise Unsupported(
            f"If-Match must be one ETag of an earlier answer, with a version; got {match[:80]!r}. Nothing was written."
        )
    return tag[1]
