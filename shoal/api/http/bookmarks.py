"""The bookmark of an HTTP client, which the client keeps as text between its requests.

Law: an answer's bookmark covers the bookmark of its request and the state that the answer shows, as far as
it fits `bookmark_header_bytes_max`; the partitions of this request come first. If partitions are left out,
the answer says how many. Reads of those may be older than the client has seen, unless it sends
its older bookmark too.
"""

from __future__ import annotations

from aiohttp import web

from shoal.protocol.bookmark import Bookmark
from shoal.protocol.bookmark_delta import SharedBookmark

HEADER = "Shoal-Bookmark"
LEFT_OUT = "Shoal-Bookmark-Left-Out"

# For the description of the routes.
NAMED = "The bookmark of an earlier answer of any node: this answer shows at least what the client had written and seen."
TOLD = "A bookmark of all that the client has written and seen, including this answer. Send it with the next request."
SAID = "The number of partitions that did not fit the bookmark. To cover them, send the older bookmark too."


def named(request: web.Request) -> Bookmark:
    """The bookmark in the request's headers; several of them are joined, also if they share a line, as `fetch` writes them.

    Raises:
        InvalidValue: a header is not a bookmark.
    """
    bookmark = Bookmark()
    for line in request.headers.getall(HEADER, ()):
        for text in line.split(","):
            bookmark.join(Bookmark.parse(text.strip()))
    return bookmark


def headers(bookmark: SharedBookmark, *, bytes_max: int) -> dict[str, str]:
    """The headers that give `bookmark` to the client, in at most `bytes_max` bytes of text."""
    chosen, left_out = bookmark.within(bytes_max)
    told = {HEADER: chosen.text()}
    return {**told, LEFT_OUT: str(left_out)} if left_out else told
