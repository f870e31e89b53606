"""`python -m benchmarks [--only NAME …] [--quick]`: measure, print a table, write `benchmarks/RESULTS.md`.

Only a whole run writes the file: figures in it belong to one machine at one time.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

from rich.console import Console

from benchmarks import (
    access,
    blocking,
    catching_up,
    checkpointers,
    claims,
    cluster,
    crashes,
    documents,
    embedded,
    encryption,
    fairness,
    idle_cluster,
    issue_log,
    items,
    joining,
    large,
    machine,
    natives,
    page,
    reopenings,
    replicated,
    retention,
    served,
    stalls,
    steady,
    threads,
    tls,
    yjs,
)
from benchmarks.figures import Benchmark, Effort
from benchmarks.report import markdown, show

RESULTS = Path(__file__).with_name("RESULTS.md")

ALL = [
    Benchmark("embedded", embedded.run),
    Benchmark("served", served.run),
    Benchmark("tls", tls.run),
    Benchmark("encryption", encryption.run),
    Benchmark("access", access.run),
    Benchmark("blocking", blocking.run),
    Benchmark("threads", threads.run),
    Benchmark("large", large.run),
    Benchmark("items", items.run),
    Benchmark("stalls", stalls.run),
    Benchmark("retention", retention.run),
    Benchmark("fairness", fairness.run),
    Benchmark("steady", steady.run),
    Benchmark("issue-log", issue_log.run),
    Benchmark("checkpointers", checkpointers.run),
    Benchmark("natives", natives.run),
    Benchmark("reopenings", reopenings.run),
    Benchmark("crashes", crashes.run),
    Benchmark("cluster", cluster.run),
    Benchmark("catching-up", catching_up.run),
    Benchmark("joining", joining.run),
    Benchmark("replicated", replicated.run),
    Benchmark("claims", claims.run),
    Benchmark("idle", idle_cluster.run),
    Benchmark("documents", documents.run),
    Benchmark("yjs", yjs.run),
    Benchmark("page", page.run),
]
FULL = Effort(repeats=5, seconds=2.0, crashes=50, threads=100_000)
QUICK = Effort(repeats=2, seconds=0.5, crashes=4, threads=2000)
_WIDTH = 128  # Of a table that goes to a file.


def main() -> None:
    arguments = _arguments()
    effort = QUICK if arguments.quick else FULL
    chosen = [benchmark for benchmark in ALL if not arguments.only or benchmark.name in arguments.only]
    facts, console, sections, began = machine.facts(), Console(), [], perf_counter()
    if not console.is_terminal:
        console.width = _WIDTH
    for benchmark in chosen:
        with console.status(f"measuring: {benchmark.name}"):
            sections.append(benchmark.run(effort))
        show(console, sections[-1])
    if len(chosen) == len(ALL) and not arguments.quick:
        date, seconds = datetime.now(UTC).date().isoformat(), perf_counter() - began
        RESULTS.write_text(markdown(sections, facts=facts, date=date, command="make bench", seconds=seconds))
        console.print(f"written: {RESULTS.parent.name}/{RESULTS.name}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure Shoal on this machine.")
    parser.add_argument("--only", action="append", choices=[benchmark.name for benchmark in ALL], help="may be repeated")
    parser.add_argument("--quick", action="store_true", help="shorter and rougher; writes no file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
