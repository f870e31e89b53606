"""Replicated JSON Schemas: nodes enforce them for all clients of a space."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from shoal.errors import InvalidSchema, NotFound, SchemaTaken
from shoal.protocol.base import Cli, Deleted, Http, Named, ObjectRead, ObjectWrite, Part, Reply, Shape, deletion, operation

__all__ = [
    "DeleteSchema",
    "PutSchema",
    "ReadSchema",
    "ReadViolations",
    "SchemaVersion",
    "SchemaVersions",
    "Violation",
    "Violations",
]


@operation(
    discloses=True,
    action="admin",
    http=Http(
        "PUT",
        "/schemas/{schema}",
        "Put a version of a JSON Schema that nodes enforce",
        errors=(InvalidSchema, SchemaTaken),
        example={"version": 1, "schema": {"type": "object"}, "threads": "planner"},
    ),
    cli=Cli(
        "schema put",
        "shoal schema put plan plan.json --version 1 --threads 'planner-*' --url http://n1:7400 --space crew",
        shows="version",
        help="Put a version of a schema: from now on nodes reject states that violate it.",
        options=("version",),
        parts=(Part({"file": Annotated[bytes, Shape.JSON]}, ("json",), lambda file: (file,)),),
    ),
)
class PutSchema(ObjectWrite["SchemaVersion"], array_like=True, frozen=True, tag="put-schema"):
    """Put a version of a schema. The same content again changes nothing.

    `threads` names the threads whose saves must satisfy its newest version: a name, a
    prefix and `*`, or nothing. A save under its name must satisfy the version that it names.
    """

    schema: str
    version: int
    json: Annotated[bytes, Shape.JSON, Named("schema")]
    threads: str = ""


class SchemaVersion(Reply, array_like=True, frozen=True, tag="schema-version"):
    """One version of a schema."""

    version: int
    json: Annotated[bytes, Shape.JSON, Named("schema")]
    threads: str
    wall_ms: int
    rivals: int  # How many other contents were put concurrently under this version; they do not count.


@operation(
    http=Http("GET", "/schemas/{schema}", "All versions of a schema, oldest first", errors=(NotFound,)),
    cli=Cli(
        "schema show",
        "shoal schema show plan --data ./state --space crew",
        help="List all versions of a schema, oldest first.",
        rows="versions",
    ),
)
class ReadSchema(ObjectRead["SchemaVersions"], array_like=True, frozen=True, tag="read-schema"):
    """Read all versions of a schema.

    Raises NotFound if there is no such schema.
    """

    schema: str


class SchemaVersions(Reply, array_like=True, frozen=True, tag="schema-versions"):
    """All versions of a schema."""

    versions: list[SchemaVersion]  # Oldest first.


@operation(
    http=Http(
        "GET",
        "/threads/{thread}/violations",
        "Violations of the space's schemas by the heads of a thread",
        errors=(NotFound,),
    ),
    cli=Cli(
        "schema check",
        "shoal schema check planner-1 --data ./state --space crew",
        help="List violations of schemas by the heads of a thread; if there are any, the exit code is 1.",
        rows="violations",
        alarms=True,
    ),
)
class ReadViolations(ObjectRead["Violations"], array_like=True, frozen=True, tag="read-violations"):
    """List violations of the space's schemas by the heads of a thread."""

    thread: str


class Violation(Struct, array_like=True, frozen=True):
    """A rule of a schema that a head breaks."""

    checkpoint: str
    branch: str
    schema: str
    version: int
    path: str  # A JSON pointer into the state.
    why: str


class Violations(Reply, array_like=True, frozen=True, tag="violations"):
    """All violations by the heads of a thread."""

    violations: list[Violation]


@deletion("schema", "plan", action="admin")
class DeleteSchema(ObjectWrite[Deleted], array_like=True, frozen=True, tag="delete-schema"):
    """Delete a schema with all its versions: it binds no thread any more.

    A save that names it is rejected until it is put again, with any content.
    """

    schema: str
