"""Every route, once: the server is built from this table, and so is its description."""

from __future__ import annotations

from typing import Any

from shoal.api import (
    auditing,
    batches,
    budgets,
    documents,
    health,
    indexes,
    items,
    objects,
    presence,
    reading,
    resume,
    schemas,
    sets,
    spaces,
    watching,
)
from shoal.api.exchange import ReadQuery, WriteQuery
from shoal.api.route import SPACE, Handler, Route
from shoal.api.thread_routes import THREAD_ROUTES

SESSION_PATH = "/v1/session"
OPENAPI_PATH = "/v1/openapi.json"

BUDGET = SPACE + "/budgets/{budget}"
ITEM = SPACE + "/items/{namespace}/{key}"


def _listing(kind: str, handler: Handler) -> Route:
    return Route("GET", f"{SPACE}/{kind}", handler, f"List {kind}", spaces.NamesView, query=spaces.ObjectsQuery)


ROUTES: tuple[Route, ...] = (
    *THREAD_ROUTES,
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
    _listing("sets", spaces.list_objects("set")),
    _listing("budgets", spaces.list_objects("budget")),
    _listing("items", spaces.list_objects("items")),
    _listing("schemas", spaces.list_objects("schema")),
    Route(
        "GET",
        f"{SPACE}/export",
        auditing.export_space,
        "All threads of a space as JSON lines (docs/EXPORT.md)",
        content_type=auditing.NDJSON,
    ),
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
        f"{SPACE}/read",
        reading.read,
        "Read several objects of one partition, as of one moment",
        reading.ReadView,
        body=reading.ReadBody,
        query=ReadQuery,
        reads=True,
    ),
    Route("GET", f"{SPACE}/documents/{{document}}", documents.read_document, "A document as JSON", Any, query=ReadQuery),
    Route("GET", f"{SPACE}/presence", presence.in_space, "Who is present in a space", presence.PresenceView),
    Route(
        "GET",
        f"{SPACE}/documents/{{document}}/presence",
        presence.in_document,
        "Who is present in a document, Yjs clients included",
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
    ),
    Route(
        "PUT",
        f"{SPACE}/documents/{{document}}",
        documents.put_document,
        "Edit a document in place until it is this, and return it",
        Any,
        body=dict[str, Any],
        query=documents.EditQuery,
    ),
    Route(
        "DELETE",
        f"{SPACE}/documents/{{document}}",
        documents.delete_document,
        "Delete a document everywhere (also if there is none)",
        documents.GoneView,
        query=WriteQuery,
    ),
    Route(
        "GET",
        f"{SPACE}/documents/{{document}}/conflicts",
        documents.conflicts,
        "What concurrent sets of one key lost, latest first",
        documents.ConflictsView,
        query=ReadQuery,
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
    Route("GET", f"{SPACE}/sets/{{set}}", sets.read, "A page of a set's members", sets.MembersView, query=sets.MembersQuery),
    Route(
        "POST",
        f"{SPACE}/sets/{{set}}",
        sets.alter,
        "Remove elements of a set, and add some",
        sets.AlteredView,
        body=sets.AlterBody,
        query=WriteQuery,
    ),
    Route(
        "POST",
        f"{SPACE}/sets/{{set}}/contains",
        sets.contains,
        "Which of some elements are members of a set",
        sets.ContainsView,
        body=sets.ContainsBody,
        query=ReadQuery,
        reads=True,
    ),
    Route(
        "GET",
        BUDGET,
        budgets.read,
        "A budget: what is left, and who may spend it",
        budgets.BudgetView,
        query=ReadQuery,
    ),
    *(
        Route("POST", f"{BUDGET}/{part}", handler, summary, reply, body=body, query=WriteQuery)
        for part, handler, summary, reply, body in (
            ("grants", budgets.grant, "Add to what may be spent", budgets.GrantedView, budgets.AmountBody),
            ("spends", budgets.spend, "Spend, if there is as much", budgets.SpentView, budgets.AmountBody),
            ("draws", budgets.draw, "See that the node may spend so much alone", budgets.RightsView, budgets.DrawBody),
            ("releases", budgets.release, "Put rights of the node back", budgets.RightsView, budgets.ReleaseBody),
        )
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
        f"{SPACE}/items:index",
        indexes.index,
        "Have fields of all items below a first label indexed",
        indexes.IndexedView,
        body=indexes.IndexBody,
        query=WriteQuery,
    ),
    Route(
        "POST",
        f"{SPACE}/items:unindex",
        indexes.unindex,
        "Give up the indexes of fields",
        indexes.IndexedView,
        body=indexes.IndexBody,
        query=WriteQuery,
    ),
    Route(
        "GET",
        f"{SPACE}/items:indexes",
        indexes.indexes,
        "The fields that are indexed",
        indexes.IndexesView,
        query=indexes.IndexesQuery,
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
