"""The most that checking one state by a schema costs, and whether that is within the bound.

Laws:
- A check takes at most `STEPS_MAX` steps, or `LOOKS_FREE` looks at each value and a step for each byte of text, whichever is
  more. A schema of a few lines and a value of a few megabytes could otherwise stop a node for hours: 1,000 alternatives for
  each of a million elements, or a pattern whose automaton has to be followed state by state.
- The cost of a check is counted before it is made, and never by a clock, so that all nodes decide alike.
- A text is charged for the patterns that may meet it. Only if all texts and the costliest place are too much together, the
  value is walked along the schema, to find which those are.

How often a JSON Schema can make a validator look at one place of a value.

Law: with a schema that is within `VISITS_MAX`, a validator looks at each part
of a value at most that often, however references and alternatives are nested; so the work is
linear in the value. Without a bound a few lines double it at every level:
`{"allOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/b"}]}`, and so on. Linear is not little: `STEPS_MAX`
bounds the product of the two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from shoal.errors import InvalidSchema, TooLarge
from shoal.records import NamedTuple
from shoal.values.work import Allowance

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


STEPS_MAX = 1 << 24  # At most 60 ns each, if every look is at its costliest; a tenth of that in schemas that people write.
LOOKS_FREE = 16
PATTERNS_BYTES_MAX = 2 << 20  # Of all patterns of a schema, compiled: compiling that takes some tens of milliseconds.
PATTERN_BYTES_MAX = 1 << 20  # Of one.
_PATTERN_BYTES_LEAST = 1 << 12
_UNBOUNDED = 1 << 62
_EACH = 4  # Parts of a step, in which texts are charged.
_PLACE_STEPS = 16  # For a place that is walked.

# A straight line of single characters and exact repetitions: wherever a text is, the automaton is at one place. What ends the
# line may be repeated as often as it likes: nothing comes after it that a text could be at as well.
_ONE = r"(?:\[\^?(?:\\.|[^\[\]\\])+\]|\\[dDsSwW]|\\[^\w\s]|\.|[^\\\[\](){}*+?|.^$])"
_STRAIGHT = re.compile(rf"\^(?:{_ONE}|\{{\d+\}})*(?:{_ONE}(?:[*+?]|\{{\d+,\d*\}}))?\$?")
_ATOM = re.compile(r"\[\^?(?:\\.|[^\[\]\\])+\]|\\.|[^\[\]{}()\\]|[()]")
_FEW_ATOMS = 8  # Of which an automaton makes at most some hundred states, which it keeps.

Compile = Callable[[str, int], bool]
"""Whether a pattern compiles within so many bytes."""


class Effort:
    """The cost of looking at values by one schema.

    Raises:
        InvalidSchema: its patterns are too large together.
    """

    def __init__(self, survey: Survey, compiles: Compile) -> None:
        self._survey = survey
        self._weights = _weights(survey, compiles)
        root = id(survey.root)
        self._looks = survey.costliest(_look).get(root, 0)
        self._words = survey.costliest(_look_in_words).get(root, 0) if _has_alternatives(survey) else 0
        self._below = survey.costliest(self.reading) if self._weights else {}
        self._texts = self._below.get(root, 0)

    def check(self, state: Mapping[str, Any]) -> None:
        """Check that a state can be checked within the bound.

        Raises:
            TooLarge: it cannot.
        """
        if self._looks > LOOKS_FREE:
            self._charge(state, nodes=STEPS_MAX // self._looks)
        if self._texts <= _EACH:
            return
        try:
            self._charge(state, bytes=STEPS_MAX * _EACH // self._texts)
        except TooLarge:
            _Walk(self, self._survey, self._below).charge(state)

    def can_explain(self, state: Mapping[str, Any]) -> bool:
        """Whether a flaw of this state can be searched within the bound: alternatives collect all flaws of each."""
        try:
            if self._words:
                self._charge(state, nodes=STEPS_MAX // self._words)
        except TooLarge:
            return False
        return True

    def _charge(self, state: Mapping[str, Any], *, nodes: int = _UNBOUNDED, bytes: int = _UNBOUNDED) -> None:
        try:
            Allowance(nodes=nodes, bytes=bytes).charge(dict(state))
        except TooLarge:
            raise _too_much() from None

    def reading(self, node: dict[str, Any]) -> int:
        """The cost of a byte of text to a subschema that looks at it, or at an object that has it as a name."""
        pattern = node.get("pattern")
        return self.naming(node) + (self._weights.get(pattern, 0) if isinstance(pattern, str) else 0)

    def naming(self, node: dict[str, Any]) -> int:
        """The cost of a byte of an object's names to a subschema that looks at the object."""
        named = node.get("patternProperties")
        return sum(self._weights.get(pattern, 0) for pattern in named) if isinstance(named, dict) else 0


class _Place(NamedTuple):
    """The subschemas that look at one place, and what they have for it and for the places within it."""

    text: int  # What a byte costs, in parts of a step;
    names: int  # if it is an object, a byte of its names.
    named: dict[str, frozenset[int]]
    rest: frozenset[int]  # Of names that are not among these.
    items: frozenset[int]


class _Walk:
    """A walk through a value, along the subschemas that look at each place, where there may be patterns."""

    def __init__(self, effort: Effort, survey: Survey, below: Mapping[int, int]) -> None:
        self._effort = effort
        self._survey = survey
        self._below = below
        self._known: dict[frozenset[int], _Place] = {}
        self._left = STEPS_MAX * _EACH

    def charge(self, state: Mapping[str, Any]) -> None:
        """
        Raises:
            TooLarge: patterns may meet more text than they may.
        """
        waiting: list[tuple[Any, frozenset[int]]] = [(dict(state), self._reaching([self._survey.root]))]
        while waiting:
            value, subschemas = waiting.pop()
            if not subschemas:
                continue
            place = self._known.get(subschemas)
            if place is None:
                place = self._known[subschemas] = self._place(subschemas)
            self._take(_PLACE_STEPS * _EACH)
            if isinstance(value, str):
                self._take(len(value) * place.text)
            elif isinstance(value, list) and place.items:
                self._take(len(value) * _EACH)
                waiting.extend((item, place.items) for item in value)
            elif isinstance(value, dict):
                if place.names:
                    self._take(sum(map(len, value)) * place.names)
                names = value if place.rest else value.keys() & place.named.keys()
                waiting.extend((value[name], place.named.get(name, place.rest)) for name in names)

    def _take(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise _too_much()

    def _place(self, subschemas: frozenset[int]) -> _Place:
        here: dict[int, int] = {}
        for one in subschemas:
            for each, times in self._survey.closure(one).items():
                here[each] = here.get(each, 0) + times
        self._take(len(here) * _PLACE_STEPS * _EACH)
        nodes = [self._survey.subschemas[each] for each in here]
        text = sum(self._effort.reading(node) * times for node, times in zip(nodes, here.values(), strict=True))
        names = sum(self._effort.naming(node) * times for node, times in zip(nodes, here.values(), strict=True))
        names += sum(self._below.get(id(node.get("propertyNames")), 0) for node in nodes)
        within = [node[key] for node in nodes for key in _OF_NAMES if key in node]
        rest = self._reaching([*within, *(part for node in nodes for part in _parts(node.get("patternProperties")))])
        named: dict[str, frozenset[int]] = {}
        for node in nodes:
            group = node.get("properties")
            for name, part in group.items() if isinstance(group, dict) else ():
                named[name] = named.get(name, rest) | self._reaching([part])
        of_items = [part for node in nodes for key in _OF_ITEMS for part in _parts(node.get(key))]
        return _Place(text, names, named, rest, self._reaching(of_items))

    def _reaching(self, parts: Iterable[Any]) -> frozenset[int]:
        return frozenset(id(part) for part in parts if isinstance(part, dict) and self._below.get(id(part)))


_OF_NAMES = ("additionalProperties", "unevaluatedProperties")
_OF_ITEMS = ("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains")


def _parts(found: Any) -> list[Any]:
    """The subschemas of a keyword: one, or several by name or in order. (Of a single one its own parts are no harm.)"""
    return found if isinstance(found, list) else [found, *found.values()] if isinstance(found, dict) else []


def _too_much() -> TooLarge:
    return TooLarge(
        f"checking it may take more than {STEPS_MAX} steps: the schema has too many alternatives, or too large patterns, for "
        "a state of this size. Write the schema with fewer, or split the state over several channels."
    )


def _look(node: dict[str, Any]) -> int:
    cost = 1 + 8 * bool(node.get("uniqueItems")) + 64 * isinstance(node.get("multipleOf"), float)
    for found in (node.get("enum"), [node["const"]] if isinstance(node.get("const"), list | dict) else None):
        if isinstance(found, list):  # Texts are found by their hashes; numbers and containers are compared one by one.
            compared = [each for each in found if not isinstance(each, str | bool | None)]
            cost += 4 * sum(map(_size, compared)) + len(found) // 64
    for key in ("dependentRequired", "dependencies", "dependentSchemas", "patternProperties"):
        found = node.get(key)
        cost += len(found) if isinstance(found, dict) else 0
    return cost


def _look_in_words(node: dict[str, Any]) -> int:
    """As `_look`, if the validator writes down what it expected."""
    return _look(node) + 4 * _size([node.get("enum"), node.get("const")])


def _size(value: Any) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_size, parts))


def _has_alternatives(survey: Survey) -> bool:
    return any(not node.keys().isdisjoint(("anyOf", "oneOf")) for node in survey.subschemas.values())


def _weights(survey: Survey, compiles: Compile) -> dict[str, int]:
    """Of each pattern, what a byte of text costs, in parts of a step."""
    patterns = {node["pattern"] for node in survey.subschemas.values() if isinstance(node.get("pattern"), str)}
    for node in survey.subschemas.values():
        patterns.update(node["patternProperties"] if isinstance(node.get("patternProperties"), dict) else ())
    made: dict[str, int] = {}
    total = 0
    for pattern in sorted(patterns):
        size = _PATTERN_BYTES_LEAST
        while size < PATTERN_BYTES_MAX and not compiles(pattern, size):
            size *= 4
        total += size
        if total > PATTERNS_BYTES_MAX:
            raise InvalidSchema(
                f"the schema's patterns take more than {PATTERNS_BYTES_MAX} bytes. Nothing was written. "
                "Write shorter ones, with smaller repetitions."
            )
        # The automaton of one that is not simple is followed state by state.
        made[pattern] = 1 if _is_simple(pattern) else size // 512 * _EACH
    return made


def _is_simple(pattern: str) -> bool:
    """Whether it takes the same short time for each byte, whatever the text. Most patterns that people write are."""
    if _STRAIGHT.fullmatch(pattern):
        return True
    atoms = [atom for atom in _ATOM.findall(pattern) if atom not in "^$*+?()|"]
    return "{" not in pattern and len(atoms) <= _FEW_ATOMS and "".join(_ATOM.findall(pattern)) == pattern
