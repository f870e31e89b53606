"""Backups: what shipping costs the clients, how far behind the bucket is, how fast a store or one thread is restored.

`python -m benchmarks.backup cost|restore|thread [--megabytes N]`: one figure each, in a directory of this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Callable
from os import urandom
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import uvloop

import shoal
from shoal.cli.bringing import Subject, bring
from shoal.client.store import Store
from shoal.node.backup.restoring import restore

WRITERS = 64
RATE = 1000  # Saves a second.
SAVE_BYTES = 1024
LARGE_BYTES = 16 * SAVE_BYTES  # Of a save among which a thread is looked for.
SPREAD = 4096  # Threads.
SPAN_S = 12.0
CHECKPOINTS = 1000  # Of the thread that is fetched.


async def saves(store: Store, seconds: float, rate: float | None) -> tuple[int, float]:
    """Save for so long, at a rate or as fast as it goes. Returns the saves, and the greatest lag of the backup in seconds."""
    count, began, lag = 0, perf_counter(), 0.0

    async def one(nth: int) -> None:
        nonlocal count
        thread = 0
        while (spent := perf_counter() - began) < seconds:
            due = (count + 1) / rate - spent if rate else 0.0
            count += 1
            if due > 0:
                await asyncio.sleep(due)
            thread += 1
            handle = store.space("crew").thread(f"t{nth}-{thread % (SPREAD // WRITERS)}")
            await handle.save({"text": urandom(SAVE_BYTES // 2).hex()}, overwrite=True)

    async def watched() -> None:
        nonlocal lag
        while perf_counter() - began < seconds:
            await asyncio.sleep(0.5)
            view = await store.backup.status()
            if view.covered_ms:
                lag = max(lag, view.lag_ms / 1000)

    await asyncio.gather(*(one(nth) for nth in range(WRITERS)), watched())
    return count, lag


async def cost(directory: Path) -> None:
    """The throughput with and without a backup, as fast as it goes and at a rate; and the recovery point."""
    found: dict[str, list[float]] = {"alone": [], "shipping": []}
    for nth in range(2):
        for name in found:
            async with shoal.open(directory / f"{name}{nth}") as store:
                if name == "shipping":
                    await store.backup.init(f"file://{directory}/bucket{nth}")
                count, _ = await saves(store, SPAN_S / 2, None)
                found[name].append(count / (SPAN_S / 2))
    alone, shipping = max(found["alone"]), max(found["shipping"])
    print(f"saves a second: alone {alone:,.0f}, shipping {shipping:,.0f}: {1 - shipping / alone:.1%} less")
    rated: dict[str, tuple[float, float]] = {}
    for name in ("alone", "shipping"):
        async with shoal.open(directory / f"{name} rated") as store:
            if name == "shipping":
                await store.backup.init(f"file://{directory}/rated-bucket")
            began_s = process_time()
            count, lag = await saves(store, SPAN_S, RATE)
            rated[name] = count / SPAN_S, (process_time() - began_s) / SPAN_S
    (alone, alone_s), (shipping, shipping_s) = rated["alone"], rated["shipping"]
    print(f"of {RATE:,} saves a second: alone {alone:,.0f}, shipping {shipping:,.0f}: {1 - shipping / alone:.1%} less")
    print(f"processor time for a second of these: alone {alone_s:.2f} s, shipping {shipping_s:.2f} s")
    print(f"at {shipping:,.0f} saves a second: recovery point at most {lag:.1f} s")


async def restored(directory: Path, size: int) -> None:
    """Bytes a second of a restore."""
    async with shoal.open(directory / "state") as store:
        left = iter(range(size // (4 * SAVE_BYTES)))

        async def writer() -> None:
            for nth in left:
                thread = store.space(f"{{s{nth % 128}}}").thread(f"t{nth % 512}")
                await thread.save({"text": urandom(2 * SAVE_BYTES).hex()}, overwrite=True)

        await asyncio.gather(*(writer() for _ in range(WRITERS)))
        await store.backup.init(f"file://{directory}/bucket")
        began = perf_counter()
        while (await store.backup.status()).state != "current":
            await asyncio.sleep(0.2)
        took_s = perf_counter() - began
        view = await store.backup.status()
    print(f"shipped {view.bytes / 1e6:,.0f} MB in {took_s:.1f} s: {view.bytes / 1e6 / took_s:.0f} MB/s")
    began = perf_counter()
    made = await restore(f"file://{directory}/bucket", directory / "restored")
    took_s = perf_counter() - began
    print(f"restored {made.bytes / 1e6:,.0f} MB in {took_s:.1f} s: {made.bytes / 1e6 / took_s:.0f} MB/s")


async def fetched(directory: Path, size: int) -> None:
    """Seconds for one thread of 1,000 checkpoints out of a large backup, into a store that runs."""
    async with shoal.open(directory / "state") as store:
        left = iter(range(size // LARGE_BYTES))

        async def writer() -> None:
            for nth in left:
                thread = store.space(f"s{nth % 128}").thread(f"t{nth % 4096}")
                await thread.save({"text": urandom(LARGE_BYTES // 2).hex()}, overwrite=True)

        async def ticket() -> None:
            thread = store.space("crew").thread("ticket-7")
            for nth in range(CHECKPOINTS):
                await thread.save({"step": nth, "text": urandom(SAVE_BYTES // 2).hex()})

        await store.backup.init(f"file://{directory}/bucket")
        await asyncio.gather(ticket(), *(writer() for _ in range(WRITERS)))
        while (await store.backup.status()).state != "current":
            await asyncio.sleep(0.2)
        held = (await store.backup.status()).bytes
        for nth in range(3):
            (directory / f"scratch{nth}").mkdir()
            subject = Subject(f"file://{directory}/bucket", "crew", "ticket-7", f"ticket-7-{nth}")
            began = perf_counter()
            made = await bring(subject, store, scratch=directory / f"scratch{nth}")
            took_s = perf_counter() - began
            assert made.report.whole
            assert made.restored is not None
            read = f"{made.restored.bytes / 1e6:.1f} of {held / 1e6:,.0f} MB read"
            print(f"one thread of {made.report.read['checkpoint']:,} checkpoints: {took_s:.2f} s, {read}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("cost", "restore", "thread"))
    parser.add_argument("--megabytes", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        size = options.megabytes * 1_000_000
        work: dict[str, Callable[[], Any]] = {
            "cost": lambda: cost(directory),
            "restore": lambda: restored(directory, size),
            "thread": lambda: fetched(directory, size),
        }
        uvloop.run(work[options.what]())


if __name__ == "__main__":
    main()
