"""Which replicated schemas a state must keep, and whether it does.

Laws:
- A node decides by the schemas that it has applied. One that is put elsewhere
  reaches it as any write does: until then its saves go by what it has, and what
  they break so is listed (`violations`), as is what a merge broke.
- A save under the name of a schema of its space keeps the version that it names;
  a version that is not there is refused. Where the newest version of a schema
  names threads, a save of such a thread under another name, or none, keeps that.
- Of a state that builds on a checked one, only channels that changed are checked
  again, where the schema speaks of each by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

from shoal import values
from shoal.config import Config
from shoal.crdt import schema
from shoal.errors import InvalidSchema, InvalidValue, SchemaViolation
from shoal.node.catalog import Catalog
from shoal.node.recent import Recent
from shoal.node.target import Target
from shoal.node.transaction import ObjectRows, Transaction
from shoal.schemas.rule import Flaw, Rule, reason_of
from shoal.storage import keys
from shoal.storage.interface import Storage
from shoal.storage.keys import Kind

_SPACES_MAX = 1024  # Whose schemas are kept in memory.
_RULES_MAX = 1024  # Compiled.
_SOUND_MAX = 65536  # Channels' contents that are known to keep a rule.


class Claim(NamedTuple):
    """What is saved: where, and under which schema."""

    space: str
    thread: str
    schema: str
    version: int


class State(NamedTuple):
    """A whole state, of which only what is needed is read."""

    hashes: Mapping[str, bytes]  # Of all channels; empty for one that is not worth remembering.
    packed: Callable[[str], bytes]


class Broken(NamedTuple):
    schema: str
    version: int
    flaw: Flaw


_Versions = dict[int, schema.Version]


class Rules:
    def __init__(self, storage: Storage, catalog: Catalog, config: Config) -> None:
        self._storage = storage
        self._catalog = catalog
        self._config = config
        self._spaces: dict[str, dict[str, _Versions]] = {}
        self._sound: Recent[tuple[bytes, str, bytes]] = Recent(_SOUND_MAX)

    def forget(self, space: str) -> None:
        """A schema of this space was put."""
        self._spaces.pop(space, None)

    def any(self, space: str) -> bool:
        """Whether a space has schemas at all."""
        return bool(self._of_space(space))

    def enforce(self, claim: Claim, state: Callable[[], State]) -> None:
        """
        Raises:
            SchemaViolation: the state breaks a schema; nothing may be written.
        """
        governing = self._governing(claim)
        for broken in self._breaks(governing, state()) if governing else ():
            raise SchemaViolation(
                f"the state of thread {claim.thread!r} violates schema {broken.schema!r} version {broken.version} of "
                "its space, "
                f"at {broken.flaw.path or 'the top'}: {broken.flaw.why}. Nothing was written. Correct the state, or "
                "save it under "
                "the version that it conforms to.",
                path=broken.flaw.path,
                schema=broken.schema,
                version=broken.version,
            )

    def breaks(self, claim: Claim, state: Callable[[], State]) -> list[Broken]:
        """The first flaw for each schema that a stored state breaks."""
        governing = self._governing(claim)
        return self._breaks(governing, state()) if governing else []

    def _governing(self, claim: Claim) -> list[tuple[str, int, schema.Version | None]]:
        found: list[tuple[str, int, schema.Version | None]] = []
        for name, versions in self._of_space(claim.space).items():
            newest = max(versions)
            if name == claim.schema:
                found.append((name, claim.version, versions.get(claim.version)))
            elif matches(versions[newest].content.threads, claim.thread):
                found.append((name, newest, versions[newest]))
        return found

    def _of_space(self, space: str) -> dict[str, _Versions]:
        known = self._spaces.get(space)
        if known is None:
            known = {}
            for name in self._catalog.names(space, Kind.SCHEMA, prefix="", after=None, limit=self._config.schemas_max * 2):
                target = Target(Kind.SCHEMA, space, name)
                rows = ObjectRows(Transaction(self._storage), keys.object_rows(target.partition, *target))
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
    """Whether a schema's `threads` name this one."""
    return thread.startswith(threads[:-1]) if threads.endswith("*") else thread == threads
