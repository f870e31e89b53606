"""What a field of a request or a reply holds, where its type does not say it.

Each is written beside the type, `value: Value` or `Annotated[bytes, Shape.CURSOR]`, and changes nothing for MessagePack. Other
encodings are derived from it: over HTTP a packed value is JSON, a cursor is text that is safe in a URL.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Annotated, NamedTuple


class Shape(Enum):
    VALUE = auto()  # MessagePack of `shoal.values`.
    CURSOR = auto()  # Opaque: given back as it came.
    JSON = auto()  # UTF-8 JSON text.
    SECONDS = auto()  # Milliseconds; over HTTP seconds.
    MOMENT = auto()  # Milliseconds since 1970; 0, over HTTP null: never.
    INTERNAL = auto()  # Not shown to HTTP clients, nor taken from them.


class AtLeast(NamedTuple):
    """The least that an integer may be."""

    number: int


class Named(NamedTuple):
    """Another name, over HTTP."""

    name: str


Value = Annotated[bytes, Shape.VALUE]
Cursor = Annotated[bytes, Shape.CURSOR]
Seconds = Annotated[int, Shape.SECONDS]
Natural = Annotated[int, AtLeast(0)]
Positive = Annotated[int, AtLeast(1)]
