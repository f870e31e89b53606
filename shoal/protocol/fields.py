"""Marks for fields of requests and replies whose type alone does not say their content.

A mark is a part of the annotation, `value: Value` or `Annotated[bytes, Shape.CURSOR]`, and does not affect MessagePack. Other
encodings are derived from it: over HTTP a packed value is JSON, and a cursor is text that is safe in a URL.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Annotated, NamedTuple


class Shape(Enum):
    """The content of a field of type `bytes` or `int`."""

    VALUE = auto()  # MessagePack of `shoal.values`.
    CURSOR = auto()  # Opaque: sent back unchanged.
    JSON = auto()  # UTF-8 JSON text.
    SECONDS = auto()  # A duration in milliseconds; over HTTP in seconds.
    MOMENT = auto()  # Milliseconds since 1970; 0 means never, which is null over HTTP.
    INTERNAL = auto()  # Not part of the HTTP form.


class AtLeast(NamedTuple):
    """The minimum of an integer."""

    number: int


class Named(NamedTuple):
    """The field's name over HTTP, if it differs."""

    name: str


Value = Annotated[bytes, Shape.VALUE]
Cursor = Annotated[bytes, Shape.CURSOR]
Seconds = Annotated[int, Shape.SECONDS]
Moment = Annotated[int, Shape.MOMENT]
Natural = Annotated[int, AtLeast(0)]
Positive = Annotated[int, AtLeast(1)]
