"""Threads as records, and records as threads.

Laws:
- Of a thread of any size there are in memory: the ids of its checkpoints with their parents, and one record.
- Checkpoints come after their parents, and what names a checkpoint comes after it.
- What is imported of a thread can be imported again, as often as wanted: nothing is there twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import datetime
from typing import Any, cast

from msgspec import Raw, structs

from shoal.errors import NotFound, Pruned
from shoal.kinds.file.flows import Upload, found_file
from shoal.kinds.thread.flows.checkpoints import ThreadCheckpoints, first_children, parents_first
from shoal.kinds.thread.state.dag import ID_BYTES
from shoal.protocol import requests
from shoal.protocol.requests import NO_HEAD, Imported
from shoal.schemas.secret_fields import hidden_channel, nulled_channel
from shoal.values.registry import mentioned, mentioned_in
from shoal.workflows.connection import Connection, as_wall_ms, moment
from shoal.workflows.transfer import records
from shoal.workflows.transfer.lines import Sender, key_of, packed_of, text_of
from shoal.workflows.transfer.records import Record


class ThreadExport:
    """The records of one thread. `reveal`: with secret fields, `changes`: states as changes of their parents', `states`: with
    what checkpoints hold.
    """

    def __init__(
        self, connection: Connection, space: str, thread: str, reveal: bool, changes: bool, states: bool = True
    ) -> None:
        self._connection, self._space, self._thread = connection, space, thread
        self._reveal, self._changes, self._states = reveal, changes, states
        self._given: set[bytes] = set()  # The hashes of the files that were exported.

    async def all(self) -> AsyncIterator[Record]:
        """All records, in order."""
        rule = await self._read(requests.ReadRetention(self._space, self._thread))
        yield records.Thread(self._thread, rule.older_than_ms, rule.bytes, rule.events)
        async for part in self._files():
            yield part
        heads = (await self._read(requests.Heads(self._space, self._thread))).branches
        labels = [label async for label in self._labels()]
        starts = [*(head for ids in heads.values() for head in ids), *(label.checkpoint for label in labels)]
        async for checkpoint in self._checkpoints(starts):
            yield checkpoint
        for name, ids in heads.items():
            yield records.Branch(self._thread, name, ids)
        for label in labels:
            for note in label.notes:
                async for part in self._contents(mentioned(note.value)):
                    yield part
            yield label
        async for record in self._journal():
            yield record
        async for step in self._steps():
            yield step
        async for entry in self._queues():
            yield entry
        standing = await self._read(requests.ReadStanding(self._space, self._thread))
        if standing.wall_ms:
            yield records.Status(self._thread, standing.status, moment(standing.wall_ms), standing.reason, standing.by)

    async def _read(self, request: Any) -> Any:
        return await self._connection.read(request)

    # ── files ─────────────────────────────────────────────────────────────────

    async def _files(self) -> AsyncIterator[Record]:
        after, more = "", True
        while more:
            page = await self._read(requests.ListFiles(self._space, self._thread, after))
            for info in page.files:
                download = await found_file(self._connection, self._space, self._thread, name=info.name)
                if self._states:
                    async with aclosing(download.read()) as pieces:
                        async for piece in pieces:
                            yield records.Chunk(self._thread, piece)
                file = download.file
                self._given.add(bytes.fromhex(file.sha256))
                yield records.File(self._thread, info.name, file.sha256, file.size, file.media_type, moment(file.stored))
                after = info.name
            more = page.more

    async def _contents(self, hashes: set[bytes]) -> AsyncIterator[Record]:
        """Those of these files that have no name, and were not exported before."""
        for hash in sorted(hashes - self._given) if self._states else ():
            try:
                download = await found_file(self._connection, self._space, self._thread, sha256=hash.hex())
            except NotFound:
                continue  # It only looks like a reference, or what refers to it has just gone.
            async with aclosing(download.read()) as pieces:
                async for piece in pieces:
                    yield records.Chunk(self._thread, piece)
            self._given.add(hash)
            yield records.Content(self._thread, hash.hex(), download.file.size)

    # ── checkpoints ───────────────────────────────────────────────────────────

    async def _labels(self) -> AsyncIterator[records.Label]:
        after, more = None, True
        while more:
            page = await self._read(requests.ReadLabels(self._space, self._thread, after=after, notes=True))
            for found in page.items:
                notes = [records.Note(note.name, note.value, note.first) for note in found.notes]
                yield records.Label(self._thread, found.label, found.checkpoint.id, notes)
                after = found.label
            more = page.more

    async def _checkpoints(self, starts: list[str]) -> AsyncIterator[Record]:
        parents: dict[bytes, tuple[bytes, ...]] = {}
        known = ThreadCheckpoints(self._connection, self._space, self._thread)
        async for found in known.reachable(list(dict.fromkeys(starts))):
            if not self._states:
                parents_of = list(found.parents)
                yield records.Checkpoint(self._thread, found.id, parents_of, found.branch, moment(found.wall_ms))
                continue
            parents[bytes.fromhex(found.id)] = tuple(map(bytes.fromhex, found.parents))
        channels: dict[bytes, frozenset[str]] = {}  # Of the checkpoints that others build on.
        builds = first_children(parents)
        for id in parents_first(parents):
            above = parents[id][0] if parents[id] else None
            try:
                record, names, hashes = await self._checkpoint(id, None if above is None else channels.get(above))
            except Pruned:
                continue
            async for part in self._contents(hashes):
                yield part
            yield record
            if above in builds:
                builds[above] -= 1
                if not builds[above]:
                    channels.pop(above, None)
            if builds.get(id):
                channels[id] = names

    async def _checkpoint(
        self, id: bytes, before: frozenset[str] | None
    ) -> tuple[records.Checkpoint, frozenset[str], set[bytes]]:
        """The record of a checkpoint, its channels, and the files to which it refers; `before` are the channels of its first
        parent, if that was written.
        """
        is_change = self._changes and before is not None
        appended: dict[str, Raw] = {}
        hashes: set[bytes] = set()
        if is_change:
            delta = await self._read(requests.ReadDelta(self._space, self._thread, id.hex()))
            found = delta.checkpoint
            is_change = not found.secret
            appended = {name: await text_of(more.elements) for name, more in delta.appended.items()}
            hashes = {hash for more in delta.appended.values() for hash in mentioned(more.elements)}
        if not is_change:
            found = await self._read(requests.Load(self._space, self._thread, id.hex()))
        channels = {name: hidden_channel(found.secret, name, packed) for name, packed in found.channels.items()}
        is_hidden = bool(found.secret) and (not self._reveal or channels == found.channels)  # It may not be ours to reveal.
        channels = channels if is_hidden else found.channels
        state = {name: await text_of(packed, found.schema) for name, packed in channels.items()}
        names = frozenset(found.hashes)
        record = records.Checkpoint(
            self._thread,
            found.id,
            found.parents,
            found.branch,
            moment(found.wall_ms),
            found.author,
            found.label,
            found.schema,
            found.schema_version,
            await text_of(found.metadata),
            state,
            is_change,
            appended if is_change else {},
            sorted((before or frozenset()) - names) if is_change else [],
            found.readable_from,
            found.secret,
            is_hidden,
            await text_of(found.setting),
            found.seen,
            found.nonce,
        )
        for packed in (*channels.values(), found.metadata, found.setting):
            hashes |= mentioned(packed)
        return record, names, hashes

    # ── the journal ───────────────────────────────────────────────────────────

    async def _journal(self) -> AsyncIterator[Record]:
        lacking: dict[str, list[requests.ConsumerState]] = {}  # By the first event that they have not acknowledged.
        async for state in self._consumers():
            request = requests.ReadJournal(self._space, self._thread, state.cursor, 1, skip_trimmed=True)
            first = (await self._read(request)).events
            lacking.setdefault(first[0].id if first else "", []).append(state)
        count = 0
        async for event in self._events():
            for state in lacking.pop(event.id, ()):
                yield self._consumer(state, count)
            count += 1
            async for part in self._contents(mentioned(event.event)):
                yield part
            key, time, value = event.key, moment(event.wall_ms), await text_of(event.event)
            yield records.Event(self._thread, event.id, time, key, event.late, value, event.erased)
        for states in lacking.values():
            for state in states:
                yield self._consumer(state, count)

    def _consumer(self, state: requests.ConsumerState, events: int) -> records.Consumer:
        acked = moment(state.acked_ms) if state.acked_ms else None
        return records.Consumer(self._thread, state.name, state.generation, acked, events)

    async def _consumers(self) -> AsyncIterator[requests.ConsumerState]:
        after, more = None, True
        while more:
            page = await self._read(requests.ReadConsumers(self._space, self._thread, after))
            for state in page.items:
                yield state
                after = state.name
            more = page.more

    async def _events(self) -> AsyncIterator[requests.Event]:
        after, more = b"", True
        while more:
            page = await self._read(requests.ReadJournal(self._space, self._thread, after, skip_trimmed=True))
            for event in page.events:
                yield event
            after, more = page.cursor, page.more

    # ── steps and queues ──────────────────────────────────────────────────────

    async def _steps(self) -> AsyncIterator[Record]:
        after, more = "", True
        while more:
            page = await self._read(requests.ListSteps(self._space, self._thread, after=after))
            for step in page.items:
                async for part in self._contents(mentioned_in(step)):
                    yield part
                yield await step_record(self._thread, step)
                after = step.position
            more = page.more

    async def _queues(self) -> AsyncIterator[Record]:
        worklists = await self._read(requests.ListWorklists(self._space, self._thread))
        for name in ["", *(each.name for each in worklists.items if each.name)]:
            for which in ({"finished": True}, {"dead": True}, {}):
                after, more = "", True
                while more:
                    page = await self._read(requests.ReadQueue(self._space, self._thread, name, after, **which))
                    for entry in page.entries:
                        async for part in self._contents(mentioned_in(entry)):
                            yield part
                        yield await entry_record(self._thread, name, entry)
                        after = entry.place
                    more = page.more


async def step_record(thread: str, step: requests.Step) -> records.Step:
    """The record of a step."""
    attempts = [
        records.Attempt(
            each.id,
            each.state,
            moment(each.begun_ms),
            each.holder,
            moment(each.ended_ms) if each.ended_ms else None,
            await text_of(each.error),
            await text_of(each.progress),
            each.by,
        )
        for each in step.attempts
    ]
    conflicts = [
        records.StepResult(await text_of(each.value), each.attempt, moment(each.wall_ms), each.by) for each in step.conflicts
    ]
    return records.Step(
        thread,
        step.key,
        step.name,
        step.state,
        moment(step.begun_ms),
        moment(step.ended_ms) if step.ended_ms else None,
        step.parent,
        step.compensation,
        step.failures,
        attempts,
        await text_of(step.arguments),
        await text_of(step.result),
        step.result_by,
        conflicts,
    )


async def entry_record(thread: str, worklist: str, entry: requests.QueueEntry) -> records.Entry:
    """The record of an entry of a queue."""
    finishes = [records.Finish(each.by, moment(each.wall_ms), await text_of(each.result)) for each in entry.finishes]
    others = [await text_of(each) for each in entry.others]
    value = await text_of(entry.value)
    plan = None if entry.plan is None else records.Plan(**structs.asdict(entry.plan))
    tried = None
    if entry.tried is not None:
        last = entry.tried
        not_before = moment(last.not_before_ms) if last.not_before_ms else None
        tried = records.Tried(last.attempt, last.state, moment(last.wall_ms), last.by, last.reason, not_before)
    time = moment(entry.wall_ms)
    return records.Entry(thread, worklist, entry.id, time, value, entry.key, entry.by, finishes, others, plan, tried)


# ── records as threads ────────────────────────────────────────────────────────


class ThreadImport:
    """One thread, as its records are written. `send` sends writes together, and returns their replies.

    `source` is the space and the name that it had: the keys of its writes are made of them.
    """

    def __init__(self, connection: Connection, space: str, thread: str, *, source: tuple[str, str], send: Sender) -> None:
        self._connection, self._space, self._thread = connection, space, thread
        self._source = source
        self._send = send
        self._ids: dict[bytes, bytes] = {}  # Of checkpoints that got another id than they had.
        self._labels: dict[str, None] = {}  # Of checkpoints, as they were saved.
        self._branches: set[str] = set()  # On which checkpoints were saved.
        self._retention: requests.SetRetention | None = None
        self._upload: Upload | None = None  # Of the file whose chunks come.
        self._contents: dict[str, None] = {}  # The names that files without a name have meanwhile.

    async def take(self, record: Record) -> None:
        """Write one record.

        Raises:
            ShoalError: it cannot be written.
        """
        match record:
            case records.Thread():
                self._begin(record)
            case records.Chunk():
                self._upload = self._upload or Upload(self._connection, self._space, self._thread)
                await self._upload.feed(record.data)
            case records.File():
                await self._file(record.name, record.sha256, record.media_type)
            case records.Content():
                name = f".values/{record.sha256}"
                await self._file(name, record.sha256, "application/octet-stream")
                self._contents[name] = None
            case records.Checkpoint():
                await self._checkpoint(record)
            case records.Branch():
                await self._branch(record)
            case records.Label():
                await self._label(record)
            case records.Event():
                await self._event(record)
            case records.Consumer():
                await self._consumer(record)
            case records.Step():
                await self._step(record)
            case records.Entry():
                await self._entry(record)
            case records.Status():
                await self._status(record)

    async def end(self) -> None:
        """All records are written: remove what a record brought that was gone where it comes from."""
        await self._send.flush()
        if left := list(self._labels):
            for at in range(0, len(left), 100):
                await self._put(requests.Unlabel(self._space, self._thread, left[at : at + 100]))
        if self._retention is not None:
            await self._put(self._retention)
        for name in self._contents:
            await self._put(requests.RemoveFile(self._space, self._thread, name))
        await self._send.flush()

    async def _put(
        self, write: requests.ObjectWrite[Any], time: datetime | None = None, key: str = "", *, nonce: bytes = b"", id: str = ""
    ) -> None:
        await self._send.put(Imported(write, as_wall_ms(time) or 0, key_of(*self._source, key) if key else "", nonce, id))

    def _begin(self, record: records.Thread) -> None:
        bounds = (record.retain_older_than_ms, record.retain_bytes, record.retain_events)
        if any(bound is not None for bound in bounds):
            self._retention = requests.SetRetention(self._space, self._thread, *bounds)

    async def _file(self, name: str, sha256: str, media_type: str) -> None:
        upload, self._upload = self._upload or Upload(self._connection, self._space, self._thread), None
        try:
            await upload.finish(name, media_type, expected=sha256)
        finally:
            await upload.abandon()

    async def _checkpoint(self, record: records.Checkpoint) -> None:
        parents = [self._id(parent) for parent in record.parents]
        is_whole = bool(record.nonce) and not record.hidden and parents == record.parents
        state = {name: await packed_of(text) for name, text in record.state.items()}
        if record.hidden:
            state = {name: nulled_channel(record.secret, name, packed) for name, packed in state.items()}
        write = requests.Save(
            self._space,
            self._thread,
            state,
            await packed_of(record.metadata),
            record.branch,
            parents[0] if parents else NO_HEAD,
            schema=record.schema,
            schema_version=record.schema_version,
            delta=record.changes,
            appended={name: await packed_of(text) for name, text in record.appended.items()},
            removed=record.removed,
            merged=parents[1:],
            fork=True,
            author=record.author,
            label=record.label,
            setting=await packed_of(record.setting),
            seen=record.seen,
            readable_from=record.readable_from,
            secret=record.secret,
        )
        if record.label:
            self._labels[record.label] = None
        nonce = record.nonce or record.id.encode()
        await self._put(write, record.time, f"checkpoint {record.id}", nonce=nonce, id=record.id if is_whole else "")
        if not is_whole:
            [*_, reply] = await self._send.flush()
            self._ids[bytes.fromhex(record.id)] = bytes.fromhex(reply.id)

    def _id(self, id: str) -> str:
        if not self._ids:
            return id
        known = self._ids.get(bytes.fromhex(id)) if len(id) == 2 * ID_BYTES else None
        return id if known is None else known.hex()

    async def _branch(self, record: records.Branch) -> None:
        for nth, head in enumerate(reversed(record.heads)):  # The winner is the latest.
            await self._put(requests.Move(self._space, self._thread, record.name, self._id(head), new=not nth))
            await self._send.flush()

    async def _label(self, record: records.Label) -> None:
        self._labels.pop(record.label, None)
        if record.notes:
            notes = [requests.Note(note.name, note.value, note.first) for note in record.notes]
            await self._put(requests.Annotate(self._space, self._thread, record.label, notes), key=f"notes {record.label}")

    async def _event(self, record: records.Event) -> None:
        event = requests.Append(self._space, self._thread, await packed_of(record.event), record.key)
        await self._put(event, record.time, f"event {record.id}")
        if record.erased:
            [*_, reply] = await self._send.flush()
            await self._put(requests.EraseEvent(self._space, self._thread, reply.id))

    async def _consumer(self, record: records.Consumer) -> None:
        await self._send.flush()
        after, left = b"", record.events
        while left > 0:
            request = requests.ReadJournal(self._space, self._thread, after, min(left, 1000), skip_trimmed=True)
            page = await self._connection.read(request)
            after, left = page.cursor, left - len(page.events)
            if not page.more:
                break
        await self._put(requests.Ack(self._space, self._thread, record.consumer, after), record.acked)

    async def _step(self, record: records.Step) -> None:
        try:
            there = await self._connection.read(requests.ReadStep(self._space, self._thread, record.key))
            if await step_record(record.thread, there) == record:
                return
        except NotFound:
            pass
        await self._send.flush()
        async for write, time in self._of_step(record):
            await self._put(write, time, f"step {record.key} {type(write).__name__} {getattr(write, 'attempt', '')}")
        await self._send.flush()

    async def _of_step(self, record: records.Step) -> AsyncIterator[tuple[requests.ObjectWrite[Any], datetime | None]]:
        """The writes that made a step, in their order. The results come last: after one no attempt begins."""
        space, thread, key = self._space, self._thread, record.key
        arguments = await packed_of(record.arguments)
        errors = sum(each.state == "error" for each in record.attempts)
        for each in record.attempts:
            yield (
                requests.BeginStep(
                    *(space, thread, key, record.name, each.id, each.holder, arguments),
                    *(record.parent, record.compensation, 0, True),
                ),
                each.begun,
            )
            if progress := await packed_of(each.progress):
                yield requests.ProgressStep(space, thread, key, each.id, progress), each.begun
            if each.state in ("error", "withdrawn", "unkept"):
                outcome = cast("Any", each.state)
                yield requests.EndStep(space, thread, key, each.id, outcome, await packed_of(each.error)), each.ended
                errors -= each.state == "error"
                if each.state == "error" and errors == record.failures != 0:
                    yield requests.ResolveStep(space, thread, key, "retry"), each.ended
            elif each.state in ("retry", "abandon"):
                yield requests.ResolveStep(space, thread, key, cast("Any", each.state), by=each.by), each.ended
        decided = {each.state for each in record.attempts} & {"retry", "abandon"}
        if record.state == "ready" and not decided and any(each.state == "error" for each in record.attempts):
            yield requests.ResolveStep(space, thread, key, "retry"), None
        if record.state == "abandoned" and "abandon" not in decided:
            yield requests.ResolveStep(space, thread, key, "abandon"), None
        if result := await packed_of(record.result):
            by = next((each.id for each in record.attempts if each.state == "result" and each.ended == record.ended), "")
            if record.result_by or not by:
                yield requests.ResolveStep(space, thread, key, "result", result, record.result_by), record.ended
            else:
                yield requests.EndStep(space, thread, key, by, "result", result), record.ended
            for other in record.conflicts:
                if other.attempt:
                    yield (
                        requests.EndStep(space, thread, key, other.attempt, "result", await packed_of(other.value)),
                        other.time,
                    )

    async def _entry(self, record: records.Entry) -> None:
        space, thread, worklist = self._space, self._thread, record.worklist
        item = requests.QueueItem(record.key, await packed_of(record.value))
        plan = None if record.plan is None else requests.QueuePlan(**structs.asdict(record.plan))
        enqueue = requests.Enqueue(space, thread, worklist, [item], record.by, plan)
        await self._put(enqueue, record.time, f"entry {worklist}/{record.id}")
        if not record.finishes and record.tried is None:
            return
        [*_, reply] = await self._send.flush()
        if (last := record.tried) is not None:
            not_before_ms = as_wall_ms(last.not_before) or 0
            state = cast("Any", last.state)
            tried = last.attempt, state, last.by, last.reason, not_before_ms
            recall = requests.RecallTry(space, thread, worklist, reply.ids[0], *tried)
            await self._put(recall, last.time, f"try {worklist}/{record.id}")
        if record.finishes:
            first = record.finishes[0]
            result = await packed_of(first.result)
            done = requests.Dequeue(space, thread, worklist, reply.ids[0], first.by, result)
            await self._put(done, first.time, f"finish {worklist}/{record.id}")

    async def _status(self, record: records.Status) -> None:
        await self._send.flush()
        there = await self._connection.read(requests.ReadStanding(self._space, self._thread))
        if (there.status, there.reason, there.by) != (record.status, record.reason, record.by):
            move = requests.MoveThread(self._space, self._thread, cast("Any", record.status), record.reason, record.by)
            await self._put(move, record.time, "status")
