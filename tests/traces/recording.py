"""Spans in memory, and the trees that they form."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Sampler

from shoal.traces.provider import Tracing, using

SAMPLED = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
UNSAMPLED = SAMPLED[:-1] + "0"


class _Counted(IdGenerator):
    """Ids in order, so that a run makes the same ones each time."""

    def __init__(self) -> None:
        self._ids = count(1)

    def generate_span_id(self) -> int:
        return next(self._ids)

    def generate_trace_id(self) -> int:
        return next(self._ids)


class Recorded:
    """All spans that have ended."""

    def __init__(self, *, sampler: Sampler | None = None, ids: IdGenerator | None = None) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler, id_generator=ids or _Counted(), shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def spans(self) -> list[ReadableSpan]:
        return sorted(self._exporter.get_finished_spans(), key=lambda span: (span.start_time or 0, span.context.span_id))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [found] = self.named(name)
        return found

    def clear(self) -> None:
        self._exporter.clear()

    def tree(self) -> list[str]:
        """The spans as lines: each indented below its parent, in the order of their beginnings, with its kind if it is not an
        internal one. Those of peers are in the order of their addresses.
        """
        by_id = {span.context.span_id: span for span in self.spans}
        lines: list[str] = []

        def show(span: ReadableSpan, depth: int) -> None:
            kind = "" if span.kind.name == "INTERNAL" else f" ({span.kind.name.lower()})"
            peer = (span.attributes or {}).get("shoal.peer", "")
            lines.append("  " * depth + span.name + (f" {peer}" if peer else "") + kind)
            below = [each for each in self.spans if each.parent is not None and each.parent.span_id == span.context.span_id]
            for each in sorted(below, key=lambda each: str((each.attributes or {}).get("shoal.peer", ""))):
                show(each, depth + 1)

        for span in self.spans:
            if span.parent is None or span.parent.span_id not in by_id:
                show(span, 0)
        return lines


@contextmanager
def recording(
    *, now_ns: Callable[[], int] = time.time_ns, names: str = "tools", sampler: Sampler | None = None
) -> Iterator[Recorded]:
    """Within, spans are recorded."""
    recorded = Recorded(sampler=sampler)
    with using(Tracing(recorded.provider, now_ns=now_ns, names=names)):
        yield recorded


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})
