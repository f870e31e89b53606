"""Checks that several handlers share."""

from __future__ import annotations

from shoal import values
from shoal.config import Config
from shoal.crdt import schema
from shoal.errors import InvalidInput, TooLarge
from shoal.names import check_name
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import Save
from shoal.schemas.pointers import POINTERS_MAX


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


def check_schema(request: Save) -> None:
    """
    Raises:
        InvalidName, InvalidInput: the schema that a state claims to keep cannot be one.
    """
    if request.schema:
        check_name("schema", request.schema)
    if not 0 <= request.schema_version <= schema.VERSION_MAX or not 0 <= request.readable_from <= request.schema_version:
        raise InvalidInput(
            f"a schema's version is at most {schema.VERSION_MAX}, and a state is readable from that version or an earlier one; "
            f"got {request.schema_version} and {request.readable_from}. Nothing was written."
        )
    if len(request.secret) > POINTERS_MAX:
        raise InvalidInput(
            f"a checkpoint has at most {POINTERS_MAX} secret fields; got {len(request.secret)}. Nothing was written."
        )
    for field in request.secret:
        check_name("secret field", field)
