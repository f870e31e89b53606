"""Requests and replies: their base classes, the declarations of operations, and marks and bounds of their fields.

A mark says what a field contains, where its type alone does not. It is a part of the annotation, `value: Value` or
`Annotated[bytes, Shape.CURSOR]`, and does not affect MessagePack. Other encodings are derived from it: over HTTP a packed
value is JSON, and a cursor is text that is safe in a URL.

Laws:
- A difference between operations that is not in their fields is declared once, at the request's class. Unions for decoders,
  batches, multi-reads, HTTP routes and plain commands, with their descriptions, are derived from the declarations. The base
  class of a request says which table of a node serves it (`shoal.node.handler`). Tests compare the tables and declarations.
  A request without a declaration is only sent alone, and has no derived route or command.
- Each list and dict of a request has a bound on its length, which is a part of its annotation; where requests are parts of
  another one, those of all parts have one together. A decoder refuses a longer one before it makes anything of the elements.
  So does the check before a request is sent (`shoal.protocol.conformance`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from functools import cache
from typing import Annotated, Any, ClassVar, ForwardRef, Generic, Literal, TypeVar, get_args

from msgspec import Meta, Struct

from shoal.errors import ShoalError
from shoal.records import NamedTuple

__all__ = [
    "NO_HEAD",
    "Action",
    "AtLeast",
    "Cli",
    "Declaration",
    "Deleted",
    "Durability",
    "Http",
    "Maintenance",
    "Named",
    "ObjectRead",
    "ObjectWrite",
    "Part",
    "R",
    "Read",
    "Reply",
    "Request",
    "Shape",
    "Together",
    "Waits",
    "Would",
    "Write",
    "always",
    "declaration_of",
    "declared",
    "deletion",
    "operation",
    "reply_of",
]

Durability = Literal["memory", "local", "quorum", "all"]

NO_HEAD = ""
"""As `expect_head`, the branch must not exist yet. As `parent`, the checkpoint has none."""

R = TypeVar("R", covariant=True)
"""The reply to a request."""


class Request(Struct, Generic[R], array_like=True, frozen=True, tag=True):
    """Base of all requests. A request names its reply: `class Grant(ObjectWrite["Granted"], …)`."""


class Write(Request[R], Generic[R], array_like=True, frozen=True, tag=True):
    """A request that changes objects of one partition; it may be sent with an idempotency key."""


class Read(Request[R], Generic[R], array_like=True, frozen=True, tag=True):
    """A request that changes nothing."""


class ObjectWrite(Write[R], Generic[R], array_like=True, frozen=True, tag=True):
    """A write to one object, which its second field names."""

    space: str


class ObjectRead(Read[R], Generic[R], array_like=True, frozen=True, tag=True):
    """A read of one object, which its second field names."""

    space: str


class Maintenance(Request[R], Generic[R], array_like=True, frozen=True, tag=True):
    """A request that inspects one object, named by its second field, and changes it in as many operations as needed."""

    rests: ClassVar[bool] = False  # Whether it leaves most of the time to others: nobody waits for it.

    space: str


class Reply(Struct, array_like=True, frozen=True, tag=True):
    """Base of all replies and pushes."""


class Deleted(Reply, array_like=True, frozen=True, tag="deleted"):
    """The result of a deletion."""

    existed: bool  # Whether it existed on the serving node.


@cache
def reply_of(kind: type[Request[R]], /) -> type[R]:
    """The class of the reply to a kind of request."""
    [base] = kind.__orig_bases__  # type: ignore[attr-defined]
    [reply] = get_args(base)
    found: type[R] = getattr(sys.modules[kind.__module__], reply.__forward_arg__) if isinstance(reply, ForwardRef) else reply
    return found


FILTER_TERMS_MAX = 64  # Fields, operators and list elements in one filter.


_Kind = TypeVar("_Kind", bound=type[Request[Any]])

Action = Literal["read", "append", "write", "admin"]
"""The action of a request on stored data: it changes nothing; adds, and neither replaces nor removes anything; changes,
replaces or removes; or changes rules, history or the cluster itself. A token grants actions (`shoal.access`).
"""


class Part(NamedTuple):
    """Names over HTTP of which fields of the request are made, such as a namespace of its first label and the others."""

    names: Mapping[str, Any]  # Each with its type in a body. In a path a list of labels is one part, joined by periods.
    fields: tuple[str, ...]
    made: Callable[..., tuple[Any, ...]]  # The fields' values, of the names'.


class Waits(NamedTuple):
    """A read that may wait: while a list of its reply is empty, and the thread has not changed in this way."""

    change: str
    until: str  # The list.


class Http(NamedTuple):
    """A place of an operation in the HTTP API. The parts of the path are fields of the request; the other fields are in
    the body, or in the query of a GET or a DELETE.
    """

    method: str
    path: str  # Below the space, if the request has one; else below `/v1`.
    summary: str
    ops: tuple[str, ...] = ()  # Its names among the writes of a batch, or the reads of a multi-read.
    created: str = ""  # A field of the reply. If it is true, or one of its elements is, the status is 201.
    errors: tuple[type[ShoalError], ...] = ()  # In addition to those of all writes or reads.
    example: Any = None  # An example of the body.
    defaults: Mapping[str, Any] = {}  # Of fields that have none in the protocol.
    sets: Mapping[str, Any] = {}  # Fields that the place decides, as that of a thread's inbox decides the queue.
    parts: tuple[Part, ...] = ()
    one: str = ""  # A list of the reply: its first element is the answer. If there is none, that is `NotFound`.
    version: str = "version"  # The field of the answer that is its ETag, if there is one.
    waits: Waits | None = None


class Cli(NamedTuple):
    """A command of an operation: it makes one request, or one for each page, and prints the reply.

    What the caller gives are the fields of the request, except those that the place decides, opaque and internal ones. A field
    without a default is an argument, and one with a default an option.
    """

    command: str  # The group, and the command in it: "budget grant"; or one word.
    example: str  # A command line, for the help.
    shows: str = ""  # The field of the reply that people see; empty: all of it. As JSON the reply is whole.
    help: str = ""  # Empty: the first paragraph of the request's docstring.
    arguments: tuple[str, ...] = ()  # Fields with defaults that are arguments nevertheless.
    options: tuple[str, ...] = ()  # Fields without defaults that are options nevertheless.
    defaults: Mapping[str, Any] = {}  # The defaults of arguments that may be omitted.
    hides: tuple[str, ...] = ()  # Fields that keep their defaults.
    sets: Mapping[str, Any] = {}  # As in `Http`, and so are `parts` and `one`.
    parts: tuple[Part, ...] = ()
    one: str = ""
    rows: str = ""  # A list of the reply: its elements are printed, of all pages.
    place: str = ""  # The field of a row after which the next page begins; empty: the reply's cursor, or the row itself.
    columns: tuple[str, ...] = ()  # What people see of a row: fields, or fields of these as in "checkpoint.id"; empty: all.
    known: bool = False  # Whether the object must exist, so that a misspelt name is rejected. A read of an object always asks.
    alarms: bool = False  # Whether rows are a failure: the exit code is 1 if there are any.
    destroys: str = ""  # What goes for good, as in "Delete thread {thread}": the command asks first, or takes `--yes`.


class Would(NamedTuple):
    """How to find out what a request would remove: a face offers it as a dry run."""

    reads: Callable[[Any], Sequence[Request[Any]]]  # Of the request.
    # The reply that the request would get: of it, of that which follows from the pages before (None: there was none), and of
    # the reply to a read.
    reply: Callable[[Any, Any, Any], Any]
    next: Callable[[Any, Any], Request[Any] | None] = lambda _read, _reply: None  # The read of the next page.


class Declaration(NamedTuple):
    """All that is declared of one operation."""

    batch: bool = False  # Whether it may be one of the writes of a batch.
    multi_read: bool = False  # Whether it may be one of several reads at one moment.
    durable: bool = False  # Whether it is answered only once it is on disk, even with durability `memory`.
    not_of_key: tuple[str, ...] = ()  # Fields that may differ when a request is repeated with its idempotency key.
    frees: bool = False  # Whether it removes, so that a space takes it whatever its quota says (`shoal.node.spaces.quotas`).
    makes: bool = False  # Whether one that frees makes its object if that is not there.
    # Whether a request removes something that it names. Its key is remembered although it found nothing: if it is sent again
    # after somebody has added that, it must not remove it. None: no such request does.
    removes: Callable[[Any], bool] | None = None
    would: Would | None = None  # What it would remove. Of the deletion of a whole object that follows from its kind.
    drives: bool = False  # Whether a thread under a lease takes it from the lease's holder alone.
    action: Action | None = None  # None: `read` of a read, `write` of a write, `admin` of a maintenance.
    family: str = ""  # The kind of object that it is about. Empty: its second field's name says it.
    discloses: bool | None = None  # Whether its answer says what is stored; it is logged with the reads. None: a `read` does.
    reveals: bool = False  # Whether it shows secret parts of states as they are stored, so that it takes that right too.
    hearsay: tuple[str, ...] = ()  # Fields that name the author of what others wrote, rather than of this request.
    # What it takes to decide a write, as bytes of values. A heavy one is decided in steps (`shoal.node.writes.issuing`): its
    # decision changes nothing but its transaction. None: it is decided in one step.
    weighs: Callable[[Any], int] | None = None
    recognised: Callable[[Any], object] | None = None  # By what a repeated one is told from others. None: by its fields.
    foretells: bool = False  # Whether it is answered before what it shows is durable (`shoal.node.reads.reads`).
    http: tuple[Http, ...] = ()
    cli: tuple[Cli, ...] = ()


_NOTHING = Declaration()
_DECLARED: dict[type[Request[Any]], Declaration] = {}


def operation(
    *,
    batch: bool = False,
    multi_read: bool = False,
    durable: bool = False,
    not_of_key: tuple[str, ...] = (),
    frees: bool = False,
    makes: bool = False,
    removes: Callable[[Any], bool] | None = None,
    would: Would | None = None,
    drives: bool = False,
    action: Action | None = None,
    family: str = "",
    discloses: bool | None = None,
    reveals: bool = False,
    hearsay: tuple[str, ...] = (),
    weighs: Callable[[Any], int] | None = None,
    recognised: Callable[[Any], object] | None = None,
    foretells: bool = False,
    http: Http | Sequence[Http] = (),
    cli: Cli | Sequence[Cli] = (),
) -> Callable[[_Kind], _Kind]:
    """Declare the operation of a request's class.

    Raises:
        TypeError: it is declared already. A second declaration would replace the first, and the right that it asks for.
    """

    def declare(kind: _Kind) -> _Kind:
        if kind in _DECLARED:
            raise TypeError(f"{kind.__name__} is declared twice")
        _DECLARED[kind] = Declaration(
            batch,
            multi_read,
            durable,
            not_of_key,
            frees,
            makes,
            removes,
            would,
            drives,
            action,
            family,
            discloses,
            reveals,
            hearsay,
            weighs,
            recognised,
            foretells,
            (http,) if isinstance(http, Http) else tuple(http),
            (cli,) if isinstance(cli, Cli) else tuple(cli),
        )
        return kind

    return declare


_Deletion = TypeVar("_Deletion", bound=type[ObjectWrite[Deleted]])


def deletion(kind: str, name: str, action: Action | None = None) -> Callable[[_Deletion], _Deletion]:
    """Declare the deletion of an object of this kind, which its second field names. `name` is one for the example.

    A deletion ends the object's generation (`shoal.crdt.deletion`): what is written afterwards begins a new one. A write that
    was made without knowledge of the deletion belongs to the generation that ended, and is deleted with it, even if it arrives
    later.
    """
    command = Cli(
        f"{kind} delete",
        f"shoal {kind} delete {name} --yes --data ./state",
        shows="existed",
        destroys=f"Delete {kind} {{{kind}}}",
    )
    http = Http("DELETE", f"/{kind}s/{{{kind}}}", f"Delete a {kind}")
    return operation(frees=True, removes=always, action=action, http=http, cli=command)


def always(_each: Any) -> bool:
    """A condition that holds for each."""
    return True


def declared() -> Mapping[type[Request[Any]], Declaration]:
    """All declarations, in the order of their families and, within one, of its module."""
    return _DECLARED


def declaration_of(kind: type[Request[Any]], /) -> Declaration:
    """The declaration of a request's class; an empty one if nothing was declared."""
    return _DECLARED.get(kind, _NOTHING)


_T = TypeVar("_T")


class Shape(Enum):
    """The content of a field of type `bytes` or `int`."""

    VALUE = auto()  # MessagePack of `shoal.values`.
    CURSOR = auto()  # Opaque: sent back unchanged.
    JSON = auto()  # UTF-8 JSON text.
    SECONDS = auto()  # A duration in milliseconds; over HTTP in seconds.
    MOMENT = auto()  # Milliseconds since 1970; 0 means never, which is null over HTTP.
    TIME = auto()  # Milliseconds since 1970; over HTTP a time in ISO 8601.
    VALUES = auto()  # A packed map of values; over HTTP an object, and null if it is empty.
    STATE = auto()  # Packed values of channels, whose types the schema of their checkpoint may decide.
    VECTOR = auto()  # The bytes of `shoal.values.forms`; over HTTP a list of numbers.
    TOLD = auto()  # A figure that counts only if the field `told` beside it is true; else null over HTTP.
    INTERNAL = auto()  # Not part of the HTTP form.


class AtLeast(NamedTuple):
    """The minimum of an integer."""

    number: int


# The most elements of lists and dicts of requests. A node's settings may allow fewer; `shoal.config` allows them no more.
ELEMENTS_MAX = 4096
CHANNELS_MAX = 16_384
KEYS_MAX = 100_000
PARTS_MAX = 1024
TOGETHER_MAX = 16_384  # Of all parts of a batch or multi-read together: as many as one write may have, `CHANNELS_MAX`.
TERMS_MAX = 256  # Of a filter.
JOINED_MAX = 256  # Checkpoints in one search for a common ancestor.
SECRETS_MAX = 256
CURSOR_BYTES_MAX = 1024 * 1024  # A cursor may have a vector of all openings that wrote: some tens of bytes for each.
FEW_MAX = 64
"""Labels of a namespace, vectors of an item, indexed fields."""


class Together(NamedTuple):
    """The most elements of the lists and dicts of all parts of a list together. A bound on each is none on their product."""

    most: int


class Named(NamedTuple):
    """The field's name over HTTP, if it differs."""

    name: str


Value = Annotated[bytes, Shape.VALUE]
Cursor = Annotated[bytes, Shape.CURSOR]
Seconds = Annotated[int, Shape.SECONDS]
Moment = Annotated[int, Shape.MOMENT]
Time = Annotated[int, Shape.TIME]
Vector = Annotated[bytes, Shape.VECTOR]
Natural = Annotated[int, AtLeast(0)]
Positive = Annotated[int, AtLeast(1)]

Elements = Annotated[list[_T], Meta(max_length=ELEMENTS_MAX)]
Few = Annotated[list[_T], Meta(max_length=FEW_MAX)]
Labels = Annotated[list[str], Meta(max_length=FEW_MAX)]
Writes = Annotated[list[_T], Meta(max_length=ELEMENTS_MAX), Together(TOGETHER_MAX)]
Parts = Annotated[list[_T], Meta(max_length=PARTS_MAX), Together(TOGETHER_MAX)]
Terms = Annotated[list[_T], Meta(max_length=TERMS_MAX)]
Filtered = Annotated[dict[str, Value], Meta(max_length=TERMS_MAX)]
Channels = Annotated[dict[str, _T], Meta(max_length=CHANNELS_MAX)]
ChannelNames = Annotated[list[str], Meta(max_length=CHANNELS_MAX)]
Keys = Annotated[list[str], Meta(max_length=KEYS_MAX)]
Joined = Annotated[list[str], Meta(max_length=JOINED_MAX)]
Merged = Annotated[list[str], Meta(max_length=PARTS_MAX)]
Secrets = Annotated[list[str], Meta(max_length=SECRETS_MAX)]
Roots = Annotated[dict[str, _T], Meta(max_length=ELEMENTS_MAX)]
Authors = Annotated[dict[int, str], Meta(max_length=ELEMENTS_MAX)]
Notes = Annotated[list[_T], Meta(max_length=CHANNELS_MAX)]
