"""Texts within packed values: whether one is to be replaced, and the value with those that are.

Laws:
- Every byte of a value is looked at: as text, as a value within bytes or an extension, or as bytes.
- All that is not replaced stays as it is, byte for byte, but for the lengths around it.
- What cannot be replaced without harm refuses the write: a match in bytes that are no text, two keys of a map that would become
  one, a value that nests too deep.
- A number, a decimal, a date or an id that is to be replaced becomes text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from shoal.errors import InvalidValue, RedactionRefused
from shoal.values.forms import NESTED_MAX

DEPTH_MAX = 128  # Of lists and maps in a value of which something is replaced.
PATH_BYTES_MAX = 256

_SIZES = bytearray(256)  # Of tokens of a fixed size, by their first byte; 0: it has a length of its own.
for _octets, _size in (
    (range(0xA0), 1),
    (range(0xE0, 0x100), 1),
    ((0xC0, 0xC2, 0xC3), 1),
    ((0xCC, 0xD0), 2),
    ((0xCD, 0xD1, 0xDC, 0xDE), 3),
    ((0xCA, 0xCE, 0xD2, 0xDD, 0xDF), 5),
    ((0xCB, 0xCF, 0xD3), 9),
):
    for _octet in _octets:
        _SIZES[_octet] = _size
_LENGTHS = {0xD9: 1, 0xDA: 2, 0xDB: 4, 0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4}  # The bytes of a length.
_FIXED_EXTENSIONS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_NUMBERS = frozenset({0xCB, 0xCC, 0xCD, 0xCE, 0xCF, 0xD0, 0xD1, 0xD2, 0xD3})
_LISTS = {0xDC: 2, 0xDD: 4}
_MAPS = {0xDE: 2, 0xDF: 4}

_TEXT, _BYTES, _EXTENSION, _NUMBER, _LIST, _MAP, _PLAIN = range(7)

_SETS = frozenset({3, 4})
_PAIRS = 15  # The code of an ordered dict.
_ARRAYS = frozenset({13, 14})
_FOREIGN_ARRAY = 6  # Of LangGraph's serialiser.
_TIMESTAMP = 0xFF  # Its code, -1.
_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode


class Rewriter(Protocol):
    """Decides what is to be replaced. `path` gives the place of a text, as a JSON pointer."""

    numbers: bool
    """Whether numbers are looked at."""

    def hits(self, text: bytes, /) -> bool:
        """Whether something of a text, or of bytes, may have to be replaced."""
        ...

    def matches(self, text: bytes, /) -> bool:
        """Whether something of a text, or of bytes, is to be replaced."""
        ...

    def replaced(self, text: bytes, path: Callable[[], str], /) -> bytes | None:
        """The text with its replacements; None if it stays as it is."""
        ...

    def replaced_number(self, digits: bytes, path: Callable[[], str], /) -> bytes | None:
        """The text that stands in the place of a number; None if it stays as it is."""
        ...


class _Token:
    __slots__ = ("at", "code", "count", "end", "kind", "start")

    def __init__(self, kind: int, at: int, start: int, end: int, count: int = 0, code: int = 0) -> None:
        self.kind, self.at = kind, at  # Where it begins with its header.
        self.start, self.end = start, end  # Of its content; of a list or map, the end of the header twice.
        self.count, self.code = count, code


def _token(packed: bytes, at: int) -> _Token:
    """The token at a place.

    Raises:
        InvalidValue: the bytes are not msgpack.
    """
    try:
        octet = packed[at]
        if octet <= 0x7F or octet >= 0xE0:
            return _Token(_PLAIN, at, at, at + 1)
        if octet <= 0x8F:
            return _Token(_MAP, at, at + 1, at + 1, octet & 0x0F)
        if octet <= 0x9F:
            return _Token(_LIST, at, at + 1, at + 1, octet & 0x0F)
        if octet <= 0xBF:
            return _checked(packed, _Token(_TEXT, at, at + 1, at + 1 + (octet & 0x1F)))
        if octet in _LENGTHS:
            start = at + 1 + _LENGTHS[octet]
            length = int.from_bytes(packed[at + 1 : start], "big")
            if octet >= 0xD9:
                return _checked(packed, _Token(_TEXT, at, start, start + length))
            if octet <= 0xC6:
                return _checked(packed, _Token(_BYTES, at, start, start + length))
            return _checked(packed, _Token(_EXTENSION, at, start + 1, start + 1 + length, code=packed[start]))
        if octet in _FIXED_EXTENSIONS:
            return _checked(packed, _Token(_EXTENSION, at, at + 2, at + 2 + _FIXED_EXTENSIONS[octet], code=packed[at + 1]))
        if octet in _LISTS or octet in _MAPS:
            start = at + 1 + (_LISTS.get(octet) or _MAPS[octet])
            count = int.from_bytes(packed[at + 1 : start], "big")
            return _checked(packed, _Token(_LIST if octet in _LISTS else _MAP, at, start, start, count))
        size = _SIZES[octet]
    except IndexError:
        raise _malformed() from None
    if not size:
        raise _malformed()
    return _checked(packed, _Token(_NUMBER if octet in _NUMBERS else _PLAIN, at, at, at + size))


def _checked(packed: bytes, token: _Token) -> _Token:
    if token.end > len(packed):
        raise _malformed()
    return token


def _malformed() -> InvalidValue:
    return InvalidValue("the bytes are not one msgpack value. Nothing was written.")


# ── looking ───────────────────────────────────────────────────────────────────


def hits(packed: bytes, rewriter: Rewriter) -> bool:
    """Whether something in a value may have to be replaced.

    Raises:
        InvalidValue: the bytes are not one value.
    """
    found = _hits(packed, rewriter, 0)
    if found is None:
        raise _malformed()
    return found


def _hits(packed: bytes, rewriter: Rewriter, depth: int) -> bool | None:
    """The same; None if the bytes are not exactly one value."""
    at, left, end, sizes, numbers = 0, 1, len(packed), _SIZES, rewriter.numbers
    found = False
    while left:
        if at >= end:
            return None
        octet = packed[at]
        left -= 1
        if octet <= 0x7F or octet >= 0xE0:
            at += 1
            continue
        if 0xA0 <= octet <= 0xBF:
            start, at = at + 1, at + 1 + (octet & 0x1F)
            if at > end:
                return None
            found = found or rewriter.hits(packed[start:at])
            continue
        if octet <= 0x9F:
            left += (octet & 0x0F) << (octet <= 0x8F)
            at += 1
            continue
        if (size := sizes[octet]) and octet not in _LISTS and octet not in _MAPS:
            if numbers and octet in _NUMBERS and at + size <= end and not found:
                text = _digits(packed[at : at + size])
                found = text is not None and rewriter.hits(text)
            at += size
            continue
        try:
            token = _token(packed, at)
        except InvalidValue:
            return None
        at = token.end
        if token.kind in (_LIST, _MAP):
            left += token.count << (token.kind == _MAP)
        elif not found:
            content = packed[token.start : token.end]
            if token.kind == _TEXT:
                found = rewriter.hits(content)
            elif token.kind == _BYTES or token.code != _TIMESTAMP:
                found = _hits_within(content, rewriter, depth)
    return found if at == end else None


def _hits_within(content: bytes, rewriter: Rewriter, depth: int) -> bool:
    """Whether bytes may have to be replaced: as a value, as text, or as bytes."""
    if depth >= NESTED_MAX:
        return True  # Then it is refused, unless nothing is found.
    if _hits(content, rewriter, depth + 1) or rewriter.hits(content):
        return True
    return b"\x00" in content and rewriter.hits(content.replace(b"\x00", b""))  # Texts of two or four bytes a character.


def _digits(number: bytes) -> bytes | None:
    """The decimal digits of a packed number; None if it has a fraction."""
    found = _decode(number)
    if isinstance(found, float):
        if not found.is_integer():
            return None
        found = int(found)
    return str(found).encode()


# ── replacing ─────────────────────────────────────────────────────────────────


def rewritten(packed: bytes, rewriter: Rewriter, path: str = "", *, foreign: bool = False) -> bytes:
    """The value with its replacements. `path` is its own place; `foreign`: its extensions are those of LangGraph.

    Raises:
        InvalidValue: the bytes are not one value.
        RedactionRefused: something cannot be replaced without harm.
    """
    made, end = _Rewriting(rewriter, foreign=foreign).value(packed, 0, [path], 0)
    if end != len(packed):
        raise _malformed()
    return made


class _Rewriting:
    def __init__(self, rewriter: Rewriter, *, foreign: bool) -> None:
        self._rewriter = rewriter
        self._foreign = foreign
        self._nested = 0

    def value(self, packed: bytes, at: int, path: list[str], depth: int) -> tuple[bytes, int]:
        """The value at a place, rewritten, and where it ends."""
        if depth > DEPTH_MAX:
            raise RedactionRefused(
                f"a value nests more than {DEPTH_MAX} lists and maps, and something in it is to be replaced. Nothing was "
                "written. Make it flatter.",
                path=_shown(path),
            )
        token = _token(packed, at)
        content = packed[token.start : token.end]
        if token.kind == _TEXT:
            new = self._rewriter.replaced(content, lambda: _shown(path))
            return (packed[at : token.end] if new is None else _text(new)), token.end
        if token.kind == _NUMBER and self._rewriter.numbers:
            digits = _digits(packed[at : token.end])
            new = None if digits is None else self._rewriter.replaced_number(digits, lambda: _shown(path))
            return (packed[at : token.end] if new is None else _text(new)), token.end
        if token.kind == _LIST:
            return self._list(packed, token, path, depth)
        if token.kind == _MAP:
            return self._map(packed, token, path, depth)
        if token.kind == _BYTES:
            return self._bytes(packed, token, path), token.end
        if token.kind == _EXTENSION and token.code != _TIMESTAMP:
            return self._extension(packed, token, path), token.end
        return packed[at : token.end], token.end

    def _list(self, packed: bytes, token: _Token, path: list[str], depth: int) -> tuple[bytes, int]:
        parts, at = [packed[token.at : token.start]], token.end
        for place in range(token.count):
            path.append(str(place))
            made, at = self.value(packed, at, path, depth + 1)
            path.pop()
            parts.append(made)
        return b"".join(parts), at

    def _map(self, packed: bytes, token: _Token, path: list[str], depth: int) -> tuple[bytes, int]:
        parts, at, keys, altered = [packed[token.at : token.start]], token.end, set[bytes](), False
        for _ in range(token.count):
            start = at
            path.append("*")  # A key may itself be what must not be told.
            key, at = self.value(packed, at, path, depth + 1)
            altered = altered or key != packed[start:at]
            keys.add(key)
            path[-1] = _key_text(key)
            made, at = self.value(packed, at, path, depth + 1)
            path.pop()
            parts += (key, made)
        if altered and len(keys) < token.count:
            raise _merged(path)
        return b"".join(parts), at

    def _bytes(self, packed: bytes, token: _Token, path: list[str], *, rigid: bool = False) -> bytes:
        content = packed[token.start : token.end]
        if not _hits_within(content, self._rewriter, self._nested):
            return packed[token.at : token.end]
        made = content
        if not rigid:
            if self._is_value(content):
                made = self._within(content, path)
            elif _is_text(content):
                made = self._rewriter.replaced(content, lambda: _shown(path)) or content
        if _hits_within(made, self._rewriter, self._nested) and self._still(made):
            raise RedactionRefused(
                f"bytes at {_shown(path) or '/'} hold what a rule of the space replaces, and are no text that can be changed. "
                "Nothing was written. Leave it out of them.",
                path=_shown(path),
            )
        return _bytes_token(made)

    def _still(self, made: bytes) -> bool:
        """Whether a rule would still replace something in these bytes, taken as bytes."""
        return self._rewriter.matches(made) or self._rewriter.matches(made.replace(b"\x00", b""))

    def _is_value(self, content: bytes) -> bool:
        if self._nested >= NESTED_MAX or not content:
            return False
        try:
            if _token(content, 0).kind in (_PLAIN, _NUMBER):
                return False
            return _hits(content, _NOTHING, 0) is not None
        except InvalidValue:
            return False

    def _within(self, content: bytes, path: list[str]) -> bytes:
        self._nested += 1
        made, _ = self.value(content, 0, path, 0)
        self._nested -= 1
        return made

    def _extension(self, packed: bytes, token: _Token, path: list[str]) -> bytes:
        content, code = packed[token.start : token.end], token.code
        if not _hits_within(content, self._rewriter, self._nested):
            return packed[token.at : token.end]
        if not self._is_value(content):
            if self._still(content):
                raise RedactionRefused(
                    f"an extension value at {_shown(path) or '/'} holds what a rule of the space replaces, and cannot be "
                    "changed. Nothing was written. Leave it out of it.",
                    path=_shown(path),
                )
            return packed[token.at : token.end]
        if code == _FOREIGN_ARRAY if self._foreign else code in _ARRAYS:
            return self._array(packed, token, path)
        made = self._within(content, path)
        if made == content:
            return packed[token.at : token.end]
        if not self._foreign:
            if _token(content, 0).kind == _TEXT:
                return made  # The text of a decimal, a date or an id is none any more.
            if code in _SETS:
                made = _sorted(made)
            elif code == _PAIRS and _has_doubles(made):
                raise _merged(path)
        return _extension_token(code, made)

    def _array(self, packed: bytes, token: _Token, path: list[str]) -> bytes:
        if self._still(packed[token.start : token.end]):
            raise RedactionRefused(
                f"an array at {_shown(path) or '/'} holds what a rule of the space replaces. Nothing was written. Store texts "
                "in a list.",
                path=_shown(path),
            )
        return packed[token.at : token.end]


class _Nothing:
    numbers = False

    def hits(self, _text: bytes, /) -> bool:
        return False

    def matches(self, _text: bytes, /) -> bool:
        return False

    def replaced(self, _text: bytes, _path: Callable[[], str], /) -> bytes | None:
        return None

    def replaced_number(self, _digits: bytes, _path: Callable[[], str], /) -> bytes | None:
        return None


_NOTHING = _Nothing()


def _merged(path: list[str]) -> RedactionRefused:
    return RedactionRefused(
        f"two keys of the map at {_shown(path) or '/'} would become one, because a rule of the space replaces them. Nothing "
        "was written. Give the rule another replacement, or use other keys.",
        path=_shown(path),
    )


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _sorted(packed: bytes) -> bytes:
    """A packed list in the order of its elements' bytes, each once, as sets are."""
    elements = sorted(set(_elements(packed)))
    return _encode([msgspec.Raw(each) for each in elements])


def _has_doubles(packed: bytes) -> bool:
    keys = [next(_elements(pair)) for pair in _elements(packed)]
    return len(set(keys)) < len(keys)


def _elements(packed: bytes) -> Iterator[bytes]:
    for each in _decode(packed, type=list[msgspec.Raw]):
        yield bytes(each)


def _text(text: bytes) -> bytes:
    """A packed text, which may be no UTF-8."""
    size = len(text)
    if size < 32:
        return bytes([0xA0 | size]) + text
    nth = 0 if size < 1 << 8 else 1 if size < 1 << 16 else 2
    return bytes([0xD9 + nth]) + size.to_bytes(1 << nth, "big") + text


def _bytes_token(content: bytes) -> bytes:
    return _encode(content)


def _extension_token(code: int, content: bytes) -> bytes:
    return _encode(msgspec.msgpack.Ext(code if code < 128 else code - 256, content))


def _key_text(key: bytes) -> str:
    try:
        found = _decode(key)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return "*"
    return str(found).replace("~", "~0").replace("/", "~1") if isinstance(found, str | int) else "*"


def _shown(path: list[str]) -> str:
    text = "/".join(path)
    encoded = text.encode()
    return text if len(encoded) <= PATH_BYTES_MAX else encoded[: PATH_BYTES_MAX - 3].decode(errors="ignore") + "…"
