"""What fields mean, for the description of the API: told by the comment beside each in its class, else by its name.

Law: nothing is told twice. A field whose comment says what it is needs no entry here, and a name has one meaning
wherever it has no comment.
"""

from __future__ import annotations

import ast
import inspect
import io
import sys
import tokenize
from functools import cache

from msgspec import Struct

from shoal.api.derived import SOURCES

NAMES: dict[str, str] = {
    "space": "A space: what is in different spaces has nothing to do with each other.",
    "thread": "A thread's name.",
    "document": "A document's name.",
    "counter": "A counter's name.",
    "register": "A register's name.",
    "set": "A set's name.",
    "map": "A map's name.",
    "budget": "A budget's name.",
    "namespace": "The labels of an item's namespace.",
    "key": "A key of the caller's: the same again counts once; of a map or an item, what finds it.",
    "worklist": "A worklist's name.",
    "consumer": "A consumer's name.",
    "step": "A step's key.",
    "schema": "A schema's name; of a request that puts one, the JSON Schema.",
    "checkpoint": "A checkpoint's id.",
    "branch": "A branch's name.",
    "label": "A name for a checkpoint; of items, the first label of their namespaces.",
    "name": "Its name.",
    "channel": "A channel of the state.",
    "item": "An item's key in its worklist.",
    "message": "A message of the inbox: its id in a path, its value in a body.",
    "reducer": "The name of what makes a snapshot of events.",
    "loop": "The name of what goes through something, and keeps its place.",
    "field": "A field of items, as a path with periods.",
    "limit": "At most so many.",
    "after": "Only what comes after this; of a difference, the value that is new.",
    "before": "Only what comes before this; of a difference, the value that was there.",
    "prefix": "Only what begins so.",
    "suffix": "Only what ends so.",
    "more": "There is more, for another request.",
    "cursor": "Where to go on: to be given as it came.",
    "offset": "How many of the first to leave out.",
    "filter": "Only what these conditions hold for.",
    "count": "How many.",
    "skipped": "How many were left out by `offset`.",
    "size": "How many there are.",
    "id": "Its id.",
    "wall_ms": "When it was written: milliseconds since 1970, by the clock of the node that wrote it.",
    "hlc": "Its hybrid logical time, by which concurrent changes are ordered.",
    "version": "Its version: another one for another value.",
    "author": "Who wrote it.",
    "by": "Who does it, or did.",
    "reason": "Why.",
    "time": "When, by the clock of the node that wrote it.",
    "kind": "Of which kind it is.",
    "op": "What is done.",
    "path": "A JSON pointer to the place.",
    "text": "What it says.",
    "node": "A node's id.",
    "origin": "The id under which an opening of a store issues operations.",
    "generation": "How often it was begun anew.",
    "started_ms": "When the node started.",
    "created_ms": "When it was put first.",
    "updated_ms": "When its value was put last.",
    "expires_ms": "When it expires; null: never.",
    "acked_ms": "When the consumer acknowledged last.",
    "begun_ms": "When it was begun.",
    "ended_ms": "When it ended.",
    "linked_ms": "Since when the peer is linked.",
    "value": "A value.",
    "state": "The state: each channel with its value; of a step or a node, what it is in.",
    "metadata": "What is told of a checkpoint beside its state.",
    "event": "An event.",
    "result": "A step's or an item's result.",
    "error": "What went wrong.",
    "siblings": "Values that were written concurrently; in the answer to a write, how many there are.",
    "context": "What the reader has seen: give it back with the next write, which supersedes that.",
    "expect": "The version that it must have; empty: it must not be there.",
    "durability": "When a write is acknowledged: once it is in memory, on this disk, on a quorum's, or on all.",
    "elements": "Elements of a set.",
    "members": "Elements of a set; of a cluster, its nodes; of presence, who is there.",
    "contained": "For each element, whether it is a member.",
    "include": "Elements to add to the set.",
    "exclude": "Elements to remove from the set.",
    "entries": "Entries, in order.",
    "items": "Items, in order.",
    "writes": "Writes that are applied together or not at all.",
    "reads": "Reads that are answered as of one moment.",
    "add": "What is added.",
    "added": "Whether it was added, or was there already; of a set, how many.",
    "remove": "What is removed.",
    "removed": "Whether it was there, and is no longer.",
    "deleted": "Whether it was there, and is no longer.",
    "existed": "Whether there was one.",
    "appended": "Whether it was appended, or was there already.",
    "amount": "How much.",
    "update": "Channels that change, with their new values.",
    "channels": "Names of the channels that are wanted; left out: all.",
    "parents": "The checkpoints that it is based on.",
    "heads": "The heads of the branch, the winner first.",
    "head": "The newest checkpoint of the branch.",
    "hashes": "A hash of each channel's value.",
    "schema_version": "The version of the schema under which it was saved.",
    "readable_from": "The oldest version of the schema whose readers understand the state.",
    "parent": "What it is based on: a checkpoint, or the step that this one is a part of.",
    "checkpoints": "Checkpoints, newest first.",
    "branches": "Branches.",
    "forked": "Whether it has several heads.",
    "other_heads": "Heads besides the one that was chosen.",
    "secret": "JSON pointers to what must not be shown to people.",
    "mutations": "Changes, oldest first.",
    "labels": "Labels.",
    "at": "The checkpoint where the branch begins.",
    "to": "The checkpoint on which the branch is put.",
    "keep_last": "How many of the newest checkpoints stay.",
    "older_than_s": "Only what is older than so many seconds.",
    "dry_run": "Say what would go, and let it stay.",
    "bytes": "How many bytes.",
    "stays": "Why checkpoints stay that would have gone, with their number.",
    "checked": "How many checkpoints were looked at.",
    "damage": "What does not hold.",
    "what": "What happened.",
    "violations": "What breaks a schema.",
    "why": "What it breaks.",
    "threads": "Threads: their names, or by which names the schema holds for them.",
    "status": "The status.",
    "arguments": "What the step is called with.",
    "holder": "Who holds the attempt.",
    "compensation": "How to undo the effect.",
    "progress": "What an attempt says of how far it is.",
    "attempts": "The attempts; in a request, how many there may be.",
    "failures": "How many attempts failed.",
    "result_by": "The attempt whose result it is.",
    "position": "Its place among the steps.",
    "how": "How it is settled.",
    "steps": "Steps, in the order of their first intents.",
    "open": "Those that have begun and not ended.",
    "more_steps": "Open steps that have no place here.",
    "more_events": "Events that have no place here.",
    "events": "Events, in order; of a bound, how many stay.",
    "late": "Whether it arrived after later ones.",
    "keep": "How many of the newest events stay.",
    "keep_bytes": "How many bytes of the newest events stay.",
    "consumers": "Consumers.",
    "behind": "How many events the consumer has not acknowledged.",
    "reset": "Set the cursor, even back.",
    "place": "Its place.",
    "worklists": "Worklists.",
    "pending": "How many wait.",
    "finished": "How it ended; null: it waits.",
    "cluster": "The cluster's name.",
    "quorum": "How many nodes make a quorum.",
    "early": "Operations that wait for those they depend on.",
    "quarantined": "Operations that were refused.",
    "clock_ahead_ms": "How far operations' times are ahead of the clock.",
    "lacks": "Operations that are durable here and that it is not known to hold.",
    "ahead": "Operations that it holds and the node that answers does not.",
    "lag_ms": "How old the oldest of those is that it lacks.",
    "waiting_bytes": "Bytes that wait to be sent to it.",
    "dropped": "Messages that did not fit, and were left to sync.",
    "vector": "How many operations of each origin it holds; at most `status_origins_max` origins are listed.",
    "origins": "Of how many origins it holds operations.",
    "bytes_on_disk": "Bytes on disk.",
    "operations": "How many operations.",
    "commits": "Group commits since the node started.",
    "connections": "Open sessions.",
    "spaces": "Spaces: their names, or how many.",
    "garbage": "Erasures whose rows are not gone yet.",
    "garbage_waits_for": "Owners that these wait for.",
    "died": "Changes that came after their object was deleted.",
    "repaired": "Damaged rows that were fetched again.",
    "repairs_failed": "Requests that met damage which no peer could mend.",
    "from_": "Where a `move` or `copy` takes the value from.",
    "lost": "The value that was overwritten.",
    "lost_by": "Who wrote it.",
    "stands": "The value that is there.",
    "stands_by": "Who wrote that.",
    "holders": "The nodes that have rights to spend.",
    "remaining": "What is left.",
    "granted": "What may be spent in all.",
    "spent": "What was spent.",
    "rights": "How much the node may spend alone.",
    "moved": "How much of the rights moved.",
    "plan": "How the page was found.",
    "item_rows": "Rows of items that were read.",
    "indexes": "Indexes.",
    "max_depth": "At most so many labels of each namespace.",
    "namespaces": "Namespaces that hold items.",
    "stale": "Take what is here, even if it is older than what the bookmark names.",
}


def told(kind: type[Struct]) -> dict[str, str]:
    """The meaning of each field of `kind`, as far as it is told."""
    source, names = SOURCES.get(kind, (kind, {}))
    if source is not kind:
        found = told(source)
        return {name: found.get(names.get(name, name)) or NAMES.get(name, "") for name in kind.__struct_fields__}
    comments: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        comments.update(_comments(each.__module__).get(each.__name__, {}) if issubclass(each, Struct) else {})
    return {name: comments.get(name) or NAMES.get(name, "") for name in kind.__struct_fields__}


@cache
def _comments(module: str) -> dict[str, dict[str, str]]:
    """By class, the comments that stand behind fields."""
    try:
        source = inspect.getsource(sys.modules[module])
    except (OSError, TypeError):
        return {}  # It was installed without its source.
    lines = {
        token.start[0]: token.string.lstrip("# ").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    return {
        each.name: {
            field.target.id: lines[field.end_lineno]
            for field in each.body
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.end_lineno in lines
        }
        for each in ast.parse(source).body
        if isinstance(each, ast.ClassDef)
    }
