"""JSON Patch (RFC 6902) as CRDT operations on a document.

Laws:
- All or nothing: the operations run on a copy; a failure leaves no trace.
- Objects that a patch does not name stay the same, so concurrent edits of
  them merge. A value that it replaces is edited in place if possible (`shoal.kinds.document.state.editing`).
- Objects and arrays become shared maps and arrays, at every level; a plain one
  becomes shared once something within it is written.
- Each value that an operation reads, to copy, move or test it or to pass through it, is charged to the patch
  (`shoal.values.work`), so that its cost does not follow from what its operations make of each other.
- XML is patched in its shown form (`shoal.kinds.document.state.content`), and then edited in place to match, by
  as little as possible. Between the operations it need not be valid XML.

The first segment of a pointer (RFC 6901) names a root, which `add` declares: an
object as a map, an array as an array, a string as a text. Roots exist forever:
removing one empties it. The whole document (the pointer "") can be tested, but not
written. A move is a removal and an addition, so the moved value becomes a new object.
Values are JSON as `shoal.values.from_json` reads it: plain ones and bytes.
Integers past ±(2⁵³ − 1) are refused, because the engine would round them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pycrdt

from shoal import values
from shoal.errors import Conflict, InvalidValue, ShoalError, TooLarge
from shoal.kinds.document.shared.plain import check_text, fail
from shoal.kinds.document.state.content import check_kind, open_root, to_py
from shoal.kinds.document.state.document import RootKind
from shoal.kinds.document.state.editing import NOTHING, Edited, Editor, Turn, kind_of, on_copy, read_json
from shoal.kinds.document.state.live import LiveDocument
from shoal.kinds.document.state.markup import equal
from shoal.names import check_name

OPERATIONS_MAX = 1000

_MEMBERS = {
    "add": {"value"},
    "remove": set[str](),
    "replace": {"value"},
    "move": {"from"},
    "copy": {"from"},
    "test": {"value"},
}


def patch(document: LiveDocument, packed: bytes, *, client_id: int) -> Edited:
    """Turn a JSON Patch into one update of `document`, which stays as it is.

    `client_id` as in `shoal.kinds.document.state.editing.on_copy`.

    Raises:
        InvalidValue: it is no JSON Patch, or an operation's target does not exist; the text names the operation.
        Conflict: a `test` failed.
        RootConflict: a root exists as another kind.
        TooLarge: it has more than `OPERATIONS_MAX` operations, puts more than `VALUES_MAX` values, or reads more than it may.
    """
    operations = _parse(packed)

    def edit(doc: pycrdt.Doc[Any], turn: Turn) -> dict[str, RootKind]:
        patching = _Patching(doc, document.roots, Editor(turn=turn, walk=document.walk()))
        for index, operation in enumerate(operations):
            try:
                patching.run(operation)
            except ShoalError as error:
                where = f"operation {index} ({operation['op']} {operation['path'][:80]!r})"
                raise type(error)(_refused(where, error), index=index) from None
        patching.finish()
        return patching.declared

    return on_copy(document, edit, client_id=client_id)


class _Patching:
    def __init__(self, doc: pycrdt.Doc[Any], kinds: Mapping[str, RootKind], editor: Editor) -> None:
        self._doc = doc
        self._kinds = dict(kinds)
        self.declared: dict[str, RootKind] = {}
        self._values = editor
        self._xml: dict[str, Any] = {}  # The wanted content of the XML roots that were read or written.

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
                if not equal(self._read(path), operation["value"]):
                    raise Conflict("the existing value differs")

    def finish(self) -> None:
        """Edit the XML roots into their wanted content.

        Raises:
            InvalidValue: that is no XML.
        """
        for name, wanted in self._xml.items():
            try:
                self._values.fill(open_root(self._doc, name, "xml"), wanted)
            except InvalidValue as error:
                raise InvalidValue(_refused(f"the root {name[:80]!r}", error)) from None

    def _add(self, path: list[str], value: Any) -> None:
        if len(path) < 2:
            self._add_root(path, value)
            return
        parent, token = self._container(path[:-1]), path[-1]
        if isinstance(parent, pycrdt.Map):
            self._values.check(value)
            self._values.place(parent, check_text(token), value)
        elif isinstance(parent, pycrdt.Array):
            self._values.check(value)
            self._values.spend_beside(len(parent), [value])
            self._values.place(parent, _index(token, len(parent), end=True), value, insert=True)
        else:
            self._values.count(value)
            if isinstance(parent, dict):
                parent[check_text(token)] = value
            else:
                parent.insert(_index(token, len(parent), end=True), value)

    def _remove(self, path: list[str]) -> None:
        self._find(path)
        if len(path) < 2:
            self._fill(path[0], NOTHING[self._kind(path)])
            return
        parent, token = self._container(path[:-1]), path[-1]
        if isinstance(parent, pycrdt.Array):
            self._values.walk.to_element()
            self._values.walk.listed += 2  # What it is in may be cut in three.
        del parent[_key(parent, token)]

    def _replace(self, path: list[str], value: Any) -> None:
        self._find(path)
        if len(path) < 2:
            self._add_root(path, value)
            return
        parent, token = self._container(path[:-1]), path[-1]
        key = _key(parent, token)
        self._values.check(value)
        if isinstance(parent, dict | list):
            parent[key] = value
        else:
            self._values.put(parent, key, value)

    def _move(self, source: list[str], path: list[str]) -> None:
        value = self._read(source)
        if source == path:
            return
        if path[: len(source)] == source:
            fail("a value cannot move into itself")
        self._remove(source)
        self._add(path, value)

    def _add_root(self, path: list[str], value: Any) -> None:
        if not path:
            fail("the whole document cannot be written, only its roots")
        name, kind = path[0], kind_of(path[0], value, self._kinds.get(path[0]))
        if name not in self._kinds:
            check_name("document root", name)
            self.declared[name] = self._kinds[name] = kind
        check_kind(name, kind, self._kinds[name])
        self._fill(name, value)

    def _fill(self, name: str, value: Any) -> None:
        """Make a root's content `value`; equal parts are left alone."""
        self._values.check(value)
        if self._kinds[name] == "xml":
            self._xml[name] = to_py(value)
        else:
            self._values.fill(open_root(self._doc, name, self._kinds[name]), value)

    def _root(self, name: str) -> Any:
        if self._kinds[name] != "xml":
            return open_root(self._doc, name, self._kinds[name])
        if name not in self._xml:
            self._xml[name] = to_py(open_root(self._doc, name, "xml"), self._values.told)
        return self._xml[name]

    def _read(self, path: list[str]) -> Any:
        """The value at `path`, as plain Python."""
        walk = self._values.told
        found = to_py(self._find(path), walk) if path else {name: to_py(self._root(name), walk) for name in self._kinds}
        self._values.allowance.charge(found)
        return found

    def _find(self, path: list[str]) -> Any:
        self._kind(path)
        found = self._root(path[0])
        for token in path[1:]:
            found = self._step(found, token)
        return found

    def _step(self, container: Any, token: str) -> Any:
        """One step along a path. The engine copies the value that it leads to, unless it is a shared type."""
        if isinstance(container, pycrdt.Array):
            self._values.walk.to_element()
        found = _step(container, token)
        if isinstance(container, pycrdt.Map | pycrdt.Array) and isinstance(found, dict | list | str | bytes | bytearray):
            self._values.allowance.charge(found)
        return found

    def _container(self, path: list[str]) -> Any:
        """The shared map or array at `path`; plain ones on the way become shared. In XML, the plain one."""
        in_xml = self._kind(path) == "xml"
        found = self._root(path[0])
        for token in path[1:]:
            inside = self._step(found, token)
            if isinstance(inside, dict | list) and not in_xml:
                key = _key(found, token)
                self._values.place(found, key, to_py(inside))
                inside = found[key]
            found = inside
        if not isinstance(found, pycrdt.Map | pycrdt.Array) and not (in_xml and isinstance(found, dict | list)):
            fail("it points into a value that is neither an object nor an array")
        return found

    def _kind(self, path: list[str]) -> RootKind:
        if not path:
            fail("the whole document cannot be written, only its roots")
        if path[0] not in self._kinds:
            fail(f"there is no root {path[0][:80]!r}")
        return self._kinds[path[0]]


def _refused(where: str, error: ShoalError) -> str:
    """The text of an error with its place in front, and once that nothing was written."""
    return f"{where}: {error.message.replace(' Nothing was written.', '').rstrip('.')}. Nothing was written."


def _parse(packed: bytes) -> list[dict[str, Any]]:
    operations = read_json(packed, "the patch")
    if not isinstance(operations, list):
        raise InvalidValue("a JSON Patch must be an array of operations. Nothing was written.")
    if len(operations) > OPERATIONS_MAX:
        raise TooLarge(f"the patch has {len(operations)} operations; {OPERATIONS_MAX} are allowed. Nothing was written.")
    return [_operation(index, operation) for index, operation in enumerate(operations)]


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
        fail('a pointer begins with "/"')
    tokens = pointer.split("/")[1:]
    if any("~" in token.replace("~0", "").replace("~1", "") for token in tokens):
        fail('in a pointer "~" stands only before 0 or 1')
    return [token.replace("~1", "/").replace("~0", "~") for token in tokens]


def _step(container: Any, token: str) -> Any:
    if isinstance(container, pycrdt.Map | dict):
        if token not in container:
            fail(f"there is no {token[:80]!r}")
        return container[token]
    if not isinstance(container, pycrdt.Array | list):
        fail("it points into a value that is neither an object nor an array")
    return container[_index(token, len(container))]


def _key(container: Any, token: str) -> Any:
    return token if isinstance(container, pycrdt.Map | dict) else _index(token, len(container))


def _index(token: str, length: int, *, end: bool = False) -> int:
    """An array index. With `end` it may be one past the last, or "-"."""
    if end and token == "-":
        return length
    if not (token.isascii() and token.isdigit()) or (token[0] == "0" and token != "0") or len(token) > 10:
        fail(f"{token[:80]!r} is no array index")
    if int(token) >= length + end:
        fail(f"index {token} is out of range: the array has {length} elements")
    return int(token)
