"""The secret fields of a checkpoint, as JSON pointers into its state, and what follows from them for packed channels.

Laws:
- A field stays secret in all that is built on a checkpoint, whoever builds it. Only a whole state that is saved under a newer
  version of the same schema says anew what is secret: it holds no value that its author did not send.
- The placeholder of a hidden value is never saved in its place.

JSON pointers (RFC 6901) into a state: to take a field out, or to hide it.

A state is a dict of channels; the pointer's first part is the channel. A part `*`
stands for every key and index. A pointer that leads nowhere has no effect.
A pointer that leads into an object, a set or another value without keys hides the whole of it.
Arguments are never changed: the parts on the way are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from shoal.errors import InvalidInput
from shoal.records import NamedTuple
from shoal.values import tagged as hiding
from shoal.values.tagged import EVERY

POINTERS_MAX = 256
HIDDEN = "«secret»"


_GONE = object()
_LEAVES = (type(None), bool, int, float, complex, str, bytes)


def pointer(parts: Iterable[object]) -> str:
    """The pointer with these parts, such as `/plan/tasks/3`."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def parts_of(text: str) -> tuple[str, ...]:
    """The parts of a pointer; a name without a leading `/` is a channel's.

    Raises:
        InvalidInput: it is no pointer.
    """
    if not isinstance(text, str) or not text or text == "/":
        raise InvalidInput(
            f"a field must be a channel's name or a JSON pointer such as '/plan/token'; got {text!r}. Nothing was written."
        )
    if not text.startswith("/"):
        return (text,)
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/"))


def without(state: Mapping[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """The state without these fields; an item of a list becomes None, so that the others keep their places."""
    kept = dict(state)
    for field in fields:
        kept = _changed(kept, parts_of(field), lambda _: _GONE)
    return kept


def redacted(state: Mapping[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """The state with `HIDDEN` in the place of these fields."""
    shown = dict(state)
    for field in fields:
        shown = _changed(shown, parts_of(field), _hide)
    return shown


def hidden(fields: Iterable[str], channel: str, path: str, value: Any) -> Any:
    """The value at `path` within a channel, with `HIDDEN` in the place of these fields."""
    if value is None:
        return None
    at = (channel, *path.split("/")[1:])
    for field in fields:
        parts = tuple(part.replace("~", "~0").replace("/", "~1") if n else part for n, part in enumerate(parts_of(field)))
        if all(EVERY in (mine, theirs) or mine == theirs for mine, theirs in zip(parts, at, strict=False)):
            value = _changed(value, parts_of(field)[len(at) :], _hide)
    return value


def covers(fields: Iterable[str], path: str) -> bool:
    """Whether the value at `path`, or a part of it, is one of the fields."""
    parts = parts_of(path) if path else ()
    return any(
        all(EVERY in (mine, theirs) or mine == theirs for mine, theirs in zip(parts_of(field), parts, strict=False))
        for field in fields
    )


def _changed(tree: Any, parts: tuple[str, ...], change: Callable[[Any], Any]) -> Any:
    if not parts:
        return change(tree)
    first, rest = parts[0], parts[1:]
    if isinstance(tree, dict):
        made: dict[Any, Any] = {}
        for key, item in tree.items():
            new = _changed(item, rest, change) if first in (EVERY, str(key)) else item
            if new is not _GONE:
                made[key] = new
        return made
    if type(tree) in (list, tuple):
        items = [_changed(item, rest, change) if first in (EVERY, str(at)) else item for at, item in enumerate(tree)]
        return type(tree)(None if item is _GONE else item for item in items)
    return HIDDEN if change is _hide and not isinstance(tree, _LEAVES) else tree


def _hide(_: Any) -> str:
    return HIDDEN


class Stated(NamedTuple):
    """The schema and the secret fields that a checkpoint states."""

    schema: str
    version: int
    secret: Sequence[str]


def kept(own: Stated, parents: Collection[Stated], *, is_whole: bool) -> list[str]:
    """The secret fields of a checkpoint: its own, and those that it keeps of the checkpoints that it builds on.

    Raises:
        InvalidInput: together they are too many.
    """
    if not parents:
        return list(own.secret)
    replaces = [is_whole and bool(own.schema) and own.schema == each.schema and own.version > each.version for each in parents]
    more = {field for each, gone in zip(parents, replaces, strict=True) if not gone for field in each.secret}
    if more <= set(own.secret):
        return list(own.secret)
    if len(together := sorted({*own.secret, *more})) > POINTERS_MAX:
        raise InvalidInput(
            f"a checkpoint has at most {POINTERS_MAX} secret fields; with those of the checkpoints that it builds on, this one "
            f"has {len(together)}. Nothing was written. Use fewer, with * in the place of keys and indexes."
        )
    return together


def hidden_channel(secret: Collection[str], channel: str, packed: bytes) -> bytes:
    """A packed channel for a reader to whom secret parts are not shown."""
    places = _places(secret, channel)
    return hiding.hidden(packed, places, HIDDEN) if places else packed


def nulled_channel(secret: Collection[str], channel: str, packed: bytes) -> bytes:
    """A packed channel with null in the place of secret parts: what was hidden from its author, and can be saved again."""
    places = _places(secret, channel)
    return hiding.hidden(packed, places, None) if places else packed


def hidden_elements(secret: Collection[str], channel: str, at: int, packed: bytes) -> bytes:
    """Packed elements of a list, of which the first has index `at` in its channel, likewise."""
    places = [_from(place, at) for place in _places(secret, channel)]
    return hiding.hidden(packed, [place for place in places if place is not None], HIDDEN) if places else packed


def is_secret(secret: Collection[str], channel: str) -> bool:
    """Whether a channel, or a part of it, is secret."""
    return bool(_places(secret, channel))


def check_shown(secret: Collection[str], channels: Mapping[str, bytes], appended: Mapping[str, bytes]) -> None:
    """Check that a save holds no value that was hidden from its author. `appended`: elements for the ends of lists.

    Raises:
        InvalidInput: it does.
    """
    for name, packed in (*channels.items(), *appended.items()):
        places = _places(secret, name)
        if name in appended:
            # Where in the list an element will be is not known here: a field of any index counts.
            places = [(hiding.EVERY, *place[1:]) for place in places if place]
        if hiding.holds(packed, places, HIDDEN):
            raise InvalidInput(
                f"channel {name!r} holds {HIDDEN}, which stands for a value that was hidden from this client. Nothing was "
                "written. Change other channels alone (an update, not a whole state), or use a token that grants `reveal`."
            )


def _places(secret: Collection[str], channel: str) -> list[tuple[str, ...]]:
    """Of the fields that lead into a channel, the places within it."""
    found = (_parts(field) for field in secret)
    return [parts[1:] for parts in found if parts[0] in (hiding.EVERY, channel)]


def _from(place: tuple[str, ...], at: int) -> tuple[str, ...] | None:
    """A place of a list as one of its elements from index `at` on; None if it is before these."""
    if not place or place[0] == hiding.EVERY:
        return (hiding.EVERY, *place[1:])
    if not place[0].isdecimal():
        return None
    return None if int(place[0]) < at else (str(int(place[0]) - at), *place[1:])


def _parts(field: str) -> tuple[str, ...]:
    try:
        return parts_of(field)
    except InvalidInput:  # Of an older version, which let a save say "/".
        return ("",)
