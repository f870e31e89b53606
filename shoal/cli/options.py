"""The options and arguments of more than one command: one name, one spelling and one help text for each idea.

`tests/cli/test_options.py` checks every command.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

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
