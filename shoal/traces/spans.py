"""The spans that Shoal makes, and their attributes: docs/TRACES.md is written from these tables. And where
they are sent.

Law: attributes have no content of users: no values, arguments, results, messages of errors or tokens. Names and keys of what is
stored are there only if SHOAL_TRACE_NAMES is "all".

Where a process of the command line sends its spans: the variables of OpenTelemetry say it (`OTEL_…`).

Laws:
- Without such a variable nothing is loaded. OTEL_SDK_DISABLED, and OTEL_TRACES_EXPORTER=none, switch it off.
- A wrong value, or a package that is missing, is reported and stops nothing: a node serves without traces.
- What is not sent yet at the end of the process is given up after `EXPORT_END_S`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from shoal import __version__
from shoal.protocol.tracing import ASK_QUORUM, FOLLOW
from shoal.records import NamedTuple

ATTRIBUTE_CHARS_MAX = 128  # Of an attribute's value; the rest of a longer one is left out.
LINKS_MAX = 32  # From the first write of a group commit to the others.

CONTENT = "all"  # SHOAL_TRACE_NAMES: names and keys of what is stored are shown,
TOOLS = "tools"  # only those of tools and agents, as the program declares them (the default),
NONE = "none"  # or none.

QUEUE, DECIDE, COMMIT, REPLICATE, PEER = "shoal.queue", "shoal.decide", "shoal.commit", "shoal.replicate", "shoal.peer"
TOOL, AGENT = "execute_tool", "invoke_agent"


class SpanRow(NamedTuple):
    """One kind of span."""

    name: str
    kind: str
    when: str
    attributes: tuple[str, ...] = ()


class AttributeRow(NamedTuple):
    """One attribute."""

    name: str
    says: str
    needs: str = ""  # The value of SHOAL_TRACE_NAMES without which it is left out.


_OF_ERRORS = ("error.type", "shoal.written")
_OF_REQUESTS = (
    "db.system.name",
    "db.operation.name",
    "shoal.durability",
    "shoal.request_id",
    *_OF_ERRORS,
    "db.namespace",
    "shoal.object",
)
_OF_TOOLS = ("gen_ai.operation.name", "gen_ai.tool.name", "gen_ai.tool.type")

SPANS = (
    SpanRow(
        "shoal KIND",
        "client, server or internal",
        "A request, such as `shoal save`: at a client from the call to the answer, with all attempts (client); at a node from "
        "its arrival to its answer (server); of an embedded store, or within a request over HTTP (internal).",
        _OF_REQUESTS,
    ),
    SpanRow(QUEUE, "internal", "At a node: from the arrival until the request has its turn among those of all spaces."),
    SpanRow(
        DECIDE,
        "internal",
        "Of a write: from its turn until the operation is written in memory. Waits for others are within it.",
    ),
    SpanRow(
        COMMIT,
        "internal",
        "Of a write: until the group commit that covers it is on disk. The first traced write of a commit links to the others, "
        "and they to it.",
        ("shoal.commit.number", "shoal.commit.writes"),
    ),
    SpanRow(REPLICATE, "internal", "Of a write under `quorum` or `all`: from the commit until enough owners hold it."),
    SpanRow(
        PEER,
        "internal",
        "Within it, one for each other owner: until it has acknowledged the write. It may end after the answer; after "
        "`quorum_timeout_s` it ends as an error.",
        ("shoal.peer",),
    ),
    SpanRow(ASK_QUORUM, "internal", "Until a quorum has said what it holds: of claims, of reads for a resumption, of leases."),
    SpanRow(FOLLOW, "internal", "Until the node has caught up with what the client has seen at another node."),
    SpanRow(
        "METHOD ROUTE",
        "server",
        "A request over HTTP, such as `POST /v1/…/save`. Looks at health, metrics and the page are left out.",
        ("http.request.method", "http.route", "http.response.status_code", "error.type", "shoal.request_id"),
    ),
    SpanRow(
        f"{TOOL} NAME",
        "internal",
        "A step of a thread, which is a call of a tool in the ledger: from its intent to its result.",
        (
            *_OF_TOOLS,
            "gen_ai.tool.call.id",
            "gen_ai.conversation.id",
            "shoal.step.attempt",
            "shoal.step.replayed",
            "error.type",
        ),
    ),
    SpanRow(
        f"{AGENT} NAME",
        "internal",
        "One run of an agent of a crew, from its resumption to its end on this machine.",
        ("gen_ai.operation.name", "gen_ai.agent.name", "gen_ai.agent.id", "gen_ai.conversation.id", "error.type"),
    ),
)

ATTRIBUTES = (
    AttributeRow("db.system.name", "`shoal`"),
    AttributeRow("db.operation.name", "The kind of the request, as in [REQUESTS.md](REQUESTS.md)"),
    AttributeRow("db.namespace", "The space", CONTENT),
    AttributeRow("shoal.object", "The object's name: that of the thread, counter, document and so on", CONTENT),
    AttributeRow("shoal.durability", "What the write asks for: `memory`, `local`, `quorum` or `all`"),
    AttributeRow("error.type", "The code of the error, as in [ERRORS.md](ERRORS.md), or the class of another exception"),
    AttributeRow("shoal.written", "With an error: whether anything was written, `no`, `yes` or `unknown`"),
    AttributeRow("shoal.commit.number", "The number of the group commit since the directory was opened"),
    AttributeRow("shoal.commit.writes", "How many writes share it, traced or not"),
    AttributeRow("shoal.peer", "The owner's address"),
    AttributeRow("http.request.method", "The method"),
    AttributeRow("http.route", "The route with placeholders, not the path"),
    AttributeRow("http.response.status_code", "The status"),
    AttributeRow("shoal.request_id", "At a node: the id of the request, as in the log, which is the `X-Request-Id` over HTTP"),
    AttributeRow("gen_ai.operation.name", "`execute_tool` or `invoke_agent`"),
    AttributeRow("gen_ai.tool.name", "The name that the program gave the step", TOOLS),
    AttributeRow("gen_ai.tool.type", "`function`"),
    AttributeRow("gen_ai.tool.call.id", "The key of the step", CONTENT),
    AttributeRow("gen_ai.conversation.id", "The thread", CONTENT),
    AttributeRow("gen_ai.agent.name", "The agent as it is declared, such as `researcher`", TOOLS),
    AttributeRow("gen_ai.agent.id", "The agent with its number, such as `researcher-3`", CONTENT),
    AttributeRow("shoal.step.attempt", "Which attempt it is, from 1"),
    AttributeRow("shoal.step.replayed", "Whether the result was in the ledger, so that nothing was called"),
)


if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

EXPORT_END_S = 5.0
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_GROUP = "opentelemetry_traces_exporter"


class Unusable(Exception):
    """Traces are asked for and cannot be sent; the text says why, and what to do."""


def wanted(environment: Mapping[str, str]) -> list[str]:
    """The exporters that the variables name, such as "otlp" or "console"; none if no traces are wanted."""
    named = [each.strip() for each in environment.get("OTEL_TRACES_EXPORTER", "").split(",") if each.strip()]
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or named == ["none"]:
        return []
    return named or (["otlp"] if any(environment.get(name) for name in _ENDPOINTS) else [])


def started(environment: Mapping[str, str], *, instance: str, warn: Callable[[str], None]) -> Callable[[], None]:
    """Send the spans of this process where the variables say. `instance` is its name among those of the service.

    Returns a function that sends what is left; it blocks for at most `EXPORT_END_S`. `warn` is told what is wrong.
    """
    names = wanted(environment)
    if not names:
        return _nothing
    try:
        provider = _provider(environment, names, instance)
    except Unusable as reason:
        warn(str(reason))
        return _nothing
    return lambda: _end(provider)


def _nothing() -> None:
    """There are no spans."""


def _provider(environment: Mapping[str, str], names: list[str], instance: str) -> TracerProvider:
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as missing:
        raise Unusable(
            f"no traces are sent, because the package {missing.name} is not installed. The node serves without. "
            "Install it in a clone of Shoal: pip install '.[otlp]'"
        ) from None
    own: dict[str, Any] = {"service.version": __version__, "service.instance.id": instance}
    if not environment.get("OTEL_SERVICE_NAME") and "service.name=" not in environment.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        own["service.name"] = "shoal"
    exporters = [_exporter(environment, name) for name in names]
    try:
        provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False)
    except Exception as reason:  # Each of the library's own variables may have a wrong value.
        raise Unusable(f"no traces are sent: {reason}. The node serves without. Correct the OTEL_… variables.") from reason
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return provider


def _exporter(environment: Mapping[str, str], name: str) -> SpanExporter:
    from importlib.metadata import entry_points

    from opentelemetry.sdk.trace.export import ConsoleSpanExporter

    wanted = name
    if name == "console":
        # On standard error: on standard output a node writes its address, and `shoal mcp` its answers.
        return ConsoleSpanExporter(out=sys.stderr)
    if name == "otlp":
        protocol = environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environment.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        wanted = _PROTOCOLS.get(protocol or "http/protobuf", "")
    found = next(iter(entry_points(group=_GROUP, name=wanted)), None)
    if found is None:
        raise Unusable(
            f"no traces are sent, because the exporter {wanted or name!r} is not installed. The node serves without. "
            "Install opentelemetry-exporter-otlp-proto-http, or set OTEL_TRACES_EXPORTER to one that is."
        )
    try:
        made: SpanExporter = found.load()()
    except Exception as reason:  # A wrong endpoint, header or certificate, as the library tells it.
        raise Unusable(f"no traces are sent: {reason}. The node serves without. Correct the OTEL_… variables.") from reason
    return made


def _end(provider: TracerProvider) -> None:
    # A collector that does not answer holds it up for longer, whatever time it is given.
    ending = threading.Thread(target=provider.shutdown, name="shoal-traces-end", daemon=True)
    ending.start()
    ending.join(EXPORT_END_S)
