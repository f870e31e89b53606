"""The table of all routes, from which the server and its description are built.

Routes of operations that declare their HTTP form are derived; the others are written here.
"""

from __future__ import annotations

from typing import Any

from shoal.api import batches, health, pages, presence, reading, spaces, watching
from shoal.api.derived import OPERATIONS
from shoal.api.document import documents
from shoal.api.http.exchange import ReadQuery, WriteQuery
from shoal.api.items import items
from shoal.api.route import SPACE, Handler, Route
from shoal.api.thread import auditing, resume
from shoal.api.thread.journal_routes import JOURNAL_ROUTES
from shoal.api.thread.step_routes import STEP_ROUTES
from shoal.api.thread.thread_routes import THREAD_ROUTES
from shoal.api.values import maps, registers, sets
from shoal.errors import (
    BudgetExhausted,
    ChangeUnderWay,
    Conflict,
    DocumentChanged,
    HeadMoved,
    ItemChanged,
    NoQuorum,
    NotAMember,
    NotFound,
    OutcomeUnknown,
    RegisterChanged,
    RootConflict,
    SchemaViolation,
    SlowConsumer,
    SpansPartitions,
    StepSettled,
    Taken,
)

SESSION_PATH = "/v1/session"
OPENAPI_PATH = "/v1/openapi.json"

ENTRY = SPACE + "/maps/{map}/{key}"
BUDGET = SPACE + "/budgets/{budget}"
ITEM = SPACE + "/items/{namespace}/{key}"


def _listing(kind: str, handler: Handler) -> Route:
    return Route("GET", f"{SPACE}/{kind}", handler, f"List {kind}", spaces.NamesView, query=spaces.ObjectsQuery)


ROUTES: tuple[Route, ...] = (
    *(operation.route() for operation in OPERATIONS.values()),
    *STEP_ROUTES,
    *THREAD_ROUTES,
    *JOURNAL_ROUTES,
    Route("GET", "/", pages.welcome, "This node, and the paths to its parts", pages.Welcome),
    Route("GET", pages.DOCS_PATH, pages.docs, "This description as a page", content_type="text/html"),
    Route("GET", pages.VIEWER_PATH, pages.viewer, "The script of that page", content_type="text/javascript"),
    Route("GET", "/healthz", health.healthz, "Is the process alive?", health.Alive),
    Route("GET", "/readyz", health.readyz, "Does the node take reads and writes?", health.Ready),
    Route("GET", "/metrics", health.metrics, "Metrics for Prometheus", content_type="text/plain"),
    Route("GET", "/v1/cluster", health.cluster, "The nodes and their state", health.ClusterDocument),
    Route("GET", "/v1/cluster/members", health.members, "Who the members are", health.MembersDocument),
    Route(
        "POST",
        "/v1/cluster/members",
        health.change_members,
        "Add, drain, replace or forget a node",
        health.MembersDocument,
        body=health.MembersBody,
        reads=True,
        errors=(ChangeUnderWay, NoQuorum, NotAMember, OutcomeUnknown),
    ),
    Route("GET", "/v1/spaces", spaces.list_spaces, "List spaces", spaces.SpacesView, query=spaces.SpacesQuery),
    Route("DELETE", SPACE, spaces.delete_space, "Delete everything in a space", spaces.SpaceDeletedView, query=WriteQuery),
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
    _listing("sets", spaces.list_objects("set")),
    _listing("maps", spaces.list_objects("map")),
    _listing("budgets", spaces.list_objects("budget")),
    _listing("items", spaces.list_objects("items")),
    _listing("schemas", spaces.list_objects("schema")),
    Route(
        "GET",
        f"{SPACE}/export",
        auditing.export_space,
        "All threads of a space as JSON lines (docs/EXPORT.md)",
        content_type=auditing.NDJSON,
        errors=(NotFound,),
    ),
    Route(
        "GET",
        f"{SPACE}/watch",
        watching.watch,
        "Changes as server-sent events",
        watching.ChangeView,
        query=watching.WatchQuery,
        content_type="text/event-stream",
        errors=(SlowConsumer,),
    ),
    Route(
        "POST",
        f"{SPACE}/batch",
        batches.batch,
        "Write several objects of one partition, all or none",
        batches.BatchView,
        body=batches.BatchBody,
        query=WriteQuery,
        errors=(
            SpansPartitions,
            NotFound,
            HeadMoved,
            RegisterChanged,
            ItemChanged,
            SchemaViolation,
            BudgetExhausted,
            StepSettled,
            Taken,
        ),
    ),
    Route(
        "POST",
        f"{SPACE}/read",
        reading.read,
        "Read several objects of one partition, as of one moment",
        reading.ReadView,
        body=reading.ReadBody,
        query=ReadQuery,
        reads=True,
        errors=(SpansPartitions, NotFound),
    ),
    Route(
        "GET",
        f"{SPACE}/documents/{{document}}",
        documents.read_document,
        "A document as JSON",
        Any,
        query=ReadQuery,
        errors=(NotFound,),
    ),
    Route("GET", f"{SPACE}/presence", presence.in_space, "The clients present in a space", presence.PresenceView),
    Route(
        "GET",
        f"{SPACE}/documents/{{document}}/presence",
        presence.in_document,
        "The clients present in a document, Yjs clients included",
        presence.PresenceView,
    ),
    Route(
        "PATCH",
        f"{SPACE}/documents/{{document}}",
        documents.patch_document,
        "Apply a JSON Patch, and return the document",
        Any,
        body=list[documents.PatchStep],
        query=documents.EditQuery,
        body_type="application/json-patch+json",
        compares=True,
        errors=(Conflict, RootConflict, DocumentChanged),
    ),
    Route(
        "PUT",
        f"{SPACE}/documents/{{document}}",
        documents.put_document,
        "Edit a document in place until it equals the body, and return it",
        Any,
        body=dict[str, Any],
        query=documents.EditQuery,
        compares=True,
        errors=(RootConflict, DocumentChanged),
    ),
    Route(
        "DELETE",
        f"{SPACE}/documents/{{document}}",
        documents.delete_document,
        "Delete a document on every node (no error if there is none)",
        documents.GoneView,
        query=WriteQuery,
        compares=True,
        errors=(DocumentChanged,),
    ),
    Route(
        "POST",
        f"{SPACE}/documents/{{document}}/compact",
        documents.compact,
        "Replace a document's updates by one, without deleted content",
        documents.CompactView,
        body=documents.CompactBody,
        query=WriteQuery,
        errors=(NotFound,),
    ),
    Route(
        "GET",
        f"{SPACE}/documents/{{document}}/conflicts",
        documents.conflicts,
        "Values that concurrent assignments overwrote, latest first",
        documents.ConflictsView,
        query=ReadQuery,
        errors=(NotFound,),
    ),
    Route(
        "GET",
        f"{SPACE}/registers/{{register}}",
        registers.read_register,
        "A register and its siblings",
        registers.RegisterView,
        query=ReadQuery,
    ),
    Route("GET", f"{SPACE}/sets/{{set}}", sets.read, "A page of a set's members", sets.MembersView, query=sets.MembersQuery),
    Route("GET", f"{SPACE}/maps/{{map}}", maps.read, "Entries of a map", maps.EntriesView, query=maps.EntriesQuery),
    Route("GET", ENTRY, maps.read_entry, "An entry of a map", maps.EntryView, query=ReadQuery, errors=(NotFound,)),
    Route(
        "POST",
        ENTRY,
        maps.change_entry,
        "Add to the counter of a key, or change its set",
        dict[str, int],
        body=maps.ChangeEntryBody,
        query=WriteQuery,
    ),
    Route(
        "GET",
        ITEM,
        items.get,
        "An item; its namespace is its labels, joined by periods",
        items.ItemView,
        query=ReadQuery,
        errors=(NotFound,),
    ),
    Route(
        "PUT",
        ITEM,
        items.put,
        "Put an item",
        items.PutView,
        body=items.PutBody,
        query=WriteQuery,
        compares=True,
        errors=(ItemChanged,),
    ),
    Route(
        "DELETE",
        ITEM,
        items.delete,
        "Delete an item",
        items.ItemDeletedView,
        query=items.DeleteQuery,
        compares=True,
        errors=(ItemChanged,),
    ),
    Route(
        "DELETE",
        f"{SPACE}/items/{{namespace}}",
        items.delete_all,
        "Delete all items of a namespace and those below it",
        items.ItemsDeletedView,
        query=WriteQuery,
    ),
    Route(
        "POST",
        f"{SPACE}/items:search",
        items.search,
        "Items of a namespace and of those below it, by a filter or a vector",
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
