"""The declared schema of a handle, applied to its saves and loads.

Laws:
- Every save of the handle claims the schema, and the resulting state satisfies it, whether
  it is saved whole, as a change, or as a merge. A state that violates it is rejected before it is sent.
- A save that builds on a checkpoint of a newer version is made under that version, because the state still
  has fields that this version does not know, and they must not be migrated again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from shoal import values
from shoal.errors import InvalidInput, NotFound, SchemaMismatch, SchemaTooNew
from shoal.protocol import requests
from shoal.records import NamedTuple
from shoal.schemas import Schema

Fetch = Callable[[str], Awaitable[requests.Checkpoint]]
"""Reads a checkpoint with all its channels, by id."""


class Violation(Struct, frozen=True):
    """A rule that a head violates."""

    checkpoint: str
    branch: str
    schema: str
    version: int
    path: str  # A JSON pointer into the state; empty for the state itself.
    why: str


class _Base(NamedTuple):
    """The checkpoint that a save builds on."""

    id: str
    schema: str
    version: int
    readable_from: int
    secret: list[str]
    channels: Mapping[str, bytes]


_NOTHING = _Base(requests.NO_HEAD, "", 0, 0, [], {})


class Declared:
    """The schema of one handle. It remembers the last state, which the next save most likely builds on."""

    def __init__(self, schema: Schema, fetch: Fetch) -> None:
        self.schema = schema
        self._fetch = fetch
        self._last = _NOTHING  # The checkpoint that the handle last saved or loaded.

    def shown(self, found: requests.Checkpoint) -> requests.Checkpoint:
        """A checkpoint with its state, migrated to this version of the schema.

        Raises:
            SchemaMismatch, SchemaTooNew, MigrationFailed: it cannot be migrated.
        """
        schema = self.schema
        schema.can_read(found.schema, found.schema_version, found.readable_from)
        if not schema.is_current(found.schema, found.schema_version):
            state = {name: values.decode(packed) for name, packed in found.channels.items()}
            state = schema.migrated(found.schema, found.schema_version, state)
            found = replace(found, channels={name: values.encode(value, where=name) for name, value in state.items()})
        return found

    def loaded(self, found: requests.Checkpoint) -> requests.Checkpoint:
        """A checkpoint that the handle loaded, migrated to this version of the schema; it is remembered."""
        shown = self.shown(found)
        self._last = _base(found)
        return shown

    async def claimed(self, request: requests.Save, *, carry: bool) -> requests.Save:
        """The save as it is sent. `carry`: its state comes from an instance of the model, which knows only its own fields.

        Raises:
            SchemaViolation: the resulting state violates the schema.
            SchemaMismatch, SchemaTooNew, MigrationFailed: the checkpoint that it builds on cannot be migrated.
        """
        base = await self._base_of(request)
        schema = self.schema
        if base is not _NOTHING:
            schema.can_read(base.schema, base.version, base.readable_from)
        current = base is _NOTHING or schema.is_current(base.schema, base.version)
        state = self._state(request, base, current=current)
        if carry and current:
            state = schema.carried({name: values.decode(packed) for name, packed in base.channels.items()}, state)
            request = replace(request, channels={name: values.encode(value, where=name) for name, value in state.items()})
        elif request.delta and not current:
            # The channels that the change leaves alone would stay in the form of the older version.
            channels = {name: values.encode(value, where=name) for name, value in state.items()}
            request = replace(request, delta=False, channels=channels, appended={}, removed=[])
        schema.check(state)
        newer = base.schema == schema.name and base.version > schema.version
        return replace(
            request,
            schema=schema.name,
            schema_version=base.version if newer else schema.version,
            readable_from=base.readable_from if newer else schema.readable_from,
            secret=sorted({*schema.secret, *base.secret}) if newer else list(schema.secret),
        )

    def settled(self, id: str, request: requests.Save) -> None:
        """Remember the state of a save, which is now checkpoint `id`."""
        if request.delta:
            return  # If the next save needs its state, it reads it.
        self._last = _Base(
            id, request.schema, request.schema_version, request.readable_from, request.secret, dict(request.channels)
        )

    async def _base_of(self, request: requests.Save) -> _Base:
        parent = request.expect_head if request.expect_head is not None else request.parent
        if parent is None or parent == requests.NO_HEAD:
            return _NOTHING
        if parent != self._last.id:
            self._last = _base(await self._fetch(parent))
        return self._last

    def _state(self, request: requests.Save, base: _Base, *, current: bool) -> dict[str, Any]:
        changed = {name: values.decode(packed) for name, packed in request.channels.items()}
        if not request.delta:
            return changed
        state = {name: values.decode(packed) for name, packed in base.channels.items()}
        if not current:
            state = self.schema.migrated(base.schema, base.version, state)
        for name in request.removed:
            if name not in state:
                raise InvalidInput(f"there is no channel {name!r} to remove. Nothing was written.")
            del state[name]
        state |= changed
        for name, packed in request.appended.items():
            before = state.get(name, [])
            if not isinstance(before, list):
                raise InvalidInput(
                    f"channel {name!r} is not a list, so nothing can be appended to it. Nothing was written. Update the "
                    "whole channel."
                )
            state[name] = [*before, *values.decode(packed)]
        return state

    def violation(self, found: requests.Checkpoint, branch: str) -> Violation | None:
        """The violation of this schema by a head; None if there is none, or if it is of another schema or a newer version."""
        try:
            self.schema.can_read(found.schema, found.schema_version, found.readable_from)
        except (SchemaMismatch, SchemaTooNew):
            return None
        state = {name: values.decode(packed) for name, packed in found.channels.items()}
        if not self.schema.is_current(found.schema, found.schema_version):
            state = self.schema.migrated(found.schema, found.schema_version, state)
        flaw = self.schema.flaw(state)
        return None if flaw is None else Violation(found.id, branch, self.schema.name, self.schema.version, flaw.path, flaw.why)


def narrowed(found: requests.Checkpoint, names: list[str] | None) -> requests.Checkpoint:
    """The checkpoint with only the named channels; with all if `names` is None.

    Raises:
        NotFound: it has no such channel.
    """
    if names is None:
        return found
    if lacking := [name for name in names if name not in found.channels]:
        raise NotFound(f"checkpoint {found.id} has no channel {', '.join(map(repr, lacking))} under its schema.")
    return replace(found, channels={name: packed for name, packed in found.channels.items() if name in names})


def _base(found: requests.Checkpoint) -> _Base:
    return _Base(found.id, found.schema, found.schema_version, found.readable_from, found.secret, found.channels)
