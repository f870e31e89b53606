"""One HTTP request and its answer: names, query, body and reply, in JSON or msgpack.

Laws:

- A name is one part of the path, percent-decoded once; `%2F` in it is a slash of
  the name. Bytes that are not UTF-8 are rejected, so that no name has two spellings.
- A body or query is rejected as a whole if it holds a field that is unknown or of
  the wrong type; the error names the field.
- The values of a msgpack body are passed on unchanged, because the session checks
  them; those of a JSON body are converted.
- The Content-Type decides the request's format and Accept the answer's: JSON
  unless it is msgpack.
- JSON is converted in steps, between which others get a turn: the values of a body
  when it is read, those of an answer when it is written.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Generator, Iterator
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints
from urllib.parse import unquote_to_bytes

import msgspec
from aiohttp import web
from msgspec import Meta, Raw, Struct

from shoal import values
from shoal.api.http import headers
from shoal.api.http.bodies import Noting, Receiving, Sparing
from shoal.api.http.problems import UnsupportedMediaType
from shoal.config import Config
from shoal.errors import InvalidInput, InvalidName, InvalidValue, ShoalError, TooLarge
from shoal.names import check_key, check_name
from shoal.protocol.conformance import nearest, too_many
from shoal.protocol.requests import Durability, R, Read, Request
from shoal.values.stepped import STEP_BYTES, has_more_values, made_at_once, made_of_packed, packed_in_steps, text_in_steps
from shoal.values.work import NODES_MAX, Allowance
from shoal.workflows.connection import Connection, HeldLeases

BOOKMARK_HEADER_BYTES_MAX = 6 * 1024  # In an HTTP answer; clients and proxies refuse headers of more than about 8 KiB.

if TYPE_CHECKING:
    from shoal.access.bearer import Bearer

JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
MSGPACK = "application/msgpack"
MSGPACK_TYPES = frozenset({MSGPACK, "application/x-msgpack", "application/vnd.msgpack"})

Seconds = Annotated[float, Meta(ge=0, le=2**40)]  # Milliseconds of them fit 64 bits.

_T = TypeVar("_T", bound=Struct)
_Made = TypeVar("_Made")
_NO_VALUE = "the body holds a value that is"
_SURROGATE = "a lone surrogate (half of a UTF-16 pair), which UTF-8 cannot hold"
_EXPLAINED_BYTES = 64 * 1024  # Longer text is not decoded once more to explain what is wrong with it.
_UNDECODABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError, OverflowError)


class WriteQuery(Struct, forbid_unknown_fields=True):
    """The parameters of all writes."""

    durability: Durability = "local"


class ReadQuery(Struct, forbid_unknown_fields=True):
    """The parameters of all reads."""

    stale: bool = False  # Read this node's state, even if it is older than the bookmark.


class NoQuery(Struct, forbid_unknown_fields=True):
    """The query of a route without parameters."""


class Exchange:
    """A request and its answer, as a handler sees them; `template` is its route's path."""

    def __init__(
        self,
        request: web.Request,
        *,
        session: Noting,
        body: Receiving,
        config: Config,
        template: str,
        stopping: asyncio.Event,
        bearer: Bearer | None = None,
    ) -> None:
        self.request = request
        self.bearer = bearer  # None: the node asks for no token.
        self._bookmark = session.shared
        self._body = body
        self.session = session
        self.config = config
        self.stopping = stopping
        self.version: str | None = None  # The version that the answer shows or wrote; a part of its ETag.
        self._template = template
        self._packed = request.content_type in MSGPACK_TYPES
        self._given: Struct | None = None  # The body, so that its values keep their identity.
        self._stored: dict[int, bytes | ShoalError] = {}  # The values of a large body by their identity, as stored.
        self._later: list[_Later] = []
        self._shown_bytes = 0

    # ── what was asked ────────────────────────────────────────────────────────

    def name(self, part: str, /) -> str:
        """The part of the path that the template calls `{part}`, as a legal name.

        Raises:
            InvalidName: it is not legal.
        """
        return name_in(self.request, self._template, part)

    def query(self, kind: type[_T], /) -> _T:
        """The query string as a `kind`.

        Raises:
            InvalidInput: a parameter is unknown, given twice, or not of its type.
        """
        given = self.request.query
        twice = next((name for name in given if len(given.getall(name)) > 1), None)
        if twice is not None:
            raise InvalidInput(f"the query has {twice[:80]!r} more than once. Nothing was written.", field=twice[:80])
        return _converted(dict(given), kind, what="query")

    async def body(self, kind: type[_T], /) -> _T:
        """The body as a `kind`.

        Raises:
            TooLarge, UnsupportedEncoding, InvalidValue, RequestTimeout, Overloaded: see `shoal.api.http.bodies`.
            UnsupportedMediaType: it is neither JSON nor msgpack.
            InvalidValue: it is not what its Content-Type says.
            InvalidInput: a field is unknown, missing, or not of its type.
            TooLarge: its lists and objects, except for those within values, have more than `NODES_MAX` entries.
        """
        raw = await self.raw_body(JSON, *MSGPACK_TYPES)
        if len(raw) <= STEP_BYTES:
            return _decoded(raw, kind, packed=self._packed)
        depth = _depth_of(kind)
        if self._packed:
            made = 0 if len(raw) <= NODES_MAX else await _in_turns(made_of_packed(raw, depth, NODES_MAX))
        else:
            made = 0 if raw.count(b",") <= NODES_MAX else await _in_turns(made_at_once(raw, depth))
        if made > NODES_MAX:
            raise TooLarge(
                f"the body's lists and objects have more than {NODES_MAX} entries. Nothing was written. Send it in parts."
            )
        body = _decoded(raw, kind, packed=self._packed)
        if self._packed:
            return body
        self._given = body
        await self._store(body)
        return body

    async def _store(self, body: Struct) -> None:
        """Convert the values of a large JSON body. A part that is JSON by definition may be none, so errors wait."""
        waited = 0
        for value in _values_in(body):
            try:
                self._stored[id(value)] = await _in_turns(packed_in_steps(bytes(value)))
            except _UNDECODABLE as reason:
                self._stored[id(value)] = no_json(value, reason, what=_NO_VALUE)
            except ShoalError as error:
                self._stored[id(value)] = error
            waited += len(bytes(value))
            if waited > STEP_BYTES:
                waited = 0
                await asyncio.sleep(0)

    async def raw_body(self, *content_types: str) -> bytes:
        """The body's bytes, if its Content-Type is one of these, or if it has none.

        Raises:
            UnsupportedMediaType: its Content-Type is another; and the errors of `shoal.api.http.bodies`.
        """
        if "Content-Type" in self.request.headers and self.request.content_type not in content_types:
            raise UnsupportedMediaType(
                f"the body is {self.request.content_type[:80]!r}; this route accepts {' or '.join(content_types)}. "
                "Nothing was written."
            )
        return await self._body.read(self.request)

    def pieces(self, held_bytes: int) -> AsyncGenerator[bytes, None]:
        """The body as it arrives, of any size. `held_bytes` of it count as those of this request until it is answered.

        Raises:
            InvalidValue, RequestTimeout, Overloaded: see `shoal.api.http.bodies`.
        """
        return self._body.pieces(self.request, held_bytes)

    def has_name(self, part: str, /) -> bool:
        """Whether the template has such a part."""
        return f"{{{part}}}" in self._template

    async def call(self, request: Request[R], /, *, stale: bool = False, durability: Durability | None = None) -> R:
        """Ask the session; a write has the HTTP request's idempotency key and, unless one is given, durability.

        Raises:
            InvalidInput, InvalidName: the key or the durability is not legal.
            ShoalError: the session's answer.
        """
        if isinstance(request, Read):
            return await self.session.call(request, stale=stale)
        held = headers.named_by(self.request)
        if held is not None:
            named = self.durability if "durability" in self.request.query else None
            return await self.connection.write(request, key=self.key, durability=durability or named)
        return await self.session.call(request, key=self.key, durability=durability or self.durability)

    @property
    def key(self) -> str | None:
        """The idempotency key; None if there is none.

        Raises:
            InvalidInput, InvalidName: it is not legal.
        """
        key = self.request.headers.get("Idempotency-Key")
        if key is not None:
            check_key("idempotency", key)
        return key

    def expected(self, given: str | None, /, field: str = "expect") -> str | None:
        """The version that a write expects: from `If-Match`, or `given` as `field` in the body or query.

        Raises:
            InvalidInput, Unsupported: the condition cannot be compared.
        """
        return headers.expected(self.request, given, field=field)

    @property
    def durability(self) -> Durability:
        """The durability that the query names; "local" if it names none.

        Raises:
            InvalidInput: it names an unknown one.
        """
        # The route checks the other parameters.
        asked = {name: value for name, value in self.request.query.items() if name == "durability"}
        return _converted(asked, WriteQuery, what="query").durability

    # ── flows of more than one request ────────────────────────────────────────

    @property
    def connection(self) -> Connection:
        """This exchange's session, as `shoal.workflows` uses it."""
        return self.connected()

    def connected(self, *, unpacks: bool = False, stale: bool = False) -> Connection:
        """The same. `unpacks`: states are unpacked here. `stale`: what is read may be older than the bookmark."""
        session = Sparing(self.session) if unpacks else self.session
        return Connection(session, self.config, "local", held=headers.named_by(self.request) or HeldLeases(), stale=stale)

    # ── values ────────────────────────────────────────────────────────────────

    def stored(self, value: Raw, /) -> bytes:
        """Convert a value of the body to its stored form, the msgpack of `shoal.values`.

        Raises:
            InvalidValue: it is not valid JSON, or cannot be stored.
            TooLarge: an object with a tag in it is too large to be converted.
        """
        if self._packed:
            return bytes(value)
        known = self._stored.get(id(value))
        if isinstance(known, ShoalError):
            raise known
        if known is not None:
            return known
        try:
            plain = msgspec.json.decode(value)
        except _UNDECODABLE as reason:
            raise no_json(value, reason, what=_NO_VALUE) from None
        return values.encode(values.from_json(plain))

    def stored_map(self, fields: dict[str, Raw], /) -> bytes:
        """Convert a map of values to its stored form, as one value."""
        return msgspec.msgpack.encode({name: Raw(self.stored(value)) for name, value in fields.items()})

    def as_json(self, part: Raw, /) -> bytes:
        """Convert a part of the body that is JSON by definition to canonical JSON text.

        Raises:
            InvalidValue: it is not JSON.
            TooLarge: it has more than `NODES_MAX` values.
        """
        if self._packed:
            Allowance().charge_packed(bytes(part))
        elif has_more_values(bytes(part), NODES_MAX):
            raise too_many_values()
        try:
            plain = msgspec.msgpack.decode(part) if self._packed else msgspec.json.decode(part)
            return json.dumps(plain, sort_keys=True, ensure_ascii=False).encode()
        except (*_UNDECODABLE, TypeError, ValueError) as reason:
            raise no_json(part, reason, what="the body holds a part that is") from None

    def of_json(self, text: bytes, /) -> Raw:
        """Show JSON text as a part of the answer."""
        return Raw(msgspec.msgpack.encode(msgspec.json.decode(text))) if self.answers_packed else Raw(text)

    def value(self, part: Raw, /) -> Any:
        """Convert a value of the body to a Python object.

        Raises:
            InvalidValue: it cannot be stored, or is of a class that is not registered here.
            TooLarge: it has more than `NODES_MAX` values.
        """
        stored = self.stored(part)
        Allowance().charge_packed(stored)
        return values.decode(stored)

    def of_value(self, value: Any, /) -> Raw:
        """Show a Python object as a part of the answer."""
        return self.shown(values.encode(value))

    def shown(self, stored: bytes, /, schema: str = "") -> Raw:
        """Show a stored value as a part of the view for `answer`. A channel's type may depend on `schema`, its checkpoint's."""
        if self.answers_packed:
            return Raw(stored)
        self._shown_bytes += len(stored)
        if self._shown_bytes <= STEP_BYTES:
            return Raw(msgspec.json.encode(values.to_json(values.decode_channel(stored, schema))))
        later = _Later(stored, schema)
        self._later.append(later)
        return cast("Raw", later)

    # ── the answer ────────────────────────────────────────────────────────────

    def bookmark_headers(self) -> dict[str, str]:
        """The headers with the client's bookmark after this answer."""
        return headers.headers(self._bookmark, bytes_max=BOOKMARK_HEADER_BYTES_MAX)

    @property
    def answers_packed(self) -> bool:
        """Whether the client accepts msgpack before JSON; JSON if it names neither."""
        accepted = (part.split(";")[0].strip().lower() for part in self.request.headers.get("Accept", "").split(","))
        return next((kind in MSGPACK_TYPES for kind in accepted if kind == JSON or kind in MSGPACK_TYPES), False)

    async def answer(self, view: Struct | dict[str, Any], /, *, status: int = 200) -> web.Response:
        """A response with `view` in the format that the client accepts.

        Raises:
            InvalidValue, TooLarge: a value in it cannot be shown as JSON.
        """
        await self._show()
        if self.answers_packed:
            return web.Response(body=msgspec.msgpack.encode(view), status=status, content_type=MSGPACK)
        return web.Response(body=msgspec.json.encode(view, enc_hook=_text_of), status=status, content_type=JSON)

    async def text(self, value: Any, /) -> bytes:
        """The JSON text of a Python object, for an answer in parts.

        Raises:
            InvalidValue, TooLarge: it cannot be shown as JSON.
        """
        return await _in_turns(text_in_steps(values.encode(value)))

    async def _show(self) -> None:
        waited = 0
        for later in self._later:
            later.text = Raw(await _in_turns(text_in_steps(later.stored, later.schema)))
            waited += len(later.stored)
            if waited > STEP_BYTES:
                waited = 0
                await asyncio.sleep(0)


class _Later:
    """The place of a value in an answer, which is converted before the answer is written."""

    __slots__ = ("schema", "stored", "text")

    def __init__(self, stored: bytes, schema: str) -> None:
        self.stored = stored
        self.schema = schema
        self.text = Raw()


def _text_of(part: object) -> Raw:
    assert isinstance(part, _Later), part
    return part.text


async def _in_turns(steps: Generator[None, None, _Made]) -> _Made:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            made: _Made = done.value
            return made
        await asyncio.sleep(0)


def _values_in(part: Any) -> Iterator[Raw]:
    if isinstance(part, Raw):
        yield part
    elif isinstance(part, Struct):
        for name in part.__struct_fields__:
            yield from _values_in(getattr(part, name))
    elif isinstance(part, list | dict):
        for inner in part.values() if isinstance(part, dict) else part:
            yield from _values_in(inner)


@cache
def _depth_of(kind: Any) -> int:
    """How deep the objects nest that decoding this type makes; values stay text."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        return 1 + max((_depth_of(hint) for hint in get_type_hints(kind).values()), default=0)
    inner = max((_depth_of(part) for part in get_args(kind) if part is not kind), default=0)
    return inner + (get_origin(kind) in (list, dict))


def name_in(request: web.Request, template: str, part: str) -> str:
    """The part of the path that a route's template calls `{part}`, as a legal name.

    Raises:
        InvalidName: it is not legal.
    """
    raw = request.rel_url.raw_path.split("/")[template.split("/").index(f"{{{part}}}")]
    return check_name(part, decoded(raw, f"{part} name"))


def decoded(raw: str, what: str) -> str:
    """Decode percent-encoded text; `what` is for the error.

    Raises:
        InvalidName: it is not UTF-8.
    """
    octets = unquote_to_bytes(raw)
    try:
        return octets.decode()
    except UnicodeDecodeError:
        pass
    try:
        octets.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise InvalidName(f"the {what} must be UTF-8, percent-encoded. Nothing was written.") from None
    raise InvalidName(f"the {what} holds {_SURROGATE}. Nothing was written.")


def no_json(raw: bytes | Raw, reason: Exception, *, what: str = "the body is") -> InvalidValue:
    """The error for `raw`, which is not JSON that can be stored."""
    try:
        if len(bytes(raw)) > _EXPLAINED_BYTES:
            raise ValueError
        json.dumps(json.loads(bytes(raw)), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return InvalidValue(f"{what} JSON that cannot be stored: it holds {_SURROGATE}. Nothing was written.")
    except (ValueError, RecursionError):
        pass
    return InvalidValue(f"{what} not valid JSON: {reason}. Nothing was written.")


def too_many_values() -> TooLarge:
    """The error for JSON with more values than `NODES_MAX`."""
    return TooLarge(f"the JSON has more than {NODES_MAX} values. Nothing was written. Send it in parts.")


def _decoded(raw: bytes, kind: type[_T], *, packed: bool) -> _T:
    try:
        return msgspec.msgpack.decode(raw, type=kind) if packed else msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as reason:
        raise _invalid(reason, "body", kind) from None
    except _UNDECODABLE as reason:
        if not packed:
            raise no_json(raw, reason) from None
        raise InvalidValue(f"the body is not valid msgpack: {reason}. Nothing was written.") from None


def _converted(source: dict[str, str], kind: type[_T], *, what: str) -> _T:
    try:
        return msgspec.convert(source, kind, strict=False)
    except msgspec.ValidationError as reason:
        raise _invalid(reason, what, kind) from None


def _invalid(reason: msgspec.ValidationError, what: str, kind: Any) -> InvalidInput:
    """Convert msgspec's error, whose text has the place as `$.limit`, or the unknown field in back quotes."""
    text = str(reason)
    place = re.search(r"at `\$\.?(.+)`$", text) or re.search(r"field `(.+?)`", text)
    field = place[1] if place else None
    if longest := re.search(r"of length <= (\d+)", text):
        return too_many(field, int(longest[1]))
    if (wrong := re.match(r"Invalid enum value '(.*)' - at", text, re.DOTALL)) and (words := _words(kind, field)):
        text = f"{field} must be one of {', '.join(map(repr, words))}; got {wrong[1][:40]!r}.{nearest(wrong[1], words)}"
    else:
        text = f"{text}."
    return InvalidInput(f"the {what} is not valid: {text} Nothing was written.", field=field)


def _words(kind: Any, field: str | None) -> list[str]:
    """The words that a field of a struct may have; none if it is no such field."""
    if not isinstance(kind, type) or not issubclass(kind, Struct):
        return []
    found = get_type_hints(kind).get(field or "")
    return [word for part in (found, *get_args(found)) if get_origin(part) is Literal for word in get_args(part)]
