"""A backup's bucket: the store's protocol, and how nodes that know nothing of each other read and extend one backup.

Laws:
- A manifest is put under the next number, and only if there is none: of two nodes that ship at once, the second
  one's put fails. It reads the manifest of the first, and decides again what is lacking.
- A put whose answer was lost is not repeated blindly: the object is read, and it is this node's if its bytes are.
- A pack is in the bucket before a manifest names it. Packs that none names are swept once they are a day old, and those that
  are named no more a day after that was said. No name comes twice, so that what is swept is never named again.
- What is read of the last manifests is trusted for `TRUST_S` only: after that the bucket is listed anew, because manifests that
  this node has not seen may have been swept, and its own number taken for free.
- A bucket that holds the backup of another cluster is left alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from hashlib import sha256
from typing import Protocol

from shoal.backup.format import (
    BASES,
    FORMAT,
    MANIFESTS,
    SEGMENTS,
    WHOLE_EVERY,
    Catalogue,
    Manifest,
    Pack,
    Part,
    damaged,
    encode,
    is_whole,
    manifest_name,
    names_of,
    read_index,
    read_manifest,
    read_part,
    whole_before,
)
from shoal.errors import BackupConflict, BackupDamaged
from shoal.records import NamedTuple

MANIFEST_ATTEMPTS_MAX = 8  # Puts of one manifest, each under the next number, while other nodes ship as well.
MANIFESTS_KEEP_MS = 2 * 24 * 3600 * 1000  # Older ones are swept, but for those after the last that says everything.
ORPHANS_KEEP_MS = 24 * 3600 * 1000  # A pack that no manifest names may still be named within this time.
TRUST_S = 3600.0
SWEPT_MAX = 1000  # Objects in one sweep.


class Listed(NamedTuple):
    """An object in a listing."""

    name: str
    size: int
    modified_ms: int


class ObjectStore(Protocol):
    """A bucket, or a place in one. All calls may raise `BackupUnreachable`, which says why; a put may have been made then."""

    @property
    def url(self) -> str:
        """Its address, without credentials."""
        ...

    async def put_new(self, name: str, content: bytes, /) -> bool:
        """Make an object. False: there is one of this name, which stays as it is."""
        ...

    async def replace(self, name: str, content: bytes, /) -> None:
        """Make an object, or replace it as a whole."""
        ...

    async def get(self, name: str, start: int = 0, stop: int | None = None, /) -> bytes | None:
        """The bytes of an object, or those from `start` to `stop`; None: there is none."""
        ...

    def listed(self, prefix: str, after: str = "", /) -> AsyncIterator[Listed]:
        """The objects whose names begin with `prefix`, those after the name `after`; in the order of their names."""
        ...

    async def delete(self, names: Sequence[str], /) -> None:
        """Delete objects. Those that are not there are gone already."""
        ...


class Bucket:
    """A backup in a store. `now` is monotonic, in seconds.

    `cluster` is the identity of the cluster that ships; empty: it is only read.
    """

    def __init__(self, store: ObjectStore, *, cluster: bytes = b"", now: Callable[[], float]) -> None:
        self.store = store
        self.cluster = cluster
        self.catalogue = Catalogue()
        self._now = now
        self._listed_at: float | None = None

    # ── manifests ─────────────────────────────────────────────────────────────

    async def refresh(self) -> Catalogue:
        """Read the manifests that were put since the last call.

        Raises:
            BackupUnreachable: the bucket cannot be read.
            BackupDamaged: a manifest is missing or damaged.
            BackupConflict: it holds the backup of another cluster.
        """
        if self._is_stale:
            await self._reread()
        while (packed := await self.store.get(manifest_name(self.catalogue.number + 1))) is not None:
            self._take(self.catalogue, self.catalogue.number + 1, packed)
        return self.catalogue

    @property
    def _is_stale(self) -> bool:
        return self._listed_at is None or self._now() - self._listed_at > TRUST_S

    async def _reread(self) -> None:
        listed_at = self._now()
        # Numbers have a fixed width, so the last name is the greatest number.
        after = manifest_name(self.catalogue.number - 1) if self.catalogue.number > 1 else ""
        last = max([number async for number in _numbers(self.store, after)], default=0)
        if last < self.catalogue.number:
            raise damaged(f"manifest {self.catalogue.number}, which was read before, is gone")
        if last != self.catalogue.number:
            found = Catalogue()
            for number in range(whole_before(last), last + 1):
                packed = await self.store.get(manifest_name(number))
                if packed is None:
                    raise damaged(f"manifest {number} is missing, and manifest {last} is there")
                self._take(found, number, packed)
            self.catalogue = found
        self._listed_at = listed_at

    def _take(self, catalogue: Catalogue, number: int, packed: bytes) -> None:
        manifest = read_manifest(packed, number)
        if self.cluster and manifest.cluster != self.cluster:
            raise BackupConflict(
                f"{self.store.url} holds the backup of another cluster ({manifest.cluster.hex()}). Nothing was written there. "
                "Name an empty place, such as another prefix in the same bucket: shoal backup init URL",
                cluster=manifest.cluster.hex(),
            )
        catalogue.take(manifest, packed)

    async def commit(self, make: Callable[[Catalogue], Manifest | None]) -> Manifest | None:
        """Put the manifest that `make` makes of what is in the backup; it is made anew when another node was faster.

        `make` may return None: there is nothing to say any more. Returns the manifest that was put; None: none was needed, or
        others were always faster, and it is to be tried again.

        Raises:
            BackupUnreachable: the bucket cannot be read or written. The manifest may have been put; `refresh` tells.
            BackupDamaged, BackupConflict: as `refresh`.
        """
        for _ in range(MANIFEST_ATTEMPTS_MAX):
            catalogue = self.catalogue
            made = make(catalogue)
            if made is None:
                return None
            if is_whole(made.number):
                made = catalogue.whole(made)
            packed = encode(made)
            if await self._put(made.number, packed):
                self._take(catalogue, made.number, packed)
                return made
            await self.refresh()
        return None

    async def _put(self, number: int, packed: bytes) -> bool:
        if self._is_stale:
            return False  # It is read again first.
        if await self.store.put_new(manifest_name(number), packed):
            return True
        # It may be this very one, whose answer was lost.
        return await self.store.get(manifest_name(number)) == packed

    def next(self, *, node: bytes, made_ms: int, through_ms: int) -> Manifest:
        """The manifest that follows the last one, without content."""
        catalogue = self.catalogue
        number = catalogue.number + 1
        return Manifest(FORMAT, self.cluster, number, catalogue.digest, node, made_ms, through_ms, is_whole(number))

    # ── packs ─────────────────────────────────────────────────────────────────

    async def put(self, pack: Pack, content: bytes) -> None:
        """Put a pack. One of this name has the same bytes.

        Raises:
            BackupUnreachable: it may have been put, or not.
        """
        await self.store.put_new(pack.name, content)

    async def index(self, pack: Pack) -> list[Part]:
        """The parts of a pack.

        Raises:
            BackupUnreachable, BackupDamaged: it cannot be read, is missing or is not what its name says.
        """
        return read_index(await self._bytes(pack, pack.index, pack.size), pack)

    async def part(self, pack: Pack, part: Part) -> bytes:
        """The bytes of a part (raises as `index`)."""
        return read_part(await self._bytes(pack, part.start, part.start + part.size), part, pack)

    async def whole(self, pack: Pack) -> tuple[list[Part], bytes]:
        """The parts of a pack, and its bytes (raises as `index`)."""
        content = await self._bytes(pack, 0, pack.size)
        if sha256(content).hexdigest() != pack.name.rpartition("/")[2]:
            raise damaged(f"{pack.name} does not match its hash")
        return read_index(content[pack.index :], pack), content

    async def _bytes(self, pack: Pack, start: int, stop: int) -> bytes:
        if start >= stop:
            raise damaged(f"{pack.name} has no bytes from {start} to {stop}")
        content = await self.store.get(pack.name, start, stop)
        if content is None:
            raise damaged(f"{pack.name} is missing")
        if len(content) != stop - start:
            raise damaged(f"{pack.name} is shorter than it was")
        return content

    # ── what is not needed any more ───────────────────────────────────────────

    async def sweep(self, now_ms: int) -> int:
        """Delete old manifests, and packs that no manifest names (any more), at most `SWEPT_MAX`. Returns how many.

        Raises:
            BackupUnreachable: some may be deleted.
        """
        kept: Collection[str] = {*self.catalogue.segments, *self.catalogue.packs}
        whole = whole_before(max(1, self.catalogue.number - WHOLE_EVERY))
        gone: list[str] = []
        for prefix in (SEGMENTS, BASES):
            async for found in self.store.listed(prefix):
                since_ms = self.catalogue.left.get(found.name, found.modified_ms)
                if found.name not in kept and since_ms < now_ms - ORPHANS_KEEP_MS and len(gone) < SWEPT_MAX:
                    gone.append(found.name)
        async for found in self.store.listed(MANIFESTS):
            is_old = found.modified_ms < now_ms - MANIFESTS_KEEP_MS
            if len(gone) >= SWEPT_MAX or found.name >= manifest_name(whole):
                break
            if is_old and any(names_of([found.name])):
                gone.append(found.name)
        if gone:
            await self.store.delete(gone)
        return len(gone)


async def _numbers(store: ObjectStore, after: str) -> AsyncIterator[int]:
    async for found in store.listed(MANIFESTS, after):
        for number in names_of([found.name]):
            yield number


async def read(bucket: Bucket) -> Catalogue:
    """Everything that a bucket holds.

    Raises:
        BackupDamaged: it holds no backup; or as `Bucket.refresh`.
        BackupUnreachable, BackupConflict: as `Bucket.refresh`.
    """
    catalogue = await bucket.refresh()
    if catalogue.head is None:
        raise BackupDamaged(
            f"{bucket.store.url} holds no backup: there is no manifest. Nothing was read or written. Check the address and its "
            "prefix; `shoal backup status` shows the one that a cluster ships to."
        )
    return catalogue


def in_order(packs: Iterable[Pack]) -> list[Pack]:
    """Packs of operations, those with the oldest first."""
    return sorted(packs, key=lambda pack: (pack.first_hlc, pack.name))
