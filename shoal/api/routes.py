"""Every route, once: the server is built from this table, and so is its description.

A part in braces is one part of the path, `[^/]+`, percent-encoded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from aiohttp import web
from msgspec import Struct

from shoal.api import (
    batches,
    differences,
    health,
    items,
    journals,
    objects,
    queues,
    resume,
    retention,
    schemas,
    scrutiny,
    spaces,
    steps,
    threads,
    watching,
)
from shoal.api.exchange import Exchange, NoQuery, ReadQuery, WriteQuery

Handler = Callable[[Exchange], Awaitable[web.StreamResponse]]

SESSION_PATH = "/v1/session"
OPENAPI_PATH = "/v1/openapi.json"

SPACE = "/v1/spaces/{space}"
THREAD = SPACE + "/threads/{thread}"
ITEM = SPACE + "/items/{namespace}/{key}"


class Route(NamedTuple):
    method: str
    path: str
    handler: Handler
    summary: str
    reply: Any = None  # A type for the schema; None: no JSON.
    status: int = 200
    body: Any = None
    query: type[Struct] = NoQuery
    content_type: str = "application/json"  # Of the answer.
    body_type: str = "application/json"
    reads: bool = False  # Though its method is POST.

    @property
    def writes(self) -> bool:
        return self.method != "GET" and not self.reads

    @property
    def has_bookmark(self) -> bool:
        """Whether it shows or changes what is kept, rather than how the node is."""
        return self.path.startswith("/v1/spaces")


def _listing(kind: str, handler: Handler) -> Route:
    return Route("GET", f"{SPACE}/{kind}", handler, f"List {kind}", spaces.NamesView, query=spaces.ObjectsQuery)


_STEPS: tuple[Route, ...] = (
    Route(
        "POST",
        f"{THREAD}/steps/{{step}}",
        steps.begin,
        "Write a step's intent, or learn what became of it (200: do not cause the effect)",
        steps.StepView,
        201,
        steps.BeginBody,
        steps.BeginQuery,
    ),
    Route(
        "PUT",
        f"{THREAD}/steps/{{step}}",
        steps.end,
        "Write a step's result, error or progress",
        steps.StepView,
        body=steps.EndBody,
        query=WriteQuery,
    ),
    Route("GET", f"{THREAD}/steps/{{step}}", steps.read, "A step", steps.StepView, query=ReadQuery),
    Route(
        "POST",
        f"{THREAD}/steps/{{step}}/resolve",
        steps.resolve,
        "Settle a step of which nobody knows how it ended",
        steps.StepView,
        body=steps.ResolveBody,
        query=WriteQuery,
    ),
    Route(
        "GET",
        f"{THREAD}/steps",
        steps.listing,
        "Steps in the order of their first intents",
        steps.StepsView,
        query=steps.StepsQuery,
    ),
    Route(
        "GET",
        f"{THREAD}/resume",
        resume.resume,
        "The newest state by quorum, the open steps, the journal since, and why",
        resume.ResumeView,
        query=resume.ResumeQuery,
    ),
    Route("GET", f"{THREAD}/status", steps.status, "The thread's status", steps.StandingView, query=ReadQuery),
    Route(
        "PUT",
        f"{THREAD}/status",
        steps.set_status,
        "Set the thread's status",
        steps.StandingView,
        body=steps.StatusBody,
        query=WriteQuery,
    ),
    Route(
        "POST",
        f"{THREAD}/pause",
        steps.pause,
        "Hold the thread's steps",
        steps.StandingView,
        body=steps.MoveBody,
        query=WriteQuery,
    ),
    Route(
        "POST",
        f"{THREAD}/approve",
        steps.approve,
        "Let the thread go on",
        steps.StandingView,
        body=steps.MoveBody,
        query=WriteQuery,
    ),
)

_SCRUTINY: tuple[Route, ...] = (
    Route(
        "GET",
        f"{THREAD}/checkpoints/{{checkpoint}}/why",
        scrutiny.why,
        "What the author of a checkpoint could see",
        scrutiny.WhyView,
        query=scrutiny.WhyQuery,
    ),
    Route(
        "GET",
        f"{THREAD}/verify",
        scrutiny.verify,
        "Compute again what the node has stored of checkpoints",
        scrutiny.VerifiedView,
        query=scrutiny.VerifyQuery,
    ),
    Route(
        "GET",
        f"{THREAD}/labels",
        scrutiny.labels,
        "Labels, and the checkpoints that have them",
        scrutiny.LabelsView,
        query=scrutiny.LabelsQuery,
    ),
    Route(
        "DELETE",
        f"{THREAD}/labels/{{label}}",
        scrutiny.unlabel,
        "Take a label from its checkpoint",
        scrutiny.UnlabelledView,
        query=WriteQuery,
    ),
)

ROUTES: tuple[Route, ...] = (
    *_STEPS,
    *_SCRUTINY,
    Route("GET", "/healthz", health.healthz, "Is the process alive?", health.Alive),
    Route("GET", "/readyz", health.readyz, "Does the node take reads and writes?", health.Ready),
    Route("GET", "/metrics", health.metrics, "Counts for Prometheus", content_type="text/plain"),
    Route("GET", "/v1/cluster", health.cluster, "The nodes and their state", health.ClusterDocument),
    Route("GET", "/v1/spaces", spaces.list_spaces, "List spaces", spaces.SpacesView, query=spaces.SpacesQuery),
    Route(
        "GET",
        f"{SPACE}/threads",
        resume.threads,
        "List threads, by status and metadata",
        resume.ThreadsView,
        query=resume.ThreadsQuery,
    ),
    _listing("documents", spaces.list_objects("document")),
    _listing("counters", spaces.list_objects("counter")),
    _listing("registers", spaces.list_objects("register")),
    _listing("items", spaces.list_objects("items")),
    _listing("schemas", spaces.list_objects("schema")),
    Route(
        "PUT",
        f"{SPACE}/schemas/{{schema}}",
        schemas.put,
        "Put a version of a JSON Schema that nodes enforce",
        schemas.SchemaView,
        body=schemas.SchemaBody,
        query=WriteQuery,
    ),
    Route(
        "GET",
        f"{SPACE}/schemas/{{schema}}",
        schemas.read,
        "All versions of a schema, oldest first",
        schemas.SchemaVersionsView,
        query=ReadQuery,
    ),
    Route(
        "GET",
        f"{THREAD}/violations",
        schemas.violations,
        "What the heads of a thread break of the space's schemas",
        schemas.ViolationsView,
        query=ReadQuery,
    ),
    Route(
        "GET",
        f"{SPACE}/watch",
        watching.watch,
        "Changes as server-sent events",
        watching.ChangeView,
        query=watching.WatchQuery,
        content_type="text/event-stream",
    ),
    Route(
        "POST",
        f"{SPACE}/batch",
        batches.batch,
        "Write several objects of one partition, all or none",
        batches.BatchView,
        body=batches.BatchBody,
        query=WriteQuery,
    ),
    Route(
        "POST",
        f"{THREAD}/prune",
        threads.prune,
        "Give up old checkpoints, or say which would go",
        threads.PruneView,
        body=threads.PruneBody,
        query=WriteQuery,
    ),
    Route(
        "DELETE",
        THREAD,
        threads.delete,
        "Delete a thread everywhere (also if there is none)",
        threads.ErasedView,
        query=WriteQuery,
    ),
    Route(
        "POST",
        f"{THREAD}/checkpoints",
        threads.save,
        "Save a checkpoint",
        threads.SavedView,
        201,
        threads.SaveBody,
        WriteQuery,
    ),
    Route(
        "GET",
        f"{THREAD}/checkpoints",
        threads.history,
        "Checkpoints, newest first, without their state",
        threads.HistoryView,
        query=threads.HistoryQuery,
    ),
    Route(
        "GET",
        f"{THREAD}/checkpoints/{{checkpoint}}",
        threads.load,
        "A checkpoint by its id, or `latest` of a branch",
        threads.CheckpointView,
        query=threads.LoadQuery,
    ),
    Route(
        "GET", f"{THREAD}/heads", threads.heads, "The heads of every branch, winner first", threads.HeadsView, query=ReadQuery
    ),
    Route("GET", f"{THREAD}/branches", threads.branches, "The branches", threads.BranchesView, query=ReadQuery),
    Route(
        "GET",
        f"{THREAD}/diff",
        differences.diff,
        "What changed between two checkpoints, per channel and path",
        differences.DiffView,
        query=differences.DiffQuery,
    ),
    Route(
        "POST",
        f"{THREAD}/branches",
        threads.new_branch,
        "Make a branch at a checkpoint",
        threads.MovedView,
        201,
        threads.NewBranchBody,
        WriteQuery,
    ),
    Route(
        "PUT",
        f"{THREAD}/branches/{{branch}}",
        threads.rollback,
        "Put a branch on a checkpoint; nothing is deleted",
        threads.MovedView,
        body=threads.RollbackBody,
        query=WriteQuery,
    ),
    Route(
        "POST",
        f"{THREAD}/events",
        journals.append,
        "Append an event to the journal (200 if its key was there already)",
        journals.AppendedView,
        201,
        journals.EventBody,
        WriteQuery,
    ),
    Route(
        "GET",
        f"{THREAD}/events",
        journals.events,
        "Events that the cursor `after` has not seen; with `wait`, once there are some",
        journals.EventsView,
        query=journals.EventsQuery,
    ),
    Route(
        "POST",
        f"{THREAD}/events:trim",
        retention.trim,
        "Give up the journal's old events, or say how many would go",
        retention.TrimView,
        body=retention.TrimBody,
        query=WriteQuery,
    ),
    Route(
        "GET",
        f"{THREAD}/retention",
        retention.retention,
        "What the journal keeps, and up to when it was trimmed",
        retention.RetentionView,
        query=ReadQuery,
    ),
    Route(
        "PUT",
        f"{THREAD}/retention",
        retention.retain,
        "Set what the journal keeps; without bounds everything",
        retention.RetentionView,
        body=retention.RetentionBody,
        query=WriteQuery,
    ),
    Route(
        "GET",
        f"{THREAD}/consumers",
        journals.consumers,
        "The journal's consumers, and how far behind they are",
        journals.ConsumersView,
        query=journals.ConsumersQuery,
    ),
    Route(
        "GET",
        f"{THREAD}/consumers/{{consumer}}",
        journals.consumer,
        "A consumer's cursor, to read events after",
        journals.ConsumerView,
        query=ReadQuery,
    ),
    Route(
        "POST",
        f"{THREAD}/consumers/{{consumer}}/ack",
        journals.ack,
        "Acknowledge an event, and all before it",
        journals.ConsumerView,
        body=journals.AckBody,
        query=WriteQuery,
    ),
    Route(
        "POST",
        f"{THREAD}/inbox",
        queues.send,
        "Send a message to the thread (200 if its key was there already)",
        queues.SentView,
        201,
        queues.SendBody,
        WriteQuery,
    ),
    Route(
        "GET", f"{THREAD}/inbox", queues.inbox, "Messages that wait, or those taken", queues.QueueView, query=queues.QueueQuery
    ),
    Route(
        "GET",
        f"{THREAD}/inbox/{{message}}",
        queues.message,
        "A message, and who took it",
        queues.EntryView,
        query=ReadQuery,
    ),
    Route(
        "POST",
        f"{THREAD}/inbox/{{message}}/take",
        queues.take,
        "Take a message: nobody gets it again",
        queues.TakenView,
        body=queues.TakeBody,
        query=WriteQuery,
    ),
    Route("GET", f"{THREAD}/worklists", queues.worklists, "The worklists", queues.WorklistsView, query=ReadQuery),
    Route(
        "GET",
        f"{THREAD}/worklists/{{worklist}}",
        queues.worklist,
        "What is to be done, or what is",
        queues.QueueView,
        query=queues.QueueQuery,
    ),
    Route(
        "POST",
        f"{THREAD}/worklists/{{worklist}}",
        queues.add,
        "Add items, each key once",
        queues.ItemsAddedView,
        body=queues.AddItemsBody,
        query=WriteQuery,
    ),
    Route(
        "POST",
        f"{THREAD}/worklists/{{worklist}}/done",
        queues.done,
        "An item is done",
        queues.DoneView,
        body=queues.DoneBody,
        query=WriteQuery,
    ),
    Route("GET", f"{SPACE}/documents/{{document}}", objects.read_document, "A document as JSON", Any, query=ReadQuery),
    Route(
        "PATCH",
        f"{SPACE}/documents/{{document}}",
        objects.patch_document,
        "Apply a JSON Patch, and return the document",
        Any,
        body=list[objects.PatchStep],
        query=WriteQuery,
        body_type="application/json-patch+json",
    ),
    Route(
        "GET", f"{SPACE}/counters/{{counter}}", objects.read_counter, "A counter's value", objects.CounterView, query=ReadQuery
    ),
    Route(
        "POST",
        f"{SPACE}/counters/{{counter}}",
        objects.add,
        "Add to a counter",
        objects.AddedView,
        body=objects.AddBody,
        query=WriteQuery,
    ),
    Route(
        "GET",
        f"{SPACE}/registers/{{register}}",
        objects.read_register,
        "A register and its siblings",
        objects.RegisterView,
        query=ReadQuery,
    ),
    Route(
        "PUT",
        f"{SPACE}/registers/{{register}}",
        objects.assign,
        "Set a register",
        objects.AssignedView,
        body=objects.AssignBody,
        query=WriteQuery,
    ),
    Route("GET", ITEM, items.get, "An item; its namespace is its labels, joined by periods", items.ItemView, query=ReadQuery),
    Route("PUT", ITEM, items.put, "Put an item", items.PutView, body=items.PutBody, query=WriteQuery),
    Route("DELETE", ITEM, items.delete, "Delete an item", items.DeletedView, query=items.DeleteQuery),
    Route(
        "POST",
        f"{SPACE}/items:search",
        items.search,
        "Items of a namespace and those below it, by a filter",
        items.SearchView,
        body=items.SearchBody,
        query=ReadQuery,
        reads=True,
    ),
    Route(
        "POST",
        f"{SPACE}/items:namespaces",
        items.namespaces,
        "Namespaces that hold items",
        items.NamespacesView,
        body=items.NamespacesBody,
        query=ReadQuery,
        reads=True,
    ),
)
