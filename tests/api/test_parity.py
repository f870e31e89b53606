"""Every operation is on every face where it belongs; what is left out is listed here, with its reason."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer.main

from shoal.api.derived import FLOWS, OPERATIONS
from shoal.api.route import SPACE
from shoal.api.routes import BY_HAND as BY_HAND_ROUTES
from shoal.api.routes import ROUTES
from shoal.cli.main import app
from shoal.client import batch
from shoal.protocol import requests
from shoal.protocol.base import declaration_of
from shoal.protocol.requests import ObjectRead, ObjectWrite, reply_of
from shoal.protocol.requests.families import operations
from shoal.workflows.connection import Flow
from tests.operations import (
    BY_COMMAND,
    BY_HAND,
    NOT_IN_A_BATCH_OF_PYTHON,
    NOT_IN_PYTHON,
    NOT_ON_THE_COMMAND_LINE,
    NOT_OVER_HTTP,
)
from tests.test_layers import layer_of

SHOAL = Path(requests.__file__).parents[2]


def named(path: Path) -> set[str]:
    """The names that a module mentions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
    return found


@cache
def mentioned(package: str) -> set[str]:
    of_kinds = [path for path in (SHOAL / "kinds").rglob("*.py") if layer_of(path) == package]
    return set[str]().union(*map(named, [*(SHOAL / package).rglob("*.py"), *of_kinds]))


def test_every_operation_is_over_http_or_is_listed_with_its_reason() -> None:
    by_hand = {kind for kinds in BY_HAND.values() for kind in kinds}
    left_out = {kind for kinds in NOT_OVER_HTTP.values() for kind in kinds}
    derived = {place.kind for place in OPERATIONS} & set(operations())
    assert not by_hand & left_out
    assert not derived & (by_hand | left_out), "it is derived now: take it from the list"
    assert derived | by_hand | left_out == set(operations())


def test_few_routes_are_by_hand_each_with_its_reason() -> None:
    # Of these four take or give the bytes of files, three give exports, and one the changes of several spaces: no declaration
    # describes a body, or an answer, that is a stream.
    assert len(BY_HAND_ROUTES) <= 28
    assert all(route.reason for route in BY_HAND_ROUTES)
    derived = [route for route in ROUTES if not route.reason]
    assert len(derived) + len(BY_HAND_ROUTES) == len(ROUTES)
    assert {route.handler.__qualname__ for route in derived} == {"Derived._handler.<locals>.answer"}


def test_every_flow_has_a_place_over_http() -> None:
    # Nothing else tells the table of one: it would be served nowhere.
    assert set(FLOWS) == set(Flow.__subclasses__())
    assert all(flow.http for flow in FLOWS)


def test_operations_by_hand_are_carried_out() -> None:
    over_http = mentioned("api") | mentioned("workflows")
    assert {kind.__name__ for kinds in BY_HAND.values() for kind in kinds} <= over_http


def test_every_operation_is_in_python_or_is_listed_with_its_reason() -> None:
    # The MCP server speaks to nodes by itself.
    in_python = mentioned("client") | mentioned("workflows") | mentioned("integrations/langgraph")
    left_out = {kind for kinds in NOT_IN_PYTHON.values() for kind in kinds}
    assert {kind for kind in operations() if kind.__name__ not in in_python} == left_out


def commands(of: Any, *path: str) -> Iterator[str]:
    """The names of all commands of a group, and of the groups in it."""
    for name, command in getattr(of, "commands", {}).items():
        if hasattr(command, "commands"):
            yield from commands(command, *path, name)
        else:
            yield " ".join([*path, name])


def test_every_operation_is_on_the_command_line_or_is_listed_with_its_reason() -> None:
    derived = {kind for kind in operations() if declaration_of(kind).cli}
    by_hand = {kind for kinds in BY_COMMAND.values() for kind in kinds}
    left_out = {kind for kinds in NOT_ON_THE_COMMAND_LINE.values() for kind in kinds}
    assert not left_out & (derived | by_hand)
    assert derived | by_hand | left_out == set(operations())


def test_the_commands_of_operations_exist() -> None:
    declared = {cli.command for kind in operations() for cli in declaration_of(kind).cli}
    assert not declared & BY_COMMAND.keys(), "they are derived now: take them from the list"
    assert declared | BY_COMMAND.keys() <= set(commands(typer.main.get_command(app)))


def test_every_deletion_over_http_can_be_tried() -> None:
    deletions = [route for route in ROUTES if route.method == "DELETE" and route.path.startswith(SPACE)]
    assert [route.path for route in deletions if "dry_run" not in route.query.__struct_fields__] == []


def test_batches_take_writes_and_multi_reads_take_reads() -> None:
    for kind in operations():
        declared = declaration_of(kind)
        assert not declared.batch or issubclass(kind, ObjectWrite)
        assert not declared.multi_read or issubclass(kind, ObjectRead)


def test_every_operation_of_batches_is_in_those_of_python_or_is_listed_with_its_reason() -> None:
    handles = [found for found in vars(batch).values() if isinstance(found, type) and found.__module__ == batch.__name__]
    methods = [method for handle in handles for method in vars(handle).values() if inspect.isfunction(method)]
    gives = {str(inspect.signature(method).return_annotation).replace("requests.", "") for method in methods}
    in_python = {kind for kind in operations() if declaration_of(kind).batch and f"Pending[{reply_of(kind).__name__}]" in gives}
    left_out = {kind for kinds in NOT_IN_A_BATCH_OF_PYTHON.values() for kind in kinds}
    assert {kind for kind in operations() if declaration_of(kind).batch} - in_python == left_out


def test_operations_in_http_batches_may_be_in_batches() -> None:
    for derived in OPERATIONS:
        if derived.http.ops:
            assert issubclass(derived.kind, ObjectRead | ObjectWrite)
            declared = declaration_of(derived.kind)
            assert declared.multi_read if derived.is_read else declared.batch
