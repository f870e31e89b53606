"""Replicated JSON Schemas, which nodes enforce for every client of a space."""

from __future__ import annotations

from msgspec import Struct

from shoal.protocol.requests.base import ObjectRead, ObjectWrite, Reply

__all__ = ["PutSchema", "ReadSchema", "ReadViolations", "SchemaVersion", "SchemaVersions", "Violation", "Violations"]


class PutSchema(ObjectWrite["SchemaVersion"], array_like=True, frozen=True, tag="put-schema"):
    """Put a version of a schema. The same content again changes nothing.

    `threads` says which threads must keep its newest version, whoever saves them: a
    name, a prefix and `*`, or nothing. Saves under its name keep the version they name.
    """

    schema: str
    version: int
    json: bytes
    threads: str = ""


class SchemaVersion(Reply, array_like=True, frozen=True, tag="schema-version"):
    version: int
    json: bytes
    threads: str
    wall_ms: int
    rivals: int  # Other contents that were put concurrently under this version, and do not count.


class ReadSchema(ObjectRead["SchemaVersions"], array_like=True, frozen=True, tag="read-schema"):
    """Read all versions of a schema.

    Raises NotFound if there is no such schema.
    """

    schema: str


class SchemaVersions(Reply, array_like=True, frozen=True, tag="schema-versions"):
    versions: list[SchemaVersion]  # Oldest first.


class ReadViolations(ObjectRead["Violations"], array_like=True, frozen=True, tag="read-violations"):
    """Which heads of a thread break a schema that the space has for it."""

    thread: str


class Violation(Struct, array_like=True, frozen=True):
    checkpoint: str
    branch: str
    schema: str
    version: int
    path: str  # A JSON pointer into the state.
    why: str


class Violations(Reply, array_like=True, frozen=True, tag="violations"):
    violations: list[Violation]
