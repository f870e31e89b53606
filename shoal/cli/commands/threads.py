"""`shoal threads`, `shoal log`, `shoal show`, `shoal resume`: threads and their checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any, cast

import typer

from shoal.cli.arguments import (
    PANEL,
    Branch,
    Label,
    Limit,
    LimitOrAll,
    Prefix,
    Reveal,
    Run,
    ThreadName,
    Work,
    fields_of,
    in_store,
    moment_of,
)
from shoal.cli.finding import SHORT, check_thread, checkpoint_id, note_absence, other_spaces, print_names, similar
from shoal.cli.output import Listing, ago, emit, is_terminal, line, plain, show_value, to_text
from shoal.client.store import Space, Store
from shoal.errors import NotFound
from shoal.kinds.journal.flows import Event
from shoal.kinds.step.flows import StepRecord
from shoal.kinds.step.handle.resume import Standing
from shoal.kinds.thread.flows.audit import event_record, step_record
from shoal.kinds.thread.flows.checkpoints import Checkpoint
from shoal.kinds.thread.handle.thread import Thread
from shoal.records import NamedTuple
from shoal.values.codec import LANGGRAPH

# The metadata that only LangGraph needs: its own bytes.
_OTHERS_FIELD = (LANGGRAPH, "langgraph")
_ASKED_AT_ONCE = 32  # How many threads of a long list are read at a time.


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    app.command(rich_help_panel=PANEL)(threads)
    app.command(rich_help_panel=PANEL)(log)
    app.command(rich_help_panel=PANEL)(show)
    app.command(rich_help_panel=PANEL)(resume)


@in_store
def threads(
    run: Run,
    prefix: Prefix = "",
    status: Annotated[
        str | None,
        typer.Option("--status", metavar="STATUS", help="Only: running, paused, waiting, done or failed."),
    ] = None,
    long: Annotated[
        bool, typer.Option("--long", "-l", help="Show status, head, age and requests to people in a pipe and with --json too.")
    ] = False,
    limit: LimitOrAll = None,
) -> Work:
    """List a space's threads: on a terminal with status, head and requests to people, in a pipe one name per line.

    Example: shoal threads --data ./state --space crew --prefix researcher-
    """
    detailed = long or (is_terminal() and not run.json)
    wanted = _Wanted(prefix, status, limit)

    async def work(store: Store) -> None:
        names = _first(store.space(run.space).threads(wanted.prefix, status=cast("Any", wanted.status)), wanted.limit)
        what = "such threads" if wanted.prefix or wanted.status else "threads"
        if not detailed:
            await print_names(names, store, run.space, what=what, json=run.json)
            return
        with Listing("thread", "status", "head", "saved", "asks", json=run.json) as rows:
            async for thread in _looked_at(store.space(run.space), names):
                rows.add(thread.document, thread.text, *thread.cells)
        if rows.is_empty and not run.json:
            await note_absence(store, run.space, what=what)

    return work


class _Wanted(NamedTuple):
    prefix: str
    status: str | None
    limit: int | None


async def _first(names: AsyncIterator[str], limit: int | None) -> AsyncIterator[str]:
    shown = 0
    async for name in names:
        yield name
        shown += 1
        if shown == limit:
            return


class _Looked(NamedTuple):
    """A thread, its status and the head of its main branch."""

    name: str
    standing: Standing
    head: Checkpoint | None

    @property
    def document(self) -> dict[str, Any]:
        head = self.head
        return {
            "thread": self.name,
            "status": self.standing.status,
            "reason": self.standing.reason,
            "by": self.standing.by,
            "head": None if head is None else head.id,
            "heads": [] if head is None else list(head.heads),
            "saved": None if head is None else head.time.isoformat(),
        }

    @property
    def text(self) -> str:
        head = self.head
        saved = "-  -" if head is None else f"{head.id}  {head.time:%Y-%m-%d %H:%M:%S}Z"
        return f"{plain(self.name)}  {self.standing.status}  {saved}  {plain(self.asks)}".rstrip()

    @property
    def cells(self) -> tuple[str, ...]:
        head = self.head
        if head is None:
            return (self.name, self.standing.status, "", "", self.asks)
        forked = f" +{len(head.heads) - 1}" if head.forked else ""
        return (self.name, self.standing.status, head.id[:SHORT] + forked, ago(head.time), self.asks)

    @property
    def asks(self) -> str:
        """The reason why the thread is held or has failed, with its author."""
        standing = self.standing
        by = f"by {standing.by}" if standing.by else ""
        match standing.status:
            case "waiting":
                return " ".join(filter(None, ["approval:", standing.reason or "(not said)", by and f"(asked {by})"]))
            case "paused":
                return " ".join(filter(None, ["pause:", standing.reason or "(not said)", by and f"({by})"]))
            case "failed":
                return standing.reason
            case _:
                return ""


async def _looked_at(space: Space, names: AsyncIterator[str]) -> AsyncIterator[_Looked]:
    page: list[str] = []
    async for name in names:
        page.append(name)
        if len(page) == _ASKED_AT_ONCE:
            for looked in await asyncio.gather(*(_look(space, each) for each in page)):
                yield looked
            page.clear()
    for looked in await asyncio.gather(*(_look(space, each) for each in page)):
        yield looked


async def _look(space: Space, name: str) -> _Looked:
    thread = space.thread(name)
    standing, head = await asyncio.gather(thread.status(), _head(thread))
    return _Looked(name, standing, head)


async def _head(thread: Thread) -> Checkpoint | None:
    try:
        return await thread.load(channels=[])
    except NotFound:
        return None


@in_store
def log(
    run: Run,
    thread: ThreadName,
    branch: Branch = "main",
    limit: Limit = 20,
    filter: Annotated[
        list[str] | None,
        typer.Option("--filter", metavar="KEY=VALUE|JSON", help="Only those with these fields and values; may be repeated."),
    ] = None,
    author: Annotated[str | None, typer.Option("--author", metavar="NAME", help="Only theirs.")] = None,
    journal: Annotated[bool, typer.Option("--journal", help="Show the journal's events, oldest first, instead.")] = False,
) -> Work:
    """List a thread's checkpoints, newest first; heads are marked *, and forks are named.

    Example: shoal log researcher-1 --data ./state --space crew -n 5
    """
    if journal:
        return _journal(run, thread, limit)
    wanted = fields_of(filter or [])

    async def work(store: Store) -> None:
        handle = store.space(run.space).thread(thread)
        heads = await handle.heads()
        if branch not in heads:
            raise await _no_branch(store, run.space, thread, branch, heads)
        if not run.json:
            _print_heads(heads)
        headings = ("", "checkpoint", "saved", "of", "by", "metadata")
        with Listing(*headings, json=run.json, none="no checkpoint has these fields and this author.") as rows:
            async for checkpoint in handle.history(branch=branch, limit=limit, filter=wanted, author=author):
                marks = [head for head, ids in heads.items() if checkpoint.id in ids]
                rows.add(described(checkpoint) | {"head_of": marks}, _line(checkpoint, marks), *_cells(checkpoint, marks))

    return work


async def _no_branch(store: Store, space: str, name: str, branch: str, heads: Mapping[str, Sequence[str]]) -> NotFound:
    if heads:
        return NotFound(f"thread {name!r} has no branch {branch!r}. It has {', '.join(heads)}.")
    return NotFound(
        f"there is no checkpoint of a thread {name!r} in space {space!r}. `shoal threads` lists the existing ones."
        + (await other_spaces(store, space) or await similar(name, store.space(space).threads()))
    )


def _print_heads(heads: Mapping[str, Sequence[str]]) -> None:
    for branch, ids in heads.items():
        if len(ids) > 1:
            line(f"branch {branch} is forked, it has {len(ids)} heads:")
            for head in ids:
                line(f"    {head[:SHORT] if is_terminal() else head}")


def _line(checkpoint: Checkpoint, marks: Sequence[str]) -> str:
    sign = "*" if marks else " "
    metadata = shown_metadata(checkpoint)
    notes = [_of(checkpoint, marks), to_text(metadata) if metadata else ""]
    return f"{sign} {checkpoint.id}  {checkpoint.time:%Y-%m-%d %H:%M:%S}Z  {'  '.join(filter(None, notes))}".rstrip()


def _cells(checkpoint: Checkpoint, marks: Sequence[str]) -> tuple[str, ...]:
    sign = "*" if marks else ""
    metadata = shown_metadata(checkpoint)
    told = (_of(checkpoint, marks), checkpoint.author, to_text(metadata) if metadata else "")
    return (sign, checkpoint.id[:SHORT], ago(checkpoint.time), *told)


def _of(checkpoint: Checkpoint, marks: Sequence[str]) -> str:
    """The branches of which it is the head, the number of heads it merges, and its label."""
    notes = [f"head of {', '.join(marks)}"] if marks else []
    notes += [f"joins {len(checkpoint.parents)}"] if len(checkpoint.parents) > 1 else []
    notes += [f"label {checkpoint.label}"] if checkpoint.label else []
    return "  ".join(notes)


def shown_metadata(checkpoint: Checkpoint) -> dict[str, Any]:
    """A checkpoint's metadata for people."""
    return {name: value for name, value in checkpoint.metadata.items() if (checkpoint.schema, name) != _OTHERS_FIELD}


def described(checkpoint: Checkpoint) -> dict[str, Any]:
    """A checkpoint without its state, for JSON."""
    return {
        "id": checkpoint.id,
        "parents": list(checkpoint.parents),
        "branch": checkpoint.branch,
        "heads": list(checkpoint.heads),
        "time": checkpoint.time.isoformat(),
        "schema": checkpoint.schema,
        "schema_version": checkpoint.schema_version,
        "author": checkpoint.author,
        "label": checkpoint.label,
        "metadata": checkpoint.metadata,
    }


def _journal(run: Run, name: str, limit: int) -> Work:
    async def work(store: Store) -> None:
        await check_thread(store, run.space, name)
        with Listing("age", "key", "event", json=run.json, none=f"the journal of {name!r} is empty.") as rows:
            async for event in store.space(run.space).thread(name).journal.read(limit=limit):
                rows.add(event_record(event), event_line(event), *event_cells(event))

    return work


def event_line(event: Event) -> str:
    """An event as a line, for a pipe."""
    key = "" if event.key is None else f"  [{event.key}]"
    return f"{event.time:%Y-%m-%d %H:%M:%S}Z{key}  {event_text(event)}"


def event_cells(event: Event) -> tuple[str, str, str]:
    """The age, key and value of an event, for a terminal."""
    return (ago(event.time), event.key or "", event_text(event))


def event_text(event: Event) -> str:
    """The value of an event, or that it was erased."""
    return "(erased)" if event.erased else to_text(event.event)


@in_store
def show(
    run: Run,
    thread: ThreadName,
    checkpoint: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="A checkpoint, or the beginning of its id; by default the branch's head."),
    ] = None,
    branch: Branch = "main",
    as_of: Annotated[
        str | None, typer.Option("--as-of", metavar="TIME", help="The branch's head at a time: ISO 8601, with a time zone.")
    ] = None,
    label: Label = None,
    reveal: Reveal = False,
) -> Work:
    """Print a checkpoint's state as JSON; with --json also its id, parents, heads and metadata. Secret fields are hidden.

    Example: shoal show researcher-1 --data ./state --space crew
    """
    moment = None if as_of is None else moment_of(as_of, "--as-of")

    async def work(store: Store) -> None:
        handle: Thread = store.space(run.space).thread(thread)
        id = None if checkpoint is None else await checkpoint_id(store, handle, checkpoint)
        try:
            found = await handle.load(id, branch=branch, as_of=moment, label=label)
        except NotFound:
            # If the thread does not exist at all, the error says so, with similar names.
            await check_thread(store, run.space, thread)
            raise
        state = found.state if reveal else found.redacted
        emit(described(found) | {"state": state}) if run.json else show_value(state)

    return work


@in_store
def resume(
    run: Run,
    thread: ThreadName,
    branch: Branch = "main",
) -> Work:
    """Show the state from which an agent would resume: the newest state by quorum, and the reason.

    Example: shoal resume support-1 --url http://n1:7400
    """

    async def work(store: Store) -> None:
        found = await store.space(run.space).thread(thread).resume(branch=branch)
        shown = {} if found.checkpoint is None else found.checkpoint.redacted
        if not run.json:
            line(found.reason.text)
            for record in found.open:
                line(_step_line(record))
            show_value(shown)
            return
        emit(
            {
                "checkpoint": found.reason.head,
                "state": shown,
                "at": found.at,
                "stack": found.stack,
                "open": [step_record(record) for record in found.open],
                "events": [event_record(event) for event in found.events],
                "reason": {
                    "text": found.reason.text,
                    "other_heads": list(found.reason.other_heads),
                    "skipped": list(found.reason.skipped),
                    "unresolved": list(found.reason.unresolved),
                    "quorum": found.reason.quorum,
                    "staleness": found.reason.staleness,
                },
            }
        )

    return work


def _notes(record: StepRecord) -> list[str]:
    notes = [f"{len(record.attempts)} attempts"] if len(record.attempts) > 1 else []
    if record.state == "open":
        notes.append(f"held by {record.holder or 'somebody'} since {record.since:%Y-%m-%d %H:%M:%S}Z")
    if record.error and record.state == "failed":
        notes.append(to_text(dict(record.error)))
    if record.state == "done":
        notes.append(to_text(record.result))
    return notes


def _step_line(record: StepRecord) -> str:
    notes = "  ".join(_notes(record))
    return f"{record.begun:%Y-%m-%d %H:%M:%S}Z  {record.state:<9}  {record.name}  [{record.key}]  {notes}".rstrip()
