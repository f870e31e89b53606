"""Users can name in annotations whatever the public methods give them."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import typing
from collections import deque
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import shoal
from shoal import public, replies
from shoal.client.arguments import of_part
from shoal.client.connection import StoreConnection
from shoal.protocol.requests import EndStep

PROTOCOLS = ("__aenter__", "__aiter__", "__anext__", "__getitem__", "__call__")
# What integrations and batches build on: it leads to the wire protocol, of which only `shoal.replies` is public.
INNER = {StoreConnection, EndStep}


@cache
def namespace(module: ModuleType) -> dict[str, Any]:
    """A module's names, those included that it imports for type checkers alone."""
    names = dict(vars(module))
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            exec(compile(ast.Module(node.body, []), str(module.__file__), "exec"), names)
    return names


def classes_in(hint: Any) -> Iterator[type]:
    """The classes that an annotation mentions."""
    if isinstance(hint, list | tuple):
        for part in hint:
            yield from classes_in(part)
    if isinstance(hint, type):
        yield hint
    yield from classes_in(typing.get_args(hint)) if typing.get_args(hint) else ()
    origin = typing.get_origin(hint)
    if isinstance(origin, type):
        yield origin


def given_by(found: type) -> Iterator[tuple[str, type]]:
    """What the public methods, properties and fields of a class give, by name."""
    for base in found.__mro__:
        if not base.__module__.startswith("shoal."):
            continue
        names = namespace(sys.modules[base.__module__])
        for name, member in vars(base).items():
            method = getattr(base, name) if isinstance(member, of_part) else member
            function = getattr(method, "fget", None) or getattr(method, "__func__", method)
            if inspect.isfunction(function) and (not name.startswith("_") or name in PROTOCOLS):
                for given in classes_in(
                    typing.get_type_hints(function, namespace(sys.modules[function.__module__])).get("return")
                ):
                    yield name, given
        fields = {name: hint for name, hint in vars(base).get("__annotations__", {}).items() if not name.startswith("_")}
        for name, hint in fields.items():
            for given in classes_in(eval(hint, names) if isinstance(hint, str) else hint):
                yield name, given


def test_every_object_that_a_public_method_returns_has_a_public_type() -> None:
    named = {found for module in (public, replies, shoal.errors) for found in vars(module).values() if isinstance(found, type)}
    roots = [found for name in public.__all__ if isinstance(found := getattr(public, name), type)]
    todo, seen, hidden = deque([("", root) for root in roots]), set(INNER), list[str]()
    while todo:
        way, found = todo.popleft()
        if found in seen or not found.__module__.startswith("shoal."):
            continue
        seen.add(found)
        if found not in named:
            hidden.append(f"{way} gives {found.__module__}.{found.__name__}")
        todo += [(f"{way}.{found.__name__}.{name}".lstrip("."), given) for name, given in given_by(found)]
    assert hidden == []


@pytest.mark.parametrize("module", [public, replies], ids=lambda module: module.__name__)
def test_the_list_names_all_that_is_imported(module: ModuleType) -> None:
    tree = ast.parse(inspect.getsource(module))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module != "__future__"]
    assert set(module.__all__) == {alias.asname or alias.name for node in imports for alias in node.names}


def test_every_name_is_there_from_shoal_itself() -> None:
    assert all(getattr(shoal, name) is getattr(public, name) for name in public.__all__)


def test_a_type_checker_sees_the_names(tmp_path: Path) -> None:
    """With the cache of `make check`, without which a type checker takes as long as a hundred other tests."""
    written = tmp_path / "agent.py"
    written.write_text(
        "import shoal\n\n\n"
        "async def work(store: shoal.Store, thread: shoal.Thread) -> shoal.Checkpoint:\n"
        "    space: shoal.Space = store.space('crew')\n"
        "    document: shoal.Document = await space.document('plan')\n"
        "    counter: shoal.Counter = space.counter('n')\n"
        "    register: shoal.Register = space.register('r')\n"
        "    await counter.add(1)\n"
        "    try:\n"
        "        return await thread.save({'names': [document.name, register.name]})\n"
        "    except shoal.errors.Retryable:\n"
        "        raise\n\n\n"
        "reveal_type(shoal.open)\n"
        "reveal_type(shoal.Thread.save)\n"
    )
    checker = [sys.executable, "-m", "mypy", "--strict", str(written)]
    ended = subprocess.run(checker, capture_output=True, text=True, check=False, cwd=Path(__file__).parent.parent)
    # What it finds in Shoal itself depends on the packages that are installed, and is the business of `make check`.
    assert not [line for line in ended.stdout.splitlines() if line.startswith(f"{written}:") and ": error:" in line]
    assert "-> shoal.opening.Opening" in ended.stdout
