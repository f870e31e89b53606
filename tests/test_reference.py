"""docs/API.md and docs/ERRORS.md are what the code says."""

from __future__ import annotations

import inspect

import pytest

from shoal import public
from shoal.api import openapi
from shoal.api.routes import ROUTES
from shoal.cli import main
from shoal.errors import BY_CODE
from tests import blocking, reference
from tests.clients.js import description as javascript


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_generated_page_is_current(name: str) -> None:
    assert (reference.DOCS / name).read_text() == reference.PAGES[name](), "run `python -m tests.reference`"


def test_the_summary_of_commands_is_current() -> None:
    assert main.SUMMARY.read_text() == reference.summary(), "run `python -m tests.reference`"


def test_the_types_of_the_blocking_face_are_those_of_the_handles() -> None:
    assert blocking.STUB.read_text() == blocking.stub(), "run `python -m tests.reference`"


def test_the_types_of_the_javascript_client_are_current() -> None:
    assert javascript.SOURCES.read_text() == javascript.sources(), "run `python -m tests.reference`"


def test_types_do_not_depend_on_the_place_of_null(monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions of msgspec differ in it."""
    current, described = javascript.description(), openapi.describe(ROUTES, version="0")
    moved = [
        schema["anyOf"].insert(0, schema["anyOf"].pop())
        for component in described["components"]["schemas"].values()
        for schema in component.get("properties", {}).values()
        if {"type": "null"} in schema.get("anyOf", ())
    ]
    monkeypatch.setattr(openapi, "describe", lambda routes, *, version: described)
    assert moved
    assert javascript.description() == current


def test_every_error_is_on_its_page() -> None:
    assert {error for error, _, _ in reference.described()} == set(BY_CODE.values())


def test_every_public_class_and_method_has_a_line() -> None:
    page = reference.PAGES["API.md"]()
    sections = dict(part.split("\n", 1) for part in page.split("\n## ")[1:])
    for name in public.__all__:
        found = getattr(public, name)
        if inspect.isfunction(found):
            assert f"`{name}(" in sections["Functions"]
        elif inspect.isclass(found):
            methods = [method for method, _ in inspect.getmembers(found, inspect.isfunction) if not method.startswith("_")]
            own = [method for method in methods if getattr(found, method).__module__.startswith("shoal.")]
            assert all(f"{method}(" in sections[name] for method in own), name
