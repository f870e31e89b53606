"""Commands derived from the declarations of operations: `counter add`, `register get`, `worklist done`, …

Laws:
- A command's arguments and options are fields of the request, with the protocol's types and bounds. Packed values are
  given as JSON.
- A command that destroys asks first, unless `--yes` is given. With `--dry-run` it says what would go.
- As JSON the reply is whole, in the form that HTTP gives it (`shoal.cli.output`). People see what the declaration names.
- A command that names an object to read rejects a name that was never written: it is misspelt.
- A command is derived, or stands in `BY_HAND` with the reason.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing
from datetime import timedelta
from inspect import Parameter, cleandoc
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
import typer

from shoal import values
from shoal.cli import arguments as options
from shoal.cli.arguments import TAKEN, Run, Work, age_of, bytes_of, command_of, json_of, json_of_file, milliseconds_of
from shoal.cli.execution import FAILED, agreed
from shoal.cli.finding import check_there, event_id, holder_origin, note_absence, note_graph, other_spaces
from shoal.cli.output import (
    Listing,
    age,
    bare,
    cell,
    columns_of,
    date,
    document,
    emit,
    fields,
    line,
    marks_of,
    note,
    present,
    show_value,
    shown,
)
from shoal.client.store import Space, Store
from shoal.errors import NotFound
from shoal.kinds import KINDS
from shoal.kinds.thread.flows.audit import entries_of
from shoal.names import check_name
from shoal.protocol.base import AtLeast, Cli, Named, Shape, declared
from shoal.protocol.requests import ListObjects, MoveThread, ObjectKind, ObjectRead, Read, ReadSpaceAudit, Request, reply_of
from shoal.records import NamedTuple
from shoal.values import forms as vectors
from shoal.workflows.spaces import would

_FOLLOWS = "it prints changes as they come, or holds something while a program runs"
_IDS = "it takes beginnings of ids, or compares and draws several replies for people"
_STATES = "it compares or merges decoded values, and hides secret ones"
_SEVERAL = "it makes requests in several spaces, or waits for a node to have carried them out"
_FILES = "it reads or writes a directory or files of this machine, without a request"
_NODES = "it is about nodes rather than objects, and shows what several of them answer"

BY_HAND: Mapping[str, tuple[str, ...]] = {
    "it starts a program": ("serve", "ui", "mcp", "demo"),
    _FILES: ("verify", "completion", "context", "token", "tls", "encryption", "restore"),
    _FOLLOWS: ("watch", "presence", "events", "lease show", "lease run", "worklist claim", "doc watch", "doc edit"),
    _IDS: ("threads", "log", "show", "graph", "branch", "rollback", "why", "audit thread", "resume"),
    _STATES: ("save", "edit", "merge", "undo", "redo", "mutations", "diff"),
    "it streams bytes from or to this machine, or lists what has been": ("file",),
    "the answer is the document itself, and no field of a reply": ("doc get",),
    "it writes or reads lines that hold several objects": ("export", "import"),
    _SEVERAL: ("space", "subject", "redaction", "retention", "tiering", "items search", "items namespaces", "crew"),
    _NODES: ("status", "doctor", "top", "usage", "cluster", "backup", "audit sign", "audit export", "audit verify"),
}
"""The commands, and groups of these, that are no single request with a plain reply: by the reason."""

_GROUPS = {
    **{kind: f"Look at the {kind}s that a space's agents share." for kind in KINDS},
    "audit": "Show who did what, and prove that nothing was altered.",
    "doc": "Look at the documents that a space's agents share, and edit them.",
    "file": "Files of a space or a thread: store one of any size, fetch, list or delete some.",
    "items": "Read and write memory items: values under namespaces and keys.",
    "worklist": "A thread's worklists: list items, add some, claim and complete them.",
    "inbox": "Messages to a thread: list them, send one, take one.",
    "event": "Single events of a thread's journal: erase the value of one.",
    "step": "Single steps of a thread: show one, or settle one whose outcome is unknown.",
    "lease": "Leases: who holds them, and running a program under one.",
    "schema": "Read and put the JSON Schemas that nodes enforce.",
}


class _Input(NamedTuple):
    """An input of a command: text for a field of the request, or for a name of which fields are made."""

    annotation: Any
    default: Any  # `Parameter.empty`: it must be given. If it is this, the field keeps the protocol's default.
    take: Callable[[Any], Any] = lambda given: given
    find: Callable[[Space, str, str], Any] | None = None  # Finds the value, of the object's name and the beginning of an id.


def add_commands(app: typer.Typer, *names: str) -> None:
    """Add the derived commands of these names, in their order; a group's in the order in which they are declared."""
    for name in names:
        if name in _GROUPS:
            app.add_typer(group_of(name), name=name, rich_help_panel=options.PANEL)
            continue
        [(kind, cli)] = [each for each in derived_commands() if each[1].command == name]
        app.command(name, help=_help(kind, cli), rich_help_panel=options.PANEL)(_command(kind, cli))


def group_of(name: str) -> typer.Typer:
    """The group of this name with its derived commands."""
    group = typer.Typer(no_args_is_help=True, help=_GROUPS[name])
    for kind, cli in derived_commands():
        within, _, command = cli.command.partition(" ")
        if within == name and command:
            group.command(command, help=_help(kind, cli), context_settings=_settings(kind, cli))(_command(kind, cli))
    return group


def derived_commands() -> Iterator[tuple[type[Request[Any]], Cli]]:
    """The derived commands, with the requests that they make, in the order in which they are declared."""
    return ((kind, cli) for kind, declaration in declared().items() for cli in declaration.cli)


def _help(kind: type[Request[Any]], cli: Cli) -> str:
    told = cli.help or cleandoc(kind.__doc__ or "").partition("\n\n")[0]
    return f"{told}\n\nExample: {cli.example}"


def _command(kind: type[Request[Any]], cli: Cli) -> Callable[..., None]:
    inputs = dict(_inputs(kind, cli))
    assert not inputs.keys() & TAKEN.keys(), f"{cli.command}: all commands have an option of this name"
    asking: dict[str, tuple[Any, Any]] = {"yes": (options.Yes, False)} if cli.destroys else {}
    # A request that can be tried by itself has a field for it.
    asking |= {"dry_run": (options.DryRun, False)} if cli.destroys and "dry_run" not in inputs else {}

    def begin(run: Run, *, yes: bool = False, **given: Any) -> Work:
        tries = bool(given.get("dry_run")) if cli.destroys else False
        if cli.destroys and not tries:
            agreed(f"{cli.destroys.format(**given)} of space {run.space} on every node, for good?", yes=yes)
        said = {name: each.take(given[name]) for name, each in inputs.items() if given[name] != each.default}
        said |= {name: each for name, each in cli.defaults.items() if name not in said}
        named = " ".join(each for each in given.values() if isinstance(each, str) and each)
        limit = said.pop("limit", None) if cli.rows else None

        async def work(store: Store) -> None:
            made = await _request(store, run, kind, cli, inputs, dict(said))
            if cli.rows:
                await _list(store, run, cli, made, limit)
            elif tries and "dry_run" in asking:
                _show(run, made, cli, await would(store.connection, made), named)
            else:
                _show(run, made, cli, await _answered(store, cli, made), named)
            if isinstance(made, MoveThread):
                await note_graph(store, run.space, made.thread, what="this status")

        return work

    own = {name: (each.annotation, each.default) for name, each in inputs.items()}
    return command_of(begin, own | asking, is_in_space="space" in kind.__struct_fields__)


async def _request(
    store: Store, run: Run, kind: type[Request[Any]], cli: Cli, inputs: Mapping[str, _Input], said: dict[str, Any]
) -> Any:
    """The request, of what was given. It is checked that the object exists, if a person who misspells it would not see that."""
    fields = kind.__struct_fields__
    space = store.space(run.space or "default")
    named: Any = fields[1] if "space" in fields and len(fields) > 1 else ""
    name = said.get(named, "")
    if named in get_args(ObjectKind) and named != "items":
        check_name(named, name)
        if cli.known or issubclass(kind, ObjectRead):
            await check_there(store, run.space, named, name)
    for field, each in inputs.items():
        if each.find is not None and isinstance(said.get(field), str) and said[field]:
            said[field] = await each.find(space, name, said[field])
    for part in cli.parts:
        said |= zip(part.fields, part.made(*[said.pop(each) for each in part.names]), strict=True)
    return kind(**({"space": space.name} if "space" in fields else {}), **said, **cli.sets)


async def _answered(store: Store, cli: Cli, request: Any) -> Any:
    """The reply; to a write that is carried out in several, that to all of them."""
    if isinstance(request, Read):
        return await store.connection.read(request)
    total = None
    while True:
        reply = await store.connection.write(request, key=None, durability=None)
        if not hasattr(reply, "more"):
            return reply
        count = getattr(reply, cli.shows)
        total = count if total is None else total + count
        if not reply.more:
            return msgspec.structs.replace(reply, **{cli.shows: total})


def _show(run: Run, request: Any, cli: Cli, reply: Any, named: str) -> None:
    if cli.one and (reply := next(iter(getattr(reply, cli.one)), None)) is None:
        raise NotFound(f"there is none in space {run.space!r} under {named}: it was never written, has expired, or is gone.")
    whole = document(reply)
    kind: Any = type(reply)
    field = next((each for each in fields(kind) if each.name == cli.shows), None)
    told = whole if field is None else whole[field.shown]
    if run.json:
        emit(whole)
    elif isinstance(request, Read):
        show_value(told)
    elif told or told is False or told == 0:
        elements = () if field is None else (field.kind, *get_args(field.kind))
        is_packed = any(Shape.VALUE in marks_of(each) for each in elements)
        for each in told if isinstance(told, list) else [told]:
            line(each) if isinstance(each, str) and not is_packed else show_value(each)


def _shown_name(kind: Any, name: str) -> str:
    return next(field.shown for field in fields(kind) if field.name == name)


async def _list(store: Store, run: Run, cli: Cli, request: Any, limit: int | None) -> None:
    kind: Any = type(request)
    reply: Any = reply_of(kind)
    row = get_args(present(bare(next(field.kind for field in fields(reply) if field.name == cli.rows))))[0]
    columns = columns_of(row, cli.columns, cli.rows)
    listed = request.kind if isinstance(request, ListObjects) else ""
    with Listing(*(column.heading for column in columns), json=run.json) as rows:
        async for found in _rows(store, cli, request, limit):
            line = "  ".join(filter(None, (cell(found, row, column.path, told=date) for column in columns)))
            rows.add(shown(found, row), line, *(cell(found, row, column.path, told=age) for column in columns))
    if rows.is_empty and not run.json:
        if listed:
            await note_absence(store, run.space, what=listed if listed == "items" else f"{listed}s")
        else:
            is_of_space = "space" in kind.__struct_fields__ and not issubclass(kind, ObjectRead)
            elsewhere = await other_spaces(store, run.space) if is_of_space else ""
            note(f"there are no {_shown_name(reply, cli.rows)} here.{elsewhere}")
    if cli.alarms and not rows.is_empty:
        raise typer.Exit(FAILED)


async def _rows(store: Store, cli: Cli, request: Any, limit: int | None) -> AsyncIterator[Any]:
    """The rows of all pages, up to `limit`."""
    count, row = 0, None
    if isinstance(request, ReadSpaceAudit):
        async with aclosing(entries_of(store.connection, request)) as entries:
            async for row in entries:
                yield row
                count += 1
                if count == limit:
                    return
        return
    while True:
        reply = await store.connection.read(request)
        for row in getattr(reply, cli.rows):
            yield row
            count += 1
            if count == limit:
                return
        if not getattr(reply, "more", False):
            return
        if "after" not in request.__struct_fields__:
            note("there are more, which are not shown.")
            return
        after = getattr(row, cli.place) if cli.place else getattr(reply, "cursor", row)
        request = msgspec.structs.replace(request, after=after)


# ── what is given ─────────────────────────────────────────────────────────────


def _inputs(kind: type[Request[Any]], cli: Cli) -> Iterator[tuple[str, _Input]]:
    """The inputs by name, in the order of the fields that it makes."""
    made = {field: part for part in cli.parts for field in part.fields}
    left = {"space", *cli.sets, *cli.hides, *(("after", "limit") if cli.rows else ())}
    taken = set()
    for field in msgspec.structs.fields(kind):
        marks = marks_of(field.type)
        if field.name in left or Shape.INTERNAL in marks or Shape.CURSOR in (*marks, *marks_of(present(bare(field.type)))):
            continue
        if field.name in made:
            for name, type_ in made[field.name].names.items():
                if name not in taken:
                    taken.add(name)
                    yield name, _input(name, type_, name not in cli.defaults, cli)
            continue
        is_needed = field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT
        yield field.name, _input(field.name, field.type, is_needed, cli)
    if cli.rows and "limit" in kind.__struct_fields__:
        yield "limit", _Input(options.LimitOrAll, None)


def _input(name: str, kind: Any, is_needed: bool, cli: Cli) -> _Input:
    given, metavar, take = _form(name, kind)
    if name in cli.options or (not is_needed and name not in cli.arguments and name not in cli.defaults):
        annotation = options.FIELDS[name]
        absent = False if bare(annotation) is bool else "" if bare(annotation) is str else None
        default = Parameter.empty if is_needed else cli.defaults.get(name) or absent
        return _Input(annotation, default, take, _FINDS.get(name))
    about = typer.Argument(metavar=metavar, min=_least(kind), help=options.ARGUMENTS.get(name), show_default=False)
    if name in cli.defaults and cli.defaults[name] is None:
        given |= None
    default = cli.defaults.get(name, Parameter.empty)
    return _Input(Annotated[given, about], default, take, _FINDS.get(name))


_FINDS = {
    "reclaimed": holder_origin,
    "event": lambda space, thread, given: event_id(space.thread(thread), given),
    "before": lambda space, thread, given: event_id(space.thread(thread), given),
}


def _form(name: str, kind: Any) -> tuple[Any, str, Callable[[Any], Any]]:
    """The type of an input on the command line, its word in the help, and how it becomes the field's value."""
    word = next((mark.name for mark in marks_of(kind) if isinstance(mark, Named)), name).upper()
    word = options.WORDS.get(name, word)
    marks = (*marks_of(kind), *marks_of(present(bare(kind))))
    for mark in marks:
        if mark in _SHAPES:
            return _SHAPES[mark]
    if name in _TEXTS:
        return str, word, _TEXTS[name]
    given = present(bare(kind))
    if marks_of(given):
        given = bare(given)
    if get_origin(given) is list:
        [inner] = get_args(given)
        if Shape.VALUE in marks_of(inner):
            return list[str], "JSON…", lambda texts: [_packed(text) for text in texts]
        if Shape.VECTOR in marks_of(inner):
            return str, "JSON", lambda text: [vectors.pack(json_of(text, "--vector"), where="--vector")]
        return list[str], f"{word.removesuffix('S')}…", lambda given: given
    return given, "|".join(get_args(given)) if get_origin(given) is Literal else word, lambda given: given


def _packed(text: str) -> bytes:
    return values.encode(json_of(text, "the value"), where="value")


_SHAPES: dict[Any, tuple[Any, str, Callable[[Any], Any]]] = {
    Shape.VALUE: (str, "JSON", _packed),
    Shape.JSON: (Path, "FILE", lambda file: json.dumps(json_of_file(file, tagged=False)).encode()),
    Shape.SECONDS: (str, "AGE", lambda text: age_of(text) // timedelta(milliseconds=1)),
    Shape.TIME: (str, "TIME", milliseconds_of),
}
_TEXTS: dict[str, Callable[[str], Any]] = {
    "bytes": bytes_of,
    "keep_bytes": bytes_of,
    "namespace": lambda text: text.split("."),
}
"""Fields that are written in another way than their type says."""


def _settings(kind: type[Request[Any]], cli: Cli) -> dict[str, Any]:
    """Settings that let a negative number be an argument, if the command takes one."""
    arguments = [each.annotation for _, each in _inputs(kind, cli)]
    return {"ignore_unknown_options": any(_is_any_number(each) for each in arguments)}


def _is_any_number(annotation: Any) -> bool:
    about = marks_of(annotation)[0]
    return bare(annotation) is int and about.param_decls is None and about.min is None


def _least(kind: Any) -> int | None:
    return next((mark.number for mark in marks_of(kind) if isinstance(mark, AtLeast)), None)
