"""Names of spaces, threads, documents and the like: validated once, at the edge.

A name is 1 to 1,024 bytes of UTF-8 without control characters (Unicode
category Cc, so that no terminal, header or log line can be forged through
one). `/` and `{}` are legal: `{crew-7}/planner` is one name, whose tag
`crew-7` chooses its partition. `.` and `..` are refused, because HTTP clients
rewrite them. A name is compared byte for byte; it is never a pattern.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from shoal.errors import InvalidName

NAME_BYTES_MAX = 1024
KEY_BYTES_MAX = 255

RESERVED = ".shoal"
"""The space of what nodes decide by and keep of each other: it takes the right to administer to read or write it."""

STREAMS = "stream/"
"""The beginning of the names of threads that hold durable streams."""

MEMOIZED_MAX = 4096
"""How many results each function of a name keeps: enough for the names in use, and few enough that others leave soon."""

_DRIVE, _PARTING = re.compile("[A-Za-z]:[/\\\\]"), re.compile("[/\\\\]")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


def check_name(kind: str, name: object, /) -> str:
    """Return `name` if it is legal; `kind` ("thread", "space", …) is for the message.

    Raises:
        InvalidName: it is not; nothing was written.
    """
    try:
        return _legal(kind, name)
    except TypeError:
        raise _no_string(kind, name) from None


def check_path(name: object, /) -> str:
    """As `check_name`, for the name of a file that is put. It may be a path below the directory into which somebody fetches it.

    Raises:
        InvalidName: it is not legal, or leads outside; nothing was written.
    """
    legal = check_name("file", name)
    if legal.startswith(("/", "\\")) or _DRIVE.match(legal) or not {".", ".."}.isdisjoint(_PARTING.split(legal)):
        raise InvalidName(
            f"a file's name is a path below a directory, and {legal[:80]!r} leads outside. Nothing was written. Name it "
            "without a first slash, and without '.' and '..' between slashes."
        )
    return legal


def check_label(label: object, /) -> str:
    """As `check_name`, for a label of an item's namespace, which holds no period: periods join labels in URLs and logs.

    Raises:
        InvalidName: it is not legal; nothing was written.
    """
    legal = check_name("label", label)
    if "." in legal:
        raise InvalidName(f"a label must not hold a period: {legal[:80]!r}. Nothing was written. Make it two labels.")
    return legal


def check_names(kind: str, names: Iterable[object], /) -> None:
    """Check several names at once. The result is remembered, because requests name the same few again and again.

    Raises:
        InvalidName: one is not legal; nothing was written.
    """
    try:
        _all_legal(kind, tuple(names))
    except TypeError:
        for name in names:
            check_name(kind, name)


def check_key(kind: str, key: object, /, bytes_max: int = KEY_BYTES_MAX) -> str:
    """As `check_name`, for idempotency keys (1 to 255 bytes) and other names of which most come once.

    Raises:
        InvalidName: it is not legal; nothing was written.
    """
    # Results are not remembered; a quick check covers most legal keys.
    if isinstance(key, str) and key.isascii() and key.isprintable() and 2 < len(key) <= bytes_max:
        return key
    return _checked(kind, key, bytes_max)


@lru_cache(maxsize=MEMOIZED_MAX)
def _all_legal(kind: str, names: tuple[object, ...]) -> None:
    for name in names:
        check_name(kind, name)


@lru_cache(maxsize=MEMOIZED_MAX)  # Only legal names are kept.
def _legal(kind: str, name: object) -> str:
    return _checked(kind, name, NAME_BYTES_MAX)


def _checked(kind: str, name: object, bytes_max: int) -> str:
    if not isinstance(name, str):
        raise _no_string(kind, name)
    if not name:
        raise InvalidName(f"a {kind} name must not be empty. Nothing was written.")
    try:
        size = len(name) if name.isascii() else len(name.encode())
    except UnicodeEncodeError:
        raise InvalidName(f"a {kind} name must be valid Unicode (it holds a lone surrogate). Nothing was written.") from None
    if size > bytes_max:
        raise InvalidName(f"a {kind} name must be at most {bytes_max} bytes; this one has {size}. Nothing was written.")
    if _CONTROL.search(name):
        raise InvalidName(f"a {kind} name must not hold control characters: {name[:80]!r}. Nothing was written.")
    if name in (".", ".."):
        raise InvalidName(f"a {kind} name must not be {name!r}: HTTP clients rewrite it. Nothing was written.")
    return name


def is_colocated(space: str) -> bool:
    """Whether all objects of a space share one partition: its whole name is in braces, such as `{crew}`."""
    return len(space) > 2 and space.startswith("{") and space.endswith("}")


def _no_string(kind: str, name: object) -> InvalidName:
    return InvalidName(f"a {kind} name must be a string, not {type(name).__name__}. Nothing was written.")
