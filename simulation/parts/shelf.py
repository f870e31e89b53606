"""Files to which nothing but a checkpoint refers, while files stay in a bucket: `docs/TIERING.md`.

Law: a content to which an acknowledged checkpoint refers can be read, whole, though its name is gone, its bytes are in the
bucket, and all that nothing refers to is collected (3, 10).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection
from hashlib import sha256
from random import Random
from typing import NamedTuple

from shoal.errors import Cold, NotFound, ShoalError, StoreCorrupt
from shoal.kinds.file.state import unpack_manifest
from shoal.protocol.requests import ReadChunks, ReadFile
from shoal.protocol.session import Session
from shoal.values.registry import FileRef
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.part import Bench, Deeds, Told
from simulation.plan import Act, ActKind
from simulation.workload.random_agents import SPACE

FAMILY = "shelf"
_SIZES = 3000, 12000
_ATTEMPTS = 40
_TURNS_S = 0.5


class Kept(NamedTuple):
    """A content, and the acknowledgement of the checkpoint that refers to it."""

    ref: FileRef
    told: Told


class Shelf:
    """By thread: what its checkpoints refer to. No checkpoint of theirs is ever pruned, and no thread deleted."""

    kinds: tuple[ActKind, ...] = ("keep-file", "read-kept-file")

    def __init__(self) -> None:
        self.kept: defaultdict[str, list[Kept]] = defaultdict(list)

    def deeds(self, bench: Bench) -> Deeds:
        agent = _Agent(self.kept[bench.name], bench)
        return {"keep-file": agent.keep, "read-kept-file": agent.read}

    def erased(self, losses: Losses) -> Collection[bytes]:
        return ()

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        found: list[Violation] = []
        for thread in sorted(self.kept):
            for ref in sorted({kept.ref.sha256 for kept in self.kept[thread] if kept.told.is_owed(losses)}):
                found += await _unreadable(session, thread, ref)
        return found


class _Agent:
    def __init__(self, kept: list[Kept], bench: Bench) -> None:
        self._kept = kept
        self._bench = bench
        self._thread = bench.space.thread(bench.name)

    async def keep(self, act: Act, random: Random) -> None:
        """Put a file, save a checkpoint that refers to it, and delete the file's name."""
        content = random.randbytes(random.choice(_SIZES))
        name = content[:4].hex()  # Nobody else's.
        try:
            ref = await self._thread.put_file(name, content, durability=act.durability)
            await self._thread.save({"page": ref}, overwrite=True, durability=act.durability)
            self._kept.append(Kept(ref, self._bench.told(act.durability)))
            await self._thread.delete_file(name, durability=act.durability)
        except ShoalError as error:
            self._bench.refused(error)
            raise
        self._bench.did(f"keep a file of {len(content)} bytes")

    async def read(self, act: Act, random: Random) -> None:
        if not self._kept:
            return
        ref = random.choice(self._kept).ref
        try:
            async with self._thread.open_file(ref) as stream:
                content = await stream.read()
        except NotFound:
            return  # Its node may not have it yet. It is judged in the end.
        except ShoalError as error:
            self._bench.refused(error)
            raise
        if sha256(content).hexdigest() != ref.sha256:
            self._bench.violated("10", f"file {ref.sha256[:12]} does not have its hash")
        self._bench.did(f"read a kept file of {len(content)} bytes")


async def _unreadable(session: Session, thread: str, hash: str) -> list[Violation]:
    what, trouble = f"file {hash[:12]} of {thread}, to which a checkpoint refers,", ""
    for _ in range(_ATTEMPTS):
        try:
            shown = await session.call(ReadFile(SPACE, thread, sha256=hash))
            digests = [chunk.digest for chunk in unpack_manifest(shown.manifest)]
            whole = b"".join((await session.call(ReadChunks(SPACE, thread, digests))).chunks)
        except NotFound as error:
            return [Violation("3", f"{what} cannot be read: {error.message}")]
        except (Cold, StoreCorrupt) as error:  # Peers may have to fetch it first.
            trouble = error.message
            await asyncio.sleep(_TURNS_S)
        else:
            return [] if sha256(whole).hexdigest() == hash else [Violation("10", f"{what} does not have its hash")]
    return [Violation("3", f"{what} cannot be read: {trouble}")]
