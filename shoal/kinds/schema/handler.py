"""Replicated schemas over storage: putting a version, and the schemas that the heads of a thread break.

The replicated schemas that a state must conform to, and whether it does.

Laws:
- A node decides by the schemas that it has applied. A schema that was put on another
  node arrives as any write does. Until then saves are checked against the schemas
  that are here; `violations` lists the states that break a later one, and those
  that a merge broke.
- A save under the name of a schema of its space must conform to the version that it
  names; a missing version is rejected. If the newest version of a schema names
  threads, a save of such a thread under another name, or none, must conform to that version.
- If a schema constrains each channel by itself, only the channels that changed since
  a checked state are checked again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import sha256

from shoal import values
from shoal.crdt.applier import Blobs
from shoal.crdt.rows import Rows
from shoal.errors import InvalidInput, InvalidSchema, InvalidValue, NotFound, SchemaTaken, SchemaViolation, TooLarge
from shoal.kinds.schema import state as schema
from shoal.kinds.thread.serving.shapes import completed, value_of
from shoal.kinds.thread.state import dag
from shoal.names import check_name
from shoal.node.catalog import Catalog, Recent
from shoal.node.collection.entries import Generations
from shoal.node.handler import Applied, Checks, Memory, Place, Readers, Target, View, WriteContext, Writers
from shoal.node.transaction import Transaction
from shoal.protocol import requests
from shoal.protocol.requests import PutSchema, ReadSchema, ReadViolations, SchemaVersion, SchemaVersions, Violation, Violations
from shoal.records import NamedTuple
from shoal.schemas.rule import Flaw, Rule, reason_of
from shoal.storage.interface import Storage
from shoal.storage.keys import Kind

SCHEMA_BYTES_MAX = 64 * 1024  # One replicated JSON Schema.
SCHEMAS_MAX = 256  # Replicated schemas of one space.
SCHEMA_VERSIONS_MAX = 256  # Versions of one schema.

_SPACES_MAX = 1024  # Whose schemas are kept in memory.
_RULES_MAX = 1024  # Compiled.
_SOUND_MAX = 65536  # Contents of channels that are known to conform to a rule.


class SchemaUse(NamedTuple):
    """A save's space and thread, and the schema that it names; `schema` is empty if it names none."""

    space: str
    thread: str
    schema: str
    version: int


class State(NamedTuple):
    """A whole state, whose channels are read only if needed."""

    hashes: Mapping[str, bytes]  # Of all channels; an empty hash means that the result is not remembered.
    packed: Callable[[str], bytes]  # The packed value of a channel.


class Broken(NamedTuple):
    """A schema that a state breaks, and the first flaw."""

    schema: str
    version: int
    flaw: Flaw


_Versions = dict[int, schema.Version]


class Rules(Memory):
    """The schemas of all spaces, read from storage when first needed and kept in memory, up to a bound."""

    is_within = True

    def __init__(self, storage: Storage, catalog: Catalog, generations: Generations) -> None:
        self._storage = storage
        self._generations = generations
        self._catalog = catalog
        self._spaces: dict[str, dict[str, _Versions]] = {}
        self._sound: Recent[tuple[bytes, str, bytes]] = Recent(_SOUND_MAX)
        self.changes = 0
        """How often schemas may have changed: a decision that takes several turns is about one set of them."""

    def applied(self, place: Place, applied: Applied) -> None:
        """A peer put a schema."""
        self.replaced(place.transaction, place.target)

    def ended(self, transaction: Transaction, target: Target) -> None:
        """A schema is deleted."""
        self.replaced(transaction, target)

    def replaced(self, transaction: Transaction, target: Target) -> None:
        """Drop the schemas of a space from memory once a change of one is written."""
        transaction.when_written(lambda: self.forget(target.space))

    def forget(self, space: str) -> None:
        """Drop the schemas of a space from memory, because one was put or deleted."""
        self._spaces.pop(space, None)
        self.changes += 1

    def forget_partition(self, number: int) -> None:
        """Drop all schemas from memory: those of a space are in any partition."""
        self._spaces.clear()
        self.changes += 1

    def any(self, space: str) -> bool:
        """Whether a space has any schema."""
        return bool(self._of_space(space))

    def enforce(self, use: SchemaUse, state: Callable[[], State]) -> None:
        """Check a state before it is saved. `state` is called only if a schema governs the save.

        Raises:
            SchemaViolation: the state breaks a schema; nothing may be written.
        """
        governing = self._governing(use)
        for broken in self._breaks(governing, state()) if governing else ():
            raise SchemaViolation(
                f"the state of thread {use.thread!r} violates schema {broken.schema!r} version {broken.version} of "
                "its space, "
                f"at {broken.flaw.path or 'the top'}: {broken.flaw.why}. Nothing was written. Correct the state, or "
                "save it under "
                "the version that it conforms to.",
                path=broken.flaw.path,
                schema=broken.schema,
                version=broken.version,
            )

    def breaks(self, use: SchemaUse, state: Callable[[], State]) -> list[Broken]:
        """For each schema that a stored state breaks, its first flaw."""
        governing = self._governing(use)
        return self._breaks(governing, state()) if governing else []

    def _governing(self, use: SchemaUse) -> list[tuple[str, int, schema.Version | None]]:
        found: list[tuple[str, int, schema.Version | None]] = []
        for name, versions in self._of_space(use.space).items():
            newest = max(versions)
            if name == use.schema:
                found.append((name, use.version, versions.get(use.version)))
            elif matches(versions[newest].content.threads, use.thread):
                found.append((name, newest, versions[newest]))
        return found

    def _of_space(self, space: str) -> dict[str, _Versions]:
        known = self._spaces.get(space)
        if known is None:
            known = {}
            for name in self._catalog.names(space, Kind.SCHEMA, prefix="", after=None, limit=SCHEMAS_MAX * 2):
                rows = self._generations.current(Transaction(self._storage), Target(Kind.SCHEMA, space, name)).rows
                if versions := {found.version: found for found in schema.versions(rows)}:
                    known[name] = versions
            if len(self._spaces) >= _SPACES_MAX:
                del self._spaces[next(iter(self._spaces))]
            self._spaces[space] = known
        return known

    def _breaks(self, governing: list[tuple[str, int, schema.Version | None]], state: State) -> list[Broken]:
        trees: dict[str, object] = {}

        def tree(name: str) -> object:
            if name not in trees:
                trees[name] = values.project(state.packed(name))
            return trees[name]

        broken: list[Broken] = []
        for name, number, version in governing:
            if version is None:
                why = f"the space has no version {number} of this schema; put it there before saving under it"
                broken.append(Broken(name, number, Flaw("", why)))
            elif (flaw := self._flaw(version, state, tree)) is not None:
                broken.append(Broken(name, number, flaw))
        return broken

    def _flaw(self, version: schema.Version, state: State, tree: Callable[[str], object]) -> Flaw | None:
        rule = _compiled(version.content.json)
        if isinstance(rule, InvalidSchema):
            return Flaw("", f"this node cannot enforce it: {rule.message.removesuffix(' Nothing was written.')}".rstrip("."))
        try:
            if not rule.parted:
                return rule.flaw({name: tree(name) for name in state.hashes})
            due = [name for name, hash in state.hashes.items() if (version.digest, name, hash) not in self._sound]
            flaw = rule.flaw_of_names(state.hashes) or rule.flaw_of_channels({name: tree(name) for name in due})
        except InvalidValue as error:
            return reason_of(error)
        if flaw is None:
            for name in due:
                if state.hashes[name]:
                    self._sound.put((version.digest, name, state.hashes[name]))
        return flaw


@lru_cache(maxsize=_RULES_MAX)
def _compiled(json: bytes) -> Rule | InvalidSchema:
    try:
        return Rule(json)
    except InvalidSchema as error:  # Put by a node of another version.
        return error


def matches(threads: str, thread: str) -> bool:
    """Whether a schema's `threads`, a name or a prefix with `*`, covers a thread."""
    return thread.startswith(threads[:-1]) if threads.endswith("*") else thread == threads


class Schemas:
    """The handler of schemas, and of `ReadViolations` for threads."""

    def __init__(self, catalog: Catalog, rules: Rules) -> None:
        self._catalog = catalog
        self._rules = rules
        self.checks: Checks = {PutSchema: self._check}
        self.writers: Writers = {PutSchema: self._put}
        self.readers: Readers = {ReadSchema: self._read, ReadViolations: self._violations}

    def _check(self, request: PutSchema) -> None:
        check_name("schema", request.schema)
        if request.threads:
            check_name("thread", request.threads)
        if not 1 <= request.version <= schema.VERSION_MAX:
            raise InvalidInput(
                f"a schema's version must be 1 to {schema.VERSION_MAX}; got {request.version}. Nothing was written."
            )
        if len(request.json) > SCHEMA_BYTES_MAX:
            raise TooLarge(
                f"a schema may have at most {SCHEMA_BYTES_MAX} bytes; this one has {len(request.json)}. Nothing was written."
            )
        Rule(request.json)

    def _put(self, context: WriteContext, request: PutSchema) -> requests.SchemaVersion:
        """Put a version; if it exists with the same content, nothing changes.

        Raises:
            SchemaTaken: the version exists with other content.
            TooLarge: the space has `SCHEMAS_MAX` schemas, or the schema `SCHEMA_VERSIONS_MAX` versions.
        """
        content = schema.encode(schema.Content(request.json, request.threads))
        put = schema.Put(request.version, sha256(content).digest())
        there = {found.version: found for found in schema.versions(context.rows)}
        known = there.get(request.version)
        if known is not None:
            if known.digest != put.digest:
                raise SchemaTaken(
                    f"version {request.version} of schema {request.schema!r} already exists with other content. Nothing was "
                    f"written. The content of a version never changes; put version {max(there) + 1}.",
                    version=request.version,
                )
            return _shown(known)
        self._bound(request, len(there))
        context.apply(put, Blobs(content))
        context.transaction.when_written(lambda: self._rules.forget(request.space))
        made = next(found for found in schema.versions(context.rows) if found.version == request.version)
        return _shown(made)

    def _bound(self, request: PutSchema, versions: int) -> None:
        if versions >= SCHEMA_VERSIONS_MAX:
            raise TooLarge(f"a schema has at most {SCHEMA_VERSIONS_MAX} versions. Nothing was written.")
        if versions == 0:
            names = self._catalog.names(request.space, Kind.SCHEMA, prefix="", after=None, limit=SCHEMAS_MAX)
            if len(names) == SCHEMAS_MAX:
                raise TooLarge(f"a space has at most {SCHEMAS_MAX} schemas. Nothing was written. Use another space.")

    def _read(self, view: View, request: ReadSchema) -> SchemaVersions:
        """All versions of a schema.

        Raises:
            NotFound: there is no such schema.
        """
        found = schema.versions(view.rows)
        if not found:
            raise NotFound(f"space {request.space!r} has no schema {request.schema!r}. Put one first.")
        return SchemaVersions([_shown(version) for version in found])

    def _violations(self, view: View, request: ReadViolations) -> Violations:
        """The schemas that the heads of a thread break, each with its first flaw. It reads the states.

        Raises:
            StoreCorrupt: a head cannot be read.
        """
        found: list[Violation] = []
        for branch, heads in dag.branches(view.rows).items():
            for id in dict.fromkeys(head.id for head in heads):
                checkpoint = dag.checkpoint(view.rows, id)
                if checkpoint is not None:
                    found += self._broken(view.rows, request, branch, checkpoint)
        return Violations(found)

    def _broken(self, rows: Rows, request: ReadViolations, branch: str, checkpoint: dag.Checkpoint) -> list[Violation]:
        record = checkpoint.record
        use = SchemaUse(request.space, request.thread, record.schema, record.schema_version)
        broken = self._rules.breaks(use, lambda: stored_state(rows, checkpoint))
        return [Violation(checkpoint.id.hex(), branch, name, version, flaw.path, flaw.why) for name, version, flaw in broken]


def stored_state(rows: Rows, checkpoint: dag.Checkpoint) -> State:
    """A checkpoint's state; each channel is read from storage when it is needed."""
    channels = checkpoint.record.channels

    def packed(name: str) -> bytes:
        return value_of(completed(rows, checkpoint, None, [name])[name])

    return State({name: recipe.hash for name, recipe in channels.items()}, packed)


def _shown(found: schema.Version) -> requests.SchemaVersion:
    return SchemaVersion(found.version, found.content.json, found.content.threads, found.wall_ms, found.rivals)
