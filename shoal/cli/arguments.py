"""Options and arguments of more than one command, the values behind them (JSON, files, ages, sizes, times, filters), and how
the commands on a store run.

Each idea has one name, one spelling and one help text: `tests/cli/test_options.py` checks every command.

Laws:
- `-` is standard input for a value, JSON or a file; it can be read once.
- A mistyped value is rejected before a store is opened or changed, with a correct example.
- A command understands what was typed before it opens the store, and outside of the event loop: Ctrl-C ends it while it
  asks, or reads standard input.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec

import typer

from shoal import values
from shoal.cli.execution import Data, Json, SpaceName, Target, Url, chosen, execute, opened
from shoal.cli.output import emit, line
from shoal.cli.settings import size_of
from shoal.errors import InvalidInput, InvalidValue
from shoal.records import NamedTuple

if TYPE_CHECKING:
    from shoal.client.store import Store

STANDARD_INPUT = "-"
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SHOWN_MAX = 80


def text_of(source: str, what: str) -> str:
    """The text itself, or all of standard input for "-".

    Raises:
        InvalidValue: standard input is not UTF-8, or was read before.
    """
    if source != STANDARD_INPUT:
        return source
    if sys.stdin.closed:
        raise InvalidValue(f"{what}: standard input has already been read; it can be read only once. Nothing was written.")
    try:
        # Closed after reading: a second "-" would read it as empty.
        with sys.stdin as stream:
            return stream.read()
    except UnicodeDecodeError as error:
        raise InvalidValue(f"{what}: standard input is not UTF-8 ({error}). Nothing was written.") from None


def file_text(file: Path) -> str:
    """The content of a file, or of standard input for "-".

    Raises:
        InvalidValue: it cannot be read, or is not UTF-8.
    """
    if str(file) == STANDARD_INPUT:
        return text_of(STANDARD_INPUT, "the file")
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidValue(f"{file} cannot be read: {error.strerror}. Nothing was written.") from None
    except UnicodeDecodeError as error:
        raise InvalidValue(f"{file} is not UTF-8 ({error}). Nothing was written.") from None


def json_of(source: str, what: str) -> Any:
    """The value of JSON text, including types in the tagged form of `shoal.values`.

    Raises:
        InvalidValue: it is not JSON.
    """
    text = text_of(source, what)
    try:
        return values.from_json(json.loads(text))
    except (ValueError, RecursionError) as error:
        shown = text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"
        raise InvalidValue(f"{what} is not valid JSON ({error}): {shown!r}. Nothing was written.{_hint(text)}") from None


def json_of_file(file: Path, *, tagged: bool = True) -> Any:
    """The value of a JSON file. Without `tagged` it is plain JSON, as for a schema, where "$type" is an ordinary key.

    Raises:
        InvalidValue: it cannot be read, or is not JSON.
    """
    text = file_text(file)
    try:
        return values.from_json(json.loads(text)) if tagged else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"{file} is not valid JSON ({error}). Nothing was written.") from None


def _hint(text: str) -> str:
    if re.fullmatch(r"[\w][\w .,:/@!?-]*", text):
        return f" Text is quoted, for the shell and for JSON: '\"{text}\"'."
    return " Put JSON in single quotes, so that the shell leaves it as it is: '{\"a\": 1}'." if "{" in text else ""


def age_of(text: str) -> timedelta:
    """An age: a number with one of the units s, m, h and d; without a unit, seconds.

    Raises:
        InvalidInput: it is something else.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip())
    if found is None:
        raise InvalidInput(
            f"{text!r} is not an age. Give a number and a unit, such as 30d, 12h, 90m or 45s. Nothing was written."
        )
    try:
        return timedelta(seconds=float(found[1]) * _SECONDS[found[2] or "s"])
    except OverflowError:
        raise InvalidInput(f"{text!r} is too large an age. Nothing was written.") from None


def age_with_unit(option: str, text: str | None) -> timedelta | None:
    """An age, whose unit is said: a rule of 30 days that is typed as 30 would be one of half a minute.

    Raises:
        InvalidInput: it is no age, or has no unit.
    """
    if text is None:
        return None
    age = age_of(text)
    if age and text.strip()[-1:].isdigit():
        raise InvalidInput(f"{option} {text} has no unit. Nothing was written. Say {text}d, {text}h, {text}m or {text}s.")
    return age


def bytes_of(text: str) -> int:
    """A size: a whole number of bytes, or a number with a unit.

    Raises:
        InvalidInput: it is something else.
    """
    size = size_of(text)
    if size is None:
        raise InvalidInput(
            f"{text!r} is not a size. Give bytes, or a number with a unit, such as 64KiB, 64MiB or 1GiB. Nothing was written."
        )
    return size


def moment_of(text: str, option: str) -> datetime:
    """A time in ISO 8601; `option` is for the error.

    Raises:
        InvalidInput: it is not a time.
    """
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{option} must be a time such as 2026-01-01T12:00:00+00:00; got {text!r}.") from None


def milliseconds_of(text: str) -> int:
    """A time in ISO 8601 with a time zone, as milliseconds since 1970.

    Raises:
        InvalidInput: it is not a time, or has no time zone.
    """
    moment = moment_of(text, "TIME")
    if moment.tzinfo is None:
        raise InvalidInput(f"TIME needs a time zone, as in {text}Z; got {text!r}. Nothing was written.")
    return int(moment.timestamp() * 1000)


def fields_of(given: Sequence[str]) -> dict[str, Any]:
    """Fields and values from KEY=VALUE and JSON objects. A VALUE that is not JSON is text.

    Raises:
        InvalidInput: one is neither.
    """
    wanted: dict[str, Any] = {}
    for each in given:
        if each == STANDARD_INPUT or each.lstrip().startswith("{"):
            found = json_of(each, "--filter")
            if not isinstance(found, dict):
                raise InvalidInput(f"--filter must be KEY=VALUE or a JSON object; got {each!r}. Nothing was read.")
            wanted |= found
            continue
        name, equals, text = each.partition("=")
        if not equals or not name:
            raise InvalidInput(f"--filter must be KEY=VALUE or a JSON object; got {each!r}. Nothing was read.")
        try:
            wanted[name] = values.from_json(json.loads(text))
        except ValueError:
            wanted[name] = text
    return wanted


PANEL = "Look into a store"
"""The heading of these commands in `shoal --help`."""

Limit = Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="The maximal number to show.")]
LimitOrAll = Annotated[
    int | None, typer.Option("--limit", "-n", min=1, metavar="N", help="The maximal number to show. \\[default: all]")
]
Prefix = Annotated[str, typer.Option("--prefix", metavar="TEXT", help="Only names that begin with this.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, until Ctrl-C.")]

ThreadName = Annotated[str, typer.Argument(metavar="THREAD", help="The thread's name.", show_default=False)]
Branch = Annotated[str, typer.Option("--branch", metavar="NAME", help="The thread's branch.")]
Label = Annotated[str | None, typer.Option("--label", metavar="NAME", help="The name of a checkpoint within its thread.")]
Reveal = Annotated[bool, typer.Option("--reveal", help="Show secret fields too.")]

By = Annotated[
    str, typer.Option("--by", envvar="SHOAL_AUTHOR", metavar="NAME", help="Your name, which is kept with the change.")
]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="The reason, which is kept.")]
Key = Annotated[
    str | None, typer.Option("--key", metavar="KEY", help="A command that is repeated with the same key is applied once.")
]
Expect = Annotated[
    str | None, typer.Option("--expect", metavar="VERSION", help="Only if this is its version; '' if it must not exist.")
]
Wait = Annotated[float, typer.Option("--wait", metavar="SECONDS", help="How long to wait for it.")]
Result = Annotated[str, typer.Option("--result", metavar="JSON", help="The result, as JSON. - is standard input.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]

OlderThan = Annotated[str | None, typer.Option("--older-than", metavar="AGE", help="Only what is older: 30d, 12h, 90m or 45s.")]
KeepLast = Annotated[int | None, typer.Option("--keep-last", min=0, metavar="N", help="The last N stay.")]
KeepBytes = Annotated[
    str | None, typer.Option("--keep-bytes", metavar="SIZE", help="The last ones with this size in all stay: 4096, 64MiB.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would happen.")]

FIELDS: dict[str, Any] = {
    "after_id": Annotated[str, typer.Option("--after-id", metavar="ID", help="Put it after the element with this id.")],
    "attempts": Annotated[
        int, typer.Option("--attempts", metavar="N", help="After so many claims they are dead letters. \\[default: the node's]")
    ],
    "before_id": Annotated[str, typer.Option("--before-id", metavar="ID", help="Put it before the element with this id.")],
    "before": Annotated[str | None, typer.Option("--before", metavar="EVENT", help="Only events before this one.")],
    "branch": Annotated[
        str | None, typer.Option("--branch", metavar="NAME", help="The thread's branch. \\[default: all]", show_default=False)
    ],
    "by": By,
    "bytes": KeepBytes,
    "dead": Annotated[bool, typer.Option("--dead", help="List dead letters, instead of those that wait.")],
    "dry_run": DryRun,
    "events": KeepLast,
    "expect": Expect,
    "finished": Annotated[bool, typer.Option("--finished", help="List those that were taken or done instead.")],
    "id": Annotated[str | None, typer.Option("--id", metavar="ID", help="Its id, instead of its key.")],
    "index": Annotated[
        int | None, typer.Option("--index", metavar="N", help="The place in the list; below 0 it counts from the end.")
    ],
    "keep": KeepLast,
    "keep_bytes": KeepBytes,
    "keep_last": KeepLast,
    "key": Key,
    "older_than_ms": OlderThan,
    "only_open": Annotated[bool, typer.Option("--open", help="Only steps whose outcome is unknown.")],
    "place": Annotated[str, typer.Option("--place", metavar="PLACE", help="Only there: name, label, tag, metadata or state.")],
    "prefix": Prefix,
    "priority": Annotated[int, typer.Option("--priority", metavar="N", help="0 to 9; the greatest is claimed first.")],
    "reason": Reason,
    "reclaimed": Annotated[
        str, typer.Option("--reclaim", metavar="ORIGIN", help="A holder that is gone for good, whose rights move here.")
    ],
    "result": Result,
    "retry_in": Annotated[str | None, typer.Option("--retry-in", metavar="AGE", help="Nobody gets it for so long: 45s, 10m.")],
    "state": Annotated[str, typer.Option("--state", metavar="STATE", help="Only: stuck, waits, unknown or well.")],
    "stuck_after_ms": Annotated[
        str | None, typer.Option("--stuck-after", metavar="AGE", help="The age of an open step that makes a thread stuck: 10m.")
    ],
    "tag": Annotated[str, typer.Option("--tag", metavar="TAG", help="Only with this tag in the newest checkpoint's metadata.")],
    "text": Annotated[
        str, typer.Option("--text", metavar="TEXT", help="Only with this text in a name, reason, label or step.")
    ],
    "thread": Annotated[bool, typer.Option("--thread", help="The lease of the thread of this name.")],
    "threads": Annotated[
        str,
        typer.Option("--threads", metavar="NAME|PREFIX*", help="The threads whose saves must satisfy it, under any schema."),
    ],
    "ticket": Annotated[str, typer.Option("--ticket", metavar="TICKET", help="The claim's ticket, as claim printed it.")],
    "to": Annotated[str, typer.Option("--next", metavar="HOLDER", help="Hand it over to this holder, which waits.")],
    "ttl_ms": Annotated[str | None, typer.Option("--ttl", metavar="AGE", help="Expire after this time: 30d, 12h, 90m or 45s.")],
    "value": Result,
    "vectors": Annotated[
        str | None, typer.Option("--vector", metavar="JSON", help="A vector for searches: a list of numbers.")
    ],
    "version": Annotated[
        int,
        typer.Option("--version", metavar="N", help="The number of the version, which never changes.", show_default=False),
    ],
}
"""The options of derived commands, by the fields of requests that they fill."""

ARGUMENTS = {
    "thread": "The thread's name.",
    "namespace": "Its labels, joined by periods: memory.user-1",
    "items": "The first label of their namespaces.",
    "fields": "As in a filter: kind, user.age",
    "value": "The value, as JSON. - is standard input.",
    "file": "A JSON Schema. - is standard input.",
}
"""The help of arguments, by their fields; the others' words say it."""

WORDS = {"amount": "AMOUNT", "document": "NAME", "queue": "WORKLIST", "items": "LABEL", "before_ms": "TIME"}
"""The words for arguments that are not their fields' names over HTTP."""


P = ParamSpec("P")

Work = Callable[["Store"], Awaitable[None]]
"""The work of a command on the opened store."""


class Run(NamedTuple):
    """One run of a command: which store and which space it looks into, and whether it prints JSON."""

    target: Target
    space: str
    json: bool

    def show(self, fields: Any, text: str) -> None:
        """Print an answer: as JSON for machines, or as text."""
        emit(fields) if self.json else line(text)


TAKEN = {"data": (Data, None), "url": (Url, None), "space": (SpaceName, "default"), "json": (Json, False)}
"""The options of all commands of a store."""


def in_store(begin: Callable[Concatenate[Run, P], Work]) -> Callable[..., None]:
    """A command of a store. `begin` reads its own arguments, and returns what to do with the opened store. The options that
    say which store and space, and `--json`, are added to its signature.
    """
    own = list(signature(begin, eval_str=True).parameters.values())[1:]
    command = command_of(begin, {each.name: (each.annotation, each.default) for each in own})
    command.__name__, command.__doc__, command.__module__ = begin.__name__, begin.__doc__, begin.__module__
    return command


def command_of(
    begin: Callable[..., Work], own: Mapping[str, tuple[Any, Any]], *, is_in_space: bool = True
) -> Callable[..., None]:
    """The same, of arguments and options by name, each with its annotation and its default."""
    taken = {**own, **{name: each for name, each in TAKEN.items() if is_in_space or name != "space"}}

    def command(*, data: Any, url: Any, json: bool, space: str = "", **given: Any) -> None:
        run = Run(chosen(data, url, environment=os.environ), space, json)
        execute(_worked(run.target, begin(run, **given)))

    command.__annotations__ = {name: annotation for name, (annotation, _) in taken.items()}
    command.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation, default=default)
            for name, (annotation, default) in taken.items()
        ]
    )
    return command


async def _worked(target: Target, work: Work) -> None:
    async with opened(target) as store:
        await work(store)
