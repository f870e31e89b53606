"""Encode, decode and check: the hot path between Python values and msgpack bytes.

Law: a packer is used by one call at a time. Each nesting level of extension
values has its own packers, taken from a list and put back, so that threads and
the recursion from a packer into itself never share one; the number of levels
bounds the recursion. The path to an offending part is searched only on failure.

Say which part of a value cannot be serialised, and what to do about it.

Law: this runs only after an encoding failed, so it may be slow. It is iterative
and bounded, because the value may be a cycle or nest very deep.

Values that another framework packed, in plain form: to be shown, not to be used.

Law: nothing is built, imported or called. An object becomes a dict with its class's
name, in every process; so a state can be shown, and two compared, without the framework.

The name of a checkpoint's schema tells the framework. `LANGGRAPH` stands for
LangGraph's serialiser, whose extension codes differ from Shoal's.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import msgpack  # type: ignore[import-untyped]
import msgspec

from shoal.errors import InvalidValue, TooLarge
from shoal.records import NamedTuple
from shoal.values import forms, registry
from shoal.values.forms import BY_CLASS, FROZENSET_CODE, NESTED_MAX, OBJECT_CODE, SET_CODE
from shoal.values.registry import unpack_reference

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
        if cls in BY_CLASS or forms.form_of(cls) is not None:
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


VALUE_BYTES_MAX = 64 * 1024 * 1024

# msgpack packs by recursion, 1,024 lists deep in each extension value. Eight times that fit any thread's stack,
# `NESTED_MAX` times do not (8 MiB overflow at 24,000 lists): from there on the lists are counted.
_COUNTED_FROM = 8
_COUNTED_LISTS_MAX = 64

# A packer keeps its buffer. One whose buffer grew beyond this is dropped.
_KEPT_BYTES_MAX = 1024 * 1024

_LOADERS = {form.code: form.load for form in [*BY_CLASS.values(), forms.ARRAY, forms.SCALAR]}
_NO_CONTAINERS = bytes(byte for byte in range(256) if not (0x80 <= byte <= 0x9F or 0xDC <= byte <= 0xDF))
_skim = msgspec.msgpack.Decoder(msgspec.Raw).decode


def encode(value: object, *, where: str = "value", key: str | None = None) -> bytes:
    """`value` as msgpack. `where` names it in errors, and with `key` the value under that key in what `where` names.

    Raises:
        InvalidValue: a part of it cannot be serialised; the message has the part's path and the remedy.
        TooLarge: it takes more than `VALUE_BYTES_MAX`.
    """
    try:
        packed = _LEVELS[0].pack(value)
    except MemoryError:
        raise
    except Exception as failure:
        # Without the traceback: it has a frame for every level of the value.
        raise explain(value, _place(where, key), failure=failure, pack=_LEVELS[0].pack) from failure.with_traceback(None)
    if len(packed) > VALUE_BYTES_MAX:
        raise TooLarge(
            f"{_place(where, key)} takes {len(packed)} bytes; one value may take {VALUE_BYTES_MAX}, which no setting changes, "
            "and one request `request_bytes_max`, 16 MiB by default. Nothing was written. Store it as a file, with put_file "
            'and a reference to that (docs/FILES.md), or split it: docs/CONFIGURATION.md, "How large a value may be".'
        )
    return packed


def _place(where: str, key: str | None) -> str:
    return where if key is None else f"{where}[{key!r}]"


def decode(packed: bytes) -> Any:
    """The value that `encode` was given. A standard msgpack timestamp becomes an aware datetime.

    Raises:
        InvalidValue: `packed` is not a value, or holds a class that is not registered.
        TooLarge: it is longer than `VALUE_BYTES_MAX`.
    """
    _check_size(packed)
    try:
        return _LEVELS[0].unpack(packed)
    except (InvalidValue, MemoryError):
        raise
    except Exception as failure:  # Registered classes may raise anything.
        raise InvalidValue(
            f"this process cannot read the bytes as a value: {failure or type(failure).__name__}. "
            "If they hold objects, check that the classes still accept their stored forms."
        ) from failure


def check(packed: bytes) -> None:
    """Return if `packed` is exactly one msgpack value. Builds nothing; does not look into extension values or text.

    Raises:
        InvalidValue: it is not.
        TooLarge: it is longer than `VALUE_BYTES_MAX`.
    """
    if len(packed) > VALUE_BYTES_MAX:
        _check_size(packed)
    try:
        _skim(packed)
    except (RecursionError, msgspec.MsgspecError):
        _check_structure(packed)
    # A value with fewer bytes that can begin a list or a map cannot nest deeper.
    if len(packed) > LISTS_DEPTH_MAX and len(packed.translate(None, _NO_CONTAINERS)) > LISTS_DEPTH_MAX:
        _check_depth(packed)


def _check_size(packed: bytes) -> None:
    if len(packed) > VALUE_BYTES_MAX:
        raise TooLarge(f"a value has {len(packed)} bytes; at most {VALUE_BYTES_MAX} are allowed. Nothing was written.")


def _check_structure(packed: bytes) -> None:
    try:
        _skim(packed)
    except RecursionError:  # At about 900 lists on Python 3.11, at 10,000 on 3.13: no bound to rely on.
        _check_depth(packed)
    except msgspec.MsgspecError as error:
        raise InvalidValue(f"the bytes are not one msgpack value: {error}. Nothing was written.") from None


def _check_depth(packed: bytes) -> None:
    """Walk without recursion: slower, with msgpack's bound on every interpreter, but it misreads an extension of 4 GiB."""
    walker = msgpack.Unpacker(max_buffer_size=max(1, len(packed)))
    walker.feed(packed)
    try:
        walker.skip()
    except Exception as error:
        raise InvalidValue(
            f"the bytes are not one msgpack value, or nest more than {LISTS_DEPTH_MAX} deep: {error!r}. Nothing was written."
        ) from None
    if walker.tell() != len(packed):
        raise InvalidValue(f"{len(packed) - walker.tell()} bytes follow the msgpack value. Nothing was written.")


def _nests_deeper(value: Any, bound: int) -> bool:
    walks: list[Iterator[Any]] = [iter([value])]
    while 0 < len(walks) <= bound + 1:
        for item in walks[-1]:
            if type(item) in (list, dict):
                walks.append(iter(item if type(item) is list else item.values()))
                break
        else:
            walks.pop()
    return bool(walks)


class _Level:
    """Packs and unpacks the content of `depth` nested extension values."""

    __slots__ = ("_depth", "_idle")

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._idle: list[msgpack.Packer] = []

    def pack(self, value: Any) -> bytes:
        if self._depth >= _COUNTED_FROM and _nests_deeper(value, _COUNTED_LISTS_MAX):
            raise ValueError(
                f"more than {_COUNTED_LISTS_MAX} lists nest inside {self._depth} tuples, sets or registered objects"
            )
        try:
            packer = self._idle.pop()
        except IndexError:
            packer = msgpack.Packer(default=self._extension, strict_types=True)
        packed: bytes = packer.pack(value)
        if len(packed) <= _KEPT_BYTES_MAX:
            self._idle.append(packer)
        return packed

    def unpack(self, packed: bytes) -> Any:
        # Check the structure first: a false length must not cause an allocation.
        _check_structure(packed)
        return msgpack.unpackb(packed, ext_hook=self._load, strict_map_key=False, timestamp=3)

    def _extension(self, value: Any) -> msgpack.ExtType:
        cls = type(value)
        form = BY_CLASS.get(cls) or forms.form_of(cls)
        if form is not None:
            if form.code in (SET_CODE, FROZENSET_CODE):
                return msgpack.ExtType(form.code, self._inner().pack_sorted(value))
            return msgpack.ExtType(form.code, self._inner().pack(form.dump(value)))
        entry = registry.entry_of(cls)
        if entry is None:
            raise TypeError(f"{registry.default_name(cls)} is not registered")
        stored = [entry.name, entry.pack(value)] if entry.version == 1 else [entry.name, entry.pack(value), entry.version]
        return msgpack.ExtType(OBJECT_CODE, self._inner().pack(stored))

    def pack_sorted(self, items: Iterable[Any]) -> bytes:
        """An array of `items` in the order of their bytes."""
        packed = sorted(map(self.pack, items))
        return bytes(msgpack.Packer().pack_array_header(len(packed))) + b"".join(packed)

    def _load(self, code: int, packed: bytes) -> Any:
        plain = self._inner().unpack(packed)
        if code == OBJECT_CODE:
            name, packed_object, *version = plain
            return registry.entry_named(name).rebuild(packed_object, *(version or [1]))
        load = _LOADERS.get(code)
        if load is None:
            raise InvalidValue(
                f"the value holds extension type {code}, which this version does not know. Upgrade this process."
            )
        return load(plain)

    def _inner(self) -> _Level:
        if self._depth == NESTED_MAX:
            raise ValueError(f"more than {NESTED_MAX} tuples, sets or registered objects lie inside each other")
        return _LEVELS[self._depth + 1]


_LEVELS = tuple(_Level(depth) for depth in range(NESTED_MAX + 1))


LANGGRAPH = "langgraph"
LANGGRAPH_TYPED = 83  # [kind, bytes]: a value that LangGraph's serialiser did not pack as msgpack.
LANGGRAPH_FILE = "shoal.file"  # The kind of one that is a file: its bytes are a packed `FileRef`.

_OBJECT_CODES = range(6)  # [module, class, arguments, …]
_ARRAY_CODE = 6  # [dtype, shape, order, bytes]
_SNAPSHOT_CODE = 7


def decode_channel(packed: bytes, schema: str) -> Any:
    """The value of a channel, in a checkpoint that was saved under `schema`.

    Raises:
        InvalidValue: the bytes are no value, or hold a class that is not registered.
        TooLarge: it is longer than `VALUE_BYTES_MAX`.
    """
    if schema != LANGGRAPH:
        return decode(packed)
    check(packed)
    return _decode(packed, 0)


def _decode(packed: bytes, depth: int) -> Any:
    if depth > NESTED_MAX:
        raise InvalidValue(f"more than {NESTED_MAX} objects lie inside each other.")
    try:
        return msgpack.unpackb(packed, ext_hook=_hook(depth + 1), strict_map_key=False, timestamp=3)
    except (InvalidValue, MemoryError):
        raise
    except Exception as failure:
        raise InvalidValue(f"the bytes cannot be shown as a value: {failure or type(failure).__name__}.") from failure


def _hook(depth: int) -> Callable[[int, bytes], Any]:
    def shown(code: int, packed: bytes) -> Any:
        if code == _SNAPSHOT_CODE:
            return {"class": "delta snapshot", "value": _decode(packed, depth)}
        parts = _decode(packed, depth) if code in _OBJECT_CODES or code in (_ARRAY_CODE, LANGGRAPH_TYPED) else None
        match code, parts:
            case 83, ["null", _]:
                return None
            case 83, ["bytes" | "bytearray", bytes(data)]:
                return data
            case 83, ["shoal.file", bytes(data)]:
                return unpack_reference(data)
            case 83, [str(kind), bytes(data)]:
                return {"class": kind, "value": data}
            case 6, [dtype, shape, order, data]:
                return {"class": "numpy.ndarray", "value": {"dtype": dtype, "shape": shape, "order": order, "bytes": data}}
            case _, [str(module), str(name), value, *_] if code in _OBJECT_CODES:
                return {"class": f"{module}.{name}", "value": value}
        return {"class": f"extension {code}", "value": packed}

    return shown
