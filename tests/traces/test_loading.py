"""What is loaded, and when: each in a process of its own, because OpenTelemetry's provider is one for a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import clean_environment

USE = """
import asyncio, sys
import shoal

async def main():
    async with shoal.open(sys.argv[1]) as store:
        await store.space("s").thread("t").step("look", call=lambda: 7)
"""


def run(code: str, *arguments: str | Path) -> str:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_store_loads_nothing_of_opentelemetry(tmp_path: Path) -> None:
    code = USE + "\nasyncio.run(main()); print([name for name in sys.modules if name.startswith('opentelemetry')])"
    assert run(code, tmp_path / "state") == "[]\n"


def test_a_node_loads_nothing_of_opentelemetry() -> None:
    code = "import sys, shoal.cli.main, shoal.cli.serving, shoal.api.server, shoal.transport.session, shoal.crew.crew\n"
    assert run(code + "print([name for name in sys.modules if name.startswith('opentelemetry')])") == "[]\n"


def test_a_store_works_where_the_api_is_absent(tmp_path: Path) -> None:
    assert (
        run("import sys\nsys.modules['opentelemetry'] = None\n" + USE + "\nasyncio.run(main()); print('ok')", tmp_path)
        == "ok\n"
    )


def test_a_loaded_api_without_a_provider_makes_no_spans(tmp_path: Path) -> None:
    code = (
        "import opentelemetry.trace\n"
        + USE
        + "\nfrom shoal.traces.provider import tracing\nasyncio.run(main()); print(tracing())"
    )
    assert run(code, tmp_path / "state") == "None\n"


LATER = """
import asyncio, sys
import shoal
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

async def main():
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    async with shoal.open(sys.argv[1]) as store:
        await store.space("s").counter("n").add(1)
        trace.set_tracer_provider(provider)
        await store.space("s").counter("n").value()
    print([span.name for span in spans.get_finished_spans()])

asyncio.run(main())
"""


def test_a_provider_that_is_set_later_counts_from_then_on(tmp_path: Path) -> None:
    assert run(LATER, tmp_path / "state") == "['shoal.queue', 'shoal read-counter']\n"
