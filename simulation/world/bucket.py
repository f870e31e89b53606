"""A bucket in memory, whose answers are late, lost or refused as a seed says: the `ObjectStore` of simulated nodes.

Law: a put is made whole or not at all, as clouds promise; what its caller hears may be something else.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING

from shoal.backup.bucket import Listed
from shoal.backup.format import FORMAT, MANIFESTS, Manifest, encode, is_whole, manifest_name, names_of
from shoal.errors import BackupUnreachable

if TYPE_CHECKING:
    from simulation.plan import ShippingPoint, SpoilBucket
    from simulation.world.host import SimulatedNode

FAULTS = ("slow", "unavailable", "half", "lost")
REFUSALS = {"refused": "403 AccessDenied", "expired": "400 ExpiredToken: the credentials have expired"}
CALL_S = 0.002, 0.03  # That a call takes.


async def _nothing(_moment: str) -> None:
    """No crash point is set."""


class SimulatedBucket:
    """`now_ms` is the bucket's clock. `share` of the calls have a fault, of the kinds in `faults`."""

    def __init__(
        self, random: Random | None = None, *, now_ms: Callable[[], int] = lambda: 0, url: str = "s3://simulated"
    ) -> None:
        self.url = url
        self.objects: dict[str, bytes] = {}
        self.modified: dict[str, int] = {}
        self.share = 0.0
        self.faults: Sequence[str] = FAULTS
        self.slow_s = 3.0
        self.refused = ""  # Why every call is refused now; empty: it is not.
        self.room: int | None = None  # Bytes; None: there is room for everything.
        self.met: Counter[str] = Counter()
        self.spoilt: set[str] = set()  # Objects that were lost or altered.
        self.ever: dict[str, bytes] = {}  # All that was put, as it was.
        self.at: Callable[[str], Awaitable[None]] = _nothing
        """Is awaited before and after each change, with its name: "before put manifests/…"."""
        self.kept: list[Callable[[str, bytes], None]] = []
        """Are told of each object that is made or replaced."""
        self._spoils: list[SpoilBucket] = []
        self._random = random or Random(0)
        self._now_ms = now_ms

    async def put_new(self, name: str, content: bytes, /) -> bool:
        """Make an object (`ObjectStore.put_new`)."""
        await self.at(f"before put {name}")
        lost = await self._call("put")
        if name in self.objects:
            self._answer(lost)
            return False
        self._keep(name, content)
        await self.at(f"after put {name}")
        self._answer(lost)
        return True

    async def replace(self, name: str, content: bytes, /) -> None:
        """Make or replace an object (`ObjectStore.replace`)."""
        await self.at(f"before replace {name}")
        lost = await self._call("replace")
        self._keep(name, content)
        await self.at(f"after replace {name}")
        self._answer(lost)

    async def get(self, name: str, start: int = 0, stop: int | None = None, /) -> bytes | None:
        """The bytes of an object (`ObjectStore.get`)."""
        self._answer(await self._call("get"))
        content = self.objects.get(name)
        return None if content is None else content[start:stop]

    async def listed(self, prefix: str, after: str = "", /) -> AsyncIterator[Listed]:
        """The objects under a prefix (`ObjectStore.listed`)."""
        self._answer(await self._call("list"))
        for name in sorted(self.objects):
            if name.startswith(prefix) and name > after:
                yield Listed(name, len(self.objects[name]), self.modified[name])

    async def delete(self, names: Sequence[str], /) -> None:
        """Delete objects (`ObjectStore.delete`)."""
        for name in names:
            await self.at(f"before delete {name}")
            lost = await self._call("delete")
            self.objects.pop(name, None)
            self._answer(lost)

    def names(self, prefix: str) -> list[str]:
        """The objects under a prefix."""
        return sorted(name for name in self.objects if name.startswith(prefix))

    @contextmanager
    def spoiled(self, spoil: SpoilBucket) -> Iterator[None]:
        """While the context is open, calls fare as the fault says."""
        foreign = self._put_foreign() if spoil.kind == "foreign" else ""
        self._spoils.append(spoil)
        self._spoil()
        try:
            yield
        finally:
            self._spoils.remove(spoil)
            self._spoil()
            if foreign:  # Its operator has noticed.
                self.objects.pop(foreign, None)

    def spoil(self, name: str, *, is_lost: bool) -> None:
        """Lose an object, or alter a byte of it."""
        content = self.objects[name]
        self.spoilt.add(name)
        if is_lost:
            del self.objects[name]
        else:
            middle = len(content) // 2
            self.objects[name] = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]

    def _spoil(self) -> None:
        shares = [each for each in self._spoils if each.kind in FAULTS]
        self.share, self.faults = max((each.share for each in shares), default=0.0), [each.kind for each in shares]
        self.refused = next((REFUSALS[each.kind] for each in self._spoils if each.kind in REFUSALS), "")
        is_full = any(each.kind == "full" for each in self._spoils)
        self.room = sum(map(len, self.objects.values())) if is_full else None

    def _put_foreign(self) -> str:
        number = max(names_of(self.names(MANIFESTS)), default=0) + 1
        name = manifest_name(number)
        made_ms = self._now_ms()
        others = Manifest(FORMAT, b"another cluster\0", number, b"", b"another node", made_ms, made_ms, is_whole(number))
        self.objects[name], self.modified[name] = encode(others), made_ms
        return name

    async def _call(self, what: str) -> bool:
        """Draw what becomes of a call. Returns whether its answer is lost."""
        await asyncio.sleep(0)
        if self.refused:
            raise self._error(self.refused)
        fault = self._random.choice(self.faults) if self.share and self._random.random() < self.share else ""
        if fault:
            self.met[f"{fault} {what}"] += 1
        if fault == "slow":
            await asyncio.sleep(self._random.uniform(0, self.slow_s))
        if fault in ("unavailable", "half"):
            raise self._error("503 Slow Down" if fault == "unavailable" else "the connection broke within the body")
        return fault == "lost"

    def _answer(self, lost: bool) -> None:
        if lost:
            raise self._error("the answer was lost")

    def _keep(self, name: str, content: bytes) -> None:
        if self.room is not None and len(content) > self.room - sum(map(len, self.objects.values())):
            raise self._error("507 the bucket is full")
        self.objects[name], self.modified[name] = content, self._now_ms()
        self.ever[name] = content
        for told in self.kept:
            told(name, content)

    def _error(self, why: str) -> BackupUnreachable:
        return BackupUnreachable(f"the backup at {self.url} cannot be used: {why}. Nothing that is stored here is lost.")


class NodeBucket:
    """The bucket as one life of a node reaches it: each call takes time, and none outlives the node."""

    def __init__(self, bucket: SimulatedBucket, host: SimulatedNode, random: Random) -> None:
        self.url = bucket.url
        self._bucket = bucket
        self._host, self._life = host, host.life
        self._random = random

    async def put_new(self, name: str, content: bytes, /) -> bool:
        """Make an object (`ObjectStore.put_new`)."""
        await self._reached("putting")
        made = await self._bucket.put_new(name, content)
        self._left("put")
        return made

    async def replace(self, name: str, content: bytes, /) -> None:
        """Make or replace an object (`ObjectStore.replace`)."""
        await self._reached("putting")
        await self._bucket.replace(name, content)
        self._left("put")

    async def get(self, name: str, start: int = 0, stop: int | None = None, /) -> bytes | None:
        """The bytes of an object (`ObjectStore.get`)."""
        await self._reached()
        found = await self._bucket.get(name, start, stop)
        self._left()
        return found

    async def listed(self, prefix: str, after: str = "", /) -> AsyncIterator[Listed]:
        """The objects under a prefix (`ObjectStore.listed`)."""
        await self._reached()
        async for found in self._bucket.listed(prefix, after):
            self._left()
            yield found

    async def delete(self, names: Sequence[str], /) -> None:
        """Delete objects (`ObjectStore.delete`)."""
        await self._reached("putting")
        await self._bucket.delete(names)
        self._left("put")

    async def _reached(self, point: ShippingPoint | None = None) -> None:
        self._left(point)
        await asyncio.sleep(self._random.uniform(*CALL_S))
        await self._host.running()
        self._left()

    def _left(self, point: ShippingPoint | None = None) -> None:
        self._life.check()
        if point is not None:
            self._host.points.passed(point)
