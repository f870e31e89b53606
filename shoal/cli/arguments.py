"""Values on the command line: JSON, files, ages, sizes, times, filters.

Laws:
- `-` is standard input for a value, JSON or a file; it can be read once.
- A mistyped value is rejected before a store is opened or changed, with a correct example.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from shoal import values
from shoal.cli.settings import size_of
from shoal.errors import InvalidInput, InvalidValue

STANDARD_INPUT = "-"
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SHOWN_MAX = 80


def text_of(source: str, what: str) -> str:
    """The text itself, or all of standard input for "-".

    Raises:
        InvalidValue: standard input is not UTF-8, or was read before.
    """
    if source != STANDARD_INPUT:
        return source
    if sys.stdin.closed:
        raise InvalidValue(f"{what}: standard input has already been read; it can be read only once. Nothing was written.")
    try:
        # Closed after reading: a second "-" would read it as empty.
        with sys.stdin as stream:
            return stream.read()
    except UnicodeDecodeError as error:
        raise InvalidValue(f"{what}: standard input is not UTF-8 ({error}). Nothing was written.") from None


def file_text(file: Path) -> str:
    """The content of a file, or of standard input for "-".

    Raises:
        InvalidValue: it cannot be read, or is not UTF-8.
    """
    if str(file) == STANDARD_INPUT:
        return text_of(STANDARD_INPUT, "the file")
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidValue(f"{file} cannot be read: {error.strerror}. Nothing was written.") from None
    except UnicodeDecodeError as error:
        raise InvalidValue(f"{file} is not UTF-8 ({error}). Nothing was written.") from None


def json_of(source: str, what: str) -> Any:
    """The value of JSON text, including types in the tagged form of `shoal.values`.

    Raises:
        InvalidValue: it is not JSON.
    """
    text = text_of(source, what)
    try:
        return values.from_json(json.loads(text))
    except (ValueError, RecursionError) as error:
        shown = text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"
        raise InvalidValue(f"{what} is not valid JSON ({error}): {shown!r}. Nothing was written.{_hint(text)}") from None


def json_of_file(file: Path, *, tagged: bool = True) -> Any:
    """The value of a JSON file. Without `tagged` it is plain JSON, as for a schema, where "$type" is an ordinary key.

    Raises:
        InvalidValue: it cannot be read, or is not JSON.
    """
    text = file_text(file)
    try:
        return values.from_json(json.loads(text)) if tagged else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"{file} is not valid JSON ({error}). Nothing was written.") from None


def _hint(text: str) -> str:
    if re.fullmatch(r"[\w][\w .,:/@!?-]*", text):
        return f" Text is quoted, for the shell and for JSON: '\"{text}\"'."
    return " Put JSON in single quotes, so that the shell leaves it as it is: '{\"a\": 1}'." if "{" in text else ""


def age_of(text: str) -> timedelta:
    """An age: a number with one of the units s, m, h and d; without a unit, seconds.

    Raises:
        InvalidInput: it is something else.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip())
    if found is None:
        raise InvalidInput(
            f"{text!r} is not an age. Give a number and a unit, such as 30d, 12h, 90m or 45s. Nothing was written."
        )
    try:
        return timedelta(seconds=float(found[1]) * _SECONDS[found[2] or "s"])
    except OverflowError:
        raise InvalidInput(f"{text!r} is too large an age. Nothing was written.") from None


def bytes_of(text: str) -> int:
    """A size: a whole number of bytes, or a number with a unit.

    Raises:
        InvalidInput: it is something else.
    """
    size = size_of(text)
    if size is None:
        raise InvalidInput(
            f"{text!r} is not a size. Give bytes, or a number with a unit, such as 64KiB, 64MiB or 1GiB. Nothing was written."
        )
    return size


def moment_of(text: str, option: str) -> datetime:
    """A time in ISO 8601; `option` is for the error.

    Raises:
        InvalidInput: it is not a time.
    """
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{option} must be a time such as 2026-01-01T12:00:00+00:00; got {text!r}.") from None


def milliseconds_of(text: str) -> int:
    """A time in ISO 8601 with a time zone, as milliseconds since 1970.

    Raises:
        InvalidInput: it is not a time, or has no time zone.
    """
    moment = moment_of(text, "TIME")
    if moment.tzinfo is None:
        raise InvalidInput(f"TIME needs a time zone, as in {text}Z; got {text!r}. Nothing was written.")
    return int(moment.timestamp() * 1000)


def fields_of(given: Sequence[str]) -> dict[str, Any]:
    """Fields and values from KEY=VALUE and JSON objects. A VALUE that is not JSON is text.

    Raises:
        InvalidInput: one is neither.
    """
    wanted: dict[str, Any] = {}
    for each in given:
        if each == STANDARD_INPUT or each.lstrip().startswith("{"):
            found = json_of(each, "--filter")
            if not isinstance(found, dict):
                raise InvalidInput(f"--filter must be KEY=VALUE or a JSON object; got {each!r}. Nothing was read.")
            wanted |= found
            continue
        name, equals, text = each.partition("=")
        if not equals or not name:
            raise InvalidInput(f"--filter must be KEY=VALUE or a JSON object; got {each!r}. Nothing was read.")
        try:
            wanted[name] = values.from_json(json.loads(text))
        except ValueError:
            wanted[name] = text
    return wanted
