"""The records of an export: each is one line (docs/EXPORT.md).

Laws:
- A record is declared once, for writing and for reading. Fields that have their defaults are not written, and readers ignore
  fields that they do not know.
- A field of type `Raw` is the JSON text of a value (`shoal.workflows.transfer.lines.text_of`). Bytes are base64.
"""

from __future__ import annotations

import builtins
from datetime import datetime
from functools import cache
from typing import Any, get_args

import msgspec
from msgspec import Raw, Struct, field

FORMAT = 2

ABSENT = Raw(b"")
"""A value that is not there, which is no value null."""


class Record(Struct, frozen=True, omit_defaults=True, tag_field="type"):
    """Base of all records."""


class Header(Record, frozen=True, tag="export"):
    """The first line."""

    format: int = 0
    shoal: str = ""  # The version that wrote it.
    space: str | None = None  # Of a thread or of a space; None: of a whole store.
    thread: str | None = None  # Of a thread.


class SpaceBegins(Record, frozen=True, tag="space"):
    """All records that follow are of this space, up to the next such record."""

    space: str


class Sibling(Struct, frozen=True, omit_defaults=True):
    """One of several values that were written concurrently."""

    value: Raw
    time: datetime


# ── threads ───────────────────────────────────────────────────────────────────


class Thread(Record, frozen=True, tag="thread"):
    """A thread begins. Its bounds are those of its journal's retention rule."""

    thread: str
    retain_older_than_ms: int | None = None
    retain_bytes: int | None = None
    retain_events: int | None = None


class Chunk(Record, frozen=True, tag="chunk"):
    """A part of the next file, in its order."""

    thread: str
    data: bytes


class File(Record, frozen=True, tag="file"):
    """A file, after its chunks; before the checkpoints that may refer to it."""

    thread: str
    name: str
    sha256: str
    size: int
    media_type: str = ""
    stored: datetime | None = None


class Content(Record, frozen=True, tag="content"):
    """A file that has no name, after its chunks; before what refers to it."""

    thread: str
    sha256: str
    size: int


class Checkpoint(Record, frozen=True, tag="checkpoint"):
    """A checkpoint, after its parents."""

    thread: str
    id: str
    parents: list[str]
    branch: str
    time: datetime
    author: str = ""
    label: str = ""
    schema: str = ""
    schema_version: int = 0
    metadata: Raw = ABSENT
    state: dict[str, Raw] = field(default_factory=dict)  # Channel → value: all, or with `changes` those that differ.
    changes: bool = False  # Whether the state is that of its first parent, with these changes.
    appended: dict[str, Raw] = field(default_factory=dict)  # Channel → elements at the end of the list.
    removed: list[str] = field(default_factory=list)
    readable_from: int = 0
    secret: list[str] = field(default_factory=list)  # JSON pointers to secret values.
    hidden: bool = False  # Whether these are not in the state.
    setting: Raw = ABSENT
    seen: bytes = b""  # The bookmark of what its author had read, as the store has it.
    nonce: bytes = b""  # A part of its id.


class Branch(Record, frozen=True, tag="branch"):
    """A branch, after the checkpoints."""

    thread: str
    name: str
    heads: list[str]  # The winner first.


class Note(Struct, frozen=True, omit_defaults=True):
    """A note beside a label."""

    name: bytes
    value: bytes
    first: bool = False


class Label(Record, frozen=True, tag="label"):
    """A label, after the checkpoints."""

    thread: str
    label: str
    checkpoint: str
    notes: list[Note] = field(default_factory=list)


class Event(Record, frozen=True, tag="event"):
    """An event of the journal, in its order."""

    thread: str
    id: str
    time: datetime
    key: str | None = None
    late: bool = False
    event: Raw = ABSENT
    erased: bool = False


class Consumer(Record, frozen=True, tag="consumer"):
    """A consumer of the journal."""

    thread: str
    consumer: str
    generation: int = 0
    acked: datetime | None = None  # When it acknowledged last.
    events: int = 0  # How many events it has acknowledged, counted from the first one, up to the first that it has not.


class Attempt(Struct, frozen=True, omit_defaults=True):
    """An attempt at a step."""

    id: str
    state: str
    begun: datetime
    holder: str = ""
    ended: datetime | None = None
    error: Raw = ABSENT
    progress: Raw = ABSENT
    by: str = ""


class StepResult(Struct, frozen=True, omit_defaults=True):
    """A result that does not count, because another one does."""

    value: Raw
    attempt: str
    time: datetime
    by: str = ""


class Step(Record, frozen=True, tag="step"):
    """A step, in the order of their first intents."""

    thread: str
    key: str
    name: str
    state: str
    begun: datetime
    ended: datetime | None = None
    parent: str = ""
    compensation: str = ""
    failures: int = 0
    attempts: list[Attempt] = field(default_factory=list)
    arguments: Raw = ABSENT
    result: Raw = ABSENT
    result_by: str = ""
    conflicts: list[StepResult] = field(default_factory=list)


class Finish(Struct, frozen=True, omit_defaults=True):
    """A finish of a queue's entry."""

    by: str
    time: datetime
    result: Raw = ABSENT


class Plan(Struct, frozen=True, omit_defaults=True):
    """How an entry is handed out."""

    priority: int = 0
    delay_ms: int = 0  # From the entry's time on.
    group: str = ""
    group_max: int = 0
    attempts_max: int = 0


class Tried(Struct, frozen=True, omit_defaults=True):
    """The last time that an entry was handed out, or given back."""

    attempt: int  # How often it was handed out by then.
    state: str  # "claimed", "waiting" or "dead".
    time: datetime
    by: str = ""
    reason: str = ""
    not_before: datetime | None = None


class Entry(Record, frozen=True, tag="entry"):
    """An entry of a worklist, or of the inbox, whose name is empty; in the order in which they are handed out."""

    thread: str
    worklist: str
    id: str
    time: datetime
    value: Raw
    key: str | None = None
    by: str = ""
    finishes: list[Finish] = field(default_factory=list)  # The first counts.
    others: list[Raw] = field(default_factory=list)  # Values that were put concurrently under its key.
    plan: Plan | None = None
    tried: Tried | None = None


class Status(Record, frozen=True, tag="status"):
    """A thread's status. It is the last record of the thread."""

    thread: str
    status: str
    time: datetime
    reason: str = ""
    by: str = ""


# ── shared objects ────────────────────────────────────────────────────────────


class Document(Record, frozen=True, tag="document"):
    """A document, as a Yjs update."""

    document: str
    update: bytes
    roots: dict[str, str] = field(default_factory=dict)
    authors: dict[int, str] = field(default_factory=dict)  # By Yjs client id.


class Counter(Record, frozen=True, tag="counter"):
    """A counter."""

    counter: str
    value: int


class Register(Record, frozen=True, tag="register"):
    """A register, the latest value first."""

    register: str
    siblings: list[Sibling]


class Set(Record, frozen=True, tag="set"):
    """Members of a set; a large one has several records."""

    set: str
    members: list[Raw]


class List(Record, frozen=True, tag="list"):
    """Elements of a list, in order; a large one has several records."""

    list: str
    elements: builtins.list[Raw]
    first: str = ""  # The id of the first of these elements: the key of their import.


class MapEntry(Struct, frozen=True, omit_defaults=True):
    """All that a key holds."""

    key: str
    siblings: list[Sibling] = field(default_factory=list)  # The latest first.
    count: int | None = None
    members: list[Raw] = field(default_factory=list)


class Map(Record, frozen=True, tag="map"):
    """Entries of a map; a large one has several records."""

    map: str
    entries: list[MapEntry]


class Budget(Record, frozen=True, tag="budget"):
    """A budget."""

    budget: str
    granted: int
    spent: int


class Index(Record, frozen=True, tag="index"):
    """The indexed fields of all items below a first label; before the items."""

    items: str
    fields: list[str]


class Item(Record, frozen=True, tag="item"):
    """A memory item. `items` is the first label of its namespace, `rest` the others."""

    items: str
    key: str
    value: Raw
    created: datetime
    updated: datetime
    rest: list[str] = field(default_factory=list)
    expires: datetime | None = None
    siblings: list[Sibling] = field(default_factory=list)
    vectors: list[bytes] = field(default_factory=list)


class Schema(Record, frozen=True, tag="schema"):
    """A version of a schema."""

    schema: str
    version: int
    json: Raw
    threads: str = ""
    time: datetime | None = None


class End(Record, frozen=True, tag="end"):
    """The last line. Without it an export is cut."""

    records: int  # The lines before this one.
    sha256: str  # Of all bytes before this line.


class Failure(Record, frozen=True, tag="error"):
    """The last line of an export that could not go on."""

    code: str
    detail: str


AnyRecord = (
    Header
    | SpaceBegins
    | Thread
    | Chunk
    | File
    | Content
    | Checkpoint
    | Branch
    | Label
    | Event
    | Consumer
    | Step
    | Entry
    | Status
    | Document
    | Counter
    | Register
    | Set
    | List
    | Map
    | Budget
    | Index
    | Item
    | Schema
    | End
    | Failure
)
"""A kind that comes adds its records here, and its two directions in `shoal.workflows.transfer.objects`."""

TYPES: dict[str, type[Any]] = {str(kind.__struct_config__.tag): kind for kind in get_args(AnyRecord)}
"""The records by their types."""


@cache
def decoder() -> msgspec.json.Decoder[AnyRecord]:
    """Made at the first use."""
    return msgspec.json.Decoder(AnyRecord)
