"""Copies, deletions, and the history of delta channels.

Laws:
- A thread is deleted for good, on every node. Deleted checkpoints of a thread lose their
  labels and notes, several per operation, and are then discarded, so that their space is freed.
- Pruning keeps the newest checkpoint of a namespace, and the ancestors whose writes its delta
  channels need, back to where each has a value. The namespace of one call of a subgraph goes with the
  checkpoint from which it was called, because no graph finds it without that one.
- A copy begins with the oldest checkpoint, so that each one builds on the copy of its parent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import DeltaChannelHistory, PendingWrite
from langgraph.checkpoint.serde.base import SerializerProtocol

from shoal.errors import InvalidInput
from shoal.integrations.langgraph import encoding
from shoal.integrations.langgraph.checkpoints import PAGE_ITEMS, Checkpoints, checkpoint_id_of, place_of
from shoal.integrations.langgraph.encoding import CALL, Place, branch_of, label_of, name_of, prefix_of, split_label
from shoal.protocol import requests
from shoal.protocol.requests import NO_HEAD, Labelled
from shoal.raising import partly
from shoal.values.codec import LANGGRAPH

_UNLABEL_MAX = 500  # Checkpoints per operation.
_AGAIN = "Call it again to do the rest."
_DELTA_COUNTERS = "counters_since_delta_snapshot"  # A key of the metadata, with the names of the delta channels.


async def delete(checkpoints: Checkpoints, thread_id: str, items: Sequence[Labelled]) -> None:
    """Delete checkpoints of a thread for good, several per operation."""
    for start in range(0, len(items), _UNLABEL_MAX):
        some = [item.label for item in items[start : start + _UNLABEL_MAX]]
        with partly(start, f"{start} checkpoints are deleted", _AGAIN):
            await checkpoints.connection.write(
                requests.Unlabel(checkpoints.space, name_of(thread_id), some), key=None, durability=None
            )
        for label in some:
            if (parts := split_label(label)) is not None:
                checkpoints.bases.forget(Place(thread_id, parts[0]), parts[1])
    # Once none of them has a label they can be freed, heads too: LangGraph finds no checkpoint by a branch.
    for start in range(0, len(items), _UNLABEL_MAX):
        ids = [item.checkpoint.id for item in items[start : start + _UNLABEL_MAX]]
        with partly(True, "the checkpoints are deleted, and their space is not freed", _AGAIN):
            await checkpoints.connection.write(
                requests.Discard(checkpoints.space, name_of(thread_id), ids, heads=True), key=None, durability=None
            )


async def delete_thread(checkpoints: Checkpoints, thread_id: str) -> None:
    """Delete a thread on every node."""
    request = requests.DeleteThread(checkpoints.space, name_of(thread_id))
    await checkpoints.connection.write(request, key=None, durability=None)
    checkpoints.bases.forget_thread(thread_id)


async def delete_for_runs(checkpoints: Checkpoints, serde: SerializerProtocol, run_ids: Collection[str]) -> None:
    """Delete the checkpoints of these runs. It reads all checkpoints of the space."""
    wanted = set(run_ids)
    if not wanted:
        return
    done = 0
    async for thread_id in checkpoints.threads():
        items = []
        async for item in checkpoints.labelled(serde, thread_id):
            opened = encoding.unpack_metadata(serde, item.checkpoint.metadata)
            if opened is not None and str(opened.metadata.get("run_id")) in wanted:
                items.append(item)
        with partly(done, f"{done} checkpoints are deleted", _AGAIN):
            await delete(checkpoints, thread_id, items)
        done += len(items)


async def prune(checkpoints: Checkpoints, serde: SerializerProtocol, thread_ids: Sequence[str], strategy: str) -> None:
    """Prune threads, or delete them with the strategy "delete".

    Raises:
        InvalidInput: the strategy is unknown.
    """
    if strategy not in ("keep_latest", "delete"):
        raise InvalidInput(f"a pruning strategy must be 'keep_latest' or 'delete'; got {strategy!r}. Nothing was written.")
    for done, thread_id in enumerate(thread_ids):
        with partly(done, f"{done} threads are pruned", _AGAIN):
            if strategy == "delete":
                await delete_thread(checkpoints, thread_id)
            else:
                await _prune_thread(checkpoints, serde, thread_id)


async def _prune_thread(checkpoints: Checkpoints, serde: SerializerProtocol, thread_id: str) -> None:
    found: dict[str, list[Labelled]] = {}
    async for item in checkpoints.labelled(serde, thread_id):
        parts = split_label(item.label)
        if parts is not None:
            found.setdefault(parts[0], []).append(item)
    kept = {namespace: _kept(serde, namespace, items) for namespace, items in found.items()}
    roots = kept.get("", set())
    for done, (namespace, items) in enumerate(found.items()):
        stay = set() if _is_over(serde, namespace, items[0], roots) else kept[namespace]
        with partly(done, f"{done} namespaces of the thread are pruned", _AGAIN):
            await delete(checkpoints, thread_id, [item for item in items if item.label not in stay])
    with partly(found, "the thread is pruned, and branches of its namespaces are left", _AGAIN):
        await _free_branches(checkpoints, thread_id, found)


def _is_over(serde: SerializerProtocol, namespace: str, newest: Labelled, roots: Collection[str]) -> bool:
    """Whether a namespace is of one call of a subgraph, and the root's checkpoint from which it was called does not stay."""
    if CALL not in namespace or not roots:
        return False
    opened = encoding.unpack_metadata(serde, newest.checkpoint.metadata)
    caller = None if opened is None else (opened.metadata.get("parents") or {}).get("")
    return isinstance(caller, str) and label_of("", caller) not in roots


async def _free_branches(checkpoints: Checkpoints, thread_id: str, namespaces: Collection[str]) -> None:
    """Delete the branches of namespaces, which earlier versions made. The checkpoints are found by their labels."""
    name, mine = name_of(thread_id), {branch_of(namespace) for namespace in namespaces if namespace}
    found = await checkpoints.connection.read(requests.Heads(checkpoints.space, name))
    left = [branch for branch in found.branches if branch in mine]
    for start in range(0, len(left), _UNLABEL_MAX):
        deletes: list[requests.BatchWrite] = [
            requests.DeleteBranch(checkpoints.space, name, branch) for branch in left[start : start + _UNLABEL_MAX]
        ]
        await checkpoints.connection.write(requests.Batch(deletes), key=None, durability=None)


def _kept(serde: SerializerProtocol, namespace: str, items: Sequence[Labelled]) -> set[str]:
    """The labels to keep of a namespace's checkpoints, which are newest first."""
    by_label = {item.label: item for item in items}
    kept: set[str] = set()
    item: Labelled | None = items[0]
    lacking: set[str] | None = None
    while item is not None:
        kept.add(item.label)
        opened = encoding.unpack_metadata(serde, item.checkpoint.metadata)
        if opened is None:
            break
        if lacking is None:
            lacking = set(opened.metadata.get(_DELTA_COUNTERS) or ())
        lacking = {name for name in lacking if name_of(name) not in item.checkpoint.hashes}
        item = by_label.get(label_of(namespace, opened.parent)) if lacking and opened.parent else None
    return kept


async def copy_thread(checkpoints: Checkpoints, serde: SerializerProtocol, source: str, target: str) -> None:
    """Copy the checkpoints and pending writes of a thread to another one, under the same ids."""
    ids: dict[str, str] = {}  # Label of a source's checkpoint → id of its copy.
    files: set[bytes] = set()  # Those that the target has.
    async for item in _oldest_first(checkpoints, source):
        opened = encoding.unpack_metadata(serde, item.checkpoint.metadata)
        parts = split_label(item.label)
        if opened is None or parts is None:
            continue
        parent = ids.get(label_of(parts[0], opened.parent)) if opened.parent else None
        packed = [*item.checkpoint.channels.values(), *(note.value for note in item.notes)]
        with partly(ids, f"{len(ids)} checkpoints are copied", _AGAIN):
            await checkpoints.large.contents.copy(name_of(source), name_of(target), packed, files)
        request = requests.Save(
            checkpoints.space,
            name_of(target),
            item.checkpoint.channels,
            item.checkpoint.metadata,
            branch_of(parts[0]),
            parent or NO_HEAD,
            schema=LANGGRAPH,
            fork=True,
            label=item.label,
            secret=item.checkpoint.secret,
            headless=bool(parts[0]),
        )
        with partly(ids, f"{len(ids)} checkpoints are copied", _AGAIN):
            saved = await checkpoints.connection.write(request, key=None, durability=None)
        ids[item.label] = saved.id
        checkpoints.bases.forget(Place(target, parts[0]), parts[1])
        if item.notes:
            annotate = requests.Annotate(checkpoints.space, name_of(target), item.label, item.notes)
            with partly(True, f"{len(ids)} checkpoints are copied", _AGAIN):
                await checkpoints.connection.write(annotate, key=None, durability=None)


async def _oldest_first(checkpoints: Checkpoints, thread_id: str) -> AsyncIterator[Labelled]:
    after: str | None = None
    while True:
        page = await checkpoints.read(thread_id, after=after, limit=PAGE_ITEMS, channels=True, notes=True)
        for item in page.items:
            yield item
        if not page.more:
            return
        after = page.items[-1].label


async def delta_channel_history(
    checkpoints: Checkpoints, serde: SerializerProtocol, config: RunnableConfig, channels: Sequence[str]
) -> Mapping[str, DeltaChannelHistory]:
    """Read the ancestors of a checkpoint in pages, newest first, until each channel has its seed."""
    collected: dict[str, list[PendingWrite]] = {name: [] for name in channels}
    seeds: dict[str, Any] = {}
    lacking = set(channels)
    if lacking:
        async for item in _ancestors(checkpoints, serde, config):
            for write in reversed(await checkpoints.pending_writes(serde, place_of(config).thread_id, item.notes, lacking)):
                collected[write[1]].append(write)
            if found := [name for name in lacking if name_of(name) in item.checkpoint.hashes]:
                seeds.update(await _values(checkpoints, serde, config, item.label, found))
                lacking.difference_update(found)
            if not lacking:
                break
    history: dict[str, DeltaChannelHistory] = {}
    for name in channels:
        history[name] = {"writes": collected[name][::-1]}
        if name in seeds:
            history[name]["seed"] = seeds[name]
    return history


async def _ancestors(checkpoints: Checkpoints, serde: SerializerProtocol, config: RunnableConfig) -> AsyncIterator[Labelled]:
    """The ancestors of the target, newest first; without values, with notes."""
    place, id = place_of(config), checkpoint_id_of(config)
    if id:
        page = await checkpoints.read(place.thread_id, label=label_of(place.namespace, id))
    else:
        page = await checkpoints.read(place.thread_id, prefix=prefix_of(place.namespace), reverse=True, limit=1)
    wanted = _parent_label(serde, place, page.items[0]) if page.items else None
    while wanted is not None:
        # Read the parent, then the checkpoints before it by id, most of which are its ancestors.
        first = (await checkpoints.read(place.thread_id, label=wanted, notes=True)).items
        if not first:
            return
        yield first[0]
        wanted = _parent_label(serde, place, first[0])
        page = await checkpoints.read(
            place.thread_id,
            prefix=prefix_of(place.namespace),
            after=first[0].label,
            reverse=True,
            limit=PAGE_ITEMS,
            notes=True,
        )
        for item in page.items:
            if item.label == wanted:
                yield item
                wanted = _parent_label(serde, place, item)


def _parent_label(serde: SerializerProtocol, place: Place, item: Labelled) -> str | None:
    opened = encoding.unpack_metadata(serde, item.checkpoint.metadata)
    return label_of(place.namespace, opened.parent) if opened is not None and opened.parent else None


async def _values(
    checkpoints: Checkpoints, serde: SerializerProtocol, config: RunnableConfig, label: str, names: Sequence[str]
) -> dict[str, Any]:
    thread_id = place_of(config).thread_id
    page = await checkpoints.read(thread_id, label=label, channels=[name_of(name) for name in names])
    there = page.items[0].checkpoint.channels if page.items else {}
    whole = {
        name: await checkpoints.large.whole(name_of(thread_id), there[name_of(name)])
        for name in names
        if name_of(name) in there
    }
    return {name: encoding.unpack_value(serde, value) for name, value in whole.items()}
