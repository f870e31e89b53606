"""The words of the API's description: fields, the errors of each route, and examples, which tests decode and send.

Laws:
- No text is written twice. A field with a comment needs no entry here, and all fields of one name without
  a comment share one description.
- Errors that all routes of a kind share follow from the route's declaration; a route names the others. The
  description of an error is the first sentence of its class's docstring.
"""

from __future__ import annotations

import ast
import inspect
import io
import sys
import tokenize
from functools import cache
from typing import Any

from msgspec import Struct

from shoal import errors
from shoal.api import contents, threads
from shoal.api.derived import EXAMPLES, SOURCES
from shoal.api.http import problems
from shoal.api.route import Route
from shoal.errors import ShoalError
from shoal.kinds import KINDS
from shoal.workflows.streams.decisions import StreamGone

NAMES: dict[str, str] = {
    **{kind: f"A {kind}'s name." for kind in KINDS},
    "space": "A space, a namespace for the objects of one application.",
    "stream": "A stream's name, which may have slashes.",
    "file": "A file of the page, with its folder.",
    "namespace": "The labels of an item's namespace.",
    "subject": "The id of a person whom data is about.",
    "key": "The key of a map's entry or an item; of a write, the caller's key, which counts once.",
    "worklist": "A worklist's name.",
    "consumer": "A consumer's name.",
    "step": "A step's key.",
    "lease": "A lease's name, or the name of its thread.",
    "schema": "A schema's name; in a request that puts one, the JSON Schema.",
    "checkpoint": "A checkpoint's id.",
    "branch": "A branch's name.",
    "label": "A name for a checkpoint; of items, the first label of their namespaces.",
    "name": "The name.",
    "channel": "A channel of the state.",
    "item": "An item's key in its worklist.",
    "reducer": "The name of a reducer's snapshots.",
    "loop": "The name of a loop that keeps its progress.",
    "field": "A field of items, as a path with periods.",
    "limit": "The maximal number of results.",
    "after": "Only results after this one; of a difference, the new value.",
    "before": "Only results before this one; of a difference, the old value.",
    "prefix": "Only names that begin with this.",
    "more": "Whether there are more, for another request.",
    "cursor": "The place to continue from; send it unchanged.",
    "offset": "How many results to skip.",
    "filter": "Only results that meet these conditions.",
    "count": "How many.",
    "skipped": "How many results were skipped for `offset`.",
    "size": "How many there are.",
    "id": "The id.",
    "wall_ms": "When it was written: milliseconds since 1970, by the clock of the node that wrote it.",
    "hlc": "The hybrid logical time of the change, which orders concurrent changes.",
    "version": "The version, which changes with the value.",
    "author": "The author's name.",
    "by": "The name of the person or program that does it.",
    "reason": "The reason, in words.",
    "time": "The time, by the clock of the node that wrote it.",
    "kind": "The kind.",
    "op": "The operation.",
    "path": "A JSON pointer to the place.",
    "text": "A description in words.",
    "node": "A node's id.",
    "origin": "The id under which this opening of the store issues operations.",
    "generation": "The number of the object's generation, which a deletion ends.",
    "started_ms": "When the node started.",
    "created_ms": "When it was put first.",
    "updated_ms": "When it was put last.",
    "expires_ms": "When it expires; null: never.",
    "acked_ms": "When the consumer acknowledged last.",
    "begun_ms": "When it began.",
    "ended_ms": "When it ended.",
    "linked_ms": "When the link to the peer was opened.",
    "value": "A value.",
    "state": "The state of a thread, each channel with its value; of a step or a node, its status.",
    "metadata": "Values that describe a checkpoint, beside its state.",
    "event": "An event.",
    "result": "A step's or an item's result.",
    "error": "The error.",
    "siblings": "Values that were written concurrently; in the answer to a write, their number.",
    "context": "A token for the values that were read. Send it with the next write, which then replaces them.",
    "expect": "The version that it must have; empty if it must not exist.",
    "expected": "The value that it must have; nil if it was never set.",
    "durability": "When a write is acknowledged: once it is in memory, on this node's disk, on a quorum, or on all replicas.",
    "elements": "Elements of a set, or of a list.",
    "members": "Elements of a set; of a cluster, its nodes; of presence, the clients that are present.",
    "contained": "For each element, whether it is a member.",
    "entries": "Entries, in order.",
    "items": "Items, in order.",
    "writes": "Writes that are applied together or not at all.",
    "reads": "Reads that are answered as of one moment.",
    "add": "The amount or the elements to add.",
    "added": "Whether it was added, rather than there before; of a set, how many were.",
    "remove": "The names or elements to remove.",
    "removed": "Whether it was there and was removed.",
    "deleted": "Whether it was there and was deleted.",
    "existed": "Whether there was one to delete.",
    "appended": "Whether it was appended, rather than there before.",
    "amount": "The amount.",
    "update": "Channels that change, with their new values.",
    "channels": "The names of the channels to return; if left out, all.",
    "parents": "The checkpoints that it is based on.",
    "heads": "The heads of the branch, the winning one first.",
    "head": "The winning head of the branch.",
    "hashes": "A hash of each channel's value.",
    "schema_version": "The version of the schema under which it was saved.",
    "readable_from": "The oldest version of the schema whose readers understand the state.",
    "parent": "The checkpoint that it is based on; of a step, the step that it is a part of.",
    "checkpoints": "Checkpoints, newest first.",
    "branches": "Branches.",
    "other_heads": "The other heads of the branch.",
    "secret": "JSON pointers to values that must not be shown to people.",
    "mutations": "Changes, oldest first.",
    "labels": "Labels.",
    "at": "The checkpoint where the branch begins.",
    "to": "The checkpoint on which the branch is put.",
    "keep_last": "How many of the newest checkpoints stay.",
    "older_than_s": "Only what is older than so many seconds.",
    "dry_run": "Only show what would be removed.",
    "bytes": "How many bytes.",
    "stays": "The reasons for which checkpoints stay, with their number.",
    "checked": "How many checkpoints were checked.",
    "damage": "The damaged parts.",
    "what": "A description of the change or the damage.",
    "violations": "The violations of the schema.",
    "why": "The rule that it breaks.",
    "threads": "Threads: their names, or by which names the schema holds for them.",
    "status": "The status.",
    "arguments": "The arguments of the step's call.",
    "holder": "The program that makes the attempt.",
    "compensation": "The name of the function that undoes the effect.",
    "progress": "A small value that says how far the attempt is.",
    "attempts": "The attempts; in a request, how many there may be.",
    "failures": "How many attempts failed.",
    "result_by": "The attempt whose result it is.",
    "position": "Its place among the steps.",
    "how": "How to settle it.",
    "steps": "Steps, in the order of their first intents.",
    "open": "Steps that have begun and not ended.",
    "more_steps": "Whether there are more steps than the answer shows.",
    "more_events": "Whether there are more events than the answer shows.",
    "erased": "Of an event: whether its value was erased, so that it is null. Of an erasure: whether there was a value.",
    "events": "Events, in order; in a retention rule, how many of the newest stay.",
    "late": "Whether it sorts before events that the reader's cursor had already passed.",
    "keep": "How many of the newest events stay.",
    "keep_bytes": "How many bytes of the newest events stay.",
    "consumers": "Consumers.",
    "behind": "How many events the consumer has not acknowledged.",
    "reset": "Set the cursor even if that moves it backwards.",
    "place": "The place in its order.",
    "worklists": "Worklists.",
    "pending": "How many entries wait.",
    "finished": "How many entries are finished.",
    "cluster": "The cluster's name.",
    "quorum": "How many nodes make a quorum.",
    "early": "Operations that wait for those they depend on.",
    "quarantined": "Operations that could not be applied.",
    "clock_ahead_ms": "How far operations' times are ahead of the clock.",
    "clocks": "Clocks that differ by more than clock_skew_max_ms, and what to do.",
    "clock_ms": "How far the peer's clock is ahead of this node's, in milliseconds; null if that is not known.",
    "lacks": "How many operations are durable here but not known to be held by the peer; null until the peer has told.",
    "ahead": "How many operations the peer holds and this node does not; null until the peer has told.",
    "lag_ms": "How old the oldest operation is that the peer lacks; null until the peer has told.",
    "told": "Whether the peer has told what it holds, since it was linked last.",
    "waiting_bytes": "Bytes that wait to be sent to it.",
    "dropped": "Messages that did not fit the queue; synchronisation makes up for them.",
    "vector": "How many operations of each origin it holds; at most 1,000 origins are listed.",
    "origins": "How many origins it holds operations of.",
    "bytes_on_disk": "Bytes on disk.",
    "operations": "How many operations.",
    "commits": "Group commits since the node started.",
    "connections": "Open sessions.",
    "spaces": "Spaces: their names, or how many.",
    "garbage": "Deletions and prunes whose rows are not swept yet.",
    "garbage_waits_for": "Owners that these wait for.",
    "master_key": "The name of the master key of an encrypted directory; empty: it is not encrypted.",
    "data_keys": "How many data keys an encrypted directory has.",
    "serves": "Whether the node answers more than questions about itself. If not, `reason` says what to do.",
    "backup": "The state of the cluster's backup: current, behind or failing; empty: none is declared.",
    "backup_trouble": "Why the node does not ship to the backup, and what to do.",
    "backup_lag_ms": "How long ago all that the node held was in the backup; 0: it is now.",
    "backup_bytes": "The bytes of the objects in the backup that count.",
    "backup_verified_ms": "When the backup was last restored and found sound; 0: never.",
    "keys_wait_for": "Spaces without objects whose keys are not destroyed yet.",
    "quotas_reached": "Quotas of spaces that were reached in the last seconds, as `space: quota`.",
    "quota_refusals": "Requests that were refused because a quota was reached.",
    "used": "What a space uses of each.",
    "objects": "How many objects; of a quota, deleted ones that are not swept yet included.",
    "writes_per_s": "Writes in a second, at each node.",
    "watchers": "Watches, and followers of presence, at each node.",
    "documents": "Open documents at each node.",
    "leases": "Leases and claims of work that are held or waited for.",
    "presences": "Clients that are present in a space and in its documents.",
    "died": "Changes that arrived after their object was deleted.",
    "repaired": "Damaged rows that were fetched from a peer.",
    "repairs_failed": "Requests that met damage that no peer could repair.",
    "tls_ends_ms": "When the node's certificate expires; 0 if it has none.",
    "tokens_end_ms": "When the next of the authors whose tokens were shown here has none any more; 0: nobody showed one.",
    "tokens_ending": "Authors whose newest token ends soon, as `author until …`.",
    "tokens_refused": "Tokens that were not accepted, by reason.",
    "cluster_keys": "Names of the node's keys for its peers, as the lines of `cluster_key_file`.",
    "cluster_key_file": "Whether the cluster's key is in a file, and so can be changed without a restart.",
    "cluster_key_trouble": "Why that file is not in use as it is now; else empty.",
    "tls_trouble": "What is wrong with the node's TLS files or their dates; else empty.",
    "from_": "Where a `move` or `copy` takes the value from.",
    "lost": "The value that was overwritten.",
    "lost_by": "The author of the overwritten value.",
    "stands": "The current value.",
    "stands_by": "The author of the current value.",
    "holders": "The nodes that have rights to spend.",
    "remaining": "The amount that is left.",
    "granted": "The amount that may be spent in all.",
    "spent": "The amount that was spent.",
    "rights": "How much the node may spend alone.",
    "moved": "How much of the rights moved.",
    "plan": "How the page was found, and its cost.",
    "item_rows": "Rows of items that were read.",
    "indexes": "Indexes.",
    "max_depth": "At most so many labels of each namespace.",
    "namespaces": "Namespaces that hold items.",
    "wait": "Seconds to wait for an answer if there is none yet.",
    "matches": 'Pairs that all must match the namespace: "prefix" or "suffix", and its labels there; "*" is any label.',
    "stale": "Read this node's state, even if it is older than the bookmark.",
}


def told(kind: type[Struct]) -> dict[str, str]:
    """A description of each field of `kind`; empty if there is none."""
    source, names = SOURCES.get(kind, (kind, {}))
    if source is not kind:
        found = told(source) | {name: _meaning(each) for name, each in vars(source).items() if isinstance(each, property)}
        return {name: found.get(names.get(name, name)) or NAMES.get(name, "") for name in kind.__struct_fields__}
    comments: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if each is not kind and each in SOURCES:
            comments.update(told(each))
            continue
        comments.update(_comments(each.__module__).get(each.__name__, {}) if issubclass(each, Struct) else {})
    return {name: comments.get(name) or NAMES.get(name, "") for name in kind.__struct_fields__}


def _meaning(computed: property) -> str:
    return (computed.__doc__ or "").partition("\n")[0]


@cache
def _comments(module: str) -> dict[str, dict[str, str]]:
    """For each class of a module, the comments behind its fields."""
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


ALWAYS: tuple[type[ShoalError], ...] = (
    errors.InvalidInput,
    problems.Malformed,
    problems.CrossOrigin,
    problems.WrongHost,
    problems.UriTooLong,
    problems.ExpectationFailed,
    problems.HeadersTooLarge,
    errors.Overloaded,
    ShoalError,
)
_GUARDED = (errors.Unauthenticated, errors.Forbidden)
_NAMED = (errors.InvalidName,)
_BODY = (
    errors.InvalidName,
    errors.InvalidValue,
    problems.RequestTimeout,
    errors.TooLarge,
    problems.UnsupportedMediaType,
    problems.UnsupportedEncoding,
)
_STATE = (
    errors.InvalidValue,
    errors.SessionBehind,
    errors.BookmarkLost,
    errors.CatchingUp,
    errors.NotAMember,
    errors.StoreCorrupt,
)
_WRITE = (
    errors.Unsupported,
    errors.KeyReused,
    errors.KeyExpired,
    errors.LeaseHeld,
    errors.LeaseLost,
    errors.ShuttingDown,
    errors.ReadOnly,
    errors.ClockWrong,
    errors.NoQuorum,
    errors.OutcomeUnknown,
    errors.StorageFull,
)
_STREAM = (errors.NotFound, StreamGone, errors.Unavailable, errors.NoQuorum, errors.ShuttingDown)
_STREAM_WRITE = (errors.Conflict,)


def failures(route: Route) -> list[type[ShoalError]]:
    """The errors of a route, ordered by status and code."""
    found = {
        *ALWAYS,
        *(() if route.is_open else _GUARDED),
        *(_NAMED if "{" in route.path else ()),
        *(_BODY if route.body is not None else ()),
        *(_STATE if route.has_bookmark else ()),
        *(_WRITE if route.writes else ()),
        *((errors.ShuttingDown, errors.ReadOnly, errors.CatchingUp, errors.NotAMember) if route.path == "/readyz" else ()),
        *route.errors,
    }
    return sorted(found, key=lambda error: (error.status, error.code))


def of_stream(*, writes: bool) -> list[type[ShoalError]]:
    """The errors of a request to a stream, ordered likewise."""
    found = {*ALWAYS, *_GUARDED, *_NAMED, *_STATE, *_STREAM, *(_BODY + _WRITE + _STREAM_WRITE if writes else ())}
    return sorted(found, key=lambda error: (error.status, error.code))


def clause(error: type[ShoalError]) -> str:
    """The description of an error, in one line: a clause without a capital and a full stop."""
    if error is ShoalError:
        return "the node met an unexpected error; see its log"
    sentence = (error.__doc__ or "").partition("\n")[0].partition(". ")[0].rstrip(".")
    return sentence[:1].lower() + sentence[1:]


PARTS: dict[str, str] = {
    **{kind: f"my-{kind}" for kind in KINDS},
    "space": "crew",
    "thread": "planner",
    "checkpoint": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "event": "018bcfe568000000d1c427103c344c41f5b165224a58b79100000000000000010000",
    "branch": "main",
    "label": "approved",
    "document": "board",
    "stream": "runs/42",
    "file": "client/index.js",
    "name": "page.png",
    "counter": "tokens",
    "register": "goal",
    "set": "seen",
    "map": "settings",
    "budget": "spending",
    "namespace": "memory.user-1",
    "key": "likes",
    "schema": "plan",
    "step": "charge-17",
    "reducer": "totals",
    "loop": "survey",
    "consumer": "mailer",
    "worklist": "pages",
    "item": "page-1",
    "lease": "nightly",
    "id": "0" * 64,
    "subject": "ana",
}
"""Examples of the parts of paths, by the name of the part."""

BODIES: dict[Any, Any] = {
    **EXAMPLES,
    threads.BeginBody: {"name": "charge", "arguments": {"order": 17, "cents": 4200}, "holder": "worker-1"},
    threads.SaveBody: {"state": {"messages": ["hello"], "plan": {"step": 1}}, "metadata": {"cost": 3}, "author": "planner"},
    threads.BatchBody: {
        "writes": [
            {"op": "save", "thread": "{crew}/planner", "state": {"plan": {"step": 1}}},
            {"op": "add", "counter": "{crew}/tokens", "add": 250},
        ]
    },
    threads.ReadBody: {
        "reads": [{"op": "counter", "counter": "{crew}/tokens"}, {"op": "register", "register": "{crew}/goal"}],
    },
    list[contents.PatchOperation]: [{"op": "add", "path": "/tasks", "value": {"t1": {"done": False}}}],
    dict[str, Any]: {"tasks": {"t1": {"done": False}}, "title": "Survey"},
}
"""Examples of bodies, by the type of a route's body."""
