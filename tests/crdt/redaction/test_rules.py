"""Records of rules of redaction: what they say, and what several of them say together."""

from __future__ import annotations

from typing import Any

import pytest

from shoal import values
from shoal.kinds.redaction.state import rules
from shoal.kinds.redaction.state.rules import Pattern, Rules

RULES = Rules("crew", credentials=True, cards=True, patterns=(Pattern("a", "x+", "[a]", True),), hooks=("names",), files=True)


def read(*records: bytes) -> Rules:
    return rules.read("crew", [(record, nth) for nth, record in enumerate(records, 1)])


def test_a_record_says_what_was_set() -> None:
    assert read(rules.packed(RULES)) == RULES._replace(wall_ms=1)
    assert read(rules.packed(Rules("crew"))).is_empty
    assert read() == Rules("crew")


def test_of_records_set_at_once_all_hold() -> None:
    other = Rules("crew", patterns=(Pattern("b", "y", "[b]"),), hooks=("mails", "names"))
    found = read(rules.packed(RULES), rules.packed(other))
    assert found.patterns == RULES.patterns + other.patterns
    assert found.hooks == ("names", "mails")
    assert (found.credentials, found.cards, found.files, found.rivals, found.wall_ms) == (True, True, False, 1, 2)


GOOD = values.decode(rules.packed(RULES))
PATTERN = {"name": "a", "regex": "x", "replace": ""}
WRONG: list[Any] = [
    None,
    [],
    {},
    GOOD | {"space": "other"},
    GOOD | {"later": 1},
    GOOD | {"credentials": 1},
    GOOD | {"cards": "yes"},
    GOOD | {"files": None},
    GOOD | {"patterns": {}},
    GOOD | {"patterns": [PATTERN | {"flags": "i"}]},
    GOOD | {"patterns": [PATTERN | {"regex": 1}]},
    GOOD | {"patterns": [PATTERN | {"numbers": 1}]},
    GOOD | {"patterns": [{"name": "a"}]},
    GOOD | {"hooks": "names"},
    GOOD | {"hooks": [1]},
]


@pytest.mark.parametrize("record", WRONG)
def test_a_record_that_cannot_be_read_is_trouble(record: Any) -> None:
    found = read(values.encode(record))
    assert found.trouble
    assert found.is_empty
    assert read(rules.packed(RULES), values.encode(record)).trouble


def test_bytes_that_are_no_record_are_trouble() -> None:
    assert read(b"\xc1").trouble
    assert read(rules.packed(RULES), b"").trouble


def test_a_long_name_of_a_space_has_a_key() -> None:
    assert len(rules.key_of("x" * 1024)) == 64
    assert rules.key_of("a") != rules.key_of("b")
