"""Write shoal/blocking.pyi, the types of the blocking face, from the source of the asynchronous handles.

`shoal.sync` wraps each handle in a proxy that runs every call on the store's loop. This module derives what such a
proxy offers: what one awaits is returned, `AsyncIterator` becomes `Iterator`, `async with` becomes `with`. The
handles are the classes of `shoal.client` that a `Store` leads to and that are no frozen values. Callbacks run on
the loop, so their parameters keep the asynchronous types.

Every name is written out with its module, so that the stub needs nothing but imports of modules.
"""

from __future__ import annotations

import ast
import builtins
import copy
import importlib
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from shoal import public
from shoal.client.store import Store
from shoal.protocol import requests
from shoal.protocol.requests import reply_of
from shoal.sync import is_handles, is_value

ROOT = Path(__file__).parent.parent
STUB = ROOT / "shoal" / "blocking.pyi"

HEADER = '''"""The types of what `shoal.sync` gives. Made by `python -m tests.reference`; it is a stub alone.

`shoal.sync` lends these names for annotations: `def work(thread: shoal.sync.Thread) -> None`.
"""
'''

_RENAMED = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
}
_KEPT = frozenset(("__getitem__", "__setitem__", "__delitem__", "__contains__", "__len__", "__bool__", "__iadd__", "__iter__"))
_UNWRAPPED = frozenset(("Awaitable", "Coroutine"))
_BLOCKING = {
    "AsyncIterator": "Iterator",
    "AsyncGenerator": "Iterator",
    "AsyncIterable": "Iterable",
    "AbstractAsyncContextManager": "contextlib.AbstractContextManager",
}


@cache
def _module(name: str) -> tuple[ModuleType, ast.Module]:
    module = importlib.import_module(name)
    return module, ast.parse(inspect.getsource(module))


@cache
def _imported(name: str) -> dict[str, tuple[str, str]]:
    """Which module each name of a module comes from, those included that are imported for types alone."""
    _, tree = _module(name)
    found: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update({alias.asname or alias.name: (alias.name, "") for alias in node.names})
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                found[alias.asname or alias.name] = (node.module, alias.name)
    return found


def _defined(module: str, name: str) -> tuple[str, str]:
    """The module in which a name that `module` uses is defined, and its name there."""
    while name in (imports := _imported(module) if module.startswith("shoal.") else {}):
        source, name = imports[name]
        if not name:
            return source, ""
        if not hasattr(importlib.import_module(source), name):
            return f"{source}.{name}", ""  # It is a module.
        if not source.startswith("shoal."):
            return source, name
        module = source
    return module, name


def _public_name(handle: type) -> str:
    """The name under which users know a class; its own, if they never name it."""
    names = [name for name in public.__all__ if getattr(public, name) is handle]
    return names[0] if names else handle.__name__


class _Blocking(ast.NodeTransformer):
    """Turns an annotation of `module` into that of the blocking face, and notes what it needs."""

    def __init__(self, stub: _Stub, module: str) -> None:
        self._stub = stub
        self._module = module
        self._in_callback = 0

    def visit_Name(self, node: ast.Name) -> ast.expr:
        module, name = _defined(self._module, node.id)
        if module == self._module and hasattr(builtins, node.id) and not hasattr(_module(module)[0], node.id):
            return node
        if not name:
            return self._stub.qualified(module, "")
        found = getattr(importlib.import_module(module), name)
        if inspect.isclass(found) and self._is_handle(found) and not self._in_callback:
            return ast.Name(self._stub.wanted(found))
        return self._stub.qualified(module, name)

    def _is_handle(self, found: type) -> bool:
        return is_handles(found.__module__) and not is_value(found) and not issubclass(found, dict)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        head = node.value.id if isinstance(node.value, ast.Name) else ""
        if head == "Literal":
            return ast.Subscript(self._stub.qualified("typing", "Literal"), node.slice)
        if head == "Callable":
            self._in_callback += 1
            inside = self.visit(node.slice)
            self._in_callback -= 1
            return ast.Subscript(self._stub.qualified("collections.abc", "Callable"), inside)
        if self._in_callback:
            return ast.Subscript(self.visit(node.value), self.visit(node.slice))
        if head in _UNWRAPPED:
            last = node.slice.elts[-1] if isinstance(node.slice, ast.Tuple) else node.slice
            return self.visit(last)  # type: ignore[no-any-return]
        if head in _BLOCKING:
            first = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
            module, _, name = f"collections.abc.{_BLOCKING[head]}".removeprefix("collections.abc.contextlib.").rpartition(".")
            blocking = self._stub.qualified(module or "contextlib", name)
            return ast.Subscript(blocking, self.visit(first))
        return ast.Subscript(self.visit(node.value), self.visit(node.slice))


class _Stub:
    def __init__(self) -> None:
        self._modules: set[str] = set()
        self._handles: dict[str, type] = {}  # By the name they have in the stub, in the order in which they are met.

    def qualified(self, module: str, name: str) -> ast.expr:
        self._modules.add(module)
        return ast.parse(f"{module}.{name}".rstrip("."), mode="eval").body

    def wanted(self, handle: type) -> str:
        name = _public_name(handle)
        other = self._handles.setdefault(name, handle)
        assert other is handle, f"{handle} and {other} have one name in the blocking face"
        return name

    def text(self) -> str:
        self.wanted(Store)
        written: dict[str, str] = {}
        while missing := [name for name in self._handles if name not in written]:
            written[missing[0]] = self._class(missing[0], self._handles[missing[0]])
        imports = [f"import {module}" for module in sorted(self._modules)]
        return "\n".join([HEADER, *imports, "", *(written[name] for name in sorted(written))])

    def _class(self, name: str, handle: type) -> str:
        lines: list[str] = []
        bases: list[str] = []
        seen: set[str] = set()
        for base in handle.__mro__:
            if base.__module__ == "typing" or not base.__module__.startswith("shoal."):
                continue
            tree = _class_of(base.__module__, base.__name__)
            if base is handle:
                generic = [each for each in tree.bases if isinstance(each, ast.Subscript)]
                bases = [ast.unparse(_Blocking(self, base.__module__).visit(each)) for each in generic]
            lines += [f"    {line}" for line in self._members(tree, base.__module__, set(seen), seen)]
        head = f"class {name}({', '.join(bases)}):" if bases else f"class {name}:"
        return "\n".join([head, *(lines or ["    ..."]), ""])

    def _members(self, tree: ast.ClassDef, module: str, taken: set[str], seen: set[str]) -> Iterator[str]:
        overloaded = {
            node.name
            for node in tree.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _has(node, "overload")
        }
        for node in tree.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield from self._attribute(node.target.id, node.annotation, module, taken, seen)
            elif isinstance(node, ast.Assign):
                yield from self._of_part(node, module, taken, seen)
                yield from self._batched(node, module, taken, seen)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if node.name == "__init__":
                    yield from self._assigned(node, module, taken, seen)
                    continue
                name = _RENAMED.get(node.name, node.name)
                if name in taken or (name.startswith("_") and name not in _KEPT and node.name not in _RENAMED):
                    continue
                if node.name in overloaded and not _has(node, "overload"):
                    continue
                seen.add(name)
                yield from self._function(node, name, module)

    def _of_part(self, assign: ast.Assign, module: str, taken: set[str], seen: set[str]) -> Iterator[str]:
        """A method that one of the handle's parts has: `heads = of_part("_branches", ThreadBranches.heads)`."""
        match assign:
            case ast.Assign(
                targets=[ast.Name(name)],
                value=ast.Call(func=ast.Name("of_part"), args=[_, ast.Attribute(value=ast.Name(part), attr=method)]),
            ) if name not in taken:
                assert name == method, f"{module}: {name} is {part}.{method}"
                source, _ = _defined(module, part)
                found = [node for node in _class_of(source, part).body if getattr(node, "name", "") == method]
                seen.add(name)
                assert len(found) == 1
                assert isinstance(found[0], ast.FunctionDef | ast.AsyncFunctionDef)
                yield from self._function(found[0], name, source)

    def _batched(self, assign: ast.Assign, module: str, taken: set[str], seen: set[str]) -> Iterator[str]:
        """A method of an object's handle in a batch: `add = batched(scalars.add_request, …)`."""
        match assign:
            case ast.Assign(
                targets=[ast.Name(name)], value=ast.Call(func=ast.Name("batched" | "batched_in_space" as of), args=[build, _])
            ) if name not in taken:
                seen.add(name)
                if isinstance(build, ast.Attribute):
                    assert isinstance(build.value, ast.Name)
                    source, function = getattr(_module(module)[0], build.value.id).__name__, build.attr
                else:
                    source, function = _defined(module, ast.unparse(build))
                found = next(node for node in _module(source)[1].body if getattr(node, "name", "") == function)
                assert isinstance(found, ast.FunctionDef)
                assert found.returns is not None
                copied = copy.deepcopy(found)
                copied.args.args = [ast.arg("self"), *copied.args.args[2 if of == "batched" else 1 :]]
                reply = reply_of(getattr(requests, ast.unparse(found.returns).removeprefix("requests.")))
                copied.returns = ast.parse(f"requests.{reply.__name__}", mode="eval").body
                [shown] = self._function(copied, name, source)
                pending = self.wanted(_module(module)[0].Pending)
                head, _, gives = shown.removesuffix(": ...").rpartition(" -> ")
                yield f"{head} -> {pending}[{gives}]: ..."

    def _attribute(self, name: str, annotation: ast.expr, module: str, taken: set[str], seen: set[str]) -> Iterator[str]:
        if name.startswith("_") or name in taken or name in seen:
            return
        seen.add(name)
        yield f"{name}: {ast.unparse(_Blocking(self, module).visit(annotation))}"

    def _assigned(
        self, init: ast.FunctionDef | ast.AsyncFunctionDef, module: str, taken: set[str], seen: set[str]
    ) -> Iterator[str]:
        """The public attributes that `__init__` makes: of a parameter's type, of the class it calls, or a checked name."""
        parameters = {each.arg: each.annotation for each in [*init.args.args, *init.args.posonlyargs, *init.args.kwonlyargs]}
        for node in ast.walk(init):
            target = (
                node.targets[0] if isinstance(node, ast.Assign) else node.target if isinstance(node, ast.AnnAssign) else None
            )
            if not (isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"):
                continue
            if target.attr.startswith("_"):
                continue
            annotation = node.annotation if isinstance(node, ast.AnnAssign) else _type_of(node.value, parameters)  # type: ignore[attr-defined]
            assert annotation is not None, f"{module}: annotate self.{target.attr}, which is public"
            yield from self._attribute(target.attr, annotation, module, taken, seen)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, name: str, module: str) -> Iterator[str]:
        for decorator in node.decorator_list:
            text = ast.unparse(decorator)
            if text in ("property", "staticmethod", "classmethod") or text.endswith(".setter"):
                yield f"@{text}"
            elif text == "overload":
                yield f"@{ast.unparse(self.qualified('typing', 'overload'))}"
        blocking = _Blocking(self, module)
        copied: Any = ast.parse(f"def copied({ast.unparse(node.args)}): ...").body[0]
        for each in [
            *copied.args.args,
            *copied.args.posonlyargs,
            *copied.args.kwonlyargs,
            copied.args.vararg,
            copied.args.kwarg,
        ]:
            if each is not None and each.annotation is not None:
                each.annotation = blocking.visit(each.annotation)
        copied.args.defaults = [_default(each) for each in copied.args.defaults]
        copied.args.kw_defaults = [None if each is None else _default(each) for each in copied.args.kw_defaults]
        gives = "None" if node.returns is None else ast.unparse(blocking.visit(node.returns))
        yield f"def {name}({ast.unparse(copied.args)}) -> {gives}: ..."


def _class_of(module: str, name: str) -> ast.ClassDef:
    return next(node for node in _module(module)[1].body if isinstance(node, ast.ClassDef) and node.name == name)


def _has(node: ast.FunctionDef | ast.AsyncFunctionDef, decorator: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == decorator for each in node.decorator_list)


def _type_of(value: ast.expr, parameters: dict[str, ast.expr | None]) -> ast.expr | None:
    if isinstance(value, ast.Name):
        return parameters.get(value.id)
    if isinstance(value, ast.Constant):
        return ast.Name(type(value.value).__name__)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return ast.Name("str") if value.func.id == "check_name" else value.func
    return None


def _default(value: ast.expr) -> ast.expr:
    return value if isinstance(value, ast.Constant) else ast.Constant(...)


def stub() -> str:
    return _Stub().text()
