"""Move a directory tree in batches, lose the process again and again, and move nothing twice.

    python examples/migration.py [--kills N] [--seed N]

A parent makes a tree of files, and starts a mover on it, which it kills (SIGKILL) at
random moments until the mover ends by itself. The mover keeps a worklist: each file
is added once, and done once.

- A file goes by one `os.rename` on one file system, which either has happened or not:
  the mover that comes after a crash sees where the file is, and knows.
- Each arrival is written to a log that no store protects: what was moved twice would
  be in it twice.
- An item is done after its file has arrived. Dying between the two leaves it pending,
  and the file in its new place: it is found there, and done without being moved.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import shoal
from shoal import Space, Worklist

FILES, BATCH = 300, 10
KILLED = -signal.SIGKILL


async def move(root: Path) -> None:
    """The mover: begin, or go on."""
    source, target = root / "source", root / "target"
    async with shoal.open(root / "state") as store:
        space = store.space("migration")
        thread = space.thread("mover")
        work = thread.worklist("files")
        if not (await thread.heads()):
            await work.add(sorted(str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()))
            await thread.save({"planned": (await work.progress()).total})
        batch: list[tuple[str, int]] = []
        async for item in work.pending():
            batch.append((item.key, bring(source / item.key, target / item.key, root / "arrivals")))
            if len(batch) == BATCH:
                await settle(space, work, batch)
                batch = []
        await settle(space, work, batch)


def bring(source: Path, target: Path, arrivals: Path) -> int:
    """Move a file, unless a mover before this one has, and return its size."""
    if source.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)
        with arrivals.open("a") as log:
            log.write(f"{target}\n")
    return target.stat().st_size


async def settle(space: Space, work: Worklist, batch: list[tuple[str, int]]) -> None:
    """What was moved is done, with the count that it leads to: all of it, or none."""
    if not batch:
        return
    moved = (await work.progress()).done + len(batch)
    async with space.batch() as together:
        for key, size in batch:
            together.thread("mover").done("files", key, result=size)
        together.thread("mover").update({"moved": moved})


# ── the parent ────────────────────────────────────────────────────────────────


def plant(source: Path, random: Random) -> dict[str, bytes]:
    names = [f"{random.randrange(8)}/{random.randrange(8)}/{number:04}.txt" for number in range(FILES)]
    files = {name: random.randbytes(random.randrange(64)) for name in names}
    for name, content in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(content)
    return files


def lose(root: Path, kills: int, random: Random) -> int:
    """Start movers and kill them, until one ends; return how many were killed."""
    killed = 0
    while True:
        mover = subprocess.Popen([sys.executable, __file__, "--mover", str(root)])
        try:
            if killed < kills:
                wait_for_work(root, mover, random)
                mover.kill()
            code = mover.wait(120)
        finally:
            mover.kill()
            mover.wait()
        if code == 0:
            return killed
        if code != KILLED:
            raise SystemExit(f"a mover failed with {code}")
        killed += 1


def wait_for_work(root: Path, mover: subprocess.Popen[bytes], random: Random) -> None:
    """Until it has moved a few files more, and then a moment."""
    wanted = arrived(root) + random.randrange(1, FILES // 8)
    while mover.poll() is None and arrived(root) < wanted:
        time.sleep(0.002)
    time.sleep(random.random() * 0.01)


def arrived(root: Path) -> int:
    log = root / "arrivals"
    return len(log.read_text().splitlines()) if log.exists() else 0


async def judged(root: Path, files: dict[str, bytes]) -> list[str]:
    """What is wrong; nothing, if all is well."""
    problems = []
    target = root / "target"
    there = {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}
    if there != files:
        problems.append(f"{len(there)} files of {len(files)} are there, or some have another content")
    if left := [path for path in (root / "source").rglob("*") if path.is_file()]:
        problems.append(f"{len(left)} files were left behind")
    log = (root / "arrivals").read_text().splitlines()
    if twice := len(log) - len(set(log)):
        problems.append(f"{twice} files were moved twice")
    async with shoal.open(root / "state") as store:
        thread = store.space("migration").thread("mover")
        progress = await thread.worklist("files").progress()
        state = (await thread.load()).state
    if not progress.is_complete or progress.done != len(files) or state != {"planned": len(files), "moved": len(files)}:
        problems.append(f"the worklist says {progress}, the checkpoint {state}")
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description="Move a tree, and lose the process on the way.")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    parser.add_argument("--mover", type=Path, metavar="ROOT", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.mover is not None:
        asyncio.run(move(chosen.mover))
        return
    random = Random(chosen.seed)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        files = plant(root / "source", random)
        killed = lose(root, chosen.kills, random)
        problems = asyncio.run(judged(root, files))
    print(f"{len(files)} files, {killed} movers killed, seed {chosen.seed}")  # noqa: T201
    if problems:
        raise SystemExit("; ".join(problems))
    print("every file arrived, and none was moved twice")  # noqa: T201


if __name__ == "__main__":
    main()
