"""`python -m benchmarks [--only NAME …] [--quick] [--write]`: measure, and print a table.

Law: with `--write` each section that was measured takes the place of its former one in `benchmarks/results`, with its day, its
load and its machine; `RESULTS.md` and the plots are made from what stands there. A quick run writes nothing.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks import (
    access,
    alone,
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
    savers,
    served,
    stalls,
    steady,
    threads,
    tls,
    yjs,
)
from benchmarks.figures import Benchmark, Effort, Measured
from benchmarks.report import markdown, show

RESULTS = Path(__file__).with_name("RESULTS.md")
KEPT = Path(__file__).with_name("results")  # A file and a drawing for each benchmark.

ALL = [
    Benchmark("embedded", embedded.run),
    Benchmark("served", served.run),
    Benchmark("alone", alone.run),
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
    Benchmark("savers", savers.run),
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
    if arguments.repeats:
        effort = replace(effort, repeats=arguments.repeats)
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH
    for benchmark in ALL:
        if arguments.only and benchmark.name not in arguments.only:
            continue
        facts = machine.facts()
        with console.status(f"measuring: {benchmark.name}"):
            section = benchmark.run(effort)
        show(console, section)
        if arguments.write and not arguments.quick:
            measured = Measured(section, datetime.now(UTC).date().isoformat(), facts)
            _write(benchmark.name, measured)


def _write(name: str, measured: Measured) -> None:
    from benchmarks import plots  # Needs matplotlib, of the extra `bench`.

    KEPT.mkdir(exist_ok=True)
    (KEPT / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(measured), indent=1) + b"\n")
    (KEPT / f"{name}.svg").write_text(plots.svg(measured.section))
    found = {each.name: KEPT / f"{each.name}.json" for each in ALL}
    kept = {each: msgspec.json.decode(path.read_bytes(), type=Measured) for each, path in found.items() if path.exists()}
    RESULTS.write_text(markdown(kept, plots=KEPT.name))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure Shoal on this machine.")
    parser.add_argument("--only", action="append", choices=[benchmark.name for benchmark in ALL], help="may be repeated")
    parser.add_argument("--quick", action="store_true", help="shorter and rougher; writes no file")
    parser.add_argument(
        "--repeats", type=int, default=0, help="how often each figure is measured, in place of the usual number"
    )
    parser.add_argument("--write", action="store_true", help="keep what is measured in benchmarks/results and RESULTS.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
