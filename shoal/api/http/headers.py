"""Headers of requests and answers: conditions, bookmarks and leases; and opaque bytes as text.

Conditional requests (RFC 9110, section 13): ETags of answers, and writes that depend on one.

Laws:

- An answer's ETag is `"VERSION.DIGEST"`: the version that nodes compare, and a digest of the answer's bytes in
  its format, so that equal tags mean equal answers. Without a version it is `-`, and the tag is of use for
  `If-None-Match` alone. The ETag of a write is the version alone, because the answer does not show the whole.
- `If-Match` becomes the version that the write expects; the node compares it in the same step as it writes.
  It is the digest of a document's content as JSON, the version of an item or a register, or a branch's only head.
  The comparison covers the node that is asked: concurrent writes at other nodes are merged as always.
- A condition that cannot be compared is rejected, never ignored.

The bookmark of an HTTP client, which the client keeps as text between its requests.

Law: an answer's bookmark covers the bookmark of its request and the state that the answer shows, as far as
it fits `BOOKMARK_HEADER_BYTES_MAX`; the partitions of this request come first. If partitions are left out,
the answer says how many. Reads of those may be older than the client has seen, unless it sends
its older bookmark too.

The header `Shoal-Lease`: the lease under which an HTTP request writes its threads.

Opaque bytes (cursors, contexts) as text that is safe in a URL, and back.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from aiohttp import hdrs, web

from shoal.errors import InvalidInput, Unsupported
from shoal.protocol.bookmark import Bookmark, SharedBookmark
from shoal.protocol.requests import Replaced, Request, Term
from shoal.workflows.connection import HeldLease, HeldLeases, threads_of

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


BOOKMARK = "Shoal-Bookmark"
LEFT_OUT = "Shoal-Bookmark-Left-Out"

# For the description of the routes.
BOOKMARK_NAMED = (
    "The bookmark of an earlier answer of any node: this answer shows at least what the client had written and seen."
)
TOLD = "A bookmark of all that the client has written and seen, including this answer. Send it with the next request."
SAID = "The number of partitions that did not fit the bookmark. To cover them, send the older bookmark too."


def named(request: web.Request) -> Bookmark:
    """The bookmark in the request's headers; several of them are joined, also if they share a line, as `fetch` writes them.

    Raises:
        InvalidValue: a header is not a bookmark.
    """
    bookmark = Bookmark()
    for line in request.headers.getall(BOOKMARK, ()):
        for text in line.split(","):
            bookmark.join(Bookmark.parse(text.strip()))
    return bookmark


def headers(bookmark: SharedBookmark, *, bytes_max: int) -> dict[str, str]:
    """The headers that give `bookmark` to the client, in at most `bytes_max` bytes of text."""
    chosen, left_out = bookmark.within(bytes_max)
    told = {BOOKMARK: chosen.text()}
    return {**told, LEFT_OUT: str(left_out)} if left_out else told


REDACTED = "Shoal-Redacted"
REDACTED_TOLD = "What rules of redaction replaced in the write: a JSON list of path, rule and count, the last of which may be …"
REDACTED_BYTES_MAX = 4 * 1024


def redacted(replaced: Sequence[Replaced]) -> dict[str, str]:
    """The header that says what was replaced in a write; none if nothing was. What does not fit is told as one."""
    if not replaced:
        return {}
    told, size = list[dict[str, object]](), 0
    for place, each in enumerate(replaced):
        part: dict[str, object] = {"path": each.path, "rule": each.rule, "count": each.count}
        size += len(json.dumps(part)) + 2
        if size > REDACTED_BYTES_MAX:
            told.append({"path": "…", "rule": "…", "count": sum(rest.count for rest in replaced[place:])})
            break
        told.append(part)
    return {REDACTED: json.dumps(told)}


LEASE = "Shoal-Lease"
LEASE_NAMED = "The lease of the thread that is written: its fencing number, a period, and its token."

_FORM = re.compile(r"(\d{1,19})\.([0-9a-f]{32})")


def named_by(request: web.Request) -> HeldLeases | None:
    """The lease that a request names; None if it names none.

    Raises:
        InvalidInput: the header is not legal.
    """
    given = request.headers.get(LEASE)
    if given is None:
        return None
    form = _FORM.fullmatch(given)
    if form is None:
        raise InvalidInput(
            f"the header {LEASE} is a fencing number, a period and a token of 32 hex digits; got {given[:80]!r}. "
            "Nothing was written.",
            field=LEASE,
        )
    return _OfHeader(int(form[1]), form[2])


class _OfHeader(HeldLeases):
    """One lease, of whatever thread the request writes."""

    def __init__(self, fence: int, token: str) -> None:
        super().__init__()
        self._fence = fence
        self._token = token

    def __bool__(self) -> bool:
        return True

    def of(self, request: Request[Any]) -> Sequence[HeldLease]:
        """The leases of the threads that a request writes (`HeldLeases.of`)."""
        terms = [Term(space, thread, True, self._fence, self._token) for space, thread in threads_of(request)]
        return [HeldLease(term, _nothing, _nothing) for term in terms]


def _nothing() -> None:
    """The node checks the lease."""


def shown_opaque(token: bytes) -> str:
    """Opaque bytes as text that is safe in a URL."""
    return base64.urlsafe_b64encode(token).rstrip(b"=").decode()


def opaque(text: str, field: str) -> bytes:
    """The bytes behind `shown_opaque`.

    Raises:
        InvalidInput: it is not such text.
    """
    try:
        return base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise InvalidInput(
            f"{field} is not from an earlier answer. Nothing was written. Send the text of the answer unchanged.", field=field
        ) from None
