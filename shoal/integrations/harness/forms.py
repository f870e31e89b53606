"""The harness's own types as values, and back.

Law: what is read equals what was written, as far as pydantic serialises it; what a newer version wrote is refused.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from shoal.errors import InvalidValue, SchemaTooNew
from shoal.integrations import escaping

T = TypeVar("T")
FORM = 1
"""The version of the form in which the harness's values are stored."""
NAME = "harness"


class Form(Generic[T]):
    """How values of one type are stored. `what` names them in errors."""

    def __init__(self, kind: type[T], what: str) -> None:
        self._adapter = TypeAdapter(kind)
        self._what = what

    def stored(self, value: T, **beside: Any) -> dict[str, Any]:
        """The value to store; the fields `beside` it can be found by.

        Raises:
            InvalidValue: a part of it is no JSON.
        """
        try:
            plain = self._adapter.dump_python(value, mode="json")
        except PydanticSerializationError as error:
            raise InvalidValue(
                f"{self._what} is no JSON: {error}. Nothing was written. Give values that pydantic can serialise."
            ) from None
        return {NAME: FORM, "value": escaping.stored(plain, self._what), **beside}

    def shown(self, record: Any) -> T:
        """The value of `stored`.

        Raises:
            SchemaTooNew: a newer version of Shoal or of the harness wrote it.
            InvalidValue: something else did.
        """
        known = escaping.of_form(record, NAME, FORM)
        if known is None:
            raise InvalidValue(
                f"{self._what} was not written by this integration: {record!r:.100}. Nothing was written. Use another space."
            )
        try:
            return self._adapter.validate_python(escaping.shown(known["value"]))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise SchemaTooNew(
                f"{self._what} is not of a form that the pydantic-ai-harness that is installed here knows "
                f"({'.'.join(map(str, first['loc']))}: {first['msg']}). Nothing was written. Update it here.",
                readable_from="",
            ) from None
