"""HTTP derived from the declarations of operations: routes, bodies, answers, and the parts of batches and multi-reads.

Laws:

- A body has the fields of its request except those that the path names or decides; an answer has the fields of its reply, and
  its properties. Their names and types are the protocol's, converted as `shoal.protocol.base` says: packed values are JSON,
  cursors are text. In a query, an object is JSON text, and a list has commas between its elements.
- A request with an `expect` also takes the version as `If-Match`, and a reply's `version` is the answer's ETag.
- A flow of `shoal.workflows` that declares a place in HTTP is served as a request is.
- All of this is derived once, when the route table is built.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints
from urllib.parse import unquote

import msgspec
from aiohttp import web
from msgspec import NODEFAULT, Meta, Raw, Struct

from shoal import values
from shoal.api.http.exchange import Exchange, NoQuery, ReadQuery, Seconds, WriteQuery
from shoal.api.http.headers import opaque, shown_opaque
from shoal.api.route import SPACE, Handler, Route
from shoal.api.watching import waited
from shoal.errors import InvalidInput, NotFound
from shoal.kinds.journal import flows as journal
from shoal.kinds.redaction import flows as redaction
from shoal.kinds.retention import flows as retention
from shoal.kinds.step import flows as step
from shoal.kinds.thread.flows import served
from shoal.kinds.tiering import flows as tiering
from shoal.protocol.base import AtLeast, Http, Named, Shape, declaration_of
from shoal.protocol.requests import Deleted, Read, Request, reply_of
from shoal.protocol.requests.families import operations
from shoal.records import NamedTuple
from shoal.values import forms as vectors
from shoal.workflows import spaces, subjects
from shoal.workflows.connection import Flow

FLOWS: tuple[type[Flow[Any]], ...] = (
    spaces.SetQuota,
    spaces.DeleteSpace,
    subjects.FindTags,
    subjects.WriteTags,
    subjects.RemoveTags,
    subjects.EraseSubject,
    journal.ReadReplay,
    step.Resume,
    served.Undo,
    served.Redo,
    served.Edit,
    served.ReadDiff,
    served.ReadMutations,
    served.ReadAudit,
    served.PreviewMerge,
    served.Merge,
    retention.SetRetentionRule,
    retention.UnsetRetentionRule,
    retention.CarryOutRetention,
    retention.PreviewRetention,
    redaction.SetRedaction,
    redaction.UnsetRedaction,
    redaction.PreviewRedaction,
    tiering.SetTiering,
    tiering.UnsetTiering,
)

SOURCES: dict[type[Struct], tuple[type[Struct], dict[str, str]]] = {}
"""For each derived class, the class that it is derived from, and the names of its fields there."""

EXAMPLES: dict[type[Struct], Any] = {}
"""An example of each derived body."""

_ROOT = "/v1"
_Taken = Callable[[Exchange, Any, str], Any]
_Shown = Callable[[Exchange, Any, Any], Any]


class _Form(NamedTuple):
    """The form of a field over HTTP. If `take` or `show` is None, it is as in the protocol."""

    given: Any  # Its type in a body,
    shown: Any  # and in an answer.
    take: _Taken | None = None  # From a body; the field's name is for errors.
    show: _Shown | None = None  # In an answer; the last argument is the struct that the field is of.
    text: _Taken | None = None  # From a query, where it is other text than a body's JSON.


class _Field(NamedTuple):
    name: str  # In the protocol.
    shown: str  # Over HTTP.
    form: _Form
    default: Any = NODEFAULT
    default_factory: Any = NODEFAULT


class Derived:
    """One place of an operation in HTTP."""

    def __init__(self, kind: type[Struct], http: Http, name: str) -> None:
        self.kind = kind
        self.http = http
        self.is_read = issubclass(kind, Read) or http.method == "GET"
        found = _fields(kind, True)
        self._in_space = any(field.name == "space" for field in found)
        made = {name for part in http.parts for name in part.fields} | {"space", *http.sets}
        said = [_Field(name, name, _Form(type, type)) for part in http.parts for name, type in part.names.items()]
        fields = [*said, *(field for field in found if field.name not in made)]
        parts = re.findall(r"{(\w+)}", http.path)
        # A part is the field of that name in the protocol; if there is none, the one of that name over HTTP.
        by_name = {field.shown: field for field in fields} | {field.name: field for field in fields}
        self._named = [by_name[part]._replace(shown=part) for part in parts]
        self._fields = [
            field._replace(default=http.defaults[field.name]) if field.name in http.defaults else field
            for field in fields
            if field.name not in {named.name for named in self._named}
        ]
        reply = _reply_of(kind)
        self.view = _view(_element(reply, http.one) if http.one else reply)
        # A deletion can be tried: its answer is as if it had been carried out.
        tried = reply is Deleted or (issubclass(kind, Request) and declaration_of(kind).would is not None)
        self._tries = tried and http.method == "DELETE"
        self._body: type[Struct] | None = None
        in_query = http.method in ("GET", "DELETE")
        base: Any = (ReadQuery if self._in_space else NoQuery) if self.is_read else WriteQuery
        self._query: type[Struct] = base
        more = [_Field("wait", "wait", _Form(Seconds, Seconds), 0.0)] if http.waits else []
        more += [_Field("dry_run", "dry_run", _Form(bool, bool), False)] if self._tries else []
        if in_query and (self._fields or more):
            self._query = _struct(f"{name}Query", kind, [*map(_in_query, self._fields), *more], bases=(base,))
        elif self._fields:
            self._body = _struct(f"{name}Body", kind, self._fields)
            EXAMPLES[self._body] = http.example
        self._compares = "expect" in kind.__struct_fields__
        self._version = http.version if http.version in self.view.__struct_fields__ else ""

    def route(self) -> Route:
        """The route by which the API serves this operation."""
        http = self.http
        return Route(
            http.method,
            (SPACE if self._in_space else _ROOT) + http.path,
            self._handler(),
            http.summary,
            self.view,
            201 if http.created else 200,
            self._body,
            self._query,
            reads=self.is_read and http.method != "GET",
            compares=self._compares,
            repeats=bool(http.created),
            errors=(*http.errors, *((NotFound,) if http.one else ())),
        )

    def ops(self) -> list[type[Struct]]:
        """The types of this operation as a part of a batch or a multi-read: one for each of its names."""
        fields = [*self._named, *self._fields]
        kind = "Read" * self.is_read  # A read and a write may have the same name.
        names = ((kind + "".join(part.title() for part in op.split("-")) + "Op", op) for op in self.http.ops)
        return [_struct(name, self.kind, fields, tag_field="op", tag=op) for name, op in names]

    def asked(self, exchange: Exchange, space: str, op: Struct) -> Any:
        """The request, from a part of a batch or of a multi-read."""
        return self._request(space, _taken(exchange, [*self._named, *self._fields], op))

    def shown(self, exchange: Exchange, reply: Any) -> Any:
        """The answer; None if it is to be an element of a list that has none."""
        if self.http.one:
            reply = next(iter(getattr(reply, self.http.one)), None)
        return None if reply is None else show(exchange, reply)

    def _request(self, space: str | None, said: dict[str, Any]) -> Any:
        """The request, from what the path, the query and the body say."""
        for part in self.http.parts:
            said |= zip(part.fields, part.made(*[said.pop(name) for name in part.names]), strict=True)
        return self.kind(**({} if space is None else {"space": space}), **said, **self.http.sets)

    async def _asked(self, exchange: Exchange) -> Any:
        """The request, from a route's path, query and body."""
        said = {field.name: _of_path(field, exchange.name(field.shown)) for field in self._named}
        if self._body is not None:
            said |= _taken(exchange, self._fields, await exchange.body(self._body))
        elif self._fields:
            said |= _taken(exchange, self._fields, exchange.query(self._query), in_query=True)
        request = self._request(exchange.name("space") if self._in_space else None, said)
        if self._compares:
            request = msgspec.structs.replace(request, expect=exchange.expected(request.expect))
        return request

    def _handler(self) -> Handler:
        async def answer(exchange: Exchange) -> web.StreamResponse:
            request, query = await self._asked(exchange), exchange.query(self._query)
            stale = self.is_read and getattr(query, "stale", False)

            async def ask() -> Any:
                if self._tries and query.dry_run:  # type: ignore[attr-defined]
                    return await spaces.would(exchange.connection, request)
                if isinstance(request, Flow):
                    connection = exchange.connected(unpacks=request.unpacks, stale=stale)
                    return await request.run(connection, key=exchange.key, durability=exchange.durability)
                return await exchange.call(request, stale=stale)

            reply, waits = await ask(), self.http.waits
            if waits is not None and query.wait and not getattr(reply, waits.until):  # type: ignore[attr-defined]
                reply = await waited(exchange, waits.change, query.wait, ask, lambda found: bool(getattr(found, waits.until)))  # type: ignore[attr-defined]
            shown = self.shown(exchange, reply)
            if shown is None:
                raise NotFound(f"there is no such entry: {exchange.request.path}. It was never written, or is gone.")
            if self._version:
                exchange.version = getattr(shown, self._version)
            return await exchange.answer(shown, status=201 if _is_created(reply, self.http.created) else 200)

        answer.__module__ = self.kind.__module__
        return answer


def show(exchange: Exchange, reply: Struct) -> Struct:
    """A reply as it is shown over HTTP."""
    return _shown_struct(type(reply))(exchange, reply, reply)


def view_of(kind: type[Struct]) -> type[Struct]:
    """The class of what `show` returns."""
    return _view(kind)


def _derive() -> tuple[Derived, ...]:
    found = []
    for kind in (*operations(), *FLOWS):
        places = kind.http if issubclass(kind, Flow) else declaration_of(kind).http  # type: ignore[arg-type]
        for place in places:
            # Of several places of one kind, each has its own body, which generators of clients need a name for.
            words = re.findall(r"[a-z]+", place.path) if len(places) > 1 else []
            alike = [re.findall(r"[a-z]+", other.path)[-2:] for other in places if other.method == place.method]
            least = -2 if alike.count(words[-2:]) < 2 else -4  # Two places may end alike, below a thread and below the space.
            found.append(Derived(kind, place, "".join([kind.__name__, *map(str.title, words[least:])])))
    return tuple(found)


def _is_created(reply: Any, field: str) -> bool:
    found = getattr(reply, field) if field else False
    return any(found) if isinstance(found, list) else bool(found)


def _reply_of(kind: type[Struct]) -> type[Struct]:
    found: type[Struct] = get_type_hints(kind.run)["return"] if issubclass(kind, Flow) else reply_of(kind)
    return found


def _element(reply: type[Struct], name: str) -> type[Struct]:
    [listed] = (field.type for field in msgspec.structs.fields(reply) if field.name == name)
    while get_args(listed):
        listed = get_args(listed)[0]
    found: type[Struct] = listed
    return found


# ── what is given ─────────────────────────────────────────────────────────────


def _of_path(field: _Field, text: str) -> Any:
    return text.split(".") if get_origin(_bare(field.form.given)) is list else text


def _bare(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _taken(exchange: Exchange, fields: Sequence[_Field], given: Struct, *, in_query: bool = False) -> dict[str, Any]:
    """The fields of a request from a body, a query or a part of a batch; those that were left out keep their defaults."""
    taken: dict[str, Any] = {}
    for name, shown, form, _, _ in fields:
        value, take = getattr(given, shown), form.text if in_query and form.text is not None else form.take
        if (isinstance(value, Raw) and not value) or (take is form.text is not None and value is None):
            continue
        taken[name] = value if take is None else take(exchange, value, shown)
    return taken


def _in_query(field: _Field) -> _Field:
    if field.form.text is None:
        return field
    if field.default is NODEFAULT and field.default_factory is NODEFAULT:
        return field._replace(form=_Form(str, str))
    return field._replace(form=_Form(str | None, str | None), default=None, default_factory=NODEFAULT)


def _object(_: Exchange, text: str, field: str) -> dict[str, bytes]:
    """Values by name, from JSON text in a query.

    Raises:
        InvalidInput: it is not a JSON object.
    """
    try:
        fields = msgspec.json.decode(text or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        raise InvalidInput(f'{field} must be a JSON object, as in ?{field}={{"source":"loop"}}.', field=field) from None
    return {name: values.encode(values.from_json(value)) for name, value in fields.items()}


def _listed(_: Exchange, text: str, __: str) -> list[str]:
    """Names with commas between them. A comma within a name is still `%2C` here, after the query was decoded."""
    return [unquote(name) for name in text.split(",") if name]


def moment_ms(time: datetime, field: str) -> int:
    """Milliseconds since 1970.

    Raises:
        InvalidInput: it has no time zone.
    """
    if time.tzinfo is None:
        raise InvalidInput(f"{field} needs a time zone, as in 2026-01-01T12:00:00Z.", field=field)
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


# ── from the protocol's types to those of HTTP ────────────────────────────────

_SHAPES: dict[Shape, _Form] = {
    Shape.VALUE: _Form(
        Raw, Raw, lambda exchange, given, _: exchange.stored(given), lambda exchange, kept, _: exchange.shown(kept or b"\xc0")
    ),
    Shape.CURSOR: _Form(str, str, lambda _, given, field: opaque(given, field), lambda _, kept, __: shown_opaque(kept)),
    # What is more than nothing stays more than nothing.
    Shape.SECONDS: _Form(
        Seconds, Seconds, lambda _, given, __: int(given * 1000) or int(given > 0), lambda _, kept, __: kept / 1000
    ),
    Shape.MOMENT: _Form(int | None, int | None, None, lambda _, kept, __: kept or None),
    Shape.TIME: _Form(
        datetime,
        datetime,
        lambda _, given, field: moment_ms(given, field),
        lambda _, kept, __: datetime.fromtimestamp(kept / 1000, UTC),
    ),
    Shape.JSON: _Form(
        Raw, Raw, lambda exchange, given, _: exchange.as_json(given), lambda exchange, kept, _: exchange.of_json(kept)
    ),
    Shape.VALUES: _Form(
        dict[str, Raw] | None,
        Raw,
        lambda exchange, given, _: exchange.stored_map(given) if given else b"",
        lambda exchange, kept, _: exchange.shown(kept or b"\xc0"),
    ),
    Shape.STATE: _Form(
        dict[str, Raw],
        dict[str, Raw],
        None,
        lambda exchange, kept, whole: {name: exchange.shown(value, whole.schema) for name, value in kept.items()},
    ),
    Shape.TOLD: _Form(int, int | None, None, lambda _, kept, whole: kept if whole.told else None),
    Shape.VECTOR: _Form(
        list[float],
        list[float],
        lambda _, given, field: vectors.pack(given, where=field),
        lambda _, kept, __: list(vectors.unpack(kept)),
    ),
}
_EMPTY: Mapping[Any, Any] = {str: "", dict[str, Raw] | None: None}
"""The default over HTTP of what is empty bytes in the protocol; a packed value is left out."""


@cache  # As many as there are requests, replies, and parts of them.
def _fields(kind: type[Struct], given: bool) -> list[_Field]:
    """The fields that clients of HTTP give of a request, or see of a reply, or of a part of one."""
    found = []
    for field in msgspec.structs.fields(kind):
        marks = get_args(field.type)[1:] if get_origin(field.type) is Annotated else ()
        if Shape.INTERNAL in marks:
            continue
        shown = next((mark.name for mark in marks if isinstance(mark, Named)), field.name)
        form, default, factory = _form(field.type, given), field.default, field.default_factory
        if given and isinstance(default, bytes):
            default, factory = (NODEFAULT, Raw) if form.given is Raw else (_EMPTY[form.given], NODEFAULT)
        if given and form is _SHAPES[Shape.SECONDS] and isinstance(default, int):
            default /= 1000  # Over HTTP it is in seconds, as what is given.
        found.append(_Field(field.name, shown, form, default, factory))
    return found


def _form(kind: Any, given: bool) -> _Form:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _marked(arguments[0], arguments[1:], given)
    if origin in (Union, UnionType) and NoneType in arguments and len(arguments) == 2:
        [present] = (argument for argument in arguments if argument is not NoneType)
        return _optional(_form(present, given))
    if origin is list:
        return _list_of(_form(arguments[0], given))
    if origin is dict:
        return _dict_of(arguments[0], _form(arguments[1], given))
    if isinstance(kind, type) and issubclass(kind, Struct) and kind.__struct_config__.array_like:
        return _given_struct(kind) if given else _Form(_view(kind), _view(kind), show=_shown_struct(kind))
    return _Form(kind, kind)


def _given_struct(kind: type[Struct]) -> _Form:
    fields = _fields(kind, True)
    body = _struct(f"{kind.__name__}Body", kind, fields)
    return _Form(body, body, lambda exchange, said, _: kind(**_taken(exchange, fields, said)))


def _marked(kind: Any, marks: tuple[Any, ...], given: bool) -> _Form:
    for mark in marks:
        if mark in _SHAPES:
            return _SHAPES[mark]
        if isinstance(mark, AtLeast):
            return _Form(Annotated[kind, Meta(ge=mark.number)], kind)
    form = _form(kind, given)
    bounds = tuple(mark for mark in marks if isinstance(mark, Meta))
    return form._replace(given=Annotated[form.given, *bounds]) if bounds else form


def _optional(form: _Form) -> _Form:
    take, show = form.take, form.show
    return _Form(
        form.given | None,
        form.shown | None,
        take and (lambda exchange, given, field: None if given is None else take(exchange, given, field)),
        show and (lambda exchange, kept, whole: None if kept is None else show(exchange, kept, whole)),
        form.text,
    )


def _list_of(form: _Form) -> _Form:
    take, show = form.take, form.show
    return _Form(
        list[form.given],  # type: ignore[name-defined]
        list[form.shown],  # type: ignore[name-defined]
        take and (lambda exchange, given, field: [take(exchange, item, field) for item in given]),
        show and (lambda exchange, kept, whole: [show(exchange, item, whole) for item in kept]),
        _listed if form.given is str else None,
    )


def _dict_of(key: Any, form: _Form) -> _Form:
    take, show = form.take, form.show
    return _Form(
        dict[key, form.given],  # type: ignore[name-defined]
        dict[key, form.shown],  # type: ignore[name-defined]
        take and (lambda exchange, given, field: {name: take(exchange, item, field) for name, item in given.items()}),
        show and (lambda exchange, kept, whole: {name: show(exchange, item, whole) for name, item in kept.items()}),
        _object if form.given is Raw else None,
    )


def _said(kind: type[Struct]) -> list[_Field]:
    """The fields of an answer: those of the reply, and its properties."""
    computed = [(name, found) for name, found in vars(kind).items() if isinstance(found, property)]
    return [
        *_fields(kind, False),
        *(
            _Field(name, name, _form(get_type_hints(found.fget, include_extras=True)["return"], False))
            for name, found in computed
        ),
    ]


@cache  # Likewise.
def _shown_struct(kind: type[Struct]) -> Callable[[Exchange, Any, Any], Struct]:
    view, fields = _view(kind), [(field.name, field.form.show) for field in _said(kind)]

    def show(exchange: Exchange, kept: Any, _: Any) -> Struct:
        parts = ((getattr(kept, name), form) for name, form in fields)
        return view(*(part if form is None else form(exchange, part, kept) for part, form in parts))

    return show


@cache  # Likewise.
def _view(kind: type[Struct]) -> type[Struct]:
    """The class that shows a reply, or a part of one."""
    name = f"{kind.__name__.removesuffix('View')}View"
    return _made(name, kind, [(field.shown, field.form.shown) for field in _said(kind)], {})


def _struct(name: str, source: type[Struct], fields: Sequence[_Field], **options: Any) -> type[Struct]:
    """The class of a body, a query or a part of a batch. Decoding rejects unknown fields."""
    parts: list[Any] = []
    for field in fields:
        if field.default_factory is not NODEFAULT:
            parts.append((field.shown, field.form.given, msgspec.field(default_factory=field.default_factory)))
        elif field.default is not NODEFAULT:
            parts.append((field.shown, field.form.given, field.default))
        else:
            parts.append((field.shown, field.form.given))
    options = {"forbid_unknown_fields": True, "kw_only": True, **options}
    return _made(name, source, parts, options)


def _made(name: str, source: type[Struct], parts: list[Any], options: dict[str, Any]) -> type[Struct]:
    meaning = inspect.cleandoc(source.__doc__ or "")
    made = msgspec.defstruct(name, parts, module=__name__, namespace={"__doc__": meaning}, **options)
    SOURCES[made] = source, {field.shown: field.name for field in _said(source)}
    return made


OPERATIONS: tuple[Derived, ...] = _derive()
"""All places that operations and flows declare in HTTP."""
