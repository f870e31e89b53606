"""A JSON Schema that states must keep, compiled. Nodes enforce it, and clients may.

Laws:
- A rule is a function of its text: two nodes with the same text decide alike. Nothing
  outside the text is fetched, patterns run in linear time, and `breadth` and `effort` bound the work.
- A state that cannot be checked is refused, never passed.
- Flaws name places and what is expected there, but no values, which may be secret.

The validator is jsonschema-rs (Rust): every draft up to 2020-12, and the regex crate's
automata instead of a backtracking matcher. `format` has no effect, as in the drafts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from shoal.errors import InvalidSchema, InvalidValue, ShoalError, TooLarge
from shoal.raising import needed
from shoal.records import NamedTuple
from shoal.schemas.effort import PATTERN_BYTES_MAX, Effort, Survey
from shoal.schemas.secret_fields import pointer

if TYPE_CHECKING:
    import jsonschema_rs

# Keywords that concern each channel by itself, or their names alone.
_APART = frozenset({"properties", "additionalProperties", "patternProperties"})
_NAMES = frozenset({"type", "required", "minProperties", "maxProperties"})
_SILENT = frozenset({"$schema", "$id", "$defs", "definitions", "$comment", "title", "description", "default", "examples"})


class Flaw(NamedTuple):
    """A place in a state that breaks a schema, and why."""

    path: str  # A JSON pointer into the state; empty for the state itself.
    why: str


class Rule:
    """A compiled schema. If it is `parted`, each channel can be checked by itself, so only changed ones need to be."""

    def __init__(self, text: bytes) -> None:
        """Compile the text of a JSON Schema.

        Raises:
            InvalidSchema: it is no JSON Schema, or asks for something that nodes do not support.
        """
        schema = _parsed(text)
        survey = Survey(schema)
        survey.check()
        self._effort = Effort(survey, _compiles)
        self._whole = _compiled(schema)
        self._names = self._channels = None
        if isinstance(schema, dict) and schema.keys() <= _APART | _NAMES | _SILENT:
            try:
                self._names = _compiled(_shallow(schema))
                self._channels = _compiled({key: part for key, part in schema.items() if key not in _NAMES})
            except InvalidSchema:  # A reference into a part that was left out.
                self._names = self._channels = None

    @property
    def parted(self) -> bool:
        """Whether each channel can be checked by itself."""
        return self._channels is not None

    def flaw(self, state: Mapping[str, Any]) -> Flaw | None:
        """The first flaw of a projected state; None if it is sound."""
        return self._flaw(self._whole, dict(state))

    def flaw_of_names(self, names: Mapping[str, object]) -> Flaw | None:
        """The first flaw of the set of channel names, if `parted`."""
        assert self._names is not None
        return self._flaw(self._names, dict.fromkeys(names))

    def flaw_of_channels(self, channels: Mapping[str, Any]) -> Flaw | None:
        """The first flaw of some of a state's channels, if `parted`."""
        assert self._channels is not None
        return self._flaw(self._channels, dict(channels))

    def _flaw(self, validator: jsonschema_rs.Validator, tree: dict[str, Any]) -> Flaw | None:
        try:
            self._effort.check(tree)
            if validator.is_valid(tree):
                return None
            if not self._effort.can_explain(tree):
                return Flaw("", "it does not match, and is too large to say where")
            validator.validate(tree)
        except TooLarge as error:
            return Flaw("", f"it cannot be checked ({error.message})")
        except Exception as error:
            if (place := getattr(error, "instance_path", None)) is None:
                return Flaw("", f"it cannot be checked ({error})")
            return Flaw(pointer(place), str(getattr(error, "message", error))[:500])
        return Flaw("", "it does not match")


def _parsed(text: bytes) -> dict[str, Any] | bool:
    try:
        schema = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise InvalidSchema(f"the schema is not JSON: {error}. Nothing was written.") from None
    if not isinstance(schema, dict | bool):
        raise InvalidSchema(f"a JSON Schema is an object or a boolean, not {type(schema).__name__}. Nothing was written.")
    return schema


def _shallow(schema: dict[str, Any]) -> dict[str, Any]:
    made = dict(schema)
    for key in ("properties", "patternProperties"):
        if isinstance(made.get(key), dict):
            made[key] = {name: part is not False for name, part in made[key].items()}
    if isinstance(made.get("additionalProperties"), dict):
        made["additionalProperties"] = True
    return made


def _refuse(uri: str) -> NoReturn:
    raise InvalidSchema(f"{uri} is outside the schema")


def _compiles(pattern: str, size: int) -> bool:
    with needed():
        import jsonschema_rs

    options = jsonschema_rs.RegexOptions(size_limit=size, dfa_size_limit=PATTERN_BYTES_MAX)
    try:
        jsonschema_rs.validator_for({"pattern": pattern}, pattern_options=options)
    except jsonschema_rs.ValidationError:
        return False
    return True


def _compiled(schema: dict[str, Any] | bool) -> jsonschema_rs.Validator:
    with needed():
        import jsonschema_rs  # Not before there is a schema: most stores and clients have none.

    options = jsonschema_rs.RegexOptions(size_limit=PATTERN_BYTES_MAX, dfa_size_limit=PATTERN_BYTES_MAX)
    try:
        return jsonschema_rs.validator_for(
            schema, mask="it", pattern_options=options, retriever=_refuse, validate_formats=False
        )
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        place = pointer(_place(schema, error))
        raise InvalidSchema(
            f"this is no JSON Schema that can be enforced{f', at {place}' if place else ''}: "
            f"{str(error).splitlines()[0][:300]}. Nothing was written."
        ) from None
    except Exception as error:
        raise InvalidSchema(f"this is no JSON Schema that can be enforced: {error}. Nothing was written.") from None


def _place(schema: Any, error: Exception) -> list[str | int]:
    """Where in a schema an error of compiling it is. Older versions name the object that holds a bad pattern."""
    path: list[str | int] = list(getattr(error, "instance_path", ()))
    for step in path:
        schema = schema[step]
    bad = getattr(error, "instance", None)
    return [*path, "pattern"] if isinstance(schema, dict) and isinstance(bad, str) and schema.get("pattern") == bad else path


def reason_of(error: ShoalError) -> Flaw:
    """The flaw of a state that cannot even be projected."""
    assert isinstance(error, InvalidValue)
    return Flaw("", error.message.removesuffix(" Nothing was written.").rstrip("."))
