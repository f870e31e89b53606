"""HTTP derived from the declarations of operations: routes, bodies, answers, and the parts of batches and multi-reads.

Laws:

- A body has the fields of its request except those that the path names; an answer has the fields of its reply. Their
  names and types are the protocol's, converted as `shoal.protocol.fields` says: packed values are JSON, cursors are text.
- A request with an `expect` also takes the version as `If-Match`, and a reply's `version` is the answer's ETag.
- All of this is derived once, when the route table is built.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
from aiohttp import web
from msgspec import NODEFAULT, Meta, Raw, Struct

from shoal.api.http.exchange import Exchange, ReadQuery, Seconds, WriteQuery
from shoal.api.http.opaque import opaque, shown_opaque
from shoal.api.route import SPACE, Handler, Route
from shoal.protocol.fields import AtLeast, Named, Shape
from shoal.protocol.requests import AnyRequest, Read, Reply, Request, reply_of
from shoal.protocol.requests.declared import Http, declaration_of
from shoal.protocol.requests.families import operations
from shoal.records import NamedTuple

SOURCES: dict[type[Struct], tuple[type[Struct], dict[str, str]]] = {}
"""For each derived class, the class that it is derived from, and the names of its fields there."""

EXAMPLES: dict[type[Struct], Any] = {}
"""An example of each derived body."""

_Taken = Callable[[Exchange, Any, str], Any]
_Shown = Callable[[Exchange, Any], Any]


class _Form(NamedTuple):
    """The form of a field over HTTP. If `take` or `show` is None, it is as in the protocol."""

    type: Any
    take: _Taken | None = None  # From a body; the field's name is for errors.
    show: _Shown | None = None  # In an answer.


class _Field(NamedTuple):
    name: str  # In the protocol.
    shown: str  # Over HTTP.
    form: _Form
    default: Any
    default_factory: Any


class Derived:
    """One operation over HTTP."""

    def __init__(self, kind: type[Request[Any]], http: Http) -> None:
        self.kind = kind
        self.http = http
        self.is_read = issubclass(kind, Read)
        parts = re.findall(r"{(\w+)}", http.path)
        fields = [field for field in _fields(kind) if field.name != "space"]
        by_name = {field.shown: field.name for field in fields} | {field.name: field.name for field in fields}
        self._path = {part: by_name[part] for part in parts}
        self._fields = [field for field in fields if field.name not in self._path.values()]
        self.view = _view(reply_of(kind))  # type: ignore[arg-type]
        self._body = self._query = None
        if self._fields and http.method == "GET":
            self._query = _struct(f"{kind.__name__}Query", kind, self._fields, bases=(ReadQuery,))
        elif self._fields:
            self._body = _struct(f"{kind.__name__}Body", kind, self._fields)
            EXAMPLES[self._body] = http.example
        self._compares = "expect" in kind.__struct_fields__
        self._has_version = "version" in reply_of(kind).__struct_fields__

    def route(self) -> Route:
        """The route by which the API serves this operation."""
        http, body = self.http, self._body
        query = self._query or (ReadQuery if self.is_read else WriteQuery)
        return Route(
            http.method,
            SPACE + http.path,
            self._handler(query, body),
            http.summary,
            self.view,
            201 if http.created else 200,
            body,
            query,
            reads=self.is_read and http.method != "GET",
            compares=self._compares,
            repeats=bool(http.created),
            errors=http.errors,
        )

    def ops(self) -> list[type[Struct]]:
        """The types of this operation as a part of a batch or a multi-read: one for each of its names."""
        named = [_Field(name, shown, _Form(str), NODEFAULT, NODEFAULT) for shown, name in self._path.items()]
        fields = [*named, *self._fields]
        names = (("".join(part.title() for part in op.split("-")) + "Op", op) for op in self.http.ops)
        return [_struct(name, self.kind, fields, tag_field="op", tag=op) for name, op in names]

    def request(self, exchange: Exchange, space: str, names: dict[str, str], given: Any) -> AnyRequest:
        """The request, from what the path names and from a body, a query or a part of a batch."""
        fields: dict[str, Any] = {"space": space, **names}
        for name, shown, form, _, _ in self._fields:
            value = getattr(given, shown)
            fields[name] = value if form.take is None else form.take(exchange, value, shown)
        return self.kind(**fields)

    def asked(self, exchange: Exchange, space: str, op: Struct) -> AnyRequest:
        """The request, from a part of a batch or of a multi-read."""
        return self.request(exchange, space, {name: getattr(op, shown) for shown, name in self._path.items()}, op)

    def _handler(self, query: type[Struct], body: type[Struct] | None) -> Handler:
        async def answer(exchange: Exchange) -> web.StreamResponse:
            names = {name: exchange.name(shown) for shown, name in self._path.items()}
            given: Any = None if body is None else await exchange.body(body)
            asked: Any = exchange.query(query)
            request: Any = self.request(exchange, exchange.name("space"), names, asked if given is None else given)
            if self._compares:
                request = msgspec.structs.replace(request, expect=exchange.expected(request.expect))
            reply: Any = await exchange.call(request, stale=self.is_read and asked.stale)
            if self._has_version:
                exchange.version = reply.version
            status = 201 if self.http.created and getattr(reply, self.http.created) else 200
            return exchange.answer(show(exchange, reply), status=status)

        answer.__module__ = self.kind.__module__
        return answer


def show(exchange: Exchange, reply: Reply) -> Struct:
    """A reply as it is shown over HTTP."""
    return _shown_struct(type(reply))(exchange, reply)


def _derive() -> dict[type[Request[Any]], Derived]:
    declared = {kind: declaration_of(kind).http for kind in operations()}
    return {kind: Derived(kind, http) for kind, http in declared.items() if http is not None}


# ── from the protocol's types to those of HTTP ────────────────────────────────

_SHAPES: dict[Shape, _Form] = {
    Shape.VALUE: _Form(Raw, lambda exchange, given, _: exchange.stored(given), lambda exchange, kept: exchange.shown(kept)),
    Shape.CURSOR: _Form(str, lambda _, given, field: opaque(given, field), lambda _, kept: shown_opaque(kept)),
    Shape.SECONDS: _Form(Seconds, lambda _, given, __: int(given * 1000), lambda _, kept: kept / 1000),
    Shape.MOMENT: _Form(int | None, None, lambda _, kept: kept or None),
    Shape.JSON: _Form(Raw, lambda exchange, given, _: exchange.as_json(given), lambda exchange, kept: exchange.of_json(kept)),
}


def _fields(kind: type[Struct]) -> list[_Field]:
    """The fields of a request or a reply that clients of HTTP give or see."""
    found = []
    for field in msgspec.structs.fields(kind):
        marks = get_args(field.type)[1:] if get_origin(field.type) is Annotated else ()
        if Shape.INTERNAL not in marks:
            shown = next((mark.name for mark in marks if isinstance(mark, Named)), field.name)
            default = "" if field.default == b"" else field.default
            found.append(_Field(field.name, shown, _form(field.type), default, field.default_factory))
    return found


def _form(kind: Any) -> _Form:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _marked(arguments[0], arguments[1:])
    if origin in (Union, UnionType) and NoneType in arguments:
        [present] = (argument for argument in arguments if argument is not NoneType)
        return _optional(_form(present))
    if origin is list:
        return _list_of(_form(arguments[0]))
    if isinstance(kind, type) and issubclass(kind, Struct):
        return _Form(_view(kind), None, _shown_struct(kind))
    return _Form(kind)


def _marked(kind: Any, marks: tuple[Any, ...]) -> _Form:
    for mark in marks:
        if mark in _SHAPES:
            return _SHAPES[mark]
        if isinstance(mark, AtLeast):
            return _Form(Annotated[kind, Meta(ge=mark.number)])
    form = _form(kind)
    bounds = tuple(mark for mark in marks if isinstance(mark, Meta))
    return form._replace(type=Annotated[form.type, *bounds]) if bounds else form


def _optional(form: _Form) -> _Form:
    take, show = form.take, form.show
    return _Form(
        form.type | None,
        take and (lambda exchange, given, field: None if given is None else take(exchange, given, field)),
        show and (lambda exchange, kept: None if kept is None else show(exchange, kept)),
    )


def _list_of(form: _Form) -> _Form:
    take, show = form.take, form.show
    return _Form(
        list[form.type],  # type: ignore[name-defined]
        take and (lambda exchange, given, field: [take(exchange, item, field) for item in given]),
        show and (lambda exchange, kept: [show(exchange, item) for item in kept]),
    )


@cache  # As many as there are replies, and parts of them.
def _shown_struct(kind: type[Struct]) -> Callable[[Exchange, Any], Struct]:
    view, fields = _view(kind), [(field.name, field.form.show) for field in _fields(kind)]

    def show(exchange: Exchange, kept: Any) -> Struct:
        parts = ((getattr(kept, name), form) for name, form in fields)
        return view(*(part if form is None else form(exchange, part) for part, form in parts))

    return show


@cache  # Likewise.
def _view(kind: type[Struct]) -> type[Struct]:
    """The class that shows a reply, or a part of one."""
    return _made(f"{kind.__name__}View", kind, [(field.shown, field.form.type) for field in _fields(kind)], {})


def _struct(name: str, source: type[Struct], fields: list[_Field], **options: Any) -> type[Struct]:
    """The class of a body, a query or a part of a batch. Decoding rejects unknown fields."""
    parts: list[Any] = []
    for field in fields:
        if field.default_factory is not NODEFAULT:
            parts.append((field.shown, field.form.type, msgspec.field(default_factory=field.default_factory)))
        elif field.default is not NODEFAULT:
            parts.append((field.shown, field.form.type, field.default))
        else:
            parts.append((field.shown, field.form.type))
    options = {"forbid_unknown_fields": True, "kw_only": True, **options}
    return _made(name, source, parts, options)


def _made(name: str, source: type[Struct], parts: list[Any], options: dict[str, Any]) -> type[Struct]:
    meaning = inspect.cleandoc(source.__doc__ or "")
    made = msgspec.defstruct(name, parts, module=__name__, namespace={"__doc__": meaning}, **options)
    SOURCES[made] = source, {field.shown: field.name for field in _fields(source)}
    return made


OPERATIONS = _derive()
"""All operations that declare their place in HTTP, by the kind of the request."""
