"""The most that checking one state by a schema costs, and whether that is within the bound.

Laws:
- A check takes at most `STEPS_MAX` steps, or `LOOKS_FREE` looks at each value and a step for each byte of text, whichever is
  more. A schema of a few lines and a value of a few megabytes could otherwise stop a node for hours: 1,000 alternatives for
  each of a million elements, or a pattern whose automaton has to be followed state by state.
- The cost of a check is counted before it is made, and never by a clock, so that all nodes decide alike.
- A text is charged for the patterns that may meet it. Only if all texts and the costliest place are too much together, the
  value is walked along the schema, to find which those are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from shoal.errors import InvalidSchema, TooLarge
from shoal.records import NamedTuple
from shoal.schemas.breadth import Survey
from shoal.values.work import Allowance

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
