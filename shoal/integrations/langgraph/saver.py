"""`ShoalSaver`: LangGraph's checkpointer on Shoal; and the lease of a graph's thread.

The lease of a graph's thread: `async with saver.lease("t"):` or `with saver.lease("t"):` around a run.

Laws:
- In the block, only this saver's store writes to the thread. What it reads holds all that earlier holders were acknowledged.
- If the lease is lost, the next write of the graph raises `LeaseLost`, and so does the block. On the store's own loop the
  block is cancelled at once.
- A lease whose acquirer was cancelled or interrupted is given up.

    async with ShoalSaver.open("./state") as saver:
        graph = builder.compile(checkpointer=saver)

Asynchronous and blocking methods work in both cases: in `async with` the store is on that loop, in `with`
on a thread of its own; calls from another thread or loop are handed over.
"""

from __future__ import annotations

import copy
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from shoal import opening
from shoal.client.store import Store
from shoal.config import Config
from shoal.errors import InvalidInput, NotFound, ShoalError, StoreClosed, StoreCorrupt, TooLarge, Unavailable
from shoal.integrations.base import Bridge, Opening, checked_store
from shoal.integrations.contents import text_of
from shoal.integrations.langgraph import upkeep
from shoal.integrations.langgraph.checkpoints import THREAD, Checkpoints, Put
from shoal.integrations.langgraph.encoding import AllowedTypes, name_of, serialiser
from shoal.integrations.langgraph.writes import Writes
from shoal.kinds.lease.handle.leases import Lease, Leasing
from shoal.names import check_name
from shoal.protocol import requests
from shoal.protocol.requests import Durability
from shoal.protocol.session import Credential

_Left = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]
_LEFT: _Left = None, None, None


class RunLease:
    """A lease to hold for one block, by any thread or loop. Made by `ShoalSaver.lease`."""

    def __init__(self, bridge: Bridge, leasing: Leasing) -> None:
        self._bridge = bridge
        self._leasing = leasing
        self._lease: Lease | None = None  # Set and cleared on the store's loop.
        self._abandoned: Future[None] | None = None  # Keeps the release of a lease that nobody waited for alive.

    async def __aenter__(self) -> RunLease:
        with self._given_up():
            await self._bridge.awaited(self._enter)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(*_closed_in(error)):
            await self._bridge.awaited(lambda: self._leave((kind, error, trace)))

    def __enter__(self) -> RunLease:
        with self._given_up():
            self._bridge.blocking(self._enter)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(*_closed_in(error)):
            self._bridge.blocking(lambda: self._leave((kind, error, trace)))

    @property
    def fence(self) -> int:
        """The fencing number: greater than each that was given for this thread before.

        Raises:
            InvalidInput: it is not held, because its block was not entered or is left.
        """
        return self._held().fence

    async def acheck(self) -> None:
        """Return if it was not lost: call it before an effect outside the store.

        Raises:
            LeaseLost: it was. Stop.
            InvalidInput: its block was not entered, or is left.
        """
        await self._bridge.awaited(self._check)

    def check(self) -> None:
        """`acheck`, blocking."""
        self._bridge.blocking(self._check)

    async def _check(self) -> None:
        self._held().check()

    def _held(self) -> Lease:
        if self._lease is None:
            raise InvalidInput("this lease is not held: it is for the time of its `with` block. Nothing was written.")
        return self._lease

    async def _enter(self) -> None:
        self._lease = await self._leasing.__aenter__()

    async def _leave(self, left: _Left) -> None:
        if self._lease is not None:
            self._lease = None
            await self._leasing.__aexit__(*left)

    @contextmanager
    def _given_up(self) -> Iterator[None]:
        try:
            yield
        except ShoalError:
            raise
        except BaseException:
            # It may have been acquired at this moment, on another loop.
            with suppress(StoreClosed):
                self._abandoned = self._bridge.handed(lambda: self._leave(_LEFT))
            raise


def _closed_in(error: BaseException | None) -> tuple[type[ShoalError], ...]:
    """The context in which `LeaseLost` does not replace the block's own error: a closed store has given up its leases by
    itself.
    """
    return () if error is None else (StoreClosed, Unavailable)


_FRACTION_DIGITS = 16
_RUN = "the id of a run"


class ShoalSaver(BaseCheckpointSaver[str]):
    """Saves a graph's checkpoints in the threads of one space. The id of a thread is text, an int or a UUID, and 17 is "17".

    A superseded owner's writes (see `aclaim_write_ownership`) raise `OwnerSuperseded`;
    other failures raise other `ShoalError`s.
    """

    def __init__(
        self,
        store: Store,
        *,
        space: str = "langgraph",
        serde: SerializerProtocol | None = None,
        allowed_msgpack_modules: AllowedTypes = None,
    ) -> None:
        """A saver on a store that is open on the running loop, and that the caller closes.

        Args:
            allowed_msgpack_modules: types of the graph's state that may be made from stored bytes, beside the safe ones:
                classes, or (module, name). True allows all, and with it whoever may write to a thread to run code here.
            serde: a serialiser instead of the saver's own, with its own rules.

        Raises:
            InvalidInput: `store` is not an open store. With a path, use `ShoalSaver.open`.
        """
        super().__init__(serde=serialiser(serde, allowed_msgpack_modules))
        connection = checked_store(store, "ShoalSaver").connection
        self._bridge = Bridge()
        self._writes = Writes(connection, self._bridge)
        self._checkpoints = Checkpoints(connection, check_name("space", space), self._writes)
        self._owned: tuple[str, str] | None = None  # The thread that this saver has claimed, and its owner token.

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        *,
        space: str = "langgraph",
        serde: SerializerProtocol | None = None,
        allowed_msgpack_modules: AllowedTypes = None,
        config: Config | None = None,
        durability: Durability = "local",
    ) -> Opening[ShoalSaver]:
        """A saver on an embedded store: `async with` or `with`. See `shoal.open`, also for what it raises."""
        return Opening(
            lambda: opening.open(directory, config=config, durability=durability),
            lambda store: cls(store, space=space, serde=serde, allowed_msgpack_modules=allowed_msgpack_modules),
        )

    @classmethod
    def connect(
        cls,
        urls: str | Sequence[str],
        *,
        token: Credential | None = None,
        tls_ca: str | os.PathLike[str] | None = None,
        space: str = "langgraph",
        serde: SerializerProtocol | None = None,
        allowed_msgpack_modules: AllowedTypes = None,
        config: Config | None = None,
        durability: Durability = "local",
        wait: float = 0.0,
    ) -> Opening[ShoalSaver]:
        """A saver on a node, or on any of several: `async with` or `with`. See `shoal.connect`."""
        return Opening(
            lambda: opening.connect(urls, token=token, tls_ca=tls_ca, config=config, durability=durability, wait=wait),
            lambda store: cls(store, space=space, serde=serde, allowed_msgpack_modules=allowed_msgpack_modules),
        )

    @classmethod
    def from_conn_string(
        cls, conn_string: str, *, serde: SerializerProtocol | None = None, allowed_msgpack_modules: AllowedTypes = None
    ) -> Opening[ShoalSaver]:
        """`connect` for a URL, `open` for a directory. LangGraph's own savers have a method of this name."""
        way = cls.connect if conn_string.startswith(("http://", "https://")) else cls.open
        return way(conn_string, serde=serde, allowed_msgpack_modules=allowed_msgpack_modules)

    # ── reading and writing ───────────────────────────────────────────────────

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that `config` names, or the newest one of its thread and namespace; None if there is none."""
        return await self._bridge.awaited(lambda: self._checkpoints.get_tuple(self.serde, config))

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """`aget_tuple`, blocking."""
        return self._bridge.blocking(lambda: self._checkpoints.get_tuple(self.serde, config))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints, newest first in each namespace. If `config` is None, threads come in the order of their ids."""
        async for found in self._bridge.iterated(self._checkpoints.list(self.serde, config, filter, before, limit)):
            yield found

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """`alist`, blocking."""
        return self._bridge.listed(self._checkpoints.list(self.serde, config, filter, before, limit))

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Save a checkpoint, and return the config that names it.

        Raises:
            OwnerSuperseded: another writer has claimed the thread since this saver did.
        """
        put = Put(self.serde, config, checkpoint, metadata, new_versions, self._owner(config))
        if self._bridge.here:
            return await self._checkpoints.put(put)
        return await self._bridge.awaited(lambda: self._checkpoints.put(put))

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """`aput`, blocking."""
        self._bridge.check_elsewhere()
        put = Put(self.serde, config, checkpoint, metadata, new_versions, self._owner(config))
        draft = self._checkpoints.drafted(put)
        if draft is not None and not self._checkpoints.large.are_in(draft.request):
            try:
                return self._checkpoints.saved(draft, self._writes.blocking(draft.request))
            except (NotFound, StoreCorrupt) as error:
                self._checkpoints.forget_parent(draft, error)
            except TooLarge as error:
                if error.written != "no":
                    raise
        return self._bridge.blocking(lambda: self._checkpoints.put(put))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Save the pending writes of a task, in one operation.

        Raises:
            OwnerSuperseded: another writer has claimed the thread since this saver did.
        """
        owner = self._owner(config)
        await self._bridge.awaited(lambda: self._checkpoints.put_writes(self.serde, config, writes, task_id, task_path, owner))

    def put_writes(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        """`aput_writes`, blocking."""
        if writes:
            self._bridge.check_elsewhere()
            request = self._checkpoints.annotation(self.serde, config, writes, task_id, task_path, self._owner(config))
            if self._checkpoints.large.are_in(request):
                self._bridge.blocking(lambda: self._checkpoints.annotate(request))
            else:
                self._writes.blocking(request)

    def get_next_version(self, current: str | int | None, channel: None) -> str:
        """The next number with a random fraction, so that two forks of a thread never share a version."""
        number = 0 if current is None else current if isinstance(current, int) else int(current.split(".")[0])
        fraction = int.from_bytes(self._checkpoints.connection.entropy(8), "big") % 10**_FRACTION_DIGITS
        return f"{number + 1:032}.{fraction:0{_FRACTION_DIGITS}}"

    # ── whole threads ─────────────────────────────────────────────────────────

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread on every node."""
        thread = text_of(thread_id, THREAD)
        await self._bridge.awaited(lambda: upkeep.delete_thread(self._checkpoints, thread))

    def delete_thread(self, thread_id: str) -> None:
        """`adelete_thread`, blocking."""
        thread = text_of(thread_id, THREAD)
        self._bridge.blocking(lambda: upkeep.delete_thread(self._checkpoints, thread))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of these runs. It reads the whole space, because a run may have written to any thread."""
        runs = [text_of(run_id, _RUN) for run_id in run_ids]
        await self._bridge.awaited(lambda: upkeep.delete_for_runs(self._checkpoints, self.serde, runs))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """`adelete_for_runs`, blocking."""
        runs = [text_of(run_id, _RUN) for run_id in run_ids]
        self._bridge.blocking(lambda: upkeep.delete_for_runs(self._checkpoints, self.serde, runs))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and pending writes of a thread, one write per checkpoint."""
        source, target = text_of(source_thread_id, THREAD), text_of(target_thread_id, THREAD)
        await self._bridge.awaited(lambda: upkeep.copy_thread(self._checkpoints, self.serde, source, target))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """`acopy_thread`, blocking."""
        source, target = text_of(source_thread_id, THREAD), text_of(target_thread_id, THREAD)
        self._bridge.blocking(lambda: upkeep.copy_thread(self._checkpoints, self.serde, source, target))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete all checkpoints of these threads but the newest of each namespace; "delete" deletes whole threads.

        Raises:
            InvalidInput: the strategy is neither "keep_latest" nor "delete".
        """
        threads = [text_of(thread_id, THREAD) for thread_id in thread_ids]
        await self._bridge.awaited(lambda: upkeep.prune(self._checkpoints, self.serde, threads, strategy))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """`aprune`, blocking."""
        threads = [text_of(thread_id, THREAD) for thread_id in thread_ids]
        self._bridge.blocking(lambda: upkeep.prune(self._checkpoints, self.serde, threads, strategy))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """The writes of delta channels since their last stored values, and these values."""
        return await self._bridge.awaited(lambda: upkeep.delta_channel_history(self._checkpoints, self.serde, config, channels))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """`aget_delta_channel_history`, blocking."""
        return self._bridge.blocking(lambda: upkeep.delta_channel_history(self._checkpoints, self.serde, config, channels))

    # ── who may write ─────────────────────────────────────────────────────────

    def lease(self, thread_id: str, *, ttl: float = 30.0, wait: float = 0.0, holder: str | None = None) -> RunLease:
        """`async with saver.lease("t"):` or `with saver.lease("t"):`: only this saver runs the thread's graph, on all nodes.

        Enter it before you read the thread's state, and run the graph inside: whatever an earlier holder was acknowledged is
        there, on any node. Writes of other savers raise `LeaseHeld` meanwhile, and nothing is written. The lease is renewed
        by itself. If the process stands still, or has no quorum, for longer than `ttl` seconds, the lease is lost: the graph's
        next write raises `LeaseLost`, and so does the block. See docs/LEASES.md.

        Args:
            ttl: after so many seconds without a renewal, at least 1, another may acquire it.
            wait: seconds to wait if another has it, in the order of arrival.
            holder: the name that others are told.

        Raises:
            InvalidInput: a time is not a number of seconds.
            LeaseHeld: on entering: somebody else holds it, and `wait` is over.
            NoQuorum: on entering: too few nodes can be reached.
        """
        checkpoints = self._checkpoints
        name = name_of(text_of(thread_id, THREAD))
        leasing = Leasing(checkpoints.connection, checkpoints.space, name, thread=True, ttl=ttl, wait=wait, holder=holder)
        return RunLease(self._bridge, leasing)

    async def aclaim_write_ownership(self, thread_id: str) -> ShoalSaver:
        """A saver that writes `thread_id` as its owner, until another writer claims it.

        After that claim its writes to the thread raise `OwnerSuperseded`, as soon as the
        serving node knows of the later claim, and nothing is written. Writes of a saver that
        never claimed the thread are not rejected.
        """
        thread = text_of(thread_id, THREAD)
        return self._as_owner(thread, await self._bridge.awaited(lambda: self._claimed(thread)))

    def claim_write_ownership(self, thread_id: str) -> ShoalSaver:
        """`aclaim_write_ownership`, blocking."""
        thread = text_of(thread_id, THREAD)
        return self._as_owner(thread, self._bridge.blocking(lambda: self._claimed(thread)))

    async def _claimed(self, thread_id: str) -> str:
        request = requests.Claim(self._checkpoints.space, name_of(thread_id))
        reply = await self._checkpoints.connection.write(request, key=None, durability=None)
        return reply.owner

    def _as_owner(self, thread_id: str, owner: str) -> ShoalSaver:
        clone = copy.copy(self)
        clone._owned = thread_id, owner
        return clone

    def _owner(self, config: RunnableConfig) -> str:
        if self._owned is not None and self._owned[0] == text_of(config["configurable"]["thread_id"], THREAD):
            return self._owned[1]
        return ""
