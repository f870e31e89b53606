"""The report of a verification, and the places that it names. All checks share them."""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.cluster import operation
from shoal.crdt import deletion
from shoal.crdt.dot import Dot
from shoal.errors import ShoalError
from shoal.node.transaction import ObjectRows, Transaction
from shoal.records import NamedTuple
from shoal.storage import keys
from shoal.storage.interface import Storage
from shoal.storage.keys import Kind

PROBLEMS_LISTED_MAX = 100


@dataclass(slots=True)
class Report:
    """The counts and findings of a verification."""

    partitions: int = 0  # Without empty ones.
    operations: int = 0  # In the log.
    truncated: int = 0  # Operations that have left it.
    folded: int = 0  # Partitions whose log is whole, so that all their rows were made again from it.
    objects: int = 0
    checkpoints: int = 0
    chunks: int = 0
    problem_count: int = 0
    problems: list[str] = field(default_factory=list)  # The first `PROBLEMS_LISTED_MAX`.
    statements: int = 0  # Signed ones, given or kept by nodes.
    rows: int = 0  # Times that a partition's rows were those that a statement covers.
    uncompared: list[str] = field(default_factory=list)  # What given statements say of rows, and was not compared.
    trusted: list[str] = field(default_factory=list)  # What could not be folded or compared, and whose word it rests on.

    @property
    def sound(self) -> bool:
        """Whether no problem was found. What is `trusted` or `uncompared` may be wrong all the same."""
        return self.problem_count == 0

    def problem(self, text: str) -> None:
        """Count a problem, and list it unless `PROBLEMS_LISTED_MAX` are listed."""
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_LISTED_MAX:
            self.problems.append(text)


class Logged(NamedTuple):
    """An operation of the log, decoded."""

    partition: int
    hlc: int
    dot: Dot
    body: operation.Body


class ObjectPlace(NamedTuple):
    """Names an object, with its partition: the arguments of `keys.object_rows`."""

    partition: int
    kind: Kind
    space: str
    name: str


class Object(NamedTuple):
    """One generation of an object in storage."""

    storage: Storage
    place: ObjectPlace
    generation: int

    @property
    def rows(self) -> ObjectRows:
        """The stored rows, in a transaction of their own that is never written."""
        return ObjectRows(Transaction(self.storage), keys.object_rows(*self.place) + deletion.prefix(self.generation))


def reason(error: Exception) -> str:
    """An error as the report shows it."""
    return error.message if isinstance(error, ShoalError) else repr(error)


def text_of(place: ObjectPlace) -> str:
    """The object's kind, name and space, for people."""
    return f"{place.kind.label} {place.name!r} of space {place.space!r}"
