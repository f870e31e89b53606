"""A declared schema: an agent's description of the states that it saves and loads.

Laws:
- A state is checked in the form in which it is stored: without its ephemeral fields.
- A checkpoint of an older version is upgraded step by step, each by a pure function of
  dicts, before a caller sees it. One of a newer version is read only if it declares that
  this version can. Reading changes nothing that is stored.
- A flaw names a place and what is expected there; of a secret field only the place.

The kinds of models that can declare a state (a msgspec Struct, a pydantic model or a JSON Schema), as one interface.

Law: a model checks a state and says where it is broken; it never changes the state, and
fields that it does not know are no flaw unless the model itself says so.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

import msgspec

from shoal import values
from shoal.errors import InvalidSchema, MigrationFailed, SchemaMismatch, SchemaTooNew, SchemaViolation
from shoal.names import check_name
from shoal.records import NamedTuple
from shoal.schemas.rule import Flaw, Rule
from shoal.schemas.secret_fields import POINTERS_MAX, covers, parts_of, pointer, without


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


State = dict[str, Any]
Migration = Callable[[State], State]
Invariant = Callable[[State], str | bool | None]
VERSION_MAX = 2**31 - 1


class Schema:
    """A schema by name and version.

    `model` is a msgspec Struct, a pydantic model or a JSON Schema (a dict), whose fields
    are the channels. `invariants` are called with the state, and return None or True; a text
    (or False, or an exception) says what is broken. A migration turns a state of
    version n into one of version n + 1: `{1: f, 2: g}`; 0 stands for states that were saved
    without a schema. `readable_from` is the oldest version whose readers can use
    the states that this one saves. `ephemeral` and `secret` are channels or JSON pointers; a part `*`
    stands for every key and index.

    Raises:
        InvalidSchema: the version is out of range, migrations leave a gap or are two for one version, or
            the model is of no known kind.
    """

    def __init__(
        self,
        name: str,
        *,
        version: int = 1,
        model: Any = None,
        migrations: Mapping[int, Migration] | Iterable[tuple[int, Migration]] = (),
        invariants: Iterable[Invariant] = (),
        readable_from: int | None = None,
        ephemeral: Collection[str] = (),
        secret: Collection[str] = (),
    ) -> None:
        self.name = check_name("schema", name)
        self.version = _checked_version(name, version)
        self.readable_from = version if readable_from is None else readable_from
        if type(self.readable_from) is not int or not 1 <= self.readable_from <= version:
            raise InvalidSchema(
                f"schema {name!r} is readable from a version between 1 and its own, {version}; got {readable_from!r}."
            )
        self._model = None if model is None else model_of(model)
        self._invariants = tuple(invariants)
        self._migrations = _checked_migrations(name, version, migrations)
        self.ephemeral = _fields(ephemeral)
        self.secret = _fields(secret)

    def __repr__(self) -> str:
        return f"Schema({self.name!r}, version={self.version})"

    def flaw(self, state: State) -> Flaw | None:
        """The first flaw of a state in its stored form; None if it is sound."""
        found = None if self._model is None else self._model.flaw(state)
        if found is not None:
            return Flaw(found.path, "it is not as declared") if covers(self.secret, found.path) and found.path else found
        return next((flaw for check in self._invariants if (flaw := _broken(check, state)) is not None), None)

    def check(self, state: State) -> None:
        """Check a state.

        Raises:
            SchemaViolation: it breaks the model or an invariant.
        """
        flaw = self.flaw(state)
        if flaw is not None:
            raise SchemaViolation(
                f"the state breaks schema {self.name!r} version {self.version}, at {flaw.path or 'the top'}: {flaw.why}. "
                "Nothing was written.",
                path=flaw.path,
                schema=self.name,
                version=self.version,
            )

    def parse(self, state: Mapping[str, Any]) -> Any:
        """The state as an instance of the model's class; without a model, as a dict.

        Raises:
            SchemaViolation: it breaks the schema.
        """
        self.check(dict(state))
        return dict(state) if self._model is None else self._model.parse(state)

    def stored(self, state: Mapping[str, Any]) -> State:
        """A state without its ephemeral fields."""
        return without(state, self.ephemeral)

    def plain(self, state: Any) -> tuple[Any, bool]:
        """A state as a dict, and whether it was an instance of the model. An instance holds only the model's own fields."""
        if self._model is not None and self._model.owns(state):
            return plain(state), True
        return state, False

    def carried(self, old: State, new: State) -> State:
        """`new`, made by a reader that parsed `old` by this schema, with the fields of `old` that the model does not know."""
        if self._model is None or self._model.flaw(old) is not None:
            return new
        made: State = carried(old, plain(self._model.parse(old)), new)
        return made

    def can_read(self, schema: str, version: int, readable_from: int) -> None:
        """Check that this schema can read a checkpoint with the given schema, version and `readable_from`.

        Raises:
            SchemaMismatch: it was saved under a schema of another name.
            SchemaTooNew: it is newer, and does not declare that this version can read it.
        """
        if schema and schema != self.name:
            raise SchemaMismatch(
                f"the checkpoint was saved under schema {schema!r}, and this handle declares {self.name!r}. "
                "Nothing was written. Read it with a handle that declares that one, or none.",
                schema=schema,
            )
        if version > self.version and (readable_from or version) > self.version:
            raise SchemaTooNew(
                f"the checkpoint was saved under version {version} of schema {self.name!r}, which is readable from version "
                f"{readable_from or version} on; this is version {self.version}. Nothing is lost, and nothing was written. "
                "Upgrade this agent, or read it with a handle without a schema.",
                version=version,
                readable_from=readable_from or version,
            )

    def is_current(self, schema: str, version: int) -> bool:
        """Whether a state of this version needs no migration."""
        return version >= self.version if schema else 0 not in self._migrations

    def migrated(self, schema: str, version: int, state: State) -> State:
        """A state of an older version as one of this version.

        Raises:
            MigrationFailed: a step is missing or fails, or the result breaks the schema.
        """
        for step in range(version if schema else 0, self.version):
            if step not in self._migrations:
                raise MigrationFailed(
                    f"there is no migration of schema {self.name!r} from version {step} to {step + 1}. Nothing was written. "
                    "Declare one, or read it with a handle without a schema.",
                    version=step,
                )
            try:
                state = self._migrations[step](state)
            except Exception as error:
                raise self._failed(step, f"{type(error).__name__}: {error}") from error
            if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
                raise self._failed(step, f"it returned {type(state).__name__}, which is not a dict of channels")
        flaw = self.flaw(state)
        if flaw is not None:
            raise self._failed(self.version - 1, f"its result breaks the schema at {flaw.path or 'the top'}: {flaw.why}")
        return state

    def _failed(self, step: int, why: str) -> MigrationFailed:
        return MigrationFailed(
            f"the migration of schema {self.name!r} from version {step} to {step + 1} failed: {why}. Nothing was written. "
            "Fix the migration, or read it with a handle without a schema.",
            version=step,
        )


def _checked_version(name: str, version: object) -> int:
    if type(version) is not int or not 1 <= version <= VERSION_MAX:
        raise InvalidSchema(f"the version of schema {name!r} must be 1 to {VERSION_MAX}; got {version!r}.")
    return version


def _checked_migrations(
    name: str, version: int, given: Mapping[int, Migration] | Iterable[tuple[int, Migration]]
) -> dict[int, Migration]:
    steps: dict[int, Migration] = {}
    for step, migration in given.items() if isinstance(given, Mapping) else given:
        if step in steps:
            raise InvalidSchema(f"schema {name!r} has two migrations for version {step}. Keep one.")
        if type(step) is not int:
            raise InvalidSchema(f"the migrations of schema {name!r} must be keyed by the version they upgrade; got {step!r}.")
        if not callable(migration):
            raise InvalidSchema(f"the migration of schema {name!r} for version {step} is not a function.")
        steps[step] = migration
    if steps and sorted(steps) != list(range(min(steps), version)):
        raise InvalidSchema(
            f"schema {name!r} has version {version} and migrations for versions {sorted(steps)}: there must be one for each "
            f"version from the oldest that is read to {version - 1}."
        )
    return steps


def _fields(fields: Collection[str]) -> tuple[str, ...]:
    if isinstance(fields, str):
        raise InvalidSchema(f"fields must be a set or list of names and pointers, not the text {fields!r}.")
    for field in fields:
        parts_of(field)
    if len(fields) > POINTERS_MAX:
        raise InvalidSchema(f"a schema marks at most {POINTERS_MAX} fields; got {len(fields)}.")
    return tuple(sorted(fields))


def _broken(check: Invariant, state: State) -> Flaw | None:
    name = getattr(check, "__name__", type(check).__name__)
    try:
        said = check(state)
    except Exception as error:
        return Flaw("", f"invariant {name} does not hold: {error or type(error).__name__}")
    if said is None or said is True or said == "":
        return None
    return Flaw("", f"invariant {name} does not hold{f': {said}' if isinstance(said, str) else ''}")
