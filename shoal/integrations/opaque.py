"""The JSON of a framework as Shoal's values, and back.

Laws:
- A value that is read is what `json.loads(json.dumps(…))` makes of what was written, whatever it holds.
- It is stored as a value, so that commands, watches and other agents can read it. Only JSON that is no
  legal value (it holds half of a surrogate pair, or nests deeper than a value can) is stored as its text.
- A record says which integration wrote it, and in which version of its form. A record of a newer version is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from shoal import values
from shoal.errors import InvalidValue, SchemaTooNew


def stored(given: object, where: str) -> Any:
    """JSON as a value to store. `where` is its place, for the error.

    Raises:
        InvalidValue: it is no JSON.
    """
    try:
        text = json.dumps(given)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValue(
            f"{where} is no JSON: {error}. Nothing was written. Give it as dicts, lists, strings and numbers."
        ) from None
    plain = json.loads(text)
    if isinstance(plain, str):
        return text  # Because a string that is stored is the text of JSON.
    try:
        values.encode(plain)
    except InvalidValue:
        return text
    return plain


def shown(value: Any) -> Any:
    """The JSON of `stored`."""
    return json.loads(value) if isinstance(value, str) else value


def of_form(record: Any, name: str, newest: int) -> Mapping[str, Any] | None:
    """A record that the integration `name` wrote; None for anything else that stands beside such records.

    Raises:
        SchemaTooNew: its form is newer than `newest`.
    """
    if not isinstance(record, dict) or name not in record:
        return None
    form = record[name]
    if not isinstance(form, int) or form > newest:
        raise SchemaTooNew(
            f"a record has the form {form!r} of {name!r}, and this version of Shoal reads forms up to {newest}. "
            "Nothing was written. Update Shoal here.",
            readable_from=str(form),
        )
    return record
