"""Where a process of the command line sends its spans: the variables of OpenTelemetry say it (`OTEL_…`).

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
