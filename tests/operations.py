"""docs/OPERATIONS.md: every operation, and on which faces it is; what is left out is listed here, with its reason."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from shoal.api.derived import OPERATIONS
from shoal.api.route import SPACE
from shoal.protocol import requests
from shoal.protocol.requests import Request, reply_of
from shoal.protocol.requests.declared import declaration_of
from shoal.protocol.requests.families import FAMILIES, operations

Reasons = Mapping[str, tuple[type[Request[Any]], ...]]

BY_HAND: Reasons = {
    "a state is shown in part, and takes conditions": (requests.Save, requests.Load, requests.History, requests.Heads),
    "one route serves several requests": (
        requests.BeginStep,
        requests.ProgressStep,
        requests.EndStep,
        requests.ResolveStep,
        requests.ReadStep,
        requests.ListSteps,
        requests.MoveThread,
        requests.ReadStanding,
        requests.AddEntry,
        requests.AlterEntry,
        requests.Enqueue,
        requests.Dequeue,
        requests.Purge,
        requests.ReadQueue,
        requests.ReadQueueEntry,
        requests.ListWorklists,
        requests.Move,
        requests.CommonAncestor,
    ),
    "an answer has what no field of the reply holds": (
        requests.ReadRegister,
        requests.ReadSet,
        requests.ReadMap,
        requests.ReadLabels,
    ),
    "a namespace is a path, or a filter is JSON": (
        requests.PutItem,
        requests.DeleteItem,
        requests.GetItems,
        requests.SearchItems,
        requests.RankItems,
        requests.ListNamespaces,
    ),
    "a read may wait, or begins at a snapshot": (requests.ReadJournal, requests.ReadSnapshot),
    "the body or the answer is the document itself": (
        requests.Patch,
        requests.Replace,
        requests.ReadDocumentJson,
        requests.ReadConflicts,
        requests.Compact,
        requests.DeleteDocument,
    ),
    "the answer is of another shape": (
        requests.DeleteThread,
        requests.Prune,
        requests.Unlabel,
        requests.VerifyCheckpoints,
        requests.Explain,
        requests.ListThreads,
        requests.ListObjects,
        requests.ListSpaces,
        requests.Status,
        requests.Cluster,
        requests.ReadPresence,
    ),
    "several reads or writes": (requests.Batch, requests.MultiRead),
}
"""Operations whose routes are written by hand."""

NOT_OVER_HTTP: Reasons = {
    "a mirror's: they carry updates of Yjs, which its WebSocket takes": (
        requests.Update,
        requests.Updates,
        requests.Begin,
        requests.RestoreBeginning,
        requests.ReadDocument,
        requests.ReadMoment,
        requests.ReadDocumentAt,
    ),
    "of one node to another, or to itself": (requests.TransferRights, requests.TrimEvents, requests.CatchUp),
    "presence lasts as long as a session": (requests.Announce,),
    "what a framework's saver and its store do": (
        requests.Annotate,
        requests.Claim,
        requests.Discard,
        requests.RefreshItems,
        requests.SweepItems,
    ),
    "subscriptions, which have a stream of events": (requests.Watch, requests.Follow, requests.FollowPresence),
}

NOT_IN_PYTHON: Reasons = {
    "of one node to another, or to itself": (requests.TransferRights, requests.TrimEvents),
    "a `Document` is a mirror: it is edited in place, and follows the rest": (
        requests.Patch,
        requests.Replace,
        requests.ReadDocument,
        requests.Updates,
    ),
    "`thread.steps` lists them, and `thread.step` answers with one": (requests.ReadStep,),
}


_HEAD = f"""# Operations

`python -m tests.reference` generates this page from the declarations in `shoal/protocol/requests`. An operation is the
class of its request, which names its reply ([decision 0047](decisions/0047-declarations.md)); [PROTOCOL.md](PROTOCOL.md)
has the fields. Paths are below `{SPACE}`. A route that is not derived from the declaration is written by hand, for the
reason that is given. *Batch* and *multi-read* say whether the operation can be one of several writes, or reads, at once.
"""
_COLUMNS = ("| operation | what it does | over HTTP | also in |", "|---|---|---|---|")


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
        "| operation | what it does | over HTTP | also in |",
        "|---|---|---|---|",
        *map(_row, together),
    ]
    return "\n".join(parts) + "\n"


def _row(kind: type[Request[Any]]) -> str:
    tag, said = kind.__struct_config__.tag, (inspect.getdoc(kind) or "").partition("\n")[0]
    declared = declaration_of(kind)
    faces = ["batch"] * declared.batch + ["multi-read"] * declared.multi_read
    answer = "" if kind in requests.Subscription.__args__ else f" → `{reply_of(kind).__struct_config__.tag}`"
    return f"| `{tag}`{answer} | {said} | {_over_http(kind)} | {', '.join(faces)} |"


def _over_http(kind: type[Request[Any]]) -> str:
    if kind in OPERATIONS:
        http = OPERATIONS[kind].http
        return f"`{http.method} {http.path}`"
    by_hand = next(_reasons(BY_HAND, kind), None)
    return f"by hand: {by_hand}" if by_hand else f"no: {next(_reasons(NOT_OVER_HTTP, kind))}"


def _reasons(table: Reasons, kind: type[Request[Any]]) -> Iterator[str]:
    return (reason for reason, kinds in table.items() if kind in kinds)
