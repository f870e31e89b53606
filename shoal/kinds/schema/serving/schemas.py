"""Replicated schemas over storage: putting a version, and the schemas that the heads of a thread break."""

from __future__ import annotations

from hashlib import sha256

from shoal.config import Config
from shoal.crdt.rows import Rows
from shoal.errors import InvalidInput, NotFound, SchemaTaken, TooLarge
from shoal.kinds.schema import state as schema
from shoal.kinds.schema.serving.rules import Claim, Rules, State
from shoal.kinds.thread.serving.shapes import completed, value_of
from shoal.kinds.thread.state import dag
from shoal.names import check_name
from shoal.node.blobs import Blobs
from shoal.node.catalog import Catalog
from shoal.node.handler import Checks, Readers, View, WriteContext, Writers
from shoal.protocol import requests
from shoal.protocol.requests import PutSchema, ReadSchema, ReadViolations, SchemaVersion, SchemaVersions, Violation, Violations
from shoal.schemas.rule import Rule
from shoal.storage.keys import Kind


class Schemas:
    """The handler of schemas, and of `ReadViolations` for threads."""

    def __init__(self, config: Config, catalog: Catalog, rules: Rules) -> None:
        self._config = config
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
        if len(request.json) > self._config.schema_bytes_max:
            raise TooLarge(
                f"a schema may have at most {self._config.schema_bytes_max} bytes; this one has {len(request.json)}. "
                "Nothing was written."
            )
        Rule(request.json)

    def _put(self, context: WriteContext, request: PutSchema) -> requests.SchemaVersion:
        """Put a version; if it exists with the same content, nothing changes.

        Raises:
            SchemaTaken: the version exists with other content.
            TooLarge: the space has `schemas_max` schemas, or the schema `schema_versions_max` versions.
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
        if versions >= self._config.schema_versions_max:
            raise TooLarge(f"a schema has at most {self._config.schema_versions_max} versions. Nothing was written.")
        if versions == 0:
            names = self._catalog.names(request.space, Kind.SCHEMA, prefix="", after=None, limit=self._config.schemas_max)
            if len(names) == self._config.schemas_max:
                raise TooLarge(
                    f"a space has at most {self._config.schemas_max} schemas. Nothing was written. Use another space."
                )

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
        claim = Claim(request.space, request.thread, record.schema, record.schema_version)
        broken = self._rules.breaks(claim, lambda: stored_state(rows, checkpoint))
        return [Violation(checkpoint.id.hex(), branch, name, version, flaw.path, flaw.why) for name, version, flaw in broken]


def stored_state(rows: Rows, checkpoint: dag.Checkpoint) -> State:
    """A checkpoint's state; each channel is read from storage when it is needed."""
    channels = checkpoint.record.channels

    def packed(name: str) -> bytes:
        return value_of(completed(rows, checkpoint, None, [name])[name])

    return State({name: recipe.hash for name, recipe in channels.items()}, packed)


def _shown(found: schema.Version) -> requests.SchemaVersion:
    return SchemaVersion(found.version, found.content.json, found.content.threads, found.wall_ms, found.rivals)
