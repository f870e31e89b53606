"""Examples of names and bodies, for the description of the API. Tests decode and send them."""

from __future__ import annotations

from typing import Any

from shoal.api import batches, health, reading, spaces, subjects
from shoal.api.derived import EXAMPLES
from shoal.api.document import documents
from shoal.api.items import items
from shoal.api.thread import mutations, queues, steps, threads
from shoal.api.values import maps

PARTS: dict[str, str] = {
    "space": "crew",
    "thread": "planner",
    "checkpoint": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "event": "018bcfe568000000d1c427103c344c41f5b165224a58b79100000000000000010000",
    "branch": "main",
    "label": "approved",
    "document": "board",
    "stream": "runs/42",
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
    "message": "0190b6a0",
    "worklist": "pages",
    "item": "page-1",
    "lease": "nightly",
    "id": "0" * 64,
    "subject": "ana",
}
"""Examples of the parts of paths, by the name of the part."""

BODIES: dict[Any, Any] = {
    **EXAMPLES,
    subjects.TagsBody: {"tags": [{"kind": "thread", "name": "planner"}, {"kind": "items", "name": "memory.user-1"}]},
    spaces.QuotaLimits: {"bytes": 10_737_418_240, "writes_per_s": 200, "watchers": 64},
    health.MembersBody: {"change": "add", "joins": "n4:7400"},
    steps.BeginBody: {"name": "charge", "arguments": {"order": 17, "cents": 4200}, "holder": "worker-1"},
    steps.EndBody: {"result": {"receipt": "r-17"}, "attempt": ""},
    steps.ResolveBody: {"how": "abandon", "by": "ada", "reason": "the order was cancelled"},
    steps.StatusBody: {"status": "paused", "by": "ada", "reason": "look at the plan first"},
    steps.MoveBody: {"by": "ada", "reason": "the plan is fine"},
    threads.PruneBody: {"keep_last": 100, "dry_run": True},
    threads.SaveBody: {"state": {"messages": ["hello"], "plan": {"step": 1}}, "metadata": {"cost": 3}, "author": "planner"},
    threads.NewBranchBody: {"name": "what-if", "at": "latest"},
    threads.RollbackBody: {"to": "latest", "by": "ada", "reason": "the last step was wrong"},
    mutations.MergeBody: {"branch": "main", "author": "planner"},
    mutations.UndoBody: {"count": 1, "author": "ada"},
    mutations.RedoBody: {"count": 1, "author": "ada"},
    mutations.EditBody: {"patch": {"plan": {"step": 2}}, "by": "ada"},
    queues.SendBody: {"message": {"text": "stop"}, "key": "message-1", "by": "ada"},
    queues.ForgetBody: {"before": "2026-01-01T00:00:00Z"},
    queues.TakeBody: {"by": "worker-1"},
    queues.AddItemsBody: {"items": [{"key": "page-1", "value": {"url": "/1"}}], "by": "planner"},
    queues.DoneBody: {"key": "page-1", "result": "read", "by": "worker-1"},
    batches.BatchBody: {
        "writes": [
            {"op": "save", "thread": "{crew}/planner", "state": {"plan": {"step": 1}}},
            {"op": "add", "counter": "{crew}/tokens", "add": 250},
        ]
    },
    reading.ReadBody: {
        "reads": [{"op": "counter", "counter": "{crew}/tokens"}, {"op": "register", "register": "{crew}/goal"}],
    },
    list[documents.PatchStep]: [{"op": "add", "path": "/tasks", "value": {"t1": {"done": False}}}],
    dict[str, Any]: {"tasks": {"t1": {"done": False}}, "title": "Survey"},
    documents.CompactBody: {"older_than_s": 3600},
    maps.ChangeEntryBody: {"include": ["tea"]},
    items.PutBody: {"value": {"tea": True}, "ttl_s": 86_400},
    items.SearchBody: {"namespace": ["memory"], "filter": {"tea": True}},
    items.NamespacesBody: {"prefix": ["memory"]},
}
"""Examples of bodies, by the type of a route's body."""
