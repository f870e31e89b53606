"""The cost of traces: the processor's time for one save, with and without: `python -m benchmarks.traces [PAIRS]`.

`python -m benchmarks.traces instructions` counts instead, under Valgrind, the instructions of an embedded store, and of a node
and its client together. They hardly vary with what else runs, or from one process to the next.

One store, and clients of two nodes, of which one sends its spans to a collector. Short measurements with and without a provider
take turns, so that both meet the same machine, and the median of many pairs counts: one pair alone differs by up to 30 %. Of
100 traces one is recorded: the sampling that the target is for. Saves of a turn are within a span that the agent makes, also
where Shoal makes none. A save that begins its own trace is the dearest case.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from statistics import median
from timeit import timeit

import uvloop
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

import shoal
from benchmarks.tls import served
from shoal.cli.serving import serving
from shoal.config import Config
from shoal.traces.provider import Tracing, tracing, using

TASKS = 64
TURN = 5  # Saves of one turn; each task makes one turn in one measurement.
SAMPLED = 0.01
STATE = {"messages": ["x" * 1000], "step": 0}
TARGET = 1.03


class _Collector(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def _collecting() -> Iterator[str]:
    """A collector in a process of its own, which throws everything away; its URL."""
    with subprocess.Popen([sys.executable, "-m", "benchmarks.traces", "collect"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


def _collect() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Collector)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


async def _measured(
    store: shoal.Store, used: Callable[[], float], provider: TracerProvider, *, is_traced: bool, is_turn: bool
) -> float:
    """The processor's time for one save, in microseconds."""
    space = store.space("bench")
    tracer = provider.get_tracer("agent") if is_turn else None

    async def save(number: int) -> None:
        thread = space.thread(f"t{number}")
        with nullcontext() if tracer is None else tracer.start_as_current_span("turn"):
            for step in range(TURN):
                await thread.save({**STATE, "step": step}, overwrite=True)

    with using(Tracing(provider) if is_traced else None):
        began = used()
        await asyncio.gather(*(save(number) for number in range(TASKS)))
    return (used() - began) / (TASKS * TURN) * 1e6


Place = dict[bool, tuple[shoal.Store, Callable[[], float]]]
"""With traces and without: the store, and the processor's time that it has used."""


async def _paired(name: str, place: Place, provider: TracerProvider, pairs: int) -> None:
    for is_turn in (True, False):
        found: dict[bool, list[float]] = {False: [], True: []}
        for number in range(pairs + 1):
            for traced in (False, True) if number % 2 else (True, False):
                store, used = place[traced]
                taken = await _measured(store, used, provider, is_traced=traced, is_turn=is_turn)
                if number:  # The first warms up.
                    found[traced].append(taken)
        ratios = sorted(with_ / without for without, with_ in zip(found[False], found[True], strict=True))
        what = f"{name}, saves of a turn" if is_turn else f"{name}, each save a trace"
        verdict = "met" if median(ratios) <= TARGET else "missed"
        quarter = len(ratios) // 4
        spread = f"half of {pairs} pairs {ratios[quarter]:.3f} to {ratios[-1 - quarter]:.3f}"
        print(
            f"{what}: {median(found[False]):.0f} µs without, {median(found[True]):.0f} µs with; "
            f"× {median(ratios):.3f} ({spread}), target ≤ {TARGET}: {verdict}",
            flush=True,
        )


async def _embedded(directory: Path, provider: TracerProvider, pairs: int) -> None:
    async with shoal.open(directory) as store:
        both = store, time.process_time
        await _paired("embedded", {False: both, True: both}, provider, pairs)


def _used_s(pid: int) -> float:
    """The processor's time of a process: that of its threads, to the nanosecond (Linux)."""
    return sum(int(file.read_text().split()[0]) for file in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


async def _connected(nodes: dict[bool, tuple[int, str]], provider: TracerProvider, pairs: int) -> None:
    async with shoal.connect(nodes[False][1]) as plain, shoal.connect(nodes[True][1]) as traced:

        def used(pid: int) -> Callable[[], float]:
            return lambda: _used_s(pid) + time.process_time()

        place = {False: (plain, used(nodes[False][0])), True: (traced, used(nodes[True][0]))}
        await _paired("node and client", place, provider, pairs)


# ── instructions ──────────────────────────────────────────────────────────────

_SHORT, _LONG = 50, 350  # Saves.
_REFS = re.compile(r"I\s+refs:\s+([\d,]+)")
_RATES = {"off": None, "none": 0.0, "all": 1.0}
"""No provider; one that records nothing; and one that records everything, of which the sampling takes its share."""


def counted() -> None:
    """Print the instructions of a save in an embedded store, and of one by a client of a node together with the node."""
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind is not installed; nothing was counted")
    with _collecting() as collector:
        for place, is_turn in product(("embedded", "node and client"), (True, False)):
            found = {mode: _counted(mode, collector, place, is_turn=is_turn) for mode in _RATES}
            what = "saves of a turn" if is_turn else "each save a trace"
            ratios = {mode: each / found["off"] for mode, each in found.items()}
            sampled = ratios["none"] + SAMPLED * (ratios["all"] - ratios["none"])
            print(
                f"{place}, {what}: {found['off']:,.0f} instructions without; nothing recorded × {ratios['none']:.3f}, "
                f"all × {ratios['all']:.3f}, so {SAMPLED:.0%} × {sampled:.3f}; target ≤ {TARGET}: "
                f"{'met' if sampled <= TARGET else 'missed'}",
                flush=True,
            )


def _counted(mode: str, collector: str, place: str, *, is_turn: bool) -> float:
    short, long = (_instructions(mode, collector, place, times, is_turn=is_turn) for times in (_SHORT, _LONG))
    return (long - short) / (_LONG - _SHORT)


def _instructions(mode: str, collector: str, place: str, times: int, *, is_turn: bool) -> int:
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", sys.executable, "-m"]
    command += ["benchmarks.traces", "run", mode, collector, str(times), "turn" if is_turn else "trace", place]
    done = subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=False)
    found = _REFS.search(done.stderr)
    if done.returncode or found is None:
        raise SystemExit(f"{mode} did not run under valgrind:\n{done.stderr[-2000:]}")
    return int(found[1].replace(",", ""))


async def _run(mode: str, collector: str, times: int, *, is_turn: bool, is_served: bool) -> None:
    """An embedded store, or a node and its client, in one process: so many saves."""
    random.seed(7)
    rate = _RATES[mode]
    provider = TracerProvider(sampler=ParentBasedTraceIdRatio(SAMPLED if rate is None else rate), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{collector}/v1/traces")))
    with tempfile.TemporaryDirectory() as place, using(None if rate is None else Tracing(provider)):
        async with _served_here(Path(place)) if is_served else shoal.open(place) as store:
            thread = store.space("bench").thread("t")
            tracer = provider.get_tracer("agent") if is_turn else None
            for _ in range(times // TURN):
                with nullcontext() if tracer is None else tracer.start_as_current_span("turn"):
                    for step in range(TURN):
                        await thread.save({**STATE, "step": step}, overwrite=True)
    provider.shutdown()


@asynccontextmanager
async def _served_here(place: Path) -> AsyncIterator[shoal.Store]:
    """A client of a node in this process."""
    loop = asyncio.get_running_loop()
    listens: asyncio.Future[str] = loop.create_future()
    node = loop.create_task(serving(place / "node", Config(listen_port=0), ready=listens.set_result))
    async with shoal.connect(await listens) as store:
        yield store
    os.kill(os.getpid(), signal.SIGTERM)
    await node


def main(pairs: int) -> None:
    print(f"load {os.getloadavg()[0]:.1f}; of 100 traces {SAMPLED * 100:.0f} is recorded")
    with using(None):
        print(f"without a provider a call looks for it: {timeit(tracing, number=200_000) / 200_000 * 1e9:.0f} ns")
    with tempfile.TemporaryDirectory() as place, _collecting() as collector:
        provider = TracerProvider(sampler=ParentBasedTraceIdRatio(SAMPLED))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{collector}/v1/traces")))
        uvloop.run(_embedded(Path(place) / "embedded", provider, pairs))
        with served(Path(place) / "plain") as plain:
            os.environ |= {"OTEL_EXPORTER_OTLP_ENDPOINT": collector, "OTEL_TRACES_SAMPLER": "parentbased_traceidratio"}
            os.environ |= {"OTEL_TRACES_SAMPLER_ARG": str(SAMPLED)}
            with served(Path(place) / "traced") as traced:
                uvloop.run(_connected({False: plain, True: traced}, provider, pairs))
        provider.shutdown()


if __name__ == "__main__":
    if sys.argv[1:] == ["collect"]:
        _collect()
    elif sys.argv[1:] == ["instructions"]:
        counted()
    elif sys.argv[1:2] == ["run"]:
        mode, collector, times, kind, place = sys.argv[2:]
        uvloop.run(_run(mode, collector, int(times), is_turn=kind == "turn", is_served=place != "embedded"))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
