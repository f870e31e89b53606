"""Examples of names and bodies, for the description of the API. Tests decode and send them."""

from __future__ import annotations

from typing import Any

from shoal.api import batches, reading
from shoal.api.derived import EXAMPLES
from shoal.api.document import documents
from shoal.api.thread import mutations, saving, steps
from shoal.kinds import KINDS

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
    steps.BeginBody: {"name": "charge", "arguments": {"order": 17, "cents": 4200}, "holder": "worker-1"},
    saving.SaveBody: {"state": {"messages": ["hello"], "plan": {"step": 1}}, "metadata": {"cost": 3}, "author": "planner"},
    mutations.MergeBody: {"branch": "main", "author": "planner"},
    mutations.EditBody: {"patch": {"plan": {"step": 2}}, "by": "ada"},
    batches.BatchBody: {
        "writes": [
            {"op": "save", "thread": "{crew}/planner", "state": {"plan": {"step": 1}}},
            {"op": "add", "counter": "{crew}/tokens", "add": 250},
        ]
    },
    reading.ReadBody: {
        "reads": [{"op": "counter", "counter": "{crew}/tokens"}, {"op": "register", "register": "{crew}/goal"}],
    },
    list[documents.PatchOperation]: [{"op": "add", "path": "/tasks", "value": {"t1": {"done": False}}}],
    dict[str, Any]: {"tasks": {"t1": {"done": False}}, "title": "Survey"},
}
"""Examples of bodies, by the type of a route's body."""
