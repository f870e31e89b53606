"""The table of all routes, from which the server and its description are built.

Law: a route is derived from a declaration (`shoal.api.derived`), or it stands below with the reason why it is not.
"""

from __future__ import annotations

from typing import Any

from shoal.api import contents, health, pages, threads, watching
from shoal.api.derived import OPERATIONS
from shoal.api.health import Figures
from shoal.api.http.exchange import ReadQuery, WriteQuery
from shoal.api.http.problems import RangeNotSatisfiable, RequestTimeout, UnsupportedEncoding
from shoal.api.route import SPACE, THREAD, Route
from shoal.errors import (
    BudgetExhausted,
    Conflict,
    DocumentChanged,
    FileIncomplete,
    HeadMoved,
    InvalidValue,
    ItemChanged,
    NotFound,
    Overloaded,
    Pruned,
    RegisterChanged,
    RootConflict,
    SchemaViolation,
    SlowConsumer,
    SpansPartitions,
    StepSettled,
    Taken,
    ThreadHeld,
    TooLarge,
    Unsupported,
)

SESSION_PATH = "/v1/session"
OPENAPI_PATH = "/v1/openapi.json"

DOCUMENT = SPACE + "/documents/{document}"

_PAGE = "it is a page for people, or a part of one"
_PROBE = "an orchestrator asks, and decides by the status"
_COOKIE = "it is about the request's own token, and no request of the protocol"
_OF_PARTS = "it holds several requests"
_STREAM = "the answer is a stream"
_CONTENT = "the body or the answer is the document itself"
_SEVERAL = "it answers several requests as one, in a form of its own"

BY_HAND: tuple[Route, ...] = (
    Route("GET", "/", pages.welcome, "This node, and the paths to its parts", pages.Welcome, is_open=True, reason=_PAGE),
    Route(
        "GET",
        pages.PAGE_PATH,
        pages.part,
        "A file of the page that browsers get at `/`",
        content_type="text/javascript",
        is_open=True,
        reason=_PAGE,
    ),
    Route(
        "GET",
        pages.DOCS_PATH,
        pages.docs,
        "This description as a page",
        None,
        200,
        content_type="text/html",
        is_open=True,
        reason=_PAGE,
    ),
    Route(
        "GET",
        pages.VIEWER_PATH,
        pages.viewer,
        "The script of that page",
        content_type="text/javascript",
        is_open=True,
        reason=_PAGE,
    ),
    Route("GET", "/healthz", health.healthz, "Is the process alive?", health.Alive, is_open=True, reason=_PROBE),
    Route("GET", "/readyz", health.readyz, "Does the node take reads and writes?", health.Ready, is_open=True, reason=_PROBE),
    Route(
        "GET",
        "/metrics",
        health.metrics,
        "Metrics for Prometheus",
        content_type="text/plain",
        reason="the answer is Prometheus's text",
    ),
    Route("GET", "/v1/access", health.access, "Who the caller is, and what it may do", health.AccessView, reason=_COOKIE),
    Route(
        "POST",
        "/v1/access/cookie",
        health.keep_cookie,
        "Keep the caller's token as a cookie, for browsers",
        health.AccessView,
        reads=True,
        errors=(Unsupported,),
        reason=_COOKIE,
    ),
    Route(
        "DELETE",
        "/v1/access/cookie",
        health.drop_cookie,
        "Forget the cookie",
        health.AccessView,
        reads=True,
        is_open=True,
        reason=_COOKIE,
    ),
    Route("GET", "/v1/cluster", health.cluster, "The nodes and their state", health.ClusterDocument, reason=_SEVERAL),
    Route("GET", "/v1/cluster/figures", health.figures, "Latencies and outcomes at this node", Figures, reason=_SEVERAL),
    Route(
        "GET",
        "/v1/export",
        threads.export_store,
        "All objects of all spaces as JSON lines (docs/EXPORT.md)",
        query=threads.ExportQuery,
        content_type=threads.NDJSON,
        reason=_STREAM,
    ),
    Route(
        "GET",
        f"{SPACE}/export",
        threads.export_space,
        "All objects of a space as JSON lines (docs/EXPORT.md)",
        query=threads.ExportQuery,
        content_type=threads.NDJSON,
        errors=(NotFound,),
        reason=_STREAM,
    ),
    *(
        route
        for place, what in ((SPACE, "a space"), (THREAD, "a thread"))
        for route in (
            Route(
                "GET",
                f"{place}/files/{{name}}",
                contents.get,
                f"A file of {what}, or the part that `Range` asks for",
                query=ReadQuery,
                content_type="application/octet-stream",
                errors=(NotFound, RangeNotSatisfiable),
                reason=_STREAM,
            ),
            Route(
                "PUT",
                f"{place}/files/{{name}}",
                contents.put,
                f"Store the body as a file of {what}",
                contents.StoredFile,
                201,
                query=WriteQuery,
                errors=(FileIncomplete, InvalidValue, Overloaded, RequestTimeout, TooLarge, UnsupportedEncoding),
                reason="the body is a stream",
            ),
        )
    ),
    Route(
        "GET",
        "/v1/watch",
        watching.watch_spaces,
        "Changes of several spaces as server-sent events",
        watching.ChangeView,
        query=watching.SpacesQuery,
        content_type="text/event-stream",
        errors=(SlowConsumer,),
        reason=_STREAM,
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
        reason=_STREAM,
    ),
    Route(
        "POST",
        f"{SPACE}/batch",
        threads.batch,
        "Write several objects of one partition, all or none",
        threads.BatchView,
        body=threads.BatchBody,
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
        reason=_OF_PARTS,
    ),
    Route(
        "POST",
        f"{SPACE}/read",
        threads.read,
        "Read several objects of one partition, as of one moment",
        threads.ReadView,
        body=threads.ReadBody,
        query=ReadQuery,
        reads=True,
        errors=(SpansPartitions, NotFound),
        reason=_OF_PARTS,
    ),
    Route(
        "GET",
        DOCUMENT,
        contents.read_document,
        "A document as JSON",
        Any,
        query=ReadQuery,
        errors=(NotFound,),
        reason=_CONTENT,
    ),
    Route(
        "PATCH",
        DOCUMENT,
        contents.patch_document,
        "Apply a JSON Patch, and return the document",
        Any,
        body=list[contents.PatchOperation],
        query=contents.EditQuery,
        body_type="application/json-patch+json",
        compares=True,
        errors=(Conflict, RootConflict, DocumentChanged),
        reason=_CONTENT,
    ),
    Route(
        "PUT",
        DOCUMENT,
        contents.put_document,
        "Edit a document in place until it equals the body, and return it",
        Any,
        body=dict[str, Any],
        query=contents.EditQuery,
        compares=True,
        errors=(RootConflict, DocumentChanged),
        reason=_CONTENT,
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
        compares=True,
        errors=(NotFound, Pruned, HeadMoved, SchemaViolation),
        reason="the body is a whole state, or a change of one; it is compared with the branch's head",
    ),
    Route(
        "GET",
        f"{THREAD}/export",
        threads.export_thread,
        "The thread as JSON lines (docs/EXPORT.md)",
        query=threads.ExportQuery,
        content_type=threads.NDJSON,
        errors=(NotFound,),
        reason=_STREAM,
    ),
    Route(
        "POST",
        f"{THREAD}/steps/{{step}}",
        threads.begin,
        "Write a step's intent (201), or read why it is not to begin (200: do not cause the effect)",
        threads.StepView,
        201,
        threads.BeginBody,
        threads.BeginQuery,
        repeats=True,
        errors=(ThreadHeld,),
        reason="it withdraws an intent that has a rival, and by default waits for a quorum",
    ),
)

ROUTES: tuple[Route, ...] = (*(operation.route() for operation in OPERATIONS), *BY_HAND)
