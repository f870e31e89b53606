"""The bookmark of an HTTP client, which it keeps as text between its requests.

Law: an answer's bookmark names what its request named and was shown, as far as
`bookmark_header_bytes_max` has place for it: what this request touched comes
first. If something is left out the answer says of how many partitions, so that
nobody takes it for the whole: until the client gives the older text as well, a
read of those may be older than what it has seen.
"""

from __future__ import annotations

from aiohttp import web

from shoal.protocol.bookmark import Bookmark
from shoal.protocol.bookmark_delta import SharedBookmark

HEADER = "Shoal-Bookmark"
LEFT_OUT = "Shoal-Bookmark-Left-Out"

# For the description of the routes.
NAMED = "The header of an earlier answer, of any node: this one shows no less than what that client had written and seen."
TOLD = "What the client has written and seen, this answer included; to be given with its next request, to any node."
SAID = "Of how many partitions the bookmark has no place; to be shown no less of those, give the older text as well."


def named(request: web.Request) -> Bookmark:
    """What the request's header, or several of it, name.

    Raises:
        InvalidValue: it is no bookmark.
    """
    bookmark = Bookmark()
    for text in request.headers.getall(HEADER, ()):
        bookmark.join(Bookmark.parse(text.strip()))
    return bookmark


def headers(bookmark: SharedBookmark, *, bytes_max: int) -> dict[str, str]:
    """The headers of an answer that `bookmark` was shown."""
    chosen, left_out = bookmark.within(bytes_max)
    told = {HEADER: chosen.text()}
    return {**told, LEFT_OUT: str(left_out)} if left_out else told
