"""The parts of each write that rules of redaction see, field by field: the one table of it.

Laws:
- Every field of every request that is stored or shown to others has a treatment. What a field holds follows from its type; what
  does not is named here, and a request with a field that has none is refused.
- What refers to something else is never replaced: a name, a key or an id that a rule finds refuses the write. One that only
  removes may name it, so that it can be removed.
- What is compared with what is stored is replaced as that was: the expected value of a compare-and-set, removed elements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Protocol, Union, get_args, get_origin

import msgspec
from msgspec import structs

from shoal.crdt.deletion import is_made
from shoal.errors import InvalidValue, RedactionRefused, ShoalError
from shoal.kinds.redaction.state import packed
from shoal.protocol import requests
from shoal.protocol.base import ObjectWrite, Request, Shape, declaration_of
from shoal.protocol.requests.families import operations
from shoal.values.codec import LANGGRAPH


class Look(packed.Rewriter, Protocol):
    """A rewriter, and whether files are taken."""

    files: bool


Treatment = Callable[[Look, Any, str], Any]
"""Takes a field's value and its place, and returns the value that is stored.

Raises:
    RedactionRefused: it holds what cannot be replaced.
"""

_decode, _encode = msgspec.msgpack.decode, msgspec.msgpack.encode


def _value(look: Look, value: bytes, path: str, *, foreign: bool = False) -> bytes:
    if not value or not packed.hits(value, look):
        return value
    return packed.rewritten(value, look, path, foreign=foreign)


def _values(look: Look, given: list[bytes], path: str) -> list[bytes]:
    return [_value(look, each, f"{path}/{place}") for place, each in enumerate(given)]


def _text(look: Look, text: str, path: str) -> str:
    made = look.replaced(text.encode(), lambda: path) if text else None
    return text if made is None else made.decode()


def _name(look: Look, name: str | None, path: str) -> str | None:
    if name and look.hits(name.encode()) and look.replaced(name.encode(), lambda: path) is not None:
        raise RedactionRefused(
            f"{path} is a name, and holds what a rule of the space replaces. Nothing was written. Give it another name: "
            "others find the object by it, so it is not replaced.",
            path=path,
        )
    return name


def _key(look: Look, key: str | None, path: str) -> str | None:
    return key if key is not None and is_made(key) else _name(look, key, path)


def _names(look: Look, names: Any, path: str) -> Any:
    for each in names.values() if isinstance(names, Mapping) else names:
        _name(look, each, path)
    return names


def _keys_of(look: Look, named: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    for name in named:
        _name(look, name, path)
    return named


def _channels(look: Look, channels: Mapping[str, bytes], path: str, *, foreign: bool = False) -> dict[str, bytes]:
    _keys_of(look, channels, path)
    return {name: _value(look, value, f"{path}/{name}", foreign=foreign) for name, value in channels.items()}


def _json(look: Look, text: bytes, path: str) -> bytes:
    if not text:
        return text
    value = _json_packed(text)
    made = _value(look, value, path)
    return text if made == value else msgspec.json.encode(_decode(made))


def _json_packed(text: bytes) -> bytes:
    try:
        return _encode(msgspec.json.decode(text))
    except (msgspec.MsgspecError, RecursionError, UnicodeError, OverflowError, ValueError) as error:
        raise InvalidValue(
            f"this JSON cannot be looked through for what the rules of the space replace: {str(error)[:200]}. Nothing was "
            "written. Correct it."
        ) from None


def _fixed_json(look: Look, text: bytes, path: str) -> bytes:
    if _json(look, text, path) != text:
        raise RedactionRefused(
            f"{path} holds what a rule of the space replaces. Nothing was written. Leave it out: this is not replaced, because "
            "its meaning would change.",
            path=path,
        )
    return text


def _patch(look: Look, text: bytes, path: str) -> bytes:
    """A JSON Patch: the values that it sets. Its paths are names."""
    changes = _decode(_json_packed(text))
    if not isinstance(changes, list) or not all(isinstance(each, dict) for each in changes):
        return _json(look, text, path)  # It is refused later, or here.
    made, altered = [], False
    for place, change in enumerate(changes):
        for name, part in change.items():
            if name != "value":
                _value_stays(look, part, f"{path}/{place}/{name}")
        value = _encode(change["value"]) if "value" in change else b""
        new = _value(look, value, f"{path}/{place}/value")
        altered = altered or new != value
        made.append(change if new == value else change | {"value": _decode(new)})
    return msgspec.json.encode(made) if altered else text


def _value_stays(look: Look, value: Any, path: str) -> None:
    stored = _encode(value)
    if _value(look, stored, path) != stored:
        raise _stays(path)


def _update(look: Look, update: bytes, path: str) -> bytes:
    """An update of a Yjs document: its texts, values and names. It cannot be rewritten."""
    from shoal.kinds.document.state import structs as yjs  # With the first document: most stores have none.

    try:
        items = yjs.walk(update).items
    except (ShoalError, ValueError, KeyError, IndexError):
        items = []  # It is refused later.
    parts: list[Any] = []
    for item in items:
        held = item.held or ()
        parts += (each for each in (item.parent, item.key) if isinstance(each, str))
        parts += ("".join(held),) if held and all(isinstance(each, str) and len(each) == 1 for each in held) else held
    stored = _encode(parts, enc_hook=str)
    if _value(look, stored, path) != stored or look.matches(update):
        raise _stays(path)
    return update


def _updates(look: Look, updates: list[bytes], path: str) -> list[bytes]:
    return [_update(look, each, f"{path}/{place}") for place, each in enumerate(updates)]


def _stays(path: str) -> RedactionRefused:
    return RedactionRefused(
        f"{path} holds what a rule of the space replaces, and an edit of a document cannot be replaced on its way. Nothing was "
        "written. Take the edit back, and make it without that.",
        path=path,
    )


def _file(look: Look, content: Any, path: str) -> Any:
    if look.files:
        return content
    raise RedactionRefused(
        "the space has rules of redaction, and nothing looks into files. Nothing was written. Put the file into another space, "
        "or let the rules take files: `shoal redaction set … --files`.",
        path=path,
    )


def _notes(look: Look, notes: list[Any], path: str) -> list[Any]:
    made = []
    for place, note in enumerate(notes):
        if look.matches(note.name):
            raise RedactionRefused(f"the name of a note holds what a rule replaces. Nothing was written. ({path})", path=path)
        made.append(structs.replace(note, value=_value(look, note.value, f"{path}/{place}", foreign=True)))
    return made


def _items(look: Look, items: list[Any], path: str) -> list[Any]:
    made = []
    for place, item in enumerate(items):
        _name(look, item.key, f"{path}/{place}/key")
        made.append(structs.replace(item, value=_value(look, item.value, f"{path}/{place}/value")))
    return made


def _plan(look: Look, plan: Any, path: str) -> Any:
    if plan is not None:
        _name(look, plan.group, f"{path}/group")
    return plan


def _entries(look: Look, entries: list[Any], path: str) -> list[Any]:
    return [structs.replace(each, state=_json(look, each.state, f"{path}/{nth}")) for nth, each in enumerate(entries)]


def _as_it_is(_look: Look, value: Any, _path: str) -> Any:
    return value


_TEXTS = frozenset({"reason"})
_IDS = frozenset(
    {
        *("parent", "expect_head", "expect", "token", "owner", "id", "element", "elements", "before_id", "after_id", "sha256"),
        *("checkpoints", "merged", "to", "event", "node", "reclaimed", "removed"),
    }
)
"""Fields with ids that nodes and clients made, or that must be there already: they are compared, not stored."""

_AUTHORS = frozenset({"by", "author", "authors", "holder"})

_NAMED: Mapping[tuple[str, str], Treatment] = {
    ("Save", "channels"): _channels,
    ("Save", "appended"): _channels,
    ("Save", "metadata"): _value,
    ("Save", "setting"): _value,
    ("Save", "seen"): _as_it_is,
    ("Save", "schema"): _name,
    ("Annotate", "notes"): _notes,
    ("Ack", "consumer"): _name,
    ("Append", "key"): _key,
    ("Add", "key"): _key,
    ("Grant", "key"): _key,
    ("Spend", "key"): _key,
    ("Begin", "content"): _json,
    ("Replace", "content"): _json,
    ("Patch", "patch"): _patch,
    ("Update", "update"): _update,
    ("Update", "beginning"): _as_it_is,
    ("Updates", "updates"): _updates,
    ("RestoreBeginning", "digest"): _as_it_is,
    ("RestoreBeginning", "update"): _update,
    ("RestoreBeginning", "deletions"): _update,
    ("Update", "roots"): _keys_of,
    ("RestoreBeginning", "roots"): _keys_of,
    ("BeginStep", "arguments"): _value,
    ("BeginStep", "attempt"): _key,
    ("BeginStep", "parent"): _name,
    ("EndStep", "attempt"): _as_it_is,
    ("ProgressStep", "attempt"): _as_it_is,
    ("PutSchema", "json"): _fixed_json,
    ("KeepChunks", "chunks"): _file,
    ("NameFile", "manifest"): _file,
    ("NameFile", "chunks"): _file,
    ("PutFile", "manifest"): _file,
    ("PutFile", "chunks"): _file,
    ("DropFiles", "contents"): _as_it_is,
    ("DropFiles", "uploads"): _as_it_is,
    ("DiscardItems", "after"): _as_it_is,
    ("TrimEvents", "before"): _as_it_is,
    ("TrimEvents", "cursor"): _as_it_is,
    ("TrimEvents", "after"): _as_it_is,
    ("RefreshItems", "paths"): _as_it_is,
    ("Enqueue", "items"): _items,
    ("Enqueue", "plan"): _plan,
    ("Announce", "entries"): _entries,
    ("EndLease", "to"): _name,
    ("SetRetention", "thread"): _name,  # It frees room, and the name stays.
}

_SHOWN = (requests.Announce, requests.AcquireLease, requests.ClaimItem, requests.EndLease, requests.ReleaseLease)
"""Requests that are no writes, and whose content others see."""
_OPAQUE = (Shape.CURSOR, Shape.VECTOR, Shape.INTERNAL)


def _treatment(kind: type[Request[Any]], field: structs.FieldInfo) -> Treatment:
    known = _NAMED.get((kind.__name__, field.name))
    if known is not None:
        return known
    if field.name in _TEXTS and field.type is str:
        return _text
    made = _of_type(field.type)
    if made is None and field.name not in _IDS:
        raise TypeError(f"no treatment for {kind.__name__}.{field.name}: name it in {__name__}")
    is_name = made in (None, _name, _names)
    if is_name and (field.name in _IDS or (declaration_of(kind).frees and field.name not in _AUTHORS)):
        return _as_it_is
    return made or _as_it_is


def _of_type(annotation: Any) -> Treatment | None:
    marks: tuple[Any, ...] = ()
    if get_origin(annotation) is Annotated:
        annotation, *rest = get_args(annotation)
        marks = tuple(rest)
    if Shape.VALUE in marks:
        return _value
    if any(mark in _OPAQUE for mark in marks) or annotation in (int, bool, float) or get_origin(annotation) is Literal:
        return _as_it_is
    if annotation is str:
        return _name
    arguments = get_args(annotation)
    if get_origin(annotation) in (Union, UnionType):
        kinds = {_of_type(each) for each in arguments if each is not NoneType}
        return kinds.pop() if len(kinds) == 1 else None
    if get_origin(annotation) is list:
        return {_value: _values, _name: _names, _as_it_is: _as_it_is}.get(_of_type(arguments[0]))  # type: ignore[arg-type]
    if get_origin(annotation) is dict and arguments[1] is str:
        return _names
    return None


@cache
def treatments(kind: Any) -> Mapping[str, Treatment]:
    """The treatments of the fields of a request, by name; those that stay as they are are left out."""
    found = {field.name: _treatment(kind, field) for field in structs.fields(kind) if field.name != "space"}
    return {name: treatment for name, treatment in found.items() if treatment is not _as_it_is}


def _treatments_of(request: Any) -> Mapping[str, Treatment]:
    kind: Any = type(request)
    return treatments(kind)


CONCERNED = frozenset((*operations(ObjectWrite), requests.PutFile, *_SHOWN))
"""The kinds of requests that are looked at, beside those that hold several. Other maintenances only remove."""
_CONTENTS = frozenset({_value, _values, _channels, _json, _patch, _text, _notes, _items, _entries})


def redacted(request: Any, look: Look, path: str = "") -> Any:
    """A write as it is stored.

    Raises:
        RedactionRefused: something in it cannot be replaced.
        RedactionFailed: looking takes too long.
        InvalidValue: it holds what is no value.
    """
    changes: dict[str, Any] = {}
    is_foreign = type(request) is requests.Save and request.schema == LANGGRAPH
    for name, treatment in _treatments_of(request).items():
        given = getattr(request, name)
        if is_foreign and name in ("channels", "appended"):
            made: Any = _channels(look, given, f"{path}/{name}", foreign=True)
        else:
            made = treatment(look, given, f"{path}/{name}")
        if made != given:
            changes[name] = made
    return structs.replace(request, **changes) if changes else request


def check_key(key: str | None, look: Look) -> None:
    """Check the idempotency key of a write.

    Raises:
        RedactionRefused: a user chose it, and a rule finds something in it.
    """
    _key(look, key, "the idempotency key")


def without_contents(write: Any) -> Any:
    """A write without what rules may replace: what is left says nothing of it."""
    empty = {name: None for name, treatment in _treatments_of(write).items() if treatment in _CONTENTS}
    return structs.replace(write, **empty)
