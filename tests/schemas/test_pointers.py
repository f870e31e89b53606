"""Fields are taken out or hidden by JSON pointer, and nothing that was given is changed."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from shoal.errors import InvalidInput
from shoal.schemas.secret_fields import HIDDEN, covers, hidden, parts_of, pointer, redacted, without

STATE: dict[str, Any] = {
    "credentials": {"token": "t", "user": "u"},
    "tools": [{"name": "a", "key": 1}, {"name": "b", "key": 2}],
    "scratch": 1,
    "a/b": {"~": 2},
}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (["scratch"], {key: STATE[key] for key in STATE if key != "scratch"}),
        (["/scratch"], {key: STATE[key] for key in STATE if key != "scratch"}),
        (["/credentials/token"], {**STATE, "credentials": {"user": "u"}}),
        (["/tools/*/key"], {**STATE, "tools": [{"name": "a"}, {"name": "b"}]}),
        (["/tools/0"], {**STATE, "tools": [None, STATE["tools"][1]]}),
        (["/a~1b/~0"], {**STATE, "a/b": {}}),
        (["/nowhere/at/all", "/scratch/deeper"], STATE),
    ],
)
def test_fields_are_taken_out(fields: list[str], expected: dict[str, Any]) -> None:
    before = copy.deepcopy(STATE)
    assert without(STATE, fields) == expected
    assert before == STATE


def test_fields_are_hidden() -> None:
    shown = redacted(STATE, ["/credentials/token", "/tools/*/key"])
    assert shown["credentials"] == {"token": HIDDEN, "user": "u"}
    assert [tool["key"] for tool in shown["tools"]] == [HIDDEN, HIDDEN]
    assert STATE["credentials"]["token"] == "t"


@pytest.mark.parametrize(
    ("path", "covered"), [("/credentials/token", True), ("/credentials", True), ("/credentials/user", False), ("", True)]
)
def test_a_path_is_covered_if_it_is_or_holds_a_secret(path: str, covered: bool) -> None:
    assert covers(["/credentials/token"], path) is covered


def test_a_pointer_is_read_as_it_is_written() -> None:
    assert parts_of(pointer(["a/b", "~", 3])) == ("a/b", "~", "3")
    for wrong in ("", "/"):
        with pytest.raises(InvalidInput):
            parts_of(wrong)


class Plan:
    """An object that no pointer can look into."""


@pytest.mark.parametrize("value", [Plan(), {1, 2}, frozenset({1})])
def test_a_pointer_into_what_has_no_keys_hides_the_whole_of_it(value: object) -> None:
    assert redacted({"plan": value}, ["/plan/token"]) == {"plan": "«secret»"}
    assert hidden(["/plan/token"], "plan", "", value) == "«secret»"
    assert without({"plan": value}, ["/plan/token"]) == {"plan": value}
