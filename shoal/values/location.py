"""Say which part of a value cannot be serialised, and what to do about it.

Law: this runs only after an encoding failed, so it may be slow. It is iterative
and bounded, because the value may be a cycle or nest very deep.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from shoal.errors import InvalidValue
from shoal.records import NamedTuple
from shoal.values import arrays, registry
from shoal.values.forms import BY_CLASS

LISTS_DEPTH_MAX = 1024  # msgpack's own bound, in both directions.
_PATH_CHARACTERS_MAX = 300

# Shared parts are visited once per path to them, so their number can be exponential. This takes about a second.
_PARTS_MAX = 500_000


_MAPPINGS = (dict, OrderedDict, defaultdict, Counter)
_LISTS = (list, tuple, deque)


class _Part(NamedTuple):
    path: str
    value: Any


def explain(value: object, where: str, *, failure: Exception, pack: Callable[[Any], bytes]) -> InvalidValue:
    """The error for `value`, which `pack` refused with `failure`."""
    found = _search(value, where, pack)
    path, reason = found if found is not None else (where, f"cannot be serialised: {failure}.")
    if len(path) > _PATH_CHARACTERS_MAX:
        path = f"{path[: _PATH_CHARACTERS_MAX // 2]}…{path[-_PATH_CHARACTERS_MAX // 2 :]}"
    return InvalidValue(f"{path} {reason} Nothing was written.")


def _search(value: object, where: str, pack: Callable[[Any], bytes]) -> tuple[str, str] | None:
    """Path and reason of the first offending part, depth first."""
    stack: list[Iterator[_Part]] = [iter([_Part(where, value)])]
    above: list[_Part] = []  # The containers around the current part; stack[i + 1] walks above[i].
    for _ in range(_PARTS_MAX):
        try:
            part = next(stack[-1], None)
        except Exception as error:
            return above[-1].path, f"is a {_name(above[-1].value)} whose pack function failed: {error!r}."
        if part is None:
            stack.pop()
            if not above:
                return None
            above.pop()
        elif any(part.value is container.value for container in above):
            return part.path, "refers back to a value that contains it; a cycle cannot be serialised."
        elif len(stack) > LISTS_DEPTH_MAX:
            return part.path, f"is nested more than {LISTS_DEPTH_MAX} deep."
        elif _is_container(part.value):
            above.append(part)
            stack.append(_parts(part))
        elif reason := _leaf_problem(part.value, pack):
            return part.path, reason
    return None


def _is_container(value: Any) -> bool:
    return type(value) in (*_MAPPINGS, *_LISTS, set, frozenset) or registry.entry_of(type(value)) is not None


def _parts(whole: _Part) -> Iterator[_Part]:
    path, value = whole
    if type(value) in _MAPPINGS:
        for key, item in list(value.items()):
            yield _Part(f"a key of {path}", key)
            yield _Part(f"{path}[{_key_text(key)}]", item)
    elif type(value) in _LISTS:
        for index, item in enumerate(value):
            yield _Part(f"{path}[{index}]", item)
    elif type(value) in (set, frozenset):
        for item in list(value):
            yield _Part(f"an item of {path}", item)
    else:
        yield from _object_parts(whole)


def _object_parts(whole: _Part) -> Iterator[_Part]:
    entry = registry.entry_of(type(whole.value))
    assert entry is not None
    packed = entry.pack(whole.value)
    if type(packed) is dict:
        for name, item in packed.items():
            yield _Part(f"{whole.path}.{name}", item)
    else:
        yield _Part(whole.path, packed)


def _key_text(key: Any) -> str:
    return json.dumps(key, ensure_ascii=False) if type(key) is str else repr(key)[:80]


def _leaf_problem(leaf: Any, pack: Callable[[Any], bytes]) -> str | None:
    try:
        pack(leaf)
    except UnicodeEncodeError as error:
        return (
            f"is text with a lone surrogate (at {error.start}), which UTF-8 cannot hold; "
            'replace it: text.encode("utf-8", "replace").decode().'
        )
    except Exception as error:
        cls = type(leaf)
        if cls in BY_CLASS or arrays.form_of(cls) is not None:
            return f"is {_with_article(_name(leaf))} that cannot be serialised: {error}."
        if isinstance(leaf, FunctionType | BuiltinFunctionType | MethodType | ModuleType | type):
            return f"is {_with_article(_name(leaf))}, which cannot be stored. Store a name in its place."
        line = registry.registering_line(cls)
        return f"is {_with_article(_name(leaf))}, which is not registered. Register it once, at start: {line}."
    return None


def _with_article(name: str) -> str:
    return f"an {name}" if name[0] in "aeioAEIO" else f"a {name}"


def _name(value: Any) -> str:
    return registry.default_name(type(value)).removeprefix("builtins.")
