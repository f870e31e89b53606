"""JSON Patch (RFC 6902) as CRDT operations on a document.

Laws:
- All or nothing: the operations run on a copy; a failure leaves no trace.
- What a patch does not name stays the same object, so that concurrent edits of
  it merge. A root is never created anew: replacing it edits its content in
  place, and a text is edited by the shortest splice (what stands before and
  after the change is kept).
- Objects and arrays become shared maps and arrays, at every level; a plain one
  becomes shared once something within it is written.

A pointer's (RFC 6901) first segment names a root, which `add` declares: an
object as a map, an array as an array, a string as a text. Roots are for ever:
removing one empties it. The whole document (the pointer "") can be tested, not
written. A move is a removal and an addition: what moves becomes a new object.
Values are JSON as `shoal.values.from_json` reads it: plain ones and bytes.
Integers past ±(2⁵³ − 1) are refused, since the engine would round them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import pycrdt

from shoal import values
from shoal.crdt.document import EMPTY, EXACT_INTEGER_MAX, LiveDocument, RootKind, check_kind, open_root, to_py
from shoal.crdt.yjs import VALUE_DEPTH_MAX
from shoal.errors import Conflict, InvalidValue, ShoalError, TooLarge
from shoal.names import check_name

OPERATIONS_MAX = 1000
# Values that one patch may put, nested ones counted: the engine finds an array's index by walking it, so
# that an array of 10,000 takes 0.6 s and one of 20,000 takes 2 s. Copies count, for they could double at each step.
VALUES_MAX = 10_000

_MEMBERS = {
    "add": {"value"},
    "remove": set[str](),
    "replace": {"value"},
    "move": {"from"},
    "copy": {"from"},
    "test": {"value"},
}


class Patched(NamedTuple):
    """What to issue: a Yjs update (`EMPTY` if nothing changed), and the roots that it is the first to use."""

    update: bytes
    roots: dict[str, RootKind]


def patch(document: LiveDocument, packed: bytes, *, client_id: int) -> Patched:
    """Turn a JSON Patch into one update of `document`, which stays as it is.

    `client_id` must never have been used before.

    Raises:
        InvalidValue: it is no JSON Patch, or an operation's target is not there; the text names the operation.
        Conflict: a `test` failed.
        RootConflict: a root exists as another kind.
        TooLarge: it has more than `OPERATIONS_MAX` operations, or puts more than `VALUES_MAX` values.
    """
    operations = _parse(packed)
    doc = document.fork(client_id=client_id)
    updates: list[bytes] = []
    doc.observe(lambda event: updates.append(event.update))
    editor = _Editor(doc, document.roots)
    with doc.transaction():
        for index, operation in enumerate(operations):
            try:
                editor.run(operation)
            except ShoalError as error:
                where = f"operation {index} ({operation['op']} {operation['path'][:80]!r})"
                raise type(error)(f"{where}: {error.message.rstrip('.')}. Nothing was written.", index=index) from None
    return Patched(updates[0] if updates else EMPTY, editor.declared)


class _Editor:
    def __init__(self, doc: pycrdt.Doc[Any], kinds: Mapping[str, RootKind]) -> None:
        self._doc = doc
        self._kinds = dict(kinds)
        self.declared: dict[str, RootKind] = {}
        self._values_left = VALUES_MAX

    def run(self, operation: Mapping[str, Any]) -> None:
        path = _tokens(operation["path"])
        match operation["op"]:
            case "add":
                self._add(path, operation["value"])
            case "remove":
                self._remove(path)
            case "replace":
                self._replace(path, operation["value"])
            case "move":
                self._move(_tokens(operation["from"]), path)
            case "copy":
                self._add(path, self._read(_tokens(operation["from"])))
            case _:
                if not _equal(self._read(path), operation["value"]):
                    raise Conflict("the value there is another")

    def _add(self, path: list[str], value: Any) -> None:
        if len(path) < 2:
            self._add_root(path, value)
            return
        parent, token = self._container(path[:-1]), path[-1]
        if isinstance(parent, pycrdt.Map):
            parent[_key(token)] = self._shared(value)
        else:
            parent.insert(_index(token, len(parent), end=True), self._shared(value))

    def _remove(self, path: list[str]) -> None:
        self._find(path)
        if len(path) < 2:
            kind = self._kind(path)
            self._fill(path[0], {"map": {}, "array": [], "text": ""}[kind])
            return
        parent, token = self._container(path[:-1]), path[-1]
        del parent[token if isinstance(parent, pycrdt.Map) else _index(token, len(parent))]

    def _replace(self, path: list[str], value: Any) -> None:
        self._find(path)
        if len(path) < 2:
            self._add_root(path, value)
            return
        parent, token = self._container(path[:-1]), path[-1]
        key = token if isinstance(parent, pycrdt.Map) else _index(token, len(parent))
        if isinstance(parent[key], pycrdt.Text) and isinstance(value, str):
            _splice_text(parent[key], value)
        else:
            parent[key] = self._shared(value)

    def _move(self, source: list[str], path: list[str]) -> None:
        value = self._read(source)
        if source == path:
            return
        if path[: len(source)] == source:
            _fail("a value cannot move into itself")
        self._remove(source)
        self._add(path, value)

    def _add_root(self, path: list[str], value: Any) -> None:
        if not path:
            _fail("the whole document cannot be written, only its roots")
        name, kind = path[0], _kind_of(value)
        if name not in self._kinds:
            check_name("document root", name)
            self.declared[name] = self._kinds[name] = kind
        check_kind(name, kind, self._kinds[name])
        self._fill(name, value)

    def _fill(self, name: str, value: Any) -> None:
        """Make a root's content `value`, and leave alone what is equal."""
        root = open_root(self._doc, name, self._kinds[name])
        if isinstance(root, pycrdt.Text):
            _splice_text(root, value)
        elif isinstance(root, pycrdt.Array):
            self._splice_array(root, value)
        else:
            for key in [key for key in root.keys() if key not in value]:  # noqa: SIM118
                del root[key]
            for key, entry in value.items():
                if key not in root or not _equal(to_py(root[key]), entry):
                    root[_key(key)] = self._shared(entry)

    def _read(self, path: list[str]) -> Any:
        """What `path` points to, as plain Python."""
        if not path:
            return {name: to_py(open_root(self._doc, name, kind)) for name, kind in self._kinds.items()}
        return to_py(self._find(path))

    def _find(self, path: list[str]) -> Any:
        kind = self._kind(path)
        found = open_root(self._doc, path[0], kind)
        for token in path[1:]:
            found = _step(found, token)
        return found

    def _container(self, path: list[str]) -> Any:
        """The shared map or array at `path`; plain ones on the way become shared."""
        kind = self._kind(path)
        found = open_root(self._doc, path[0], kind)
        for token in path[1:]:
            inside = _step(found, token)
            if isinstance(inside, dict | list):
                key = token if isinstance(found, pycrdt.Map) else _index(token, len(found))
                found[key] = self._shared(to_py(inside))
                inside = found[key]
            found = inside
        if not isinstance(found, pycrdt.Map | pycrdt.Array):
            _fail("it points into a value that is neither an object nor an array")
        return found

    def _shared(self, value: Any, depth: int = 0) -> Any:
        """`value` ready to be put into the document: objects and arrays as shared types."""
        self._values_left -= 1
        if self._values_left < 0:
            raise TooLarge(f"the patch puts more than {VALUES_MAX} values; send it in parts")
        if depth > VALUE_DEPTH_MAX:
            _fail(f"a value is nested deeper than {VALUE_DEPTH_MAX}")
        if isinstance(value, list):
            return pycrdt.Array([self._shared(item, depth + 1) for item in value])
        if isinstance(value, dict):
            if not all(isinstance(key, str) for key in value):
                _fail("an object's keys must be strings")
            return pycrdt.Map({_key(key): self._shared(item, depth + 1) for key, item in value.items()})
        _check_plain(value)
        return value

    def _splice_array(self, array: pycrdt.Array[Any], wanted: list[Any]) -> None:
        held = to_py(array)
        before, after = _common(held, wanted)
        if before < len(held) - after:
            del array[before : len(held) - after]
        for index, item in enumerate(wanted[before : len(wanted) - after], before):
            array.insert(index, self._shared(item))

    def _kind(self, path: list[str]) -> RootKind:
        if not path:
            _fail("the whole document cannot be written, only its roots")
        if path[0] not in self._kinds:
            _fail(f"there is no root {path[0][:80]!r}")
        return self._kinds[path[0]]


def _parse(packed: bytes) -> list[dict[str, Any]]:
    try:
        operations = json.loads(packed, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"the patch is not JSON ({error}). Nothing was written.") from None
    if not isinstance(operations, list):
        raise InvalidValue("a JSON Patch is an array of operations. Nothing was written.")
    if len(operations) > OPERATIONS_MAX:
        raise TooLarge(f"the patch has {len(operations)} operations; {OPERATIONS_MAX} are allowed. Nothing was written.")
    return [_operation(index, operation) for index, operation in enumerate(operations)]


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _operation(index: int, operation: Any) -> dict[str, Any]:
    why = _malformed(operation)
    if why:
        raise InvalidValue(f"operation {index}: {why}. Nothing was written.", index=index)
    if "value" in operation:
        try:
            return {**operation, "value": values.from_json(operation["value"])}
        except ShoalError as error:
            raise InvalidValue(f"operation {index}: {error.message}", index=index) from None
    return dict(operation)


def _malformed(operation: Any) -> str | None:
    if not isinstance(operation, dict):
        return "it is not an object"
    if not isinstance(operation.get("op"), str) or operation["op"] not in _MEMBERS:
        return f'"op" must be one of {", ".join(_MEMBERS)}'
    for member in sorted({"path", *_MEMBERS[operation["op"]]}):
        if member not in operation:
            return f'"{member}" is missing'
        if member != "value" and not isinstance(operation[member], str):
            return f'"{member}" must be a string'
    return None


def _tokens(pointer: str) -> list[str]:
    """The segments of a JSON Pointer."""
    if pointer and not pointer.startswith("/"):
        _fail('a pointer begins with "/"')
    tokens = pointer.split("/")[1:]
    if any("~" in token.replace("~0", "").replace("~1", "") for token in tokens):
        _fail('in a pointer "~" stands only before 0 or 1')
    return [token.replace("~1", "/").replace("~0", "~") for token in tokens]


def _step(container: Any, token: str) -> Any:
    if isinstance(container, pycrdt.Map | dict):
        if token not in container:
            _fail(f"there is no {token[:80]!r}")
        return container[token]
    if not isinstance(container, pycrdt.Array | list):
        _fail("it points into a value that is neither an object nor an array")
    return container[_index(token, len(container))]


def _index(token: str, length: int, *, end: bool = False) -> int:
    """An array index; one past the end (or "-") only where `end` allows it."""
    if end and token == "-":
        return length
    if not (token.isascii() and token.isdigit()) or (token[0] == "0" and token != "0") or len(token) > 10:
        _fail(f"{token[:80]!r} is no array index")
    if int(token) >= length + end:
        _fail(f"index {token} is out of range: the array has {length}")
    return int(token)


def _key(token: str) -> str:
    try:
        token.encode()
    except UnicodeEncodeError:
        _fail("a key holds a lone surrogate")
    return token


def _kind_of(value: Any) -> RootKind:
    kinds: dict[type[Any], RootKind] = {dict: "map", list: "array", str: "text"}
    return kinds.get(type(value)) or _fail("a root is an object, an array or a string")


def _check_plain(value: Any) -> None:
    if isinstance(value, str):
        _key(value)
    elif isinstance(value, int) and abs(value) > EXACT_INTEGER_MAX:
        _fail("an integer past ±(2⁵³ − 1) would be rounded; store it as a string")
    elif value is not None and not isinstance(value, bool | int | float | bytes):
        _fail(f"a document cannot hold a {type(value).__name__}")


def _splice_text(text: pycrdt.Text, wanted: str) -> None:
    held = str(text)
    _key(wanted)
    before, after = _common(held, wanted)
    # The engine counts UTF-8 bytes, and an index within a character destroys what is around it.
    start, stop = (len(held[:end].encode()) for end in (before, len(held) - after))
    if start < stop:
        del text[start:stop]
    if before < len(wanted) - after:
        text.insert(start, wanted[before : len(wanted) - after])


def _common(held: Any, wanted: Any) -> tuple[int, int]:
    """How many items two sequences share at their beginning, and at their end besides."""
    most = min(len(held), len(wanted))
    before = next((i for i in range(most) if not _equal(held[i], wanted[i])), most)
    most -= before
    after = next((i for i in range(most) if not _equal(held[-1 - i], wanted[-1 - i])), most)
    return before, after


def _equal(one: Any, other: Any) -> bool:
    """Equality of JSON: numbers by value, true is not 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _fail(why: str) -> NoReturn:
    raise InvalidValue(why)
