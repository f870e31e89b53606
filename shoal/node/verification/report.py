"""What a verification finds, and where: shared by its checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from shoal.cluster import operation
from shoal.crdt import deletion
from shoal.crdt.dot import Dot
from shoal.errors import ShoalError
from shoal.node.transaction import ObjectRows, Transaction
from shoal.storage import keys
from shoal.storage.interface import Storage
from shoal.storage.keys import Kind

PROBLEMS_LISTED_MAX = 100


@dataclass(slots=True)
class Report:
    partitions: int = 0  # That hold anything.
    operations: int = 0
    objects: int = 0
    checkpoints: int = 0
    chunks: int = 0
    problem_count: int = 0
    problems: list[str] = field(default_factory=list)  # The first `PROBLEMS_LISTED_MAX`.

    @property
    def sound(self) -> bool:
        return self.problem_count == 0

    def problem(self, text: str) -> None:
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_LISTED_MAX:
            self.problems.append(text)


class Logged(NamedTuple):
    partition: int
    hlc: int
    dot: Dot
    body: operation.Body


class ObjectPlace(NamedTuple):
    partition: int
    kind: Kind
    space: str
    name: str


class Object(NamedTuple):
    """An object's current generation in storage."""

    storage: Storage
    place: ObjectPlace
    generation: int

    @property
    def rows(self) -> ObjectRows:
        return ObjectRows(Transaction(self.storage), keys.object_rows(*self.place) + deletion.prefix(self.generation))


def reason(error: Exception) -> str:
    return error.message if isinstance(error, ShoalError) else repr(error)


def text_of(place: ObjectPlace) -> str:
    return f"{place.kind.label} {place.name!r} of space {place.space!r}"
