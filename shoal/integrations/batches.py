"""Writes of an integration in pieces that one batch can hold, and what is remembered between them.

Law: a piece has at most `batch_writes_max` writes and half of `request_bytes_max`; the other half is for what is
beside the values. A write that is larger by itself is a piece of its own, and is rejected where it is sent.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from shoal.config import Config

K = TypeVar("K")
T = TypeVar("T")


def pieces(writes: Iterable[T], size_of: Callable[[T], int], config: Config, *, beside: int = 0) -> Iterator[list[T]]:
    """The writes in pieces, in order. `size_of` gives a write's bytes; each piece leaves room for `beside` writes more."""
    piece: list[T] = []
    size = 0
    for each in writes:
        if piece and (len(piece) >= config.batch_writes_max - beside or size + size_of(each) > config.request_bytes_max // 2):
            yield piece
            piece, size = [], 0
        piece.append(each)
        size += size_of(each)
    if piece:
        yield piece


def remember(known: OrderedDict[K, T], place: K, what: T, most: int) -> None:
    """Remember it as the newest of at most `most`."""
    known[place] = what
    known.move_to_end(place)
    if len(known) > most:
        known.popitem(last=False)
