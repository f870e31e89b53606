"""Marks for fields of requests and replies whose type alone does not say their content, and bounds of their lists.

Law: each list and dict of a request has a bound on its length, which is a part of its annotation; where requests are parts of
another one, those of all parts have one together. A decoder refuses a longer one before it makes anything of the elements, and
so does the check before a request is sent (`shoal.protocol.conformance`).

A mark is a part of the annotation, `value: Value` or `Annotated[bytes, Shape.CURSOR]`, and does not affect MessagePack. Other
encodings are derived from it: over HTTP a packed value is JSON, and a cursor is text that is safe in a URL.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Annotated, TypeVar

from msgspec import Meta

from shoal.records import NamedTuple

_T = TypeVar("_T")


class Shape(Enum):
    """The content of a field of type `bytes` or `int`."""

    VALUE = auto()  # MessagePack of `shoal.values`.
    CURSOR = auto()  # Opaque: sent back unchanged.
    JSON = auto()  # UTF-8 JSON text.
    SECONDS = auto()  # A duration in milliseconds; over HTTP in seconds.
    MOMENT = auto()  # Milliseconds since 1970; 0 means never, which is null over HTTP.
    TIME = auto()  # Milliseconds since 1970; over HTTP a time in ISO 8601.
    VALUES = auto()  # A packed map of values; over HTTP an object, and null if it is empty.
    STATE = auto()  # Packed values of channels, whose types the schema of their checkpoint may decide.
    VECTOR = auto()  # The bytes of `shoal.values.vectors`; over HTTP a list of numbers.
    TOLD = auto()  # A figure that counts only if the field `told` beside it is true; else null over HTTP.
    INTERNAL = auto()  # Not part of the HTTP form.


class AtLeast(NamedTuple):
    """The minimum of an integer."""

    number: int


# The most elements of lists and dicts of requests. A node's settings may allow fewer; `shoal.config` allows them no more.
ELEMENTS_MAX = 4096
CHANNELS_MAX = 16_384
KEYS_MAX = 100_000
PARTS_MAX = 1024
TOGETHER_MAX = 16_384  # Of all parts of a batch or multi-read together: as many as one write may have, `CHANNELS_MAX`.
TERMS_MAX = 256  # Of a filter.
JOINED_MAX = 256  # Checkpoints in one search for a common ancestor.
SECRETS_MAX = 256
FEW_MAX = 64
"""Labels of a namespace, vectors of an item, indexed fields."""


class Together(NamedTuple):
    """The most elements of the lists and dicts of all parts of a list together. A bound on each is none on their product."""

    most: int


class Named(NamedTuple):
    """The field's name over HTTP, if it differs."""

    name: str


Value = Annotated[bytes, Shape.VALUE]
Cursor = Annotated[bytes, Shape.CURSOR]
Seconds = Annotated[int, Shape.SECONDS]
Moment = Annotated[int, Shape.MOMENT]
Time = Annotated[int, Shape.TIME]
Vector = Annotated[bytes, Shape.VECTOR]
Natural = Annotated[int, AtLeast(0)]
Positive = Annotated[int, AtLeast(1)]

Elements = Annotated[list[_T], Meta(max_length=ELEMENTS_MAX)]
Few = Annotated[list[_T], Meta(max_length=FEW_MAX)]
Labels = Annotated[list[str], Meta(max_length=FEW_MAX)]
Writes = Annotated[list[_T], Meta(max_length=ELEMENTS_MAX), Together(TOGETHER_MAX)]
Parts = Annotated[list[_T], Meta(max_length=PARTS_MAX), Together(TOGETHER_MAX)]
Terms = Annotated[list[_T], Meta(max_length=TERMS_MAX)]
Filtered = Annotated[dict[str, Value], Meta(max_length=TERMS_MAX)]
Channels = Annotated[dict[str, _T], Meta(max_length=CHANNELS_MAX)]
ChannelNames = Annotated[list[str], Meta(max_length=CHANNELS_MAX)]
Keys = Annotated[list[str], Meta(max_length=KEYS_MAX)]
Joined = Annotated[list[str], Meta(max_length=JOINED_MAX)]
Merged = Annotated[list[str], Meta(max_length=PARTS_MAX)]
Secrets = Annotated[list[str], Meta(max_length=SECRETS_MAX)]
Roots = Annotated[dict[str, _T], Meta(max_length=ELEMENTS_MAX)]
Authors = Annotated[dict[int, str], Meta(max_length=ELEMENTS_MAX)]
Notes = Annotated[list[_T], Meta(max_length=CHANNELS_MAX)]
