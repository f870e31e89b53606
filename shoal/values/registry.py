"""The classes that this process may write and rebuild, by name; and references to files, which are of one of them.

Pickle, and formats that import a class by its name, run code that the bytes choose. Formats that only know JSON's types
return a list for a tuple, and an agent that resumes with such a state fails far from the cause.

Laws:
- A stored name leads to a class only through an entry that the program made.
  Nothing is imported, and a class that is not here does not exist for `decode`.
- A stored object has the version of its class, unless that is 1. An older one is
  upgraded step by step before it is rebuilt; a newer one is refused.

References to files, as values hold them.

Laws:
- A reference is found in any bytes that hold it packed, by its mark, without decoding them: so also in values that another
  framework packed, and in parts of a value.
- A text that only looks like a reference keeps a file, and never loses one.

Packed, it is an object of the registered class `shoal.file`, whose form is [SHA-256₃₂ of the content, size, name, media type].
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import MappingProxyType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, overload

import msgspec
from msgspec import Struct, structs

from shoal.errors import InvalidValue
from shoal.records import NamedTuple
from shoal.values.forms import OBJECT_CODE

T = TypeVar("T")
Pack = Callable[[Any], Any]
Unpack = Callable[[Any], Any]


Upgrade = Mapping[int, Callable[[Any], Any]]
"""Version → the function that turns its stored form into the next version's."""


class Registration(NamedTuple):
    """A class under one of its names, with its conversions."""

    name: str
    cls: type
    pack: Pack
    unpack: Unpack
    version: int = 1
    upgrade: Upgrade = MappingProxyType({})

    def rebuild(self, plain: Any, version: object) -> Any:
        """The instance whose stored form is `plain`, written by `version` of the class.

        Raises:
            InvalidValue: the version is newer than this process's, or no step leads up from it.
        """
        if type(version) is not int or version < 1:
            raise InvalidValue(
                f"the value holds an object of class {self.name!r} with version {str(version)[:40]!r}, which is not a version."
            )
        if version > self.version:
            raise InvalidValue(
                f"the value holds version {version} of class {self.name!r}; this process has version {self.version}. "
                "Nothing is lost; read it with a newer process."
            )
        for step in range(version, self.version):
            if step not in self.upgrade:
                raise InvalidValue(
                    f"the value holds version {step} of class {self.name!r}, and no function upgrades it: register it with "
                    f"version={self.version}, upgrade={{{step}: …}}."
                )
            plain = self.upgrade[step](plain)
        return self.unpack(plain)


_by_name: dict[str, Registration] = {}
_by_class: dict[type, Registration] = {}


@overload
def register(
    cls: type[T],
    name: str | None = None,
    *,
    pack: Callable[[T], Any] | None = None,
    unpack: Unpack | None = None,
    version: int = 1,
    upgrade: Upgrade | None = None,
) -> type[T]: ...


@overload
def register(
    cls: None = None,
    name: str | None = None,
    *,
    pack: Pack | None = None,
    unpack: Unpack | None = None,
    version: int = 1,
    upgrade: Upgrade | None = None,
) -> Callable[[type[T]], type[T]]: ...


def register(
    cls: Any = None,
    name: str | None = None,
    *,
    pack: Pack | None = None,
    unpack: Unpack | None = None,
    version: int = 1,
    upgrade: Upgrade | None = None,
) -> Any:
    """Register `cls`, so that values may contain its instances. Returns `cls`, or a decorator if `cls` is not given.

    Dataclasses, pydantic models, msgspec Structs, enums and named tuples need
    nothing more; other classes need `pack` (instance → a value) and `unpack`
    (that value → instance). A model's private attributes, and arguments that `__init__`
    takes but does not store, are not kept: give `pack` and `unpack` for those.

    `name` is stored with each instance, and is `module.qualname` by default; give one that
    survives moving the class. A class may be registered under further names:
    values are written under its first, and read under all.

    `version` is stored with each instance. If you raise it, `upgrade` says how the
    stored form of an older version becomes the next one's: `{1: f, 2: g}`.

    Raises:
        InvalidValue: the name belongs to another class; or `cls` needs `pack` and `unpack`;
            or the steps of `upgrade` do not lead to `version` without a gap.
    """
    if cls is None:
        return lambda decorated: register(decorated, name, pack=pack, unpack=unpack, version=version, upgrade=upgrade)
    entry = Registration(name or default_name(cls), cls, *_conversions(cls, pack, unpack), version, dict(upgrade or {}))
    _check_steps(entry)
    known = _by_name.get(entry.name)
    if known is not None and known.cls is not cls:
        raise InvalidValue(
            f"the name {entry.name!r} is registered for {default_name(known.cls)} already; "
            f"choose another: shoal.values.register({default_name(cls)}, {entry.name + '-2'!r}). Nothing was registered."
        )
    _by_name[entry.name] = entry
    if cls not in _by_class or _by_class[cls].name == entry.name:
        _by_class[cls] = entry
    return cls


def entry_of(cls: type) -> Registration | None:
    """The entry under whose name instances of the class are written; None if the class is not registered."""
    return _by_class.get(cls)


def entry_named(name: object) -> Registration:
    """The entry under which `name` was registered.

    Raises:
        InvalidValue: there is none; the message shows the line that makes one.
    """
    if isinstance(name, str) and name in _by_name:
        return _by_name[name]
    shown = str(name)[:200]
    arguments = shown if "." in shown else f"YourClass, {shown!r}"
    raise InvalidValue(
        f"the value holds an object of class {shown!r}, which is not registered in this process. "
        f"Register it before reading: shoal.values.register({arguments})."
    )


def default_name(cls: type) -> str:
    """The name under which a class is registered by default: `module.qualname`."""
    return f"{cls.__module__}.{cls.__qualname__}"


def registering_line(cls: type) -> str:
    """The line of code that registers `cls`, for error texts."""
    suffix = "" if _standard_conversions(cls) else ", pack=…, unpack=…"
    return f"shoal.values.register({default_name(cls)}{suffix})"


def _check_steps(entry: Registration) -> None:
    steps = sorted(entry.upgrade)
    if type(entry.version) is not int or entry.version < 1:
        raise InvalidValue(f"a class's version is an integer from 1; got {entry.version!r}. Nothing was registered.")
    if steps and (steps != list(range(steps[0], entry.version)) or steps[0] < 1):
        raise InvalidValue(
            f"version {entry.version} of {entry.name!r} needs one upgrade for each version from its oldest one to "
            f"{entry.version - 1}; got them for {steps}. Nothing was registered."
        )


def _conversions(cls: type, pack: Pack | None, unpack: Unpack | None) -> tuple[Pack, Unpack]:
    if pack is not None and unpack is not None:
        return pack, unpack
    standard = _standard_conversions(cls)
    if standard is None or pack is not None or unpack is not None:
        raise InvalidValue(
            f"{default_name(cls)} needs both pack and unpack: "
            f"shoal.values.register({default_name(cls)}, pack=…, unpack=…). Nothing was registered."
        )
    return standard


def _standard_conversions(cls: type) -> tuple[Pack, Unpack] | None:
    if issubclass(cls, Enum):
        return (lambda member: member.value), cls
    if issubclass(cls, msgspec.Struct):
        return msgspec.structs.asdict, lambda fields: cls(**fields)
    if _is_model(cls):
        return _model_conversions(cls)
    if dataclasses.is_dataclass(cls):
        return _dataclass_conversions(cls)
    if issubclass(cls, tuple) and hasattr(cls, "_make"):
        return list, cls._make
    return None


def _is_model(cls: type) -> bool:
    pydantic = sys.modules.get("pydantic")  # If it is not loaded, no class is a model.
    return pydantic is not None and issubclass(cls, pydantic.BaseModel)


def _model_conversions(cls: Any) -> tuple[Pack, Unpack]:
    if cls.__pydantic_root_model__:
        return (lambda model: model.root), cls.model_validate
    return (
        lambda model: {**model.__dict__, **(model.__pydantic_extra__ or {})},
        # By field name, as it was written, even if the model has aliases.
        lambda fields: cls.model_validate(fields, by_name=True, by_alias=False),
    )


def _dataclass_conversions(cls: Any) -> tuple[Pack, Unpack]:
    fields = dataclasses.fields(cls)
    derived = frozenset(field.name for field in fields if not field.init)

    def unpack(plain: dict[str, Any]) -> Any:
        made = cls(**{name: value for name, value in plain.items() if name not in derived})
        for name in derived & plain.keys():
            object.__setattr__(made, name, plain[name])  # Also where the class is frozen.
        return made

    return (lambda made: {field.name: getattr(made, field.name) for field in fields}), unpack


SHA_BYTES = 32
MARK = b"\xaashoal.file\x94\xc4\x20"
"""The bytes before the hash in a packed value: the class's name, and the beginning of the form."""
_MARKED = re.compile(re.escape(MARK) + b"(.{%d})" % SHA_BYTES, re.DOTALL)
_SHA = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class FileRef:
    """A file of a thread, as a state refers to it: by the hash of its content, whatever its name holds by now.

    It keeps the content as long as a checkpoint, an event or a step of the thread holds it.
    """

    sha256: str  # Of the whole content: 64 hex digits.
    size: int  # In bytes.
    name: str
    type: str = "application/octet-stream"  # The media type.


def mentioned(packed: bytes) -> set[bytes]:
    """The hashes of the files to which packed values refer."""
    return set(_MARKED.findall(packed)) if MARK in packed else set()


def mentioned_in(request: Struct) -> set[bytes]:
    """The hashes of the files to which the bytes in a request or a reply refer, in one pass: each write takes it."""
    found: set[bytes] = set()
    waiting: list[Any] = [getattr(request, name) for name in _bearing(type(request))]
    for part in waiting:  # It grows meanwhile.
        kind = type(part)
        if kind in _PLAIN:
            continue
        if kind is bytes:
            if MARK in part:  # Most refer to none.
                found |= mentioned(part)
        elif kind is dict:
            waiting.extend(part.values())
        elif kind is list:
            waiting.extend(part)
        elif isinstance(part, Struct):
            waiting.extend([getattr(part, name) for name in _bearing(type(part))])
        elif isinstance(part, bytes):
            found |= mentioned(part)
        elif isinstance(part, Mapping):
            waiting.extend(part.values())
        elif isinstance(part, Sequence) and not isinstance(part, str):
            waiting.extend(part)
    return found


_PLAIN = frozenset({bool, float, int, str, type(None)})


@cache
def _bearing(kind: type[Struct]) -> tuple[str, ...]:
    """The fields that may hold bytes: of most requests few do."""
    return tuple(each.name for each in structs.fields(kind) if not _is_plain(each.type))


def _is_plain(kind: Any) -> bool:
    """Whether a value of this type holds no bytes, however deep. Of a type that is not known here: False."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in (list, Union, UnionType):
        return all(map(_is_plain, get_args(kind)))
    return kind in _PLAIN


def packed_marks(hashes: Iterable[bytes]) -> bytes:
    """Bytes that mention these files, and nothing else."""
    return b"".join(MARK + hash for hash in sorted(hashes))


def _pack(ref: FileRef) -> list[Any]:
    return [bytes.fromhex(ref.sha256), ref.size, ref.name, ref.type]


def _unpack(form: Any) -> FileRef:
    if not isinstance(form, list) or [type(part) for part in form] != [bytes, int, str, str] or len(form[0]) != SHA_BYTES:
        raise InvalidValue("the value holds a reference to a file that is none.")
    return FileRef(form[0].hex(), *form[1:])


register(FileRef, "shoal.file", pack=_pack, unpack=_unpack)

_decode_object = msgspec.msgpack.Decoder(tuple[str, Any]).decode
_decode_extension = msgspec.msgpack.Decoder(msgspec.msgpack.Ext).decode


def unpack_reference(packed: bytes) -> FileRef:
    """A packed reference. Unlike `decode`, it builds nothing else, whatever the bytes are.

    Raises:
        InvalidValue: they are none.
    """
    try:
        extension = _decode_extension(packed)
        name, form = _decode_object(extension.data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        name, form = "", None
    return _unpack(form if name == "shoal.file" and extension.code == OBJECT_CODE else None)
