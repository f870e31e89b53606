"""`ShoalSaver`: LangGraph's checkpointer on Shoal.

    async with ShoalSaver.open("./state") as saver:
        graph = builder.compile(checkpointer=saver)

Both faces work on either side: in `async with` the store lives on that loop, in `with`
on a thread of its own; what is called from elsewhere is handed over.
"""

from __future__ import annotations

import copy
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
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
from shoal.integrations.langgraph import upkeep
from shoal.integrations.langgraph.bridge import Bridge
from shoal.integrations.langgraph.checkpoints import Checkpoints
from shoal.integrations.langgraph.naming import name_of
from shoal.integrations.langgraph.opening import Opening, checked_store
from shoal.names import check_name
from shoal.protocol import requests
from shoal.protocol.requests import Durability

_FRACTION_DIGITS = 16


class ShoalSaver(BaseCheckpointSaver[str]):
    """Saves a graph's checkpoints in the threads of one space.

    A superseded owner's writes (see `aclaim_write_ownership`) raise `OwnerSuperseded`;
    everything else that goes wrong raises another `ShoalError`.
    """

    def __init__(self, store: Store, *, space: str = "langgraph", serde: SerializerProtocol | None = None) -> None:
        """On a store that is open on the running loop, and that the caller closes.

        Raises:
            InvalidInput: `store` is no open store, but a path, say: that is for `ShoalSaver.open`.
        """
        super().__init__(serde=serde)
        self._checkpoints = Checkpoints(checked_store(store, "ShoalSaver").connection, check_name("space", space))
        self._bridge = Bridge()
        self._owned: tuple[str, str] | None = None  # A thread, and the owner that this saver writes it as.

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        *,
        space: str = "langgraph",
        serde: SerializerProtocol | None = None,
        config: Config | None = None,
        durability: Durability = "local",
    ) -> Opening[ShoalSaver]:
        """A saver on an embedded store: `async with` or `with`. See `shoal.open`, also for what it raises."""
        return Opening(
            lambda: opening.open(directory, config=config, durability=durability),
            lambda store: cls(store, space=space, serde=serde),
        )

    @classmethod
    def connect(
        cls,
        urls: str | Sequence[str],
        *,
        token: str | None = None,
        space: str = "langgraph",
        serde: SerializerProtocol | None = None,
        config: Config | None = None,
        durability: Durability = "local",
        wait: float = 0.0,
    ) -> Opening[ShoalSaver]:
        """A saver on a node, or on any of several: `async with` or `with`. See `shoal.connect`."""
        return Opening(
            lambda: opening.connect(urls, token=token, config=config, durability=durability, wait=wait),
            lambda store: cls(store, space=space, serde=serde),
        )

    @classmethod
    def from_conn_string(cls, conn_string: str, *, serde: SerializerProtocol | None = None) -> Opening[ShoalSaver]:
        """`connect` for a URL, `open` for a directory: the name that LangGraph's own savers give it."""
        if conn_string.startswith(("http://", "https://")):
            return cls.connect(conn_string, serde=serde)
        return cls.open(conn_string, serde=serde)

    # ── reading and writing ───────────────────────────────────────────────────

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await self._bridge.awaited(lambda: self._checkpoints.get_tuple(self.serde, config))

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._bridge.blocking(lambda: self._checkpoints.get_tuple(self.serde, config))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Newest first in each namespace. Threads come in the order of their ids, if `config` is None."""
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
        return self._bridge.listed(self._checkpoints.list(self.serde, config, filter, before, limit))

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        owner = self._owner(config)
        return await self._bridge.awaited(
            lambda: self._checkpoints.put(self.serde, config, checkpoint, metadata, new_versions, owner)
        )

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        owner = self._owner(config)
        return self._bridge.blocking(
            lambda: self._checkpoints.put(self.serde, config, checkpoint, metadata, new_versions, owner)
        )

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        owner = self._owner(config)
        await self._bridge.awaited(lambda: self._checkpoints.put_writes(self.serde, config, writes, task_id, task_path, owner))

    def put_writes(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        owner = self._owner(config)
        self._bridge.blocking(lambda: self._checkpoints.put_writes(self.serde, config, writes, task_id, task_path, owner))

    def get_next_version(self, current: str | int | None, channel: None) -> str:
        """The next number, and a random fraction, so that two forks of a thread never share a version."""
        number = 0 if current is None else current if isinstance(current, int) else int(current.split(".")[0])
        fraction = int.from_bytes(self._checkpoints.connection.entropy(8), "big") % 10**_FRACTION_DIGITS
        return f"{number + 1:032}.{fraction:0{_FRACTION_DIGITS}}"

    # ── whole threads ─────────────────────────────────────────────────────────

    async def adelete_thread(self, thread_id: str) -> None:
        await self._bridge.awaited(lambda: upkeep.delete_thread(self._checkpoints, thread_id))

    def delete_thread(self, thread_id: str) -> None:
        self._bridge.blocking(lambda: upkeep.delete_thread(self._checkpoints, thread_id))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """It looks at every checkpoint of the space: a run may have written to any thread."""
        await self._bridge.awaited(lambda: upkeep.delete_for_runs(self._checkpoints, self.serde, run_ids))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        self._bridge.blocking(lambda: upkeep.delete_for_runs(self._checkpoints, self.serde, run_ids))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await self._bridge.awaited(
            lambda: upkeep.copy_thread(self._checkpoints, self.serde, source_thread_id, target_thread_id)
        )

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self._bridge.blocking(lambda: upkeep.copy_thread(self._checkpoints, self.serde, source_thread_id, target_thread_id))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await self._bridge.awaited(lambda: upkeep.prune(self._checkpoints, self.serde, thread_ids, strategy))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        self._bridge.blocking(lambda: upkeep.prune(self._checkpoints, self.serde, thread_ids, strategy))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return await self._bridge.awaited(lambda: upkeep.delta_channel_history(self._checkpoints, self.serde, config, channels))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return self._bridge.blocking(lambda: upkeep.delta_channel_history(self._checkpoints, self.serde, config, channels))

    # ── who may write ─────────────────────────────────────────────────────────

    async def aclaim_write_ownership(self, thread_id: str) -> ShoalSaver:
        """A saver that writes `thread_id` as its owner, until another writer claims it.

        From then on its writes of that thread raise `OwnerSuperseded`, as soon as the
        node that it asks knows of the later claim, and nothing is written. A saver that
        never claimed a thread is not refused.
        """
        return self._as_owner(thread_id, await self._bridge.awaited(lambda: self._claimed(thread_id)))

    def claim_write_ownership(self, thread_id: str) -> ShoalSaver:
        return self._as_owner(thread_id, self._bridge.blocking(lambda: self._claimed(thread_id)))

    async def _claimed(self, thread_id: str) -> str:
        request = requests.Claim(self._checkpoints.space, name_of(thread_id))
        reply = await self._checkpoints.connection.write(request, key=None, durability=None)
        return reply.owner

    def _as_owner(self, thread_id: str, owner: str) -> ShoalSaver:
        clone = copy.copy(self)
        clone._owned = thread_id, owner
        return clone

    def _owner(self, config: RunnableConfig) -> str:
        if self._owned is not None and self._owned[0] == str(config["configurable"]["thread_id"]):
            return self._owned[1]
        return ""
