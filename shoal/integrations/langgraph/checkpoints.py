"""LangGraph's checkpoints in Shoal's threads: the saver's work, on the store's own loop.

Laws:
- A thread is a Shoal thread, a checkpoint a checkpoint of it whose label is its namespace
  and id. So the newest is the one with the greatest id, found in one bounded read, and not
  the last that was written.
- The root's namespace is the branch `main`. All others have no branch: each call of a subgraph
  has a namespace of its own, and branches are bounded.
- A put writes only the channels whose version differs from the parent's, each
  serialised once. Channels of the same version are taken from the parent. Of a list
  that has grown since, only the added elements go to a node of another process.
- Pending writes are notes beside the label, which need not exist yet.
- A put needs no read: it knows its parent from the put or the read before. It
  reads the parent only if another process wrote it.
"""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    PendingWrite,
    get_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from shoal.client.connection import StoreConnection
from shoal.errors import NotFound, StoreCorrupt, TooLarge
from shoal.integrations.contents import text_of
from shoal.integrations.langgraph import encoding
from shoal.integrations.langgraph.encoding import Place, branch_of, id_of, label_of, name_of, prefix_of, split_label
from shoal.integrations.langgraph.writes import NOTHING_PACKED, Base, Bases, Large, Packed, Writes
from shoal.protocol import requests
from shoal.protocol.base import FILTER_TERMS_MAX
from shoal.protocol.requests import NO_HEAD, Labelled, Note
from shoal.protocol.session import Prompt
from shoal.records import NamedTuple
from shoal.values.codec import LANGGRAPH
from shoal.values.filtering import check, meets

PAGE_ITEMS = 100
READS_MAX = 3  # Of a checkpoint whose files go while it is read.
THREAD, CHECKPOINT = "the id of a thread", "the id of a checkpoint"
_NO_VERSIONS: Mapping[str, Any] = {}
_NONE: frozenset[str] = frozenset()


class Put(NamedTuple):
    """The arguments of a put, its serialiser, and the token of `Claim`, or an empty one."""

    serde: SerializerProtocol
    config: RunnableConfig
    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    new_versions: ChannelVersions
    owner: str


class Draft(NamedTuple):
    """A put that is packed and not sent."""

    place: Place
    parent: str | None  # LangGraph's id of the parent.
    id: str
    versions: ChannelVersions
    stored: frozenset[str]
    packed: Packed  # The values of the channels, as far as they are known.
    request: requests.Save


class Checkpoints:
    """The saver's operations on one space. Those that are not awaited run on any thread, all others on the store's own loop."""

    def __init__(self, connection: StoreConnection, space: str, writes: Writes) -> None:
        self.connection = connection
        self.space = space
        # An embedded node compares a list with its own copy; on the way to another node the list would be the cost of a put.
        remote = not isinstance(connection.session, Prompt)
        self.bases = Bases(connection.config.checkpoint_cache_bytes if remote else 0)
        self.large = Large(connection, space)
        self._writes = writes

    async def put(self, put: Put) -> RunnableConfig:
        """Store a checkpoint (`BaseCheckpointSaver.aput`).

        Raises:
            OwnerSuperseded: another writer has claimed the thread since.
        """
        draft = self.drafted(put)
        if draft is not None:
            try:
                return await self._sent(put, draft, self._base_of_parent(put))
            except (NotFound, StoreCorrupt) as error:
                self.forget_parent(draft, error)
        place = place_of(put.config)
        base = await self._read_base(put.serde, place, cast(str, checkpoint_id_of(put.config)))
        return await self._sent(put, self._draft(put, place, base), base)

    async def _sent(self, put: Put, draft: Draft, base: Base | None) -> RunnableConfig:
        light = await self._lightened(draft) if self.large.are_in(draft.request) else draft
        try:
            return self.saved(light, await self._writes.put(light.request))
        except NotFound as error:
            if light is draft or error.written != "no":
                raise
            light = await self._lightened(draft)  # Nothing referred to a file of it yet, and it went.
        except TooLarge as error:
            whole = None if error.written != "no" else self._whole(put, draft, base)
            if whole is None or (light := await self._lightened(whole, least=True)) is whole:
                raise
        return self.saved(light, await self._writes.put(light.request))

    async def _lightened(self, draft: Draft, *, least: bool = False) -> Draft:
        """The same put with large values as files; the same draft if nothing is to be one."""
        request = await self.large.put(draft.request, least=least)
        files = {name for name, value in request.channels.items() if value is not draft.request.channels[name]}
        if not files:
            return draft
        packed = {name: value for name, value in draft.packed.items() if name_of(name) not in files}
        return draft._replace(request=request, packed=packed)

    def _whole(self, put: Put, draft: Draft, base: Base | None) -> Draft | None:
        """The same put with all of its values, so that they can be files; None if it does not know them all."""
        values = put.checkpoint["channel_values"]
        return self._draft(put, draft.place, base, whole=True) if values.keys() >= draft.stored else None

    def drafted(self, put: Put) -> Draft | None:
        """The request of a put; None if its parent must be read first."""
        base = self._base_of_parent(put)
        return None if checkpoint_id_of(put.config) and base is None else self._draft(put, place_of(put.config), base)

    def _base_of_parent(self, put: Put) -> Base | None:
        parent = checkpoint_id_of(put.config)
        return self.bases.get(place_of(put.config), parent) if parent else None

    def saved(self, draft: Draft, saved: requests.Saved) -> RunnableConfig:
        """Remember a put that was answered, and return the config that names it."""
        base = Base(saved.id, draft.versions, draft.stored)
        self.bases.put(draft.place, draft.id, base, replacing=draft.parent, packed=draft.packed)
        return config_of(draft.place, draft.id)

    def forget_parent(self, draft: Draft, error: NotFound | StoreCorrupt) -> None:
        """Forget the remembered parent of a rejected draft: it does not exist any more, or its lists cannot be read.

        Raises:
            NotFound, StoreCorrupt: the draft has no parent, or it may be written.
        """
        if not draft.parent or error.written != "no":
            raise error
        self.bases.forget(draft.place, draft.parent)

    def _draft(self, put: Put, place: Place, base: Base | None, *, whole: bool = False) -> Draft:
        serde, config, checkpoint, metadata, new_versions, owner = put
        parent = checkpoint_id_of(config)
        bare: dict[str, Any] = {**checkpoint}
        values, versions, id = bare.pop("channel_values"), checkpoint["channel_versions"], text_of(checkpoint["id"], CHECKPOINT)
        before, stored_before = (_NO_VERSIONS, _NONE) if base is None or whole else (base.versions, base.stored)
        lists = self.bases.lists(place, parent, base) if parent and base is not None and not whole else NOTHING_PACKED
        channels: dict[str, bytes] = {}
        appended: dict[str, bytes] = {}
        packed: dict[str, bytes] = {}
        stored: list[str] = []
        for name, version in versions.items():
            if name not in new_versions and before.get(name) == version:
                if name in stored_before:
                    stored.append(name)
                if name in lists:
                    packed[name] = lists[name]
            elif name in values:
                stored.append(name)
                packed[name] = value = encoding.pack_value(serde, values[name])
                added = encoding.added_elements(lists[name], value) if name in lists else None
                if added is None:
                    channels[name_of(name)] = value
                else:
                    appended[name_of(name)] = added
        stored_now = frozenset(stored)
        request = requests.Save(
            self.space,
            name_of(place.thread_id),
            channels,
            encoding.pack_metadata(serde, bare, get_checkpoint_metadata(config, metadata), parent or ""),
            branch_of(place.namespace),
            NO_HEAD if base is None else base.id,
            schema=LANGGRAPH,
            delta=base is not None and not whole,
            appended=appended,
            removed=[name_of(name) for name in stored_before if name not in stored_now],
            fork=True,  # A graph may continue from any checkpoint of its history.
            label=label_of(place.namespace, id),
            owner=owner,
            headless=bool(place.namespace),
        )
        # A copy of the versions, because LangGraph later changes those that it passed.
        return Draft(place, parent, id, {**versions}, stored_now, packed, request)

    async def _read_base(self, serde: SerializerProtocol, place: Place, parent: str) -> Base | None:
        page = await self.read(place.thread_id, label=label_of(place.namespace, parent))
        found = encoding.unpack_metadata(serde, page.items[0].checkpoint.metadata) if page.items else None
        return None if found is None else _base_of(page.items[0], found.checkpoint)

    async def put_writes(
        self,
        serde: SerializerProtocol,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
        owner: str,
    ) -> None:
        """Store pending writes (`BaseCheckpointSaver.aput_writes`); the checkpoint need not be there yet.

        Raises:
            OwnerSuperseded: another writer has claimed the thread since.
        """
        if writes:
            await self.annotate(self.annotation(serde, config, writes, task_id, task_path, owner))

    async def annotate(self, request: requests.Annotate) -> None:
        """Store pending writes, the large ones as files."""
        light = await self.large.annotated(request) if self.large.are_in(request) else request
        try:
            await self._writes.annotate(light)
        except NotFound as error:
            if light is request or error.written != "no":
                raise
            await self._writes.annotate(await self.large.annotated(request))  # As for a put.

    def annotation(
        self,
        serde: SerializerProtocol,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
        owner: str,
    ) -> requests.Annotate:
        """The request of a task's pending writes."""
        notes = []
        for number, (channel, value) in enumerate(writes):
            index = WRITES_IDX_MAP.get(channel, number)
            # An ordinary write counts once; a special one (an error, an answer to an interrupt) replaces the former.
            name = encoding.pack_note_name(task_id, index)
            notes.append(Note(name, encoding.pack_write(serde, task_path, channel, value), first=index >= 0))
        place = place_of(config)
        label = label_of(place.namespace, text_of(config["configurable"]["checkpoint_id"], CHECKPOINT))
        return requests.Annotate(self.space, name_of(place.thread_id), label, notes, owner)

    async def get_tuple(self, serde: SerializerProtocol, config: RunnableConfig) -> CheckpointTuple | None:
        """Read a checkpoint (`BaseCheckpointSaver.aget_tuple`); without a checkpoint id, the one with the greatest id."""
        place, id = place_of(config), checkpoint_id_of(config)
        for attempt in range(READS_MAX):
            if id:
                page = await self.read(place.thread_id, label=label_of(place.namespace, id), channels=True, notes=True)
            else:
                page = await self.read(
                    place.thread_id, prefix=prefix_of(place.namespace), reverse=True, limit=1, channels=True, notes=True
                )
            try:
                found = await self._tuple(serde, place.thread_id, page.items[0], live=True) if page.items else None
            except NotFound:  # It was deleted meanwhile, and its files with it.
                if attempt == READS_MAX - 1:
                    raise
            else:
                return found._replace(config=config) if found is not None and id else found
        return None

    async def list(
        self,
        serde: SerializerProtocol,
        config: RunnableConfig | None,
        filter: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> AsyncIterator[CheckpointTuple]:
        """List checkpoints (`BaseCheckpointSaver.alist`). With a filter, only the matching checkpoints are read with their
        values.

        Raises:
            InvalidInput, TooLarge: the filter is not legal; it has the language of a search of items.
        """
        check(filter or {}, terms_max=FILTER_TERMS_MAX)
        wanted = {} if config is None else config["configurable"]
        namespace, id = wanted.get("checkpoint_ns"), None if config is None else checkpoint_id_of(config)
        until = checkpoint_id_of(before) if before else None
        threads = self.threads() if config is None else _only(text_of(wanted["thread_id"], THREAD))
        given = 0
        async for thread_id in threads:
            # With a filter most checkpoints may not match, so only the matching ones are read in full.
            async for item in self.labelled(serde, thread_id, namespace, id, until, limit, full=not filter):
                if limit is not None and given >= limit:
                    return
                if filter and not _matches(serde, item, filter):
                    continue
                if filter:
                    page = await self.read(thread_id, label=item.label, channels=True, notes=True)
                    if not page.items:
                        continue  # It was deleted meanwhile.
                    item = page.items[0]
                try:
                    found = await self._tuple(serde, thread_id, item)
                except NotFound:  # It was deleted meanwhile, and its files with it.
                    continue
                if found is not None:
                    given += 1
                    yield found

    async def labelled(
        self,
        serde: SerializerProtocol,
        thread_id: str,
        namespace: str | None = None,
        id: str | None = None,
        until: str | None = None,
        limit: int | None = None,
        *,
        full: bool = False,
    ) -> AsyncIterator[Labelled]:
        """A thread's checkpoints, newest first within each namespace; `until` is exclusive."""
        after: str | None = None
        if namespace is not None and id is not None:
            for item in (await self.read(thread_id, label=label_of(namespace, id), channels=full, notes=full)).items:
                if until is None or id < until:
                    yield item
            return
        if namespace is not None and until is not None:
            after = label_of(namespace, until)
        prefix = "" if namespace is None else prefix_of(namespace)
        size = PAGE_ITEMS if limit is None else max(1, min(limit, PAGE_ITEMS))
        while True:
            page = await self.read(thread_id, prefix=prefix, after=after, reverse=True, limit=size, channels=full, notes=full)
            for item in page.items:
                parts = split_label(item.label)
                if parts is None or (id is not None and parts[1] != id) or (until is not None and parts[1] >= until):
                    continue
                yield item
            if not page.more:
                return
            after = page.items[-1].label

    async def threads(self) -> AsyncIterator[str]:
        """Yield the ids of all threads of the space."""
        after: str | None = None
        while True:
            page = await self.connection.read(requests.ListObjects(self.space, "thread", after=after))
            for name in page.names:
                yield id_of(name)
            if not page.more:
                return
            after = page.names[-1]

    async def read(self, thread_id: str, **options: Any) -> requests.Labels:
        """Read a page of a thread's labelled checkpoints; `options` are fields of `ReadLabels`."""
        return await self.connection.read(requests.ReadLabels(self.space, name_of(thread_id), **options))

    async def _tuple(
        self, serde: SerializerProtocol, thread_id: str, item: Labelled, *, live: bool = False
    ) -> CheckpointTuple | None:
        """The checkpoint as LangGraph knows it; the lists of a `live` one are remembered, because a put may follow."""
        opened = encoding.unpack_metadata(serde, item.checkpoint.metadata)
        parts = split_label(item.label)
        if opened is None or parts is None:
            return None
        place = Place(thread_id, parts[0])
        there = item.checkpoint.channels
        named = ((name, name_of(name)) for name in opened.checkpoint["channel_versions"])
        packed = {name: there[stored] for name, stored in named if stored in there}
        whole = {name: await self.large.whole(name_of(thread_id), value) for name, value in packed.items()}
        values = {name: encoding.unpack_value(serde, value) for name, value in whole.items()}
        writes = await self.pending_writes(serde, thread_id, item.notes)
        self.bases.put(place, parts[1], _base_of(item, opened.checkpoint), packed=packed if live else NOTHING_PACKED)
        return CheckpointTuple(
            config=config_of(place, parts[1]),
            checkpoint=cast(Checkpoint, {**opened.checkpoint, "channel_values": values}),
            metadata=opened.metadata,
            parent_config=config_of(place, opened.parent) if opened.parent else None,
            pending_writes=writes,
        )

    async def pending_writes(
        self, serde: SerializerProtocol, thread_id: str, notes: Sequence[Note], channels: set[str] | None = None
    ) -> builtins.list[PendingWrite]:
        """The pending writes of a checkpoint, in the order in which a graph applies them; only of `channels` if given."""
        found = []
        for note in notes:
            task_id, index = encoding.unpack_note_name(note.name)
            write = encoding.unpack_write(note.value)
            if channels is None or write.channel in channels:
                found.append((writes_sort_key(write.task_path, task_id, index), write))
        found.sort(key=lambda entry: entry[0])
        writes: builtins.list[PendingWrite] = []
        for key, write in found:
            ref = encoding.reference_in(write)
            if ref is None:
                value = serde.loads_typed((write.kind, write.value))
            else:
                value = encoding.unpack_value(serde, await self.large.contents.get(name_of(thread_id), ref))
            writes.append((key[1], write.channel, value))
        return writes


def place_of(config: RunnableConfig) -> Place:
    """The thread and namespace that a config names.

    Raises:
        InvalidName: the thread's id is no text, int or UUID.
    """
    configurable = config["configurable"]
    return Place(text_of(configurable["thread_id"], THREAD), configurable.get("checkpoint_ns") or "")


def checkpoint_id_of(config: RunnableConfig) -> str | None:
    """The checkpoint that a config names; None if it names none. Raises as `place_of`."""
    id = config["configurable"].get("checkpoint_id")
    return None if id is None or id == "" else text_of(id, CHECKPOINT)


def config_of(place: Place, id: str) -> RunnableConfig:
    """The config that names a checkpoint."""
    return {"configurable": {"thread_id": place.thread_id, "checkpoint_ns": place.namespace, "checkpoint_id": id}}


def _base_of(item: Labelled, checkpoint: dict[str, Any]) -> Base:
    versions = dict(checkpoint["channel_versions"])
    return Base(item.checkpoint.id, versions, frozenset(name for name in versions if name_of(name) in item.checkpoint.hashes))


def _matches(serde: SerializerProtocol, item: Labelled, filter: Mapping[str, Any]) -> bool:
    opened = encoding.unpack_metadata(serde, item.checkpoint.metadata)
    return opened is not None and meets(opened.metadata, filter)


async def _only(thread_id: str) -> AsyncIterator[str]:
    yield thread_id
