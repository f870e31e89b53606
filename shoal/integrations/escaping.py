"""Ids of frameworks as parts of Shoal's names, and back.

Laws:
- Ids are arbitrary text, Shoal's names are not: characters that a name cannot hold, and `%`, are
  percent-encoded. Different ids have different names, and each name gives its id back.
- An id that is too long for a name is rejected where names are checked; it is never cut. Only keys are: see `key_of`.
- Names that begin with the tag of one id share a partition, so that one batch can write them.
"""

from __future__ import annotations

import re
from hashlib import sha256

from shoal.errors import InvalidName
from shoal.names import check_key

ILLEGAL = "%\x00-\x1f\x7f-\x9f\ud800-\udfff"
"""What no name can hold, and `%`, for a character class."""

_EMPTY = "%"
_WHOLE = {"": _EMPTY, ".": "%2e", "..": "%2e%2e"}
_ENCODED = re.compile("(?:%[0-9a-f]{2})+")


def unsafe(more: str = "") -> re.Pattern[str]:
    """A pattern of the characters to escape: those that are illegal, and `more`."""
    return re.compile(f"[{ILLEGAL}{more}]")


def escaped(id: str, pattern: re.Pattern[str]) -> str:
    """`id` with every character of `pattern` percent-encoded."""
    return pattern.sub(_percent, id)


def unescaped(name: str) -> str:
    """The id of `escaped`."""
    return _ENCODED.sub(_text, name)


def name_of(id: str, pattern: re.Pattern[str]) -> str:
    """`escaped`, for an id that is a whole name: none is empty, `.` or `..`."""
    return _WHOLE.get(id) or escaped(id, pattern)


def id_of(name: str) -> str:
    """The id of `name_of`."""
    return "" if name == _EMPTY else unescaped(name)


_IN_TAG = unsafe("{}./")


def tag(id: str) -> str:
    """The tag of names, `{id}`: the name of a partition, and a legal first label of items."""
    return f"{{{name_of(id, _IN_TAG)}}}"


def key_of(id: str) -> str:
    """The idempotency key of what has an id: the id, or its SHA-256 in hex if it is no legal key."""
    try:
        return check_key("key", id)
    except InvalidName:
        return sha256(id.encode("utf-8", "surrogatepass")).hexdigest()


def _percent(match: re.Match[str]) -> str:
    # A lone surrogate has no UTF-8 form; it is encoded and decoded as if it had one.
    return "".join(f"%{byte:02x}" for byte in match[0].encode("utf-8", "surrogatepass"))


def _text(match: re.Match[str]) -> str:
    return bytes.fromhex(match[0].replace("%", "")).decode("utf-8", "surrogatepass")
