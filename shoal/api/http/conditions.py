"""Conditional requests (RFC 9110, section 13): the ETags of answers, and writes that depend on one.

Laws:

- An answer's ETag is `"VERSION.DIGEST"`: the version that nodes compare, and a digest of the answer's bytes in
  its format, so that equal tags are equal answers. `-` stands where there is no version; then the tag serves
  `If-None-Match` alone. The answer to a write has the version alone, for it does not show the whole.
- `If-Match` goes to the node as the version that the write expects, which compares it in the step that writes:
  a document's content as JSON, an item's or a register's version, a branch's only head. It compares on the
  node that is asked: what others write at the same time, elsewhere, is merged as ever.
- A condition that would not be compared is refused, and never ignored.
"""

from __future__ import annotations

import re
from hashlib import blake2b

from aiohttp import hdrs, web

from shoal.errors import InvalidInput, Unsupported

ABSENT = ""
"""As an expected version: there is none yet."""
_UNNAMED = "-"
_DIGEST_BYTES = 12
_TAG = re.compile(r'"([^".\s]*)(?:\.([0-9a-f]+))?"')


def expected(request: web.Request, given: str | None, *, field: str) -> str | None:
    """The version that a write expects by its headers, or by what its body or query has `given` as `field`.

    Raises:
        InvalidInput, Unsupported: the condition cannot be compared; nothing was written.
    """
    named = _expected(request)
    if named is not None and given is not None and named != given:
        raise InvalidInput(f"the headers expect another version than `{field}`. Nothing was written.", field=field)
    return given if named is None else named


def check_none(request: web.Request) -> None:
    """
    Raises:
        Unsupported: the request has a condition, and its route compares nothing.
    """
    if hdrs.IF_MATCH in request.headers or hdrs.IF_NONE_MATCH in request.headers:
        raise Unsupported("this route compares no version. Nothing was written. Leave out If-Match and If-None-Match.")


def tagged(request: web.Request, response: web.StreamResponse, version: str | None) -> web.StreamResponse:
    """`response` with its ETag; 304 in its place if the client holds the same."""
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
    response.headers[hdrs.CACHE_CONTROL] = "no-cache"  # Ask each time, and have it told that nothing changed.
    return response


def _expected(request: web.Request) -> str | None:
    match, none_match = (request.headers.get(name) for name in (hdrs.IF_MATCH, hdrs.IF_NONE_MATCH))
    if match is not None and none_match is not None:
        raise InvalidInput("give If-Match or If-None-Match, not both. Nothing was written.")
    if none_match is not None:
        if none_match.strip() != "*":
            raise Unsupported("a write takes `If-None-Match: *` alone, for what is not there yet. Nothing was written.")
        return ABSENT
    if match is None:
        return None
    tag = _TAG.fullmatch(match.strip())
    if tag is None or tag[1] == _UNNAMED:
        raise Unsupported(
            f"If-Match takes one ETag that names a version, as an answer had it; it is {match[:80]!r}. Nothing was written."
        )
    return tag[1]
