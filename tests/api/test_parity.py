"""Every operation is on every face where it belongs; what is left out is listed here, with its reason."""

from __future__ import annotations

import ast
from pathlib import Path

from shoal.api.derived import OPERATIONS
from shoal.protocol import requests
from shoal.protocol.requests import ObjectRead, ObjectWrite
from shoal.protocol.requests.declared import declaration_of
from shoal.protocol.requests.families import operations

SHOAL = Path(requests.__file__).parents[2]

BY_HAND = {
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

NOT_OVER_HTTP = {
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

NOT_IN_PYTHON = {
    "of one node to another, or to itself": (requests.TransferRights, requests.TrimEvents),
    "a `Document` is a mirror: it is edited in place, and follows the rest": (
        requests.Patch,
        requests.Replace,
        requests.ReadDocument,
        requests.Updates,
    ),
    "`thread.steps` lists them, and `thread.step` answers with one": (requests.ReadStep,),
}


def named(path: Path) -> set[str]:
    """The names that a module mentions."""
    tree = ast.parse(path.read_text())
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return attributes | {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def mentioned(package: str) -> set[str]:
    return set[str]().union(*(named(path) for path in (SHOAL / package).rglob("*.py")))


def test_every_operation_is_over_http_or_is_listed_with_its_reason() -> None:
    by_hand = {kind for kinds in BY_HAND.values() for kind in kinds}
    left_out = {kind for kinds in NOT_OVER_HTTP.values() for kind in kinds}
    derived = set(OPERATIONS)
    assert not by_hand & left_out
    assert not derived & (by_hand | left_out), "it is derived now: take it from the list"
    assert derived | by_hand | left_out == set(operations())


def test_what_is_done_by_hand_is_done() -> None:
    over_http = mentioned("api") | mentioned("workflows")
    assert {kind.__name__ for kinds in BY_HAND.values() for kind in kinds} <= over_http


def test_every_operation_is_in_python_or_is_listed_with_its_reason() -> None:
    in_python = mentioned("client") | mentioned("workflows") | mentioned("integrations")
    left_out = {kind for kinds in NOT_IN_PYTHON.values() for kind in kinds}
    assert {kind for kind in operations() if kind.__name__ not in in_python} == left_out


def test_batches_take_writes_and_multi_reads_take_reads() -> None:
    for kind in operations():
        declared = declaration_of(kind)
        assert not declared.batch or issubclass(kind, ObjectWrite)
        assert not declared.multi_read or issubclass(kind, ObjectRead)


def test_what_is_in_a_batch_over_http_may_be_in_a_batch() -> None:
    for kind, derived in OPERATIONS.items():
        declared = declaration_of(kind)
        if derived.http.ops:
            assert declared.multi_read if derived.is_read else declared.batch
