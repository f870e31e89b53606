"""`ShoalStepStore`: the harness's `StepStore` on Shoal.

Laws:
- A run is a thread. Its events are the journal, its snapshots checkpoints, so that a snapshot costs what is new in it.
  The label `complete` is the newest complete one, which no pruning removes.
- A boundary that is recorded again, under its idempotency key, is there once, by whom and at whichever node it is sent.
- A snapshot whose key has a lower sequence than another one's is not saved, also if that one is pruned.
- With durability `quorum` a read shows what any node has acknowledged, as long as a majority can be reached.
- The run itself and the effects of its tools are items, whose label has the run's tag.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from hashlib import sha256
from typing import Any

from pydantic_ai_harness.step_persistence import ContinuableSnapshot, RunRecord, StepEvent, ToolEffectRecord

from shoal.client.connection import contended
from shoal.client.store import Store
from shoal.errors import HeadMoved, InvalidInput, ItemChanged, KeyReused, NotFound
from shoal.integrations.base import InSpace
from shoal.integrations.contents import escaped, name_of, unsafe
from shoal.integrations.harness.plans import NAME, Form
from shoal.kinds.thread.flows.checkpoints import Checkpoint
from shoal.kinds.thread.handle.thread import Thread
from shoal.names import KEY_BYTES_MAX
from shoal.protocol.requests import NO_HEAD, NO_ITEM

COMPLETE = "complete"
"""The label of the newest complete snapshot of a run."""
_RUNS = ("runs",)
_PLAIN = unsafe()
_IN_TAG = unsafe("{}./")
_RUN = Form(RunRecord, "a run")
_EVENT = Form(StepEvent, "an event of a run")
_EFFECT = Form(ToolEffectRecord, "an effect of a tool")
_SNAPSHOT = Form(ContinuableSnapshot, "a snapshot of a run")


class ShoalStepStore(InSpace):
    """Keeps runs, their events, snapshots and effects in one space. Failures raise `ShoalError`s."""

    SPACE = "harness"

    def __init__(self, store: Store, *, space: str | None = None, max_snapshots_per_run: int | None = None) -> None:
        """On a store that is open on the running loop, and that the caller closes.

        With `max_snapshots_per_run` older snapshots are pruned, but for the newest complete one.

        Raises:
            InvalidInput: `store` is not an open store. With a path, use `ShoalStepStore.open`.
            ValueError: `max_snapshots_per_run` is less than 1.
        """
        super().__init__(store, space=space)
        if max_snapshots_per_run is not None and (type(max_snapshots_per_run) is not int or max_snapshots_per_run < 1):
            raise ValueError(f"max_snapshots_per_run must be an int of at least 1, or None; got {max_snapshots_per_run!r}")
        self._most = max_snapshots_per_run
        self._is_indexed = False

    # ── runs ──────────────────────────────────────────────────────────────────

    async def register_run(self, record: RunRecord) -> None:
        """Register a run, once.

        Raises:
            ValueError: another run, or another registration, has this id; nothing was written.
        """
        await self._bridge.awaited(lambda: self._register(record))

    async def get_run(self, *, run_id: str) -> RunRecord | None:
        """The record of a run; None if there is none."""
        return await self._bridge.awaited(lambda: self._run(run_id))

    async def list_runs(self, *, parent_run_id: str | None = None, conversation_id: str | None = None) -> list[RunRecord]:
        """The runs of a parent and of a conversation, if they are given, those that began first first."""
        return await self._bridge.awaited(lambda: self._runs(parent_run_id, conversation_id))

    # ── events ────────────────────────────────────────────────────────────────

    async def append_event(self, event: StepEvent) -> None:
        """Append an event; nothing if one with its idempotency key is there."""
        await self._bridge.awaited(lambda: self._append(event))

    async def list_events(self, *, run_id: str) -> list[StepEvent]:
        """The events of a run, in order."""
        return await self._bridge.awaited(lambda: self._events(run_id))

    # ── snapshots ─────────────────────────────────────────────────────────────

    async def save_snapshot(self, snapshot: ContinuableSnapshot) -> None:
        """Save a snapshot; nothing if its key is known, or has a lower sequence than a known one."""
        await self._bridge.awaited(lambda: self._retried(snapshot))

    async def latest_snapshot(self, *, run_id: str, include_interrupted: bool = False) -> ContinuableSnapshot | None:
        """The newest complete snapshot of a run, or the newest one."""
        return await self._bridge.awaited(lambda: self._latest(run_id, None if include_interrupted else COMPLETE))

    async def list_snapshots(self, *, run_id: str, include_interrupted: bool = False) -> list[ContinuableSnapshot]:
        """The snapshots of a run that are kept, the oldest first."""
        return await self._bridge.awaited(lambda: self._snapshots(run_id, include_interrupted))

    # ── effects ───────────────────────────────────────────────────────────────

    async def record_tool_effect(self, record: ToolEffectRecord) -> None:
        """Record how a call of a tool is; it replaces what was recorded of that call."""
        value = _EFFECT.stored(record, status=record.status)
        namespace, key = _effects(record.run_id), name_of(record.tool_call_id, _PLAIN)
        await self._bridge.awaited(lambda: self._space.items.put(namespace, key, value))

    async def get_tool_effect(self, *, run_id: str, tool_call_id: str) -> ToolEffectRecord | None:
        """The record of a call; None if there is none."""
        return await self._bridge.awaited(lambda: self._effect(run_id, name_of(tool_call_id, _PLAIN)))

    async def list_unresolved_tool_effects(self, *, run_id: str) -> list[ToolEffectRecord]:
        """The calls of a run that have started and not ended, those that began first first."""
        return await self._bridge.awaited(lambda: self._unresolved(run_id))

    # ── on the store's loop ───────────────────────────────────────────────────

    def _thread(self, run_id: str) -> Thread:
        return self._space.thread(_tag(run_id))

    async def _register(self, record: RunRecord) -> None:
        beside = {"conversation": record.conversation_id, "parent": record.parent_run_id}
        value = _RUN.stored(record, **{name: id for name, id in beside.items() if id is not None})
        if not self._is_indexed:
            await self._space.items.index(_RUNS, "conversation", "parent")
            self._is_indexed = True
        try:
            await self._space.items.put(_RUNS, name_of(record.run_id, _PLAIN), value, expect=NO_ITEM)
        except ItemChanged:
            existing = await self._run(record.run_id)
            if existing is None or record.registration_id is None or existing.registration_id != record.registration_id:
                raise ValueError(
                    f"run {record.run_id!r:.100} is registered already. Nothing was written. A run id is used once; group runs "
                    "by conversation_id."
                ) from None

    async def _run(self, run_id: str) -> RunRecord | None:
        await self._caught_up(_RUNS[0])
        item = await self._space.items.get(_RUNS, name_of(run_id, _PLAIN))
        return None if item is None else _RUN.shown(item.value)

    async def _runs(self, parent: str | None, conversation: str | None) -> list[RunRecord]:
        await self._caught_up(_RUNS[0])
        wanted = {"parent": parent, "conversation": conversation}
        filter = {name: id for name, id in wanted.items() if id is not None}
        found = [_RUN.shown(item.value) async for item in self._space.items.scan(_RUNS, filter=filter)]
        return sorted(found, key=lambda record: record.started_at)

    async def _append(self, event: StepEvent) -> None:
        key = None if event.idempotency_key is None else _key(event.idempotency_key)
        try:
            await self._thread(event.run_id).journal.append(_EVENT.stored(event), key=key)
        except KeyReused:
            return  # It was recorded before, at another time.

    async def _events(self, run_id: str) -> list[StepEvent]:
        await self._caught_up(_tag(run_id))
        events = [each.event async for each in self._thread(run_id).journal.read()]
        return [_EVENT.shown(each) for each in events if isinstance(each, dict) and NAME in each]

    async def _retried(self, snapshot: ContinuableSnapshot) -> None:
        pauses = contended(self._connection)
        while True:
            try:
                return await self._save(snapshot)
            except HeadMoved:
                if (pause := next(pauses, None)) is None:
                    raise
                await asyncio.sleep(pause)

    async def _save(self, snapshot: ContinuableSnapshot) -> None:
        thread = self._thread(snapshot.run_id)
        await self._caught_up(thread.name)
        stored = _SNAPSHOT.stored(snapshot)
        head = await self._head(thread)
        known: dict[str, Any] = {"sequence": -1, "keys": []} | ({} if head is None else dict(head.metadata))
        if snapshot.idempotency_key is not None:
            key, sequence = _key(snapshot.idempotency_key), _sequence(snapshot.idempotency_key)
            if key in known["keys"] or (sequence is not None and sequence < known["sequence"]):
                return
            kept = [] if sequence is not None and sequence > known["sequence"] else known["keys"]
            known = {"sequence": known["sequence"] if sequence is None else sequence, "keys": [*kept, key]}
        state = stored["value"]
        await thread.save(
            state if isinstance(state, dict) else {"json": state},
            metadata={NAME: stored[NAME], "sequence": known["sequence"], "keys": known["keys"]},
            expect_head=NO_HEAD if head is None else head.id,
            label=COMPLETE if snapshot.state == "complete" else "",
        )
        if self._most is not None:
            await thread.prune(keep_last=self._most)

    async def _head(self, thread: Thread) -> Checkpoint | None:
        try:
            return await thread.load(channels=[])
        except NotFound:
            return None

    async def _latest(self, run_id: str, label: str | None) -> ContinuableSnapshot | None:
        await self._caught_up(_tag(run_id))
        try:
            return _shown(await self._thread(run_id).load(label=label))
        except NotFound:
            return None

    async def _snapshots(self, run_id: str, include_interrupted: bool) -> list[ContinuableSnapshot]:
        thread = self._thread(run_id)
        await self._caught_up(thread.name)
        try:
            found = [each async for each in thread.history(states=True)]
        except NotFound:
            return []
        with suppress(NotFound):  # It may be older than what pruning has left.
            complete = await thread.load(label=COMPLETE)
            if all(each.id != complete.id for each in found):
                found.append(complete)
        shown = [_shown(each) for each in reversed(found)]
        return [each for each in shown if include_interrupted or each.state == "complete"]

    async def _effect(self, run_id: str, key: str) -> ToolEffectRecord | None:
        await self._caught_up(_tag(run_id))
        item = await self._space.items.get(_effects(run_id), key)
        return None if item is None else _EFFECT.shown(item.value)

    async def _unresolved(self, run_id: str) -> list[ToolEffectRecord]:
        await self._caught_up(_tag(run_id))
        scanned = self._space.items.scan(_effects(run_id), filter={"status": "started"})
        found = [_EFFECT.shown(item.value) async for item in scanned]
        return sorted(found, key=lambda record: record.started_at)


def _shown(found: Checkpoint) -> ContinuableSnapshot:
    state = dict(found.state)
    return _SNAPSHOT.shown({NAME: found.metadata.get(NAME), "value": state.get("json", state)})


def _tag(run_id: str) -> str:
    return f"{{{escaped(run_id, _IN_TAG)}}}/run"


def _effects(run_id: str) -> tuple[str, str]:
    return f"{{{escaped(run_id, _IN_TAG)}}}", "effects"


def _key(key: str) -> str:
    """An idempotency key as one of Shoal's."""
    known = escaped(key, _PLAIN)
    if not known:
        raise InvalidInput("an idempotency key is empty. Nothing was written. Give None for no key.")
    return known if len(known.encode()) <= KEY_BYTES_MAX else sha256(known.encode()).hexdigest()


def _sequence(key: str) -> int | None:
    """The number before the first colon of a snapshot's key, by which the harness counts its snapshots."""
    number, colon, _ = key.partition(":")
    return int(number) if colon and number.isdecimal() else None
