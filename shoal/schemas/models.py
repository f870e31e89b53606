"""The kinds of models that can declare a state (a msgspec Struct, a pydantic model or a JSON Schema), as one interface.

Law: a model checks a state and says where it is broken; it never changes the state, and
fields that it does not know are no flaw unless the model itself says so.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from shoal import values
from shoal.errors import InvalidSchema
from shoal.records import NamedTuple
from shoal.schemas.pointers import pointer
from shoal.schemas.rule import Flaw, Rule


class Model(Protocol):
    """A declared model of a state."""

    def flaw(self, state: Mapping[str, Any]) -> Flaw | None:
        """The first flaw of a state; None if it is sound."""

    def parse(self, state: Mapping[str, Any]) -> Any:
        """The state as an instance of the model's class."""

    def owns(self, state: object) -> bool:
        """Whether `state` is an instance of the model's class."""


def model_of(declared: Any) -> Model:
    """The model for a declaration.

    Raises:
        InvalidSchema: it is none of the three kinds.
    """
    if isinstance(declared, type) and issubclass(declared, msgspec.Struct):
        return _StructModel(declared)
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(declared, type) and issubclass(declared, pydantic.BaseModel):
        return _PydanticModel(declared)
    if isinstance(declared, dict | bool):
        try:
            text = json.dumps(declared).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidSchema(f"a JSON Schema must consist of JSON values: {error}.") from None
        return _JsonModel(Rule(text))
    raise InvalidSchema(
        f"a state is declared by a msgspec Struct, a pydantic model or a JSON Schema (a dict), not by {declared!r:.80}."
    )


class _StructModel(NamedTuple):
    cls: Any

    def flaw(self, state: Mapping[str, Any]) -> Flaw | None:
        try:
            self.parse(state)
        except msgspec.ValidationError as error:
            text, _, place = str(error).partition(" - at `$")
            return Flaw(_pointer_of(place.rstrip("`")), text)
        return None

    def parse(self, state: Mapping[str, Any]) -> Any:
        return msgspec.convert(dict(state), self.cls)

    def owns(self, state: object) -> bool:
        return isinstance(state, self.cls)


class _PydanticModel(NamedTuple):
    cls: Any

    def flaw(self, state: Mapping[str, Any]) -> Flaw | None:
        import pydantic

        try:
            self.parse(state)
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            return Flaw(pointer(first["loc"]), first["msg"])
        return None

    def parse(self, state: Mapping[str, Any]) -> Any:
        return self.cls.model_validate(dict(state))

    def owns(self, state: object) -> bool:
        return isinstance(state, self.cls)


class _JsonModel(NamedTuple):
    rule: Rule

    def flaw(self, state: Mapping[str, Any]) -> Flaw | None:
        return self.rule.flaw({name: values.project(values.encode(value)) for name, value in state.items()})

    def parse(self, state: Mapping[str, Any]) -> Any:
        return dict(state)

    def owns(self, _state: object) -> bool:
        return False


_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")


def _pointer_of(place: str) -> str:
    """The JSON pointer of a place as msgspec writes it: `.tasks[0].title`, with `[...]` for a dict's value."""
    return pointer(name or ("*" if index == "..." else index) for name, index in _STEP.findall(place))


def plain(made: Any) -> Any:
    """A model's instance as dicts; other values as they are."""
    if isinstance(made, msgspec.Struct):
        info = msgspec.structs.fields(made)
        return {field.encode_name: plain(getattr(made, field.name)) for field in info}
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(made, pydantic.BaseModel):
        return made.model_dump(by_alias=True)
    if type(made) is dict:
        return {key: plain(item) for key, item in made.items()}
    if type(made) in (list, tuple):
        return type(made)(plain(item) for item in made)
    return made


def carried(old: Any, known: Any, new: Any) -> Any:
    """`new` with the parts of `old` that its reader did not know: those that are in `old` and not in `known`.

    Items of lists are matched by equality, then by their `id` or `key`, then by their
    place if the length is the same.
    """
    if type(old) is type(known) is type(new) is dict:
        unknown = {key: item for key, item in old.items() if key not in known and key not in new}
        return {key: carried(old.get(key), known.get(key), item) for key, item in new.items()} | unknown
    if type(old) is type(known) is type(new) is list and len(old) == len(known):
        return _carried_items(old, known, new)
    return new


def _carried_items(old: list[Any], known: list[Any], new: list[Any]) -> list[Any]:
    left = list(range(len(old)))
    matched: dict[int, int] = {}
    for same in (_are_equal, _have_one_name):
        for at, item in enumerate(new):
            if at not in matched and (found := next((n for n in left if same(known[n], item)), None)) is not None:
                matched[at] = found
                left.remove(found)
    if len(old) == len(new):
        matched |= {at: at for at in left if at not in matched}
    return [carried(old[matched[at]], known[matched[at]], item) if at in matched else item for at, item in enumerate(new)]


def _are_equal(one: Any, other: Any) -> bool:
    return bool(one == other)


def _have_one_name(one: Any, other: Any) -> bool:
    if type(one) is not dict or type(other) is not dict:
        return False
    return any(name in one and name in other and one[name] == other[name] for name in ("id", "key"))
