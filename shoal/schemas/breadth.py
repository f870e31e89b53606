"""How often a JSON Schema can make a validator look at one place of a value.

Law: with a schema that is within `VISITS_MAX`, a validator looks at each part
of a value at most that often, however references and alternatives are nested; so the work is
linear in the value. Without a bound a few lines double it at every level:
`{"allOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/b"}]}`, and so on. Linear is not little: `shoal.schemas.effort`
bounds the product of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

from shoal.errors import InvalidSchema

VISITS_MAX = 4096
SUBSCHEMAS_MAX = 4096
DEPTH_MAX = 128
"""Of the schema itself, and of the values that it checks."""

# Keywords whose subschemas look at the same value.
_HERE_ONE = ("not", "if", "then", "else")
_HERE_MANY = ("allOf", "anyOf", "oneOf")
_HERE_NAMED = ("dependentSchemas", "dependencies")
# Keywords whose subschemas look at the value's parts. Those of one group look at different parts.
_PARTS_ONE = (
    "additionalProperties",
    "unevaluatedProperties",
    "unevaluatedItems",
    "additionalItems",
    "contains",
    "propertyNames",
)
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_PARTS_GROUPS = ("properties", "prefixItems", "items")
_PARTS_NAMED = ("patternProperties",)

_Node = dict[str, Any] | bool
Cost = Callable[[dict[str, Any]], int]
"""The cost of a look by one subschema, without those within it."""


class Survey:
    """The subschemas of a schema, and which of them look at the same value.

    Raises:
        InvalidSchema: it refers outside itself, has too many parts, or nests too deep.
    """

    def __init__(self, root: _Node) -> None:
        self.root = root
        self.subschemas: dict[int, dict[str, Any]] = {}
        self._collect(root, 0)
        self._closures: dict[int, dict[int, int]] = {}
        self._parting: list[int] | None = None

    def check(self) -> None:
        """Check that a schema stays within the bounds.

        Raises:
            InvalidSchema: it refers to itself without going into the value, or asks for too much work.
        """
        if max(self.costliest(lambda _: 1, bound=VISITS_MAX + 1).values(), default=0) > VISITS_MAX:
            raise InvalidSchema(
                f"the schema asks for more than {VISITS_MAX} looks at one place of a value: its references or alternatives "
                "multiply. Nothing was written. Write it with fewer alternatives."
            )

    def costliest(self, cost: Cost, *, bound: int = 1 << 62) -> dict[int, int]:
        """By subschema, the greatest cost of all looks at one place within the values that it looks at, up to `bound`."""
        costs = {id: cost(node) for id, node in self.subschemas.items()}
        # Each subschema's cost at each depth below it, from those one level deeper.
        last = {id: min(sum(times * costs[each] for each, times in self.closure(id).items()), bound) for id in self.subschemas}
        most = dict(last)
        for _ in range(DEPTH_MAX):
            deeper = {id: min(self._below(id, last), bound) for id in self._branching()}
            if deeper == last or not deeper:
                break
            last = deeper
            most |= {id: max(most[id], found) for id, found in deeper.items()}
        return most

    def _branching(self) -> list[int]:
        """The subschemas that look at parts of the values that they look at."""
        if self._parting is None:
            ones = dict.fromkeys(self.subschemas, 1)
            self._parting = [id for id in self.subschemas if self._below(id, ones)]
        return self._parting

    def closure(self, node: int) -> dict[int, int]:
        """The subschemas that look at the same value as this one → how often each does."""
        return self._closure(node, ())

    def _collect(self, node: Any, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise InvalidSchema(f"a schema nests at most {DEPTH_MAX} deep. Nothing was written.")
        if isinstance(node, list):
            for item in node:
                self._collect(item, depth + 1)
        elif isinstance(node, dict):
            self.subschemas[id(node)] = node
            if len(self.subschemas) > SUBSCHEMAS_MAX:
                raise InvalidSchema(f"a schema has at most {SUBSCHEMAS_MAX} parts. Nothing was written.")
            if node is not self.root and (isinstance(node.get("$id"), str) or isinstance(node.get("id"), str)):
                raise InvalidSchema(
                    "a part of the schema has an $id; only the schema itself may have one. Nothing was written."
                )
            for key in _REFERENCES:
                if isinstance(node.get(key), str):
                    self._resolved(node[key])
            for item in node.values():
                self._collect(item, depth + 1)

    def _resolved(self, reference: str) -> _Node:
        if reference == "#":
            return self.root
        if not reference.startswith("#/"):
            raise InvalidSchema(
                f"the schema refers to {reference[:200]!r}: only '#' and '#/…' are followed, nothing outside the schema. "
                "Nothing was written. Put it under $defs."
            )
        found: Any = self.root
        for part in unquote(reference[2:]).split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and key in found:
                found = found[key]
            elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            else:
                raise InvalidSchema(f"the schema refers to {reference[:200]!r}, which does not exist. Nothing was written.")
        if not isinstance(found, dict | bool):
            raise InvalidSchema(f"the schema refers to {reference[:200]!r}, which is not a schema. Nothing was written.")
        return found

    def _closure(self, node: int, above: tuple[int, ...]) -> dict[int, int]:
        known = self._closures.get(node)
        if known is not None:
            return known
        if node in above:
            raise InvalidSchema("the schema refers to itself without going into the value. Nothing was written.")
        if len(above) > DEPTH_MAX:
            raise InvalidSchema(f"the schema's references nest more than {DEPTH_MAX} deep. Nothing was written.")
        counts = {node: 1}
        for child in self._here(self.subschemas[node]):
            for id, times in self._closure(child, (*above, node)).items():
                counts[id] = min(counts.get(id, 0) + times, VISITS_MAX + 1)
        self._closures[node] = counts
        return counts

    def _here(self, node: dict[str, Any]) -> Iterator[int]:
        children = [node[key] for key in _HERE_ONE if key in node]
        for key in _HERE_MANY:
            children += node[key] if isinstance(node.get(key), list) else []
        for key in _HERE_NAMED:
            children += node[key].values() if isinstance(node.get(key), dict) else []
        children += [self._resolved(node[key]) for key in _REFERENCES if isinstance(node.get(key), str)]
        return (id(child) for child in children if isinstance(child, dict))

    def _below(self, node: int, last: dict[int, int]) -> int:
        return sum(times * self._parts(self.subschemas[id], last) for id, times in self.closure(node).items())

    def _parts(self, node: dict[str, Any], last: dict[int, int]) -> int:
        total = 0
        for key in _PARTS_ONE:
            total += last.get(id(node.get(key)), 0)
        for key in _PARTS_NAMED:
            total += sum(last.get(id(part), 0) for part in _values(node.get(key)))
        for key in _PARTS_GROUPS:
            found = node.get(key)
            # `items` may be one subschema, for all.
            direct = [found] if key == "items" and isinstance(found, dict) else _values(found)
            total += max((last.get(id(part), 0) for part in direct), default=0)
        return total


def _values(group: Any) -> list[Any]:
    return list(group.values()) if isinstance(group, dict) else group if isinstance(group, list) else []
