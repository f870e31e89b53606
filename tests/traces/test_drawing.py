"""Of each trace it is decided whether it is recorded before anything is made for them, as the provider itself would decide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_ON,
    Decision,
    ParentBased,
    ParentBasedTraceIdRatio,
    Sampler,
    TraceIdRatioBased,
)

import shoal
from shoal.traces.agents import http, running
from shoal.traces.provider import Drawing, Tracing, drawing, using
from tests.traces.recording import Recorded
from tests.traces.test_served import serving

RATIOS: list[Any] = [TraceIdRatioBased, ParentBasedTraceIdRatio, lambda rate: ParentBased(TraceIdRatioBased(rate))]


class Own(TraceIdRatioBased):
    """Decides by more than the id."""


def drawn(sampler: Sampler, ids: RandomIdGenerator | None = None) -> Drawing | None:
    return drawing(TracerProvider(sampler=sampler, id_generator=ids, shutdown_on_exit=False).get_tracer("x"))


@pytest.mark.parametrize("ratio", RATIOS)
def test_it_decides_as_the_providers_sampler_does(ratio: Any) -> None:
    decides = drawn(ratio(0.3))
    assert decides is not None
    kept = TraceIdRatioBased(0.3)
    for _ in range(500):
        if not decides.leaves_out():
            id = decides.generate_trace_id()
            assert kept.should_sample(None, id, "x").decision is Decision.RECORD_AND_SAMPLE


@pytest.mark.parametrize(("rate", "left_out"), [(0.0, 1000), (1.0, 0)])
def test_all_or_none_are_left_out_at_the_ends(rate: float, left_out: int) -> None:
    decides = drawn(ParentBasedTraceIdRatio(rate))
    assert decides is not None
    assert sum(decides.leaves_out() for _ in range(1000)) == left_out


@pytest.mark.parametrize("sampler", [ALWAYS_ON, Own(0.5), ParentBased(Own(0.5)), ParentBased(ALWAYS_ON)])
def test_another_sampler_decides_itself(sampler: Sampler) -> None:
    assert drawn(sampler) is None


def test_ids_come_from_the_providers_generator() -> None:
    class Counting(RandomIdGenerator):
        made = 0

        def generate_trace_id(self) -> int:
            Counting.made += 1
            return Counting.made

    decides = drawn(TraceIdRatioBased(1.0), Counting())
    assert decides is not None
    assert [(decides.leaves_out(), decides.generate_trace_id()) for _ in range(3)] == [(False, 1), (False, 2), (False, 3)]
    assert decides.generate_trace_id() == 4, "of a span that nothing was drawn for"
    assert decides.generate_span_id() > 0


def test_ids_that_nobody_took_are_bounded() -> None:
    decides = drawn(TraceIdRatioBased(1.0))
    assert decides is not None
    for _ in range(1000):
        decides.leaves_out()
    assert len(decides._held) == 64


async def test_nothing_is_made_for_what_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = TracerProvider(sampler=ParentBasedTraceIdRatio(0.0), shutdown_on_exit=False)
    known = Tracing(provider)

    def begun(*_: object, **__: object) -> None:
        raise AssertionError("a span was asked for")

    monkeypatch.setattr(known._tracer, "start_span", begun)
    monkeypatch.setattr(known, "_broken", begun)
    async with serving(tmp_path / "node") as url, shoal.open(tmp_path / "own") as own, shoal.connect(url) as remote:
        with using(known):
            for store in (own, remote):
                thread = store.space("crew").thread("t")
                with running("agent", "agent-1"):
                    assert await thread.step("search", call=lambda: 7) == 7
                assert await thread.step("again", call=lambda: 8) == 8
                await thread.save({"a": 1})
            with http("GET", "/v1/x", {}, "r-1") as told:
                await own.space("crew").counter("n").add(1)
                told(200)


async def test_a_trace_is_recorded_whole_or_not_at_all(tmp_path: Path) -> None:
    """Of a request, both sides record it or neither does; of a step, all that is within."""
    recorded = Recorded(sampler=ParentBasedTraceIdRatio(0.5), ids=RandomIdGenerator())
    async with serving(tmp_path) as url, shoal.connect(url) as store:
        with using(Tracing(recorded.provider)):
            thread = store.space("crew").thread("t")
            for number in range(40):
                await thread.step("look", key=f"{number}", call=lambda: 1)
                await store.space("crew").counter("n").add(1)
    steps, adds = recorded.named("execute_tool look"), recorded.named("shoal add")
    assert 0 < len(steps) < 40
    assert 0 < len(adds) < 80, "of two sides each"
    sides = [span.kind.name for span in adds]
    assert sides.count("CLIENT") == sides.count("SERVER")
    by_id = {span.context.span_id for span in recorded.spans}
    assert [span.name for span in recorded.spans if span.parent is not None and span.parent.span_id not in by_id] == []
    assert [span.name for span in recorded.named("shoal begin-step") if span.parent is None] == []


async def test_a_request_of_an_own_store_is_drawn_once(tmp_path: Path) -> None:
    recorded = Recorded(sampler=ParentBasedTraceIdRatio(0.5), ids=RandomIdGenerator())
    known = Tracing(recorded.provider)
    async with shoal.open(tmp_path) as store:
        with using(known):
            for _ in range(100):
                await store.space("crew").counter("n").add(1)
    assert 30 < len(recorded.named("shoal add")) < 70, "drawn twice, a quarter would be left"
    assert not known._tracer.id_generator._held  # type: ignore[attr-defined]
