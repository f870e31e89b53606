"""A declared schema: an agent's description of the states that it saves and loads.

Laws:
- A state is checked in the form in which it is stored: without its ephemeral fields.
- A checkpoint of an older version is upgraded step by step, each by a pure function of
  dicts, before a caller sees it. One of a newer version is read only if it declares that
  this version can. Reading changes nothing that is stored.
- A flaw names a place and what is expected there; of a secret field only the place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from shoal.errors import InvalidSchema, MigrationFailed, SchemaMismatch, SchemaTooNew, SchemaViolation
from shoal.names import check_name
from shoal.schemas.models import carried, model_of, plain
from shoal.schemas.pointers import POINTERS_MAX, covers, parts_of, without
from shoal.schemas.rule import Flaw

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
