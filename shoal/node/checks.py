"""Checks that several handlers share."""

from __future__ import annotations

from shoal import values
from shoal.config import Config
from shoal.errors import InvalidInput, TooLarge
from shoal.kinds.schema import state as schema
from shoal.names import check_name
from shoal.protocol.bookmark import SEEN_BYTES_MAX, Bookmark
from shoal.protocol.requests import Save
from shoal.schemas.secret_fields import parts_of

NOTE_BYTES_MAX = 4 * 1024  # The provenance of a write: author and reason.
SETTING_BYTES_MAX = 4 * 1024  # The configuration with which the author of a checkpoint ran.
PAGE_BYTES_MAX = 8 * 1024 * 1024  # A page of a listing, history or journal ends with the first item that exceeds it.


def check_size(config: Config, size: int, what: str) -> None:
    """Check the size in bytes of a part of a request, which the error names as `what`.

    Raises:
        TooLarge: it has more than `request_bytes_max` bytes.
    """
    if size > config.request_bytes_max:
        raise TooLarge(
            f"{what} may have at most {config.request_bytes_max} bytes (request_bytes_max); this one has {size}. Nothing was "
            "written. Split it over several writes, or keep it elsewhere and store where it is: docs/CONFIGURATION.md, "
            '"How large a value may be".'
        )


def check_text(text: str, what: str) -> None:
    """Check a short text, which the error names as `what`.

    Raises:
        TooLarge: its UTF-8 has more than `NOTE_BYTES_MAX` bytes.
    """
    if text:
        _check_bytes(len(text.encode(errors="replace")), NOTE_BYTES_MAX, what)


def check_annotations(request: Save) -> None:
    """Check what a save says about its author: name, setting and bookmark.

    Raises:
        TooLarge: one of them exceeds its bound.
        InvalidValue: the setting or the bookmark is malformed.
    """
    check_text(request.author, "an author")
    if request.setting:
        _check_bytes(len(request.setting), SETTING_BYTES_MAX, "a setting")
        values.check(request.setting)
    if request.seen:
        _check_bytes(len(request.seen), SEEN_BYTES_MAX, "the bookmark of an author")
        Bookmark.unpack(request.seen)


def _check_bytes(size: int, bytes_max: int, what: str) -> None:
    if size > bytes_max:
        raise TooLarge(f"{what} may have at most {bytes_max} bytes; this one has {size}. Nothing was written.")


def check_schema(request: Save) -> None:
    """Check what a save says about its schema: name, versions and secret fields.

    Raises:
        InvalidName: the schema or a secret field has an illegal name.
        InvalidInput: a version is out of range.
    """
    if request.schema:
        check_name("schema", request.schema)
    if not 0 <= request.schema_version <= schema.VERSION_MAX or not 0 <= request.readable_from <= request.schema_version:
        raise InvalidInput(
            f"a schema's version is at most {schema.VERSION_MAX}, and a state is readable from that version or an earlier one; "
            f"got {request.schema_version} and {request.readable_from}. Nothing was written."
        )
    for field in request.secret:
        parts_of(check_name("secret field", field))
