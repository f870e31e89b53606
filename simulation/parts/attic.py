"""Threads whose chunks go to a bucket while agents save, read, prune and delete them: `docs/TIERING.md`.

Laws:
- Everything that holds of threads that are erased and pruned holds of those that are away: `simulation.parts.erasing`.
- Every checkpoint that is shown is what was saved, wherever its bytes were (invariant 10).
- Of files, and of exports, the same holds (10).
- A read is refused only in a way that can be tried again, and not as damaged, unless something was damaged (9).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from random import Random

from msgspec import json

from shoal import values
from shoal.cluster.operation import partition_of
from shoal.errors import Cold, NotFound, Pruned, Retryable, ShoalError, StoreCorrupt
from shoal.kinds.tiering.flows import IDLE_MS_MIN
from shoal.kinds.tiering.state import RULES
from shoal.names import RESERVED
from shoal.protocol import requests
from shoal.protocol.requests import PutEntry
from shoal.protocol.session import Session
from shoal.workflows.transfer.records import Checkpoint
from shoal.workflows.transfer.threads import ThreadExport
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.erasing import Erasing
from simulation.parts.part import Bench, Deeds
from simulation.parts.saves import Books
from simulation.plan import Act, ActKind
from simulation.workload.random_agents import SPACE

FAMILY = "attic"
URL = "s3://simulated/cold"

SETTINGS: dict[str, int | float | str] = {
    "tiering_look_s": 0.3,
    "look_share": 2,
    "idle_ms_min": IDLE_MS_MIN // 300,
    "look_again_s": 3.0,
    "pack_bytes": 8192,
    "pack_bytes_min": 1024,
}
"""Bounds by which threads of seconds, and of some KiB, move."""

FILES_STAY = 0
"""Whether files go as soon as they are put, and stay in the bucket when they are read."""
_IDLE_S = (0.2, 0.5, 2.0)
_ATTEMPTS = 40
_TURNS_S = 0.5
_NOTE_BITS = 1024
_FILE = "f"


class Attic(Erasing):
    kinds: tuple[ActKind, ...] = (
        "save-away",
        "load-away",
        "read-away",
        "export-away",
        "put-file-away",
        "read-file-away",
        "prune-away",
        "delete-away",
        "set-tiering",
        "unset-tiering",
        "move-now",
    )

    def __init__(self) -> None:
        super().__init__(Books(note_bits=_NOTE_BITS))
        self.files: defaultdict[str, set[bytes]] = defaultdict(set)
        """By thread, what was put under its one name of a file."""

    def deeds(self, bench: Bench) -> Deeds:
        erasing = super().deeds(bench)
        agent = _Agent(self, bench)
        return {
            "save-away": erasing["save-erasably"],
            "load-away": erasing["load-erasably"],
            "read-away": agent.read,
            "export-away": agent.export,
            "put-file-away": agent.put_file,
            "read-file-away": agent.read_file,
            "prune-away": erasing["prune"],
            "delete-away": erasing["delete"],
            "set-tiering": agent.set,
            "unset-tiering": agent.unset,
            "move-now": agent.move,
        }

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        """First read all: what was lost with its object is asked of peers, which may have to fetch it, too."""
        for name in sorted(self.books.saved):
            for saved in self.books.saved[name]:
                await _readable(session, name, saved.at.id)
        return await super().broken(session, losses)


class _Agent:
    def __init__(self, attic: Attic, bench: Bench) -> None:
        self._books = attic.books
        self._files = attic.files[bench.name]
        self._bench = bench
        self._session = bench.space._connection.session
        self._rules = bench.at(partition_of(RESERVED, RULES))

    async def read(self, act: Act, random: Random) -> None:
        """Read the whole history, as an export does."""
        try:
            page = await self._session.call(requests.History(SPACE, self._bench.name, limit=500, channels=True))
        except NotFound:
            return
        except ShoalError as error:
            self._bench.refused(error)
            if isinstance(error, Cold) and not isinstance(error, Retryable):
                self._bench.violated("9", f"a thread that is away cannot be tried again: {error.message}")
            raise
        for point in page.items:
            state = {name: values.decode(packed) for name, packed in point.channels.items()}
            if not self._books.shows(state):
                self._bench.violated("10", f"checkpoint {point.id[:16]} is not shown as it was saved")
        self._bench.did(f"read {len(page.items)} checkpoints")

    async def export(self, act: Act, random: Random) -> None:
        """Export the thread, as a client does."""
        shown = 0
        try:
            async for record in ThreadExport(self._bench.space._connection, SPACE, self._bench.name, False, False, True).all():
                if isinstance(record, Checkpoint):
                    state = {name: json.decode(value) for name, value in record.state.items()}
                    shown += 1
                    if not self._books.shows(state):
                        self._bench.violated("10", f"checkpoint {record.id[:16]} is not exported as it was saved")
        except (NotFound, Pruned):
            return
        except ShoalError as error:
            self._bench.refused(error)
            raise
        self._bench.did(f"export {shown} checkpoints")

    async def put_file(self, act: Act, random: Random) -> None:
        content = random.randbytes(random.choice((3000, 12000)))
        self._files.add(content)
        try:
            await self._bench.space.thread(self._bench.name).put_file(_FILE, content, durability=act.durability)
        except ShoalError as error:
            self._bench.refused(error)
            raise
        self._bench.did(f"put a file of {len(content)} bytes")

    async def read_file(self, act: Act, random: Random) -> None:
        try:
            async with self._bench.space.thread(self._bench.name).open_file(_FILE) as stream:
                content = await stream.read()
        except NotFound:
            return
        except ShoalError as error:
            self._bench.refused(error)
            raise
        if content not in self._files:
            self._bench.violated("10", f"file {_FILE} is not what was put")
        self._bench.did(f"read a file of {len(content)} bytes")

    async def set(self, act: Act, random: Random) -> None:
        idle = random.choice(_IDLE_S)

        async def send() -> None:
            await self._bench.space.tiering.set(URL, idle=idle, files=bool(FILES_STAY), durability=act.durability)

        await self._sent(act, random, send, f"tiering after {idle:g} s")

    async def unset(self, act: Act, random: Random) -> None:
        async def send() -> None:
            await self._bench.space.tiering.unset(durability=act.durability)

        await self._sent(act, random, send, "no tiering")

    async def move(self, act: Act, random: Random) -> None:
        try:
            view = await self._bench.space.tiering.run()
        except ShoalError as error:
            self._bench.refused(error)
            raise
        self._bench.did(f"move: {view.packs} packs are away")

    async def _sent(self, act: Act, random: Random, send: Callable[[], Awaitable[None]], what: str) -> None:
        try:
            await self._rules.send(act, random, send, of=PutEntry)
        except ShoalError as error:
            self._bench.refused(error)
            raise
        self._bench.did(what)


async def _readable(session: Session, thread: str, id: str) -> None:
    """Read until it is shown, or said to be gone; what stays unreadable is met again by who asks next."""
    for _ in range(_ATTEMPTS):
        try:
            await session.call(requests.Load(SPACE, thread, id))
        except (NotFound, Pruned):
            return
        except (Cold, StoreCorrupt):
            await asyncio.sleep(_TURNS_S)
        else:
            return
