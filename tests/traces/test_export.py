"""Where a node sends its spans, as the variables of OpenTelemetry say, and the trace of a turn over three nodes."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import shoal
from chaos.ports import free_ports
from shoal.traces import spans
from tests.cli.conftest import PATIENCE_S, served
from tests.deploy.conftest import COMPOSE, NODES, composed
from tests.deploy.kubelet import expanded, stateful
from tests.traces.collector import collecting
from tests.traces.recording import SAMPLED, Recorded

OTLP = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


@pytest.mark.parametrize(
    ("environment", "exporters"),
    [
        ({}, []),
        ({"OTEL_SERVICE_NAME": "mine"}, []),
        (OTLP, ["otlp"]),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/v1/traces"}, ["otlp"]),
        ({"OTEL_TRACES_EXPORTER": "console, otlp"}, ["console", "otlp"]),
        ({**OTLP, "OTEL_TRACES_EXPORTER": "none"}, []),
        ({**OTLP, "OTEL_SDK_DISABLED": "True"}, []),
    ],
)
def test_traces_are_wanted_as_the_variables_say(environment: dict[str, str], exporters: list[str]) -> None:
    assert spans.wanted(environment) == exporters


@pytest.mark.parametrize(
    "environment",
    [
        {"OTEL_TRACES_EXPORTER": "unheard-of"},
        {**OTLP, "OTEL_EXPORTER_OTLP_PROTOCOL": "pigeons"},
        {**OTLP, "OTEL_TRACES_EXPORTER": "otlp,unheard-of"},
    ],
)
def test_a_wrong_variable_is_told_and_stops_nothing(environment: dict[str, str]) -> None:
    told: list[str] = []
    spans.started(environment, instance="n1:7400", warn=told.append)()
    [warning] = told
    assert "serves without" in warning


def test_a_missing_package_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.trace", None)
    told: list[str] = []
    spans.started(OTLP, instance="n1:7400", warn=told.append)()
    assert "opentelemetry.sdk" in told[0]
    assert "pip install '.[otlp]'" in told[0]


def test_the_end_waits_for_no_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "EXPORT_END_S", 0.01)
    answered, ended = threading.Event(), threading.Event()

    class Hanging:
        def shutdown(self) -> None:
            answered.wait(PATIENCE_S)
            ended.set()

    waiting = threading.Thread(target=spans._end, args=(Hanging(),))
    waiting.start()
    waiting.join(PATIENCE_S / 2)
    assert not ended.is_set()
    assert not waiting.is_alive()
    answered.set()


async def test_a_turn_over_three_nodes_is_one_trace(tmp_path: Path, recorded: Recorded) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the exporter is not installed")
    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
    with collecting() as collected, ExitStack() as stack:
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collected.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        nodes = [
            stack.enter_context(served(tmp_path / str(n), "--listen", address, "--join", ",".join(addresses), config=variables))
            for n, address in enumerate(addresses)
        ]
        tracer = recorded.provider.get_tracer("agent")
        async with shoal.connect(nodes[0][1], durability="quorum", wait=PATIENCE_S) as store:
            thread = store.space("crew").thread("t")
            await thread.save({"warm": True})
            recorded.clear()
            with tracer.start_as_current_span("turn") as turn:
                assert await thread.step("pay", call=lambda: 7) == 7
                await thread.save({"a": 1})
        trace = turn.get_span_context().trace_id.to_bytes(16, "big")
        async with asyncio.timeout(PATIENCE_S):
            while len(found := [span for span in collected.spans if span.trace_id == trace and span.name == "shoal.peer"]) < 6:
                await asyncio.sleep(0.05)
        for process, _ in nodes:
            process.send_signal(signal.SIGTERM)
            _, errors = await asyncio.to_thread(process.communicate, timeout=PATIENCE_S)
            assert process.returncode == 0, errors
    assert recorded.tree() == [
        "turn",
        "  execute_tool pay",
        "    shoal begin-step (client)",
        "    shoal end-step (client)",
        "  shoal save (client)",
    ]
    clients = {span.context.span_id.to_bytes(8, "big"): span for span in recorded.spans}
    spans = [span for span in collected.spans if span.trace_id == trace]
    by_id = {span.span_id: span for span in spans}

    def path(span: Any) -> str:
        above = by_id.get(span.parent_span_id)
        return f"{path(above)} > {span.name}" if above is not None else span.name

    for kind in ("begin-step", "end-step", "save"):
        [server] = [span for span in spans if span.name == f"shoal {kind}"]
        assert clients[server.parent_span_id].name == f"shoal {kind}"
    assert len(found) == 6
    asked = "shoal begin-step > shoal.decide > shoal.ask_quorum"
    assert Counter(map(path, spans)) == {
        **{f"shoal {kind}": 1 for kind in ("begin-step", "end-step", "save")},
        **{
            f"shoal {kind} > {stage}": 1
            for kind in ("begin-step", "end-step", "save")
            for stage in ("shoal.queue", "shoal.decide", "shoal.commit", "shoal.replicate")
        },
        **{f"shoal {kind} > shoal.replicate > shoal.peer": 2 for kind in ("begin-step", "end-step", "save")},
        asked: 1,
        "shoal begin-step > shoal.ask_quorum": 1,
    }
    own = {span["service.instance.id"] for span in collected.resources if span["service.name"] == "shoal"}
    assert own <= set(addresses)


async def test_a_pod_of_the_chart_sends_its_spans(tmp_path: Path) -> None:
    """The variables are those of the rendered pod; only the collector is another."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the exporter is not installed")
    [container] = stateful("whole")["spec"]["template"]["spec"]["containers"]
    told = {each["name"]: expanded(each.get("value", ""), {"POD_NAME": "shoal-1"}) for each in container["env"]}
    told = {name: value for name, value in told.items() if name.startswith("OTEL_") or name == "SHOAL_TRACE_NAMES"}
    assert told["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector.observability:4318"
    assert {"secretRef": {"name": "shoal-traces"}} in container["envFrom"]
    with collecting() as collected:
        variables = {**told, "OTEL_EXPORTER_OTLP_ENDPOINT": collected.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        with served(tmp_path / "state", config=variables) as (_, url):
            path, headers = "/v1/spaces/crew/counters/n", {"traceparent": SAMPLED}  # Recorded, whatever the ratio.
            async with aiohttp.ClientSession() as http, http.get(url + path, headers=headers) as response:
                assert response.status == 200
            async with asyncio.timeout(PATIENCE_S):
                while not (found := [span for span in collected.spans if span.name == "shoal read-counter"]):
                    await asyncio.sleep(0.05)
    shown = {each.key: each.value.string_value for each in found[0].attributes}
    assert (shown["db.namespace"], shown["shoal.object"]) == ("crew", "n"), "names are shown as the chart's value says"
    assert collected.resources[0]["k8s.pod.name"] == "shoal-1"


@pytest.mark.parametrize("name", ["secrets", "cert-manager", "csi", "trial"])
def test_without_a_collector_the_chart_asks_for_no_traces(name: str) -> None:
    [container] = stateful(name)["spec"]["template"]["spec"]["containers"]
    assert spans.wanted({each["name"]: each.get("value", "") for each in container["env"]}) == []


def test_compose_passes_a_collector_on_and_asks_for_no_traces_without_one() -> None:
    nodes = composed(COMPOSE, OTLP)["services"]
    assert {name: spans.wanted(nodes[name]["environment"]) for name in NODES} == {name: ["otlp"] for name in NODES}
    assert {name: spans.wanted(NODES[name]["environment"]) for name in NODES} == {name: [] for name in NODES}
