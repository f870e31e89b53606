"""How parts are put together: by constructors of few arguments, and by no hook that is set from afar."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent
ARGUMENTS_MAX = 7

EXCEPTIONS = {
    "Schema": "users write it, and name each argument: a schema's parts are its own, and all but three may be left out",
}
"""Class → why its constructor takes more arguments."""


def classes() -> Iterator[tuple[ast.ClassDef, ast.FunctionDef]]:
    """The classes of shoal that have a constructor, and that."""
    for path in sorted((TOP / "shoal").rglob("*.py")):
        for made in ast.walk(ast.parse(path.read_text())):
            if isinstance(made, ast.ClassDef):
                for function in made.body:
                    if isinstance(function, ast.FunctionDef) and function.name == "__init__":
                        yield made, function


def arguments_of(function: ast.FunctionDef) -> int:
    """The number of its arguments beside `self`."""
    named = function.args
    return len([*named.posonlyargs, *named.args, *named.kwonlyargs]) - 1


def hooks_of(function: ast.FunctionDef) -> list[str]:
    """The public attributes of a class that hold a callable which is set later: others may replace them from afar."""
    found = (node for node in ast.walk(function) if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute))
    return [node.target.attr for node in found if is_hook(node)]  # type: ignore[union-attr]


def is_hook(node: ast.AnnAssign) -> bool:
    """Whether an attribute is public, and declared as a callable."""
    assert isinstance(node.target, ast.Attribute)
    return not node.target.attr.startswith("_") and ast.unparse(node.annotation).startswith("Callable[")


def test_a_constructor_takes_at_most_seven_arguments() -> None:
    found = {made.name: arguments_of(function) for made, function in classes()}
    assert {name: count for name, count in found.items() if count > ARGUMENTS_MAX and name not in EXCEPTIONS} == {}
    assert all(found[name] > ARGUMENTS_MAX for name in EXCEPTIONS), "an exception is no longer needed"


def test_no_part_has_a_hook_to_be_set() -> None:
    found = {made.name: hooks_of(function) for made, function in classes()}
    assert {name: hooks for name, hooks in found.items() if hooks} == {}


@pytest.mark.parametrize(
    ("body", "hooks"),
    [
        ("self.told: Callable[[int], None] = told", ["told"]),
        ("self.told: Callable[[], None] | None = None", ["told"]),
        ("self._told: Callable[[int], None] = told", []),
        ("self.told: int = 1", []),
    ],
)
def test_a_public_callable_attribute_is_a_hook(body: str, hooks: list[str]) -> None:
    [function] = ast.parse(f"def __init__(self, told):\n    {body}").body
    assert isinstance(function, ast.FunctionDef)
    assert hooks_of(function) == hooks
