"""A node: storage, group commit, database and service, from start to stop.

Laws:
- Starting either gives a node that serves, or raises and releases everything.
- Stopping rejects new requests, waits until pending writes are durable, writes the
  clean-stop marker, and closes. After a failed write it leaves no marker: the next
  incarnation then checks the log, as after a crash.
- A listener does not belong to the node: its owner stops it first.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from shoal.config import Config, checked
from shoal.encryption import KeyService
from shoal.errors import ShoalError, StorageFull
from shoal.kinds.lease.serving.leases import Leases
from shoal.kinds.presence.handler import Presences
from shoal.kinds.redaction.serving.hooks import Function, Threads, of_file, of_functions
from shoal.kinds.worklist.serving.handouts import Handouts
from shoal.logs import events
from shoal.logs.lines import log
from shoal.node.backup.backups import Backups
from shoal.node.collection.sealing import KeyKeeper
from shoal.node.conditions.of_node import Use
from shoal.node.conditions.watcher import Watcher
from shoal.node.consensus.quorum_register import QUORUM_REGISTER_KEYS_MAX
from shoal.node.context import context_of
from shoal.node.database import Database
from shoal.node.environment import Environment, not_known, volume_of
from shoal.node.replicas import unreplicated
from shoal.node.service import Service
from shoal.node.session import ServiceSession
from shoal.node.snapshots import switching
from shoal.node.spaces.quotas import Quotas
from shoal.node.spaces.usage import Usage
from shoal.protocol.bookmark import Bookmark
from shoal.storage.commit import GroupCommit, LoggedStorage
from shoal.storage.engine import untested
from shoal.storage.opening import encrypted, open_storage

QUOTA_COUNT_S = 2.0  # How long a write waits after a start until the bytes and objects of its space are counted.

if TYPE_CHECKING:
    from shoal.node.peers.replicator import Replicator
    from shoal.storage.encrypted.storage import EncryptedStorage


class Node:
    """A running node. `service` answers requests; `replicator` is None if the node has no peers."""

    def __init__(
        self,
        storage: LoggedStorage,
        *,
        config: Config,
        environment: Environment,
        is_embedded: bool = False,
        master: KeyService | None = None,
        redact: Mapping[str, Function] | None = None,
    ) -> None:
        """Compose a node over an open storage, which it closes when it stops.

        `is_embedded`: all its clients are in this process, and end with it. `master`, `redact`: as in `open_node`.

        Raises:
            StoreCorrupt: the last incarnation did not stop cleanly, and its log has a hole.
            InvalidConfig: the file of hooks cannot be used, or `redact` has none.
        """
        config = msgspec.structs.replace(config, advertise=config.advertise or f"{config.listen_host}:{config.listen_port}")
        self._storage = storage
        self._environment = environment
        if finished := switching.recover(storage):
            log(events.SNAPSHOTS_FINISHED, count=len(finished))
        self._commit = GroupCommit(
            storage,
            run_blocking=environment.run_blocking,
            writes_pending_max=config.writes_pending_max,
            on_durable=self._durable,
            now=environment.monotonic,
            on_failed=self._failed,
        )
        self._commit.when_begun(self._begun)
        if environment.run_laying is not None:
            self._commit.lay_by(environment.run_laying)
        if self._commit.failed is not None:
            self._failed(self._commit.failed)
        context = self._context = context_of(storage, self._commit, config, environment)
        self._incarnation, self._feed = context.incarnation, context.feed
        self._usage = self._commit.counting = Usage(storage, environment.pause, wait_s=QUOTA_COUNT_S)
        hooks = of_functions(redact, Threads(environment.run_apart)) | of_file(config.redaction_hooks)
        self._database = Database(context, replaced=self._usage.recount, hooks=hooks)
        if not is_embedded:
            _ = self._database.late_documents.room  # Imported now, so that no client waits for it.
        presences = Presences(config, environment.monotonic)
        self.replicator = self._replication(presences) if config.join else None
        cluster = unreplicated(context) if self.replicator is None else self.replicator
        self.register = cluster.register
        """Compare-and-set for a few small keys; without peers, with this node's vote alone."""
        self.leases = Leases(context, self.register, is_fresh=is_embedded and self.replicator is None)
        self._handouts = Handouts(context, self.leases, self.register)
        if self.replicator is not None:
            self.replicator.handlers.update(self._handouts.handlers)
        sealed = encrypted(storage)
        self.keys = None if sealed is None else self._keeper(sealed, master)
        """Looks after the keys of an encrypted directory; None: it is not encrypted."""
        self.service = Service(
            context,
            self._database,
            cluster=cluster,
            presences=presences,
            handouts=self._handouts,
            quotas=Quotas(
                context,
                self._usage,
                read=self._database.show,
                holds=self._database.catalog.holds,
                counts={"leases": self.leases.count, "presences": presences.count},
            ),
            keys=self.keys,
        )
        self.backups = Backups(
            context,
            self._database,
            register=self.register,
            fellows=lambda: cluster.quorum.linked,
            is_alone=self.replicator is None,
        )
        """Where the cluster is backed up, and how far."""
        self.service.back_up(self.backups.answers, self.backups.view)
        self.conditions = Watcher(
            context,
            cluster,
            status=self.service.status,
            uses=self._uses,
            full_at_ms=self.service.growth.full_at_ms,
            unredacted=lambda: self.service.redactor.failing,
        )
        """Notices the conditions of it and its cluster."""
        self.service.watch(self.conditions)
        if self.replicator is not None:
            self.replicator.start()
        self._database.erasure.start()
        self._database.garbage.start(cluster.quorum)
        self._database.claims.start(cluster.quorum)
        self._database.truncator.start(cluster.quorum)
        self._database.files.start()
        self._database.statuses.start()
        if self.keys is not None:
            self.keys.start()
        self.service.start()
        self.backups.start()
        self.conditions.start()
        self._stopped = False

    def _replication(self, presences: Presences) -> Replicator:
        from shoal.node.peers.replicator import Replicator  # With all that a node needs for its peers: most stores have none.

        return Replicator(self._context, self._database, presences)

    def _keeper(self, storage: EncryptedStorage, master: KeyService | None) -> KeyKeeper:
        def reread() -> KeyService:
            from shoal.storage.encrypted.keyring import service_of

            return service_of(self._context.config.encryption_key, self._environment.entropy) if master is None else master

        return KeyKeeper(self._context, storage, truncator=self._database.truncator, reread=reread)

    def _begun(self, number: int) -> None:
        if self.replicator is not None:
            self.replicator.begun(number)

    def _durable(self, number: int) -> None:
        if self.replicator is not None:
            self.replicator.durable(number)
        self._feed.publish(number)
        self._context.traced.settled(number, self._commit.cycles)

    def _failed(self, reason: str) -> None:
        log(events.READ_ONLY, reason=reason if reason.endswith(".") else f"{reason}.")

    def _uses(self) -> dict[str, Use]:
        """How much is used of what has a bound in all, so that requests of every space may reach it."""
        config, keys = self._context.config, self.register.keys
        pending = self._commit.written - self._commit.durable
        uses = {
            "QUORUM_REGISTER_KEYS_MAX": Use(len(keys), QUORUM_REGISTER_KEYS_MAX, "keys of the quorum register"),
            "subscribers_max": Use(len(self._feed), config.subscribers_max, "subscribers"),
            "writes_pending_max": Use(pending, config.writes_pending_max, "writes that wait for the disk"),
            "quorum_register_value_bytes_max": Use(
                max((len(self.register.value_here(key).content) for key in keys), default=0),
                config.quorum_register_value_bytes_max,
                "bytes of one key of the quorum register, such as a table of leases",
            ),
        }
        if self.keys is not None:
            uses["encryption_keys_max"] = Use(self.keys.data_keys, config.encryption_keys_max, "data keys")
        return uses

    def session(self, bookmark: Bookmark | None = None) -> ServiceSession:
        """A new session, which continues from `bookmark`. Each consumer of this node needs its own."""
        return self.service.session(bookmark)

    @property
    def resumed_after_crash(self) -> bool:
        """Whether the previous incarnation of this directory did not stop cleanly."""
        return not self._incarnation.clean

    @property
    def writes_pending(self) -> int:
        """The number of writes that are not yet durable."""
        return self._commit.written - self._commit.durable

    @property
    def durable_lag_s(self) -> float:
        """An upper bound of how long the oldest of them has waited, in seconds."""
        return self._commit.lag_s

    async def stop(self) -> None:
        """Stop cleanly. Stopping twice is allowed."""
        if self._stopped:
            return
        self._stopped = True
        try:
            self.register.close()
            await self.conditions.stop()
            await self.backups.stop()
            await self.service.tiering.stop()
            if self.replicator is not None:
                await self.replicator.stop()
            await self._database.retiring.stop()
            await self._database.orphans.stop()
            await self._database.garbage.stop()
            await self._database.erasure.stop()
            if self.keys is not None:
                await self.keys.stop()
            await self._database.claims.stop()
            await self._database.truncator.stop()
            await self._database.indexer.stop()
            await self._database.chunks.stop()
            await self._database.files.stop()
            await self._database.statuses.stop()
            await self._database.late_documents.stop()
            await self._handouts.close()
            await self.leases.close()
            await self.service.close()
            await self._usage.close()
            marker = self._incarnation.closing()
            if marker and self._commit.failed is None:
                await self._mark(marker)
        finally:
            await self._commit.close()
            await self._environment.run_blocking(self._storage.close)
            self._environment.close()

    async def _mark(self, marker: dict[bytes, bytes | None]) -> None:
        """Write the clean-stop marker. Without it the next start checks the log; that alone is no error for whoever stops.

        Raises:
            StorageFull: what was acknowledged before its sync, under durability `memory`, may be lost, too.
        """
        awaits_sync = self._commit.durable < self._commit.written
        try:
            await self._commit.wait_durable(self._commit.write(marker))
        except StorageFull:  # `_failed` has told why.
            if awaits_sync:
                raise

    def abandon(self) -> None:
        """Release the directory without the loop, which has ended. What was written is on disk then; the next start checks it.

        Blocks for a sync, and raises nothing. Abandoning or stopping afterwards is allowed.
        """
        if not self._stopped:
            self._stopped = True
            self._storage.close()
            with suppress(RuntimeError):  # The collector may call this on the environment's own thread.
                self._environment.close()

    def save(self) -> None:
        """Write down what was acknowledged before it was on disk, at the end of the process. Blocks for a sync."""
        if not self._stopped and self._commit.failed is None:
            with suppress(ShoalError):
                self._storage.sync()


async def open_node(
    directory: Path,
    *,
    config: Config,
    environment: Environment,
    is_embedded: bool = False,
    master: KeyService | None = None,
    redact: Mapping[str, Function] | None = None,
) -> Node:
    """Open, or make, the store in `directory`, and start a node on it. It closes `environment` when it stops.

    `is_embedded`: all its clients are in this process, and end with it. `master`: the master key, instead of
    `config.encryption_key`. `redact`: functions that see the texts of writes, by the names that rules of redaction ask for.

    Raises:
        MasterKeyWrong, StoreLocked, StoreTooNew, StoreCorrupt, StorageFull, StorageError, Unsupported: as `open_storage`.
        InvalidConfig: `config` is out of range.
    """
    checked(config)
    if environment.volume is not_known:
        environment = dataclasses.replace(environment, volume=volume_of(directory))
    for warning in untested():
        log(events.UNTESTED, reason=warning)
    now_ms, entropy = environment.now_ms, environment.entropy
    opening = asyncio.ensure_future(
        environment.run_blocking(lambda: open_storage(directory, config=config, now_ms=now_ms, entropy=entropy, master=master))
    )
    try:
        storage = await asyncio.shield(opening)
        return Node(storage, config=config, environment=environment, is_embedded=is_embedded, master=master, redact=redact)
    except BaseException:
        # A thread cannot be cancelled. If it still opens the store, the store must be closed, or the directory stays locked.
        with suppress(Exception):
            (await opening).close()
        environment.close()
        raise
