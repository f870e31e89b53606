"""Files that agents put, refer to, read and delete, of chunks that many of them share.

Laws:
- A file that is shown is whole: all of its chunks are there, and have its hash (10).
- A content to which an acknowledged event refers can be read, whatever its name holds (3).
- A name whose put was acknowledged shows a file that was put there, unless somebody may have deleted it (3, 10).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from hashlib import sha256
from random import Random

from shoal.errors import FileIncomplete, NotFound, ShoalError
from shoal.kinds.file.state import Chunk, pack_manifest, unpack_manifest
from shoal.protocol.requests import (
    DeleteFile,
    FileInfo,
    FileShown,
    FindChunks,
    KeepChunks,
    ListFiles,
    PutFile,
    ReadChunks,
    ReadFile,
)
from shoal.protocol.session import Session
from shoal.values.registry import FileRef
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.part import Bench, Deeds, Told
from simulation.plan import Act, ActKind
from simulation.workload.random_agents import SPACE

PIECE_BYTES = 200
_PIECES = 6  # So few that files share them.
_NAMES = 3
_ATTEMPTS = 3


@dataclass(slots=True)
class Put:
    """`told` is None where the outcome is not known."""

    name: str
    hash: str
    told: Told | None = None


@dataclass(slots=True)
class Referred:
    """An event that refers to a content."""

    hash: str
    told: Told


class Files:
    """By thread: what was put, what is referred to, and names that somebody tried to delete."""

    kinds: tuple[ActKind, ...] = ("put-file", "refer-to-file", "read-file", "delete-file")

    def __init__(self) -> None:
        self.puts: defaultdict[str, list[Put]] = defaultdict(list)
        self.referred: defaultdict[str, list[Referred]] = defaultdict(list)
        self.deleted: defaultdict[str, set[str]] = defaultdict(set)

    def deeds(self, bench: Bench) -> Deeds:
        agent = _Agent(self, bench)
        return {
            "put-file": agent.put,
            "refer-to-file": agent.refer,
            "read-file": agent.read,
            "delete-file": agent.delete,
        }

    def erased(self, losses: Losses) -> Collection[bytes]:
        return ()

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        found: list[Violation] = []
        for thread in sorted(self.puts):
            listed = {file.name: file.sha256 for file in await _listed(session, thread)}
            for name, hash in listed.items():
                if hash not in {put.hash for put in self.puts[thread] if put.name == name}:
                    found.append(Violation("10", f"file {name} of {thread} has a content that nobody put there"))
                found += await _unreadable(session, thread, ReadFile(SPACE, thread, name), "10")
            for name in sorted({put.name for put in self.puts[thread] if put.told is not None and put.told.is_owed(losses)}):
                if name not in listed and name not in self.deleted[thread]:
                    found.append(Violation("3", f"file {name} of {thread} was put, and is not there"))
            for hash in sorted({each.hash for each in self.referred[thread] if each.told.is_owed(losses)}):
                found += await _unreadable(session, thread, ReadFile(SPACE, thread, sha256=hash), "3")
        return found


class _Agent:
    def __init__(self, files: Files, bench: Bench) -> None:
        self._files = files
        self._bench = bench
        self._thread = bench.space.thread(bench.name)
        self._session = bench.space._connection.session

    async def put(self, act: Act, random: Random) -> None:
        pieces = [bytes([random.randrange(_PIECES)]) * PIECE_BYTES for _ in range(random.randint(1, 4))]
        whole = b"".join(pieces)
        put = Put(f"f{random.randrange(_NAMES)}", sha256(whole).hexdigest())
        self._files.puts[self._bench.name].append(put)
        try:
            await self._put(put, pieces, act)
        except ShoalError as error:
            self._bench.refused(error)
            raise
        put.told = self._bench.told(act.durability)
        self._bench.did(f"put {put.name}")

    async def _put(self, put: Put, pieces: list[bytes], act: Act) -> None:
        durability = act.durability or self._bench.durability
        digests = [sha256(piece).digest() for piece in pieces]
        manifest = pack_manifest(Chunk(digest, PIECE_BYTES) for digest in digests)
        for attempt in range(_ATTEMPTS):
            found = await self._session.call(FindChunks(SPACE, self._bench.name, digests))
            for at in found.missing:
                await self._session.call(KeepChunks(SPACE, self._bench.name, [pieces[at]]), durability=durability)
            request = PutFile(SPACE, self._bench.name, put.name, put.hash, PIECE_BYTES * len(pieces), "text/plain", manifest)
            try:
                await self._session.call(request, durability=durability)
                return
            except FileIncomplete:
                if attempt == _ATTEMPTS - 1:
                    raise

    async def refer(self, act: Act, random: Random) -> None:
        shown = await self._chosen(random)
        if shown is None:
            return
        ref = FileRef(shown.file.sha256, shown.file.size, shown.file.name)
        try:
            await self._thread.journal.append({"file": ref}, durability=act.durability)
        except NotFound:
            return  # It was deleted meanwhile.
        except ShoalError as error:
            self._bench.refused(error)
            raise
        self._files.referred[self._bench.name].append(Referred(ref.sha256, self._bench.told(act.durability)))
        self._bench.did(f"refer to {ref.name}")

    async def read(self, act: Act, random: Random) -> None:
        shown = await self._chosen(random)
        if shown is None:
            return
        try:
            whole = await _read(self._session, self._bench.name, shown)
        except NotFound:
            return  # It was deleted meanwhile.
        except ShoalError as error:
            self._bench.refused(error)
            raise
        if sha256(whole).hexdigest() != shown.file.sha256:
            self._bench.violated("10", f"file {shown.file.name} does not have its hash")

    async def delete(self, act: Act, random: Random) -> None:
        name = f"f{random.randrange(_NAMES)}"
        self._files.deleted[self._bench.name].add(name)
        try:
            await self._session.call(
                DeleteFile(SPACE, self._bench.name, name), durability=act.durability or self._bench.durability
            )
        except ShoalError as error:
            self._bench.refused(error)
            raise
        self._bench.did(f"delete {name}")

    async def _chosen(self, random: Random) -> FileShown | None:
        try:
            files = await _listed(self._session, self._bench.name)
            return await self._session.call(ReadFile(SPACE, self._bench.name, random.choice(files).name)) if files else None
        except NotFound:
            return None  # It was deleted meanwhile.
        except ShoalError as error:
            self._bench.refused(error)
            raise


async def _listed(session: Session, thread: str) -> list[FileInfo]:
    found: list[FileInfo] = []
    more = True
    while more:
        page = await session.call(ListFiles(SPACE, thread, found[-1].name if found else ""))
        found += page.files
        more = page.more
    return found


async def _read(session: Session, thread: str, shown: FileShown) -> bytes:
    digests = [chunk.digest for chunk in unpack_manifest(shown.manifest)]
    return b"".join((await session.call(ReadChunks(SPACE, thread, digests))).chunks)


async def _unreadable(session: Session, thread: str, request: ReadFile, invariant: str) -> list[Violation]:
    what = f"file {request.name or request.sha256[:12]} of {thread}"
    try:
        shown = await session.call(request)
        whole = await _read(session, thread, shown)
    except NotFound as error:
        return [Violation(invariant, f"{what} cannot be read: {error.message}")]
    if sha256(whole).hexdigest() != shown.file.sha256:
        return [Violation("10", f"{what} does not have its hash")]
    return []
