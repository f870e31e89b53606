"""Checks that several facets share."""

from __future__ import annotations

from shoal import values
from shoal.config import Config
from shoal.errors import TooLarge
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import Save


def check_size(config: Config, size: int, what: str) -> None:
    """
    Raises:
        TooLarge: it has more than `request_bytes_max` bytes.
    """
    if size > config.request_bytes_max:
        raise TooLarge(f"{what} may have at most {config.request_bytes_max} bytes; this one has {size}. Nothing was written.")


def check_text(config: Config, text: str, what: str) -> None:
    """
    Raises:
        TooLarge: it has more than `note_bytes_max` bytes.
    """
    if text:
        _check_bytes(len(text.encode(errors="replace")), config.note_bytes_max, what)


def check_annotations(config: Config, request: Save) -> None:
    """What a save says of its author.

    Raises:
        InvalidValue, TooLarge: of its setting or its bookmark.
    """
    check_text(config, request.author, "an author")
    if request.setting:
        _check_bytes(len(request.setting), config.setting_bytes_max, "a setting")
        values.check(request.setting)
    if request.seen:
        _check_bytes(len(request.seen), config.seen_bytes_max, "what an author had read")
        Bookmark.unpack(request.seen)


def _check_bytes(size: int, bytes_max: int, what: str) -> None:
    if size > bytes_max:
        raise TooLarge(f"{what} may have at most {bytes_max} bytes; this one has {size}. Nothing was written.")
