"""docs/REQUESTS.md: every operation, and on which faces it is; what is left out is listed here, with its reason."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from shoal.access.grants import action_of, family_of
from shoal.api.route import SPACE
from shoal.protocol import requests
from shoal.protocol.base import declaration_of
from shoal.protocol.requests import Request, reply_of
from shoal.protocol.requests.families import FAMILIES, operations

Reasons = Mapping[str, tuple[type[Request[Any]], ...]]

BY_HAND: Reasons = {
    "the body is a whole state, or a change of one; it is compared with the branch's head": (requests.Save,),
    "it withdraws an intent that has a rival, and by default waits for a quorum": (requests.BeginStep,),
    "the body or the answer is the document itself": (requests.Patch, requests.Replace, requests.ReadDocumentJson),
    "one answer holds it and others": (requests.CommonAncestor, requests.ReadSnapshot, requests.Status, requests.Cluster),
    "it holds several reads or writes": (requests.Batch, requests.MultiRead),
    "a file is a stream of bytes, in or out": (
        requests.FindChunks,
        requests.KeepChunks,
        requests.PutFile,
        requests.ReadFile,
        requests.ReadChunks,
    ),
}
"""Operations whose routes are written by hand."""

NOT_OVER_HTTP: Reasons = {
    "for mirrors: it carries Yjs updates, which the WebSocket takes": (
        requests.Update,
        requests.Updates,
        requests.Begin,
        requests.RestoreBeginning,
        requests.ReadDocument,
        requests.ReadMoment,
        requests.ReadDocumentAt,
    ),
    "operators look at it, and agree, at a terminal": (requests.Rebuild,),
    "nodes send it to each other, or to themselves": (
        requests.TransferRights,
        requests.InheritRights,
        requests.TrimEvents,
        requests.CatchUp,
        requests.FoldEntry,
    ),
    "`POST …/redaction/test` makes it of fields": (requests.TryRedaction,),
    "it is one thread's part of `POST …/retention/run` and `…/retention/preview`": (requests.RetainThread,),
    "a step of `PUT …/tiering`": (requests.TryTiering,),
    "presence lasts as long as a session": (requests.Announce,),
    "its fields are bytes; `shoal audit` asks by a session": (requests.SignHeads, requests.ReadLog),
    "an import takes many requests, and ends by comparing what is there; `shoal import` makes it": (requests.Import,),
    "steps of `PutFile`, `DeleteFile` and of what nodes sweep by themselves": (
        requests.NameFile,
        requests.RemoveFile,
        requests.SweepFiles,
        requests.DropFiles,
    ),
    "steps of `DeleteItems`": (requests.DiscardItems, requests.EndItems),
    "a client's renewals, together; over HTTP `PUT …/leases/{lease}` renews one": (requests.RenewLeases,),
    "nodes write it when a lease is acquired or released": (requests.MarkLease,),
    "nodes write it when an item is claimed": (requests.BeginAttempt,),
    "it is a part of imports": (requests.RecallTry,),
    "nodes write it to carry out `CompareAndSet`": (requests.Swap,),
    "it holds another write; over HTTP the header `Shoal-Lease` does": (requests.Fenced,),
    "`GET …/mutations` shows it": (requests.ReadDelta,),
    "for the savers and stores of frameworks": (
        requests.Annotate,
        requests.Claim,
        requests.Discard,
        requests.RefreshItems,
        requests.SweepItems,
    ),
    "a subscription; over HTTP it is a stream of events": (requests.Watch, requests.Follow, requests.FollowPresence),
}

NOT_IN_PYTHON: Reasons = {
    "steps of `PutFile`, `DeleteFile` and of what nodes sweep by themselves": (
        requests.NameFile,
        requests.SweepFiles,
        requests.DropFiles,
    ),
    "steps of `DeleteItems`": (requests.DiscardItems, requests.EndItems),
    "nodes send it to each other, or to themselves": (
        requests.TransferRights,
        requests.InheritRights,
        requests.TrimEvents,
        requests.FoldEntry,
    ),
    "a store renews its leases together": (requests.RenewLease,),
    "nodes write it when a lease is acquired or released": (requests.MarkLease,),
    "nodes write it when an item is claimed": (requests.BeginAttempt,),
    "nodes write it to carry out `CompareAndSet`": (requests.Swap,),
    "a `Document` is a mirror: callers edit it in place, and it follows the node": (
        requests.Patch,
        requests.Replace,
        requests.Updates,
    ),
    "`shoal audit export` and `verify` read logs": (requests.ReadLog,),
}

NOT_IN_A_BATCH_OF_PYTHON: Reasons = {
    "for the savers of frameworks, which make their own batches": (requests.Annotate, requests.Claim, requests.Unlabel),
    "for `thread.iterate`, which makes its own batches": (requests.ReachPlace,),
    "it takes several operations": (requests.Purge, requests.ClearSet),
    "for mirrors: a `Document` sends its own edits": (requests.Update,),
    "a worker that gives an item back has no effects to keep": (requests.FailItem,),
    "for people, one at a time": (requests.ReviveItem,),
    "`branch` and `rollback` move the handle too": (requests.Move,),
}
"""Operations that may be in a batch, and for which `space.batch()` has no method."""

BY_COMMAND: Mapping[str, tuple[type[Request[Any]], ...]] = {
    "file put": (requests.FindChunks, requests.KeepChunks, requests.PutFile),
    "file get": (requests.ReadFile, requests.ReadChunks),
    "file list": (requests.ListFiles,),
    "file delete": (requests.DeleteFile,),
    "import": (requests.Import,),
    "redaction set": (requests.TryRedaction, requests.ReadRedaction),
    "redaction show": (requests.ReadRedaction,),
    "redaction unset": (requests.ReadRedaction,),
    "redaction test": (requests.TryRedaction,),
    "retention set": (requests.ReadRules, requests.RetainThread),
    "retention show": (requests.ReadRules,),
    "retention unset": (requests.ReadRules,),
    "retention run": (requests.ReadRules, requests.RetainThread),
    "tiering set": (requests.ReadTiering, requests.TryTiering),
    "tiering show": (requests.ReadTiering,),
    "tiering unset": (requests.ReadTiering,),
    "tiering run": (requests.RunTiering,),
    "save": (requests.Save,),
    "edit": (requests.Save,),
    "show": (requests.Load,),
    "log": (requests.History,),
    "branch": (requests.Heads, requests.Move, requests.DeleteBranch),
    "rollback": (requests.Move,),
    "merge": (requests.CommonAncestor,),
    "why": (requests.Explain,),
    "events": (requests.ReadJournal,),
    "worklist claim": (requests.ClaimItem,),
    "lease show": (requests.ReadLease,),
    "lease run": (),
    "resume": (requests.CatchUp,),
    "threads": (requests.ListThreads,),
    "space quota": (requests.ReadQuota,),
    "status": (requests.Status, requests.Cluster),
    "top": (requests.Status, requests.Cluster, requests.ReadUsage),
    "usage": (requests.ReadUsage, requests.ReadSpaceUsage),
    "doctor": (requests.ReadConditions, requests.Cluster),
    "cluster add": (requests.ReadMembers, requests.ChangeMembers),
    "cluster rebuild": (requests.Rebuild,),
    "backup init": (requests.DeclareBackup,),
    "backup status": (requests.ReadBackup,),
    "audit sign": (requests.SignHeads,),
    "audit export": (requests.SignHeads, requests.ReadLog),
    "audit verify": (requests.ReadLog,),
    "watch": (requests.Watch,),
    "presence": (requests.ReadPresence, requests.FollowPresence),
    "items search": (requests.SearchItems, requests.RankItems),
    "items namespaces": (requests.ListNamespaces,),
    "doc get": (requests.ReadDocumentJson,),
    "doc watch": (requests.Follow,),
    "doc edit": (requests.Patch, requests.Update),
}
"""Commands that are written by hand, since they ask, follow, or draw for people: and the operations that they are for."""

NOT_ON_THE_COMMAND_LINE: Reasons = {
    "steps of `PutFile`, `DeleteFile` and of what nodes sweep by themselves": (
        requests.NameFile,
        requests.RemoveFile,
        requests.SweepFiles,
        requests.DropFiles,
    ),
    "a lease's holder lives on: `lease run` is one": (
        requests.AcquireLease,
        requests.RenewLease,
        requests.RenewLeases,
        requests.ReleaseLease,
    ),
    "a program that works for longer than its claim's ttl is written in Python": (requests.ExtendClaim,),
    "nodes write it when a lease is acquired or released": (requests.MarkLease,),
    "nodes write it when an item is claimed": (requests.BeginAttempt,),
    "it is a part of imports": (requests.RecallTry,),
    "nodes write it to carry out `CompareAndSet`": (requests.Swap,),
    "a running agent's: it says what that agent did": (
        requests.Ack,
        requests.Annotate,
        requests.Claim,
        requests.BeginStep,
        requests.EndStep,
        requests.ProgressStep,
        requests.PutSnapshot,
        requests.ReachPlace,
        requests.Announce,
    ),
    "a part of what another command shows": (
        requests.ReadConsumer,
        requests.ReadPlace,
        requests.ReadDelta,
        requests.ReadSnapshot,
        requests.ReadStanding,
        requests.ReadDocumentAt,
        requests.ReadMoment,
    ),
    "a command is one write or one read": (requests.Batch, requests.MultiRead, requests.Fenced),
    "sets within a map are for programs": (requests.AlterEntry,),
    "for mirrors and Yjs clients; `doc edit` opens one": (
        requests.Begin,
        requests.ReadDocument,
        requests.Replace,
        requests.RestoreBeginning,
        requests.Updates,
    ),
    "maintenance by `prune`, `delete-all`, a framework's saver or a worker": (
        requests.Discard,
        requests.DiscardItems,
        requests.EndItems,
        requests.RefreshItems,
        requests.SweepItems,
    ),
    "`shoal verify` checks a whole directory": (requests.VerifyCheckpoints,),
    "nodes send it to each other, or to themselves": (
        requests.TransferRights,
        requests.InheritRights,
        requests.TrimEvents,
        requests.FoldEntry,
    ),
}


_HEAD = f"""# Requests

`python -m tests.reference` generates this page from the declarations in `shoal/protocol/requests`. An operation is the
class of its request, which names its reply ([decision 0047](decisions/0047-declarations.md)); [PROTOCOL.md](PROTOCOL.md)
has the fields. Paths are below `{SPACE}`, or below `/v1` if the request is of no space. A route that is not
derived from the declaration is written by hand, for the reason that is given. A command with a \\* is derived, the others are
written by hand. *Batch* and *multi-read* say whether the operation can be one of several writes, or reads, at once. *Needs* is
the family and the action that a token must grant ([ACCESS.md](ACCESS.md)); of `watch` and `list-objects` the families are the
kinds that they show. [COSTS.md](COSTS.md) has what
each costs at its largest.
"""
_COLUMNS = (
    "| operation | what it does | needs | over HTTP | on the command line | also in |",
    "|---|---|---|---|---|---|",
)


def page() -> str:
    parts = [_HEAD]
    kinds = operations()
    for family in FAMILIES:
        of_family = [kind for kind in kinds if kind.__module__ == family.__name__]
        if of_family:
            title = (inspect.getdoc(family) or "").partition("\n")[0].rstrip(".").partition(":")[0]
            parts += ["", f"## {title}", *_COLUMNS]
            parts += map(_row, of_family)
    together = [kind for kind in kinds if kind.__module__.endswith(("batches", "multireads"))]
    parts += [
        "",
        "## Several at once",
        *_COLUMNS,
        *map(_row, together),
    ]
    return "\n".join(parts) + "\n"


def _row(kind: type[Request[Any]]) -> str:
    tag, said = kind.__struct_config__.tag, (inspect.getdoc(kind) or "").partition("\n")[0]
    declared = declaration_of(kind)
    faces = ["batch"] * declared.batch + ["multi-read"] * declared.multi_read
    answer = "" if kind in requests.Subscription.__args__ else f" → `{reply_of(kind).__struct_config__.tag}`"
    return (
        f"| `{tag}`{answer} | {said} | {_needed(kind)} | {_over_http(kind)} | {_on_command_line(kind)} | {', '.join(faces)} |"
    )


def _needed(kind: type[Request[Any]]) -> str:
    if kind is requests.ListSpaces:
        return "any token"
    if kind is requests.ListWork:
        return "`thread:read`, `lease:read`"
    family = family_of(kind)
    reveals = ",reveal" * declaration_of(kind).reveals
    return f"`{family}:{action_of(kind)}{reveals}`" if family else "of its parts"


def _over_http(kind: type[Request[Any]]) -> str:
    derived = [f"`{place.method} {place.path or '/'}`" for place in declaration_of(kind).http]
    if derived:
        return ", ".join(derived)
    by_hand = next(_reasons(BY_HAND, kind), None)
    return f"by hand: {by_hand}" if by_hand else f"no: {next(_reasons(NOT_OVER_HTTP, kind))}"


def _on_command_line(kind: type[Request[Any]]) -> str:
    derived = [f"`{cli.command}`\\*" for cli in declaration_of(kind).cli]
    by_hand = [f"`{command}`" for command, kinds in BY_COMMAND.items() if kind in kinds]
    return ", ".join([*derived, *by_hand]) or f"no: {next(_reasons(NOT_ON_THE_COMMAND_LINE, kind))}"


def _reasons(table: Reasons, kind: type[Request[Any]]) -> Iterator[str]:
    return (reason for reason, kinds in table.items() if kind in kinds)
