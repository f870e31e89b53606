"""One agent's work on the objects of one name: every kind of act, through the public handles.

Laws:
- One thing at a time. All objects of one name share a partition, so that what their
  session has seen of one it is owed of the others.
- What a read shows is noted as it was shown; an error is noted with what it says of
  the write. A node that is behind is asked again, or let go of, by chance; it is
  never read from unasked.
- Objects under keys of users (`{name}/keyed`) are judged by what is there in the end
  alone: which of two payloads of one key counts may change, until all have met.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from random import Random

from shoal.client.connection import StoreConnection
from shoal.client.store import Space
from shoal.cluster.operation import partition_of
from shoal.errors import BookmarkLost, KeyReused, NotFound, SessionBehind, ShoalError, TooManySiblings
from shoal.kinds.document.handle.document import Document
from shoal.kinds.thread.handle.saves import OnConflict
from shoal.protocol import requests
from shoal.protocol.requests import NO_HEAD, Durability
from simulation.judging.amounts import nth_amount
from simulation.judging.found import LISTED, TOLD, numbers_in
from simulation.judging.history import Invoked, Shown, WriteKind, amount
from simulation.judging.ledger import Ledger
from simulation.parts.part import Bench, Part
from simulation.plan import Act, ActKind
from simulation.workload.following import Follower, numbers_of
from simulation.workload.random_agents import ROOT, SPACE, content_of, state_of
from simulation.workload.record import Record
from simulation.workload.writing import Assurance, Writer
from simulation.world.client import Client, Sender, Sent

SCRATCH = "scratch"
"""The root map of a document in which entries are replaced and deleted."""

_READ_OF: dict[ActKind, ActKind] = {
    "save": "load",
    "append": "read-journal",
    "add": "count",
    "assign": "read-register",
    "edit": "read-document",
}
"""What shows a session what it wrote."""

_KEYS = 3  # So many keys of users are in use with one object: agents meet.
_LOOKED_AT = 0.4  # The share of the writes that their agent reads at once.
_ELSEWHERE = 0.2  # The share of the reads before which it changes nodes unasked.


class Actor:
    """`durability` is that of what names none; `quorum` says how many nodes each needs; `part` has the objects of this name."""

    def __init__(
        self,
        client: Client,
        *,
        name: str,
        durability: Durability,
        record: Record,
        ledger: Ledger,
        quorum: Callable[[Durability], int],
        part: Part | None = None,
    ) -> None:
        self.name = name
        self.busy = False
        self._client = client
        self._durability: Durability = durability
        self._part = part
        self._record = record
        self._sender = Sender(client)
        self._assurance = Assurance(partition_of(SPACE, name), ledger, quorum)
        self._assurance.expect(durability)
        self._writer = Writer(client, self._sender, record, self._assurance)
        connection = StoreConnection(self._sender, client.config, durability, client.random.randbytes, client.name)
        self._space = Space(connection, SPACE)
        self._keyed, self._batched = f"{{{name}}}/keyed", f"{{{name}}}/batch"
        self._mirror: Document | None = None
        self._acts: dict[ActKind, Callable[[Act, Random], Awaitable[None]]] = {
            "save": self._save,
            "load": self._load,
            "append": self._append,
            "read-journal": self._read_journal,
            "add": self._add,
            "add-keyed": self._add_keyed,
            "count": self._count,
            "assign": self._assign,
            "read-register": self._read_register,
            "edit": self._edit,
            "read-document": self._read_document,
            "batch": self._batch,
        }
        self._take_handles()

    def _take_handles(self) -> None:
        """New ones: they have no position, and no context."""
        self._thread = self._space.thread(self.name)
        self._register = self._space.register(self.name)
        self._values: list[int] | None = None  # Of the register, that its handle has seen.
        self._head: str | None = None  # Loaded or saved last.
        self._has_saved = False
        self._batch_head: str | None = None
        self._follower = Follower(self._space.thread(self.name).journal)
        if self._part is not None:
            bench = Bench(self.name, self._client, self._space, self._writer, self._record, self._durability)
            self._acts |= self._part.deeds(bench)

    async def act(self, act: Act, random: Random) -> None:
        """Do one thing, and note all of it."""
        self._assurance.expect(act.durability)
        try:
            await self._do(act.kind, act, random)
            if act.kind in _READ_OF and random.random() < _LOOKED_AT:
                await self._do(_READ_OF[act.kind], act, random)
        except (SessionBehind, BookmarkLost) as error:
            if isinstance(error, BookmarkLost) or random.random() < 0.5:
                await self._let_go(error)
        except ShoalError:
            pass  # It is noted.

    async def _do(self, kind: ActKind, act: Act, random: Random) -> None:
        if kind in _READ_OF.values() and (act.repeat or random.random() < _ELSEWHERE):
            await self._client.leave()
        await self._acts[kind](act, random)

    async def flush(self) -> None:
        """Let the mirror write what it can, and close it."""
        if self._mirror is not None:
            with suppress(ShoalError):  # What it could not write is noted as unknown already.
                await self._mirror.close()

    async def read_on(self) -> None:
        """See that the journal's reader is given everything, now that all nodes hold it."""
        with suppress(ShoalError):  # What was lost with a disk may be what this session has seen.
            for number in await self._follower.missed():
                self._record.violated("10", f"{self._client.name}, who follows {self.name}, was not given event {number}")

    # ── writes ────────────────────────────────────────────────────────────────

    async def _save(self, act: Act, random: Random) -> None:
        write = self._begin("save", self.name, act)
        seen = self._head
        way = random.random()
        expected = seen if way < 0.15 else None
        on_conflict: OnConflict = "refuse" if way > 0.8 else "fork"
        # Without a position it builds on nothing, or on what an earlier save of unknown outcome did.
        is_known, self._has_saved = seen is not None or not self._has_saved, True

        async def save() -> None:
            # An agent that has seen nothing and would fork looks first: its head would have nothing in common with the others.
            looks = seen is None and on_conflict == "fork"
            base = (await self._thread.heads()).get("main", [NO_HEAD])[0] if looks else seen or NO_HEAD
            saved = await self._thread.save(
                state_of(write.number),
                parent=base if looks else None,
                expect_head=expected,
                on_conflict=on_conflict,
                durability=act.durability,
            )
            if is_known and "".join(saved.parents) != base:
                self._record.violated(
                    "7", f"{self._client.name} had seen {base[:8] or 'nothing'}, and its save {saved.id[:8]} is on another"
                )
            self._head = saved.id

        sent = await self._writer.write(act, random, [write], save)
        if sent is not None and random.random() < 0.1:
            await self._misuse(sent, act)

    async def _misuse(self, sent: Sent, act: Act) -> None:
        """Send another request under a key that has written: it must be refused."""
        write = self._begin("save", self.name, act)
        request = requests.Save(SPACE, self.name, {"step": b"\x00"}, parent=self._head)
        try:
            reply = await self._sender.call(request, key=sent.key, durability=act.durability)
        except ShoalError as error:
            self._record.failed([write], error, who=self._client.name, node=self._client.at)
            if not isinstance(error, KeyReused):
                raise
        else:
            self._record.acknowledged([write], reply, who=self._client.name, node=self._client.at)
            self._record.violated("5", f"{self._client.at} took key {sent.key} for another request than it stands for")

    async def _append(self, act: Act, random: Random) -> None:
        way = random.random()
        key = f"event-{random.randrange(_KEYS)}" if way < 0.2 else ""
        name = self._keyed if key else self.name
        write = self._begin("append", name, act, key=key)
        own_key = f"own-{write.number}" if way > 0.7 else None

        async def append() -> None:
            journal = self._space.thread(name).journal
            await journal.append(content_of(write.number), key=key or own_key, durability=act.durability)

        await self._writer.write(act, random, [write], append)

    async def _add(self, act: Act, random: Random) -> None:
        counter, by = self._record.amounts.next(self.name)
        write = self._begin("add", counter, act, by=by)

        async def add() -> None:
            await self._space.counter(counter).add(by, durability=act.durability)

        await self._writer.write(act, random, [write], add)

    async def _add_keyed(self, act: Act, random: Random) -> None:
        """The same amount under the same key, whoever adds it; but for a few, which use a key twice."""
        nth = random.randrange(_KEYS)
        by = nth_amount(2 * nth + (random.random() < 0.2))
        write = self._begin("add", self._keyed, act, key=f"add-{nth}", by=by)

        async def add() -> None:
            await self._space.counter(self._keyed).add(by, key=write.key, durability=act.durability)

        await self._writer.write(act, random, [write], add)

    async def _assign(self, act: Act, random: Random) -> None:
        if self._values is None:
            await self._read_register(act, random)
        seen = self._values or []
        write = self._begin("assign", self.name, act, over=seen)

        async def assign() -> None:
            await self._register.set(write.number, durability=act.durability)

        def learn(reply: object) -> None:
            if isinstance(reply, requests.Assigned) and reply.siblings == 1:
                self._values = [write.number]
            elif random.random() < 0.5:
                self._values = None  # Read first, the next time.

        try:
            await self._writer.write(act, random, [write], assign, learn=learn)
        except TooManySiblings:
            self._values = None
            raise

    async def _edit(self, act: Act, random: Random) -> None:
        write = self._begin("edit", self.name, act)

        async def edit() -> None:
            if self._mirror is None:
                self._mirror = await self._space.document(self.name)
            edit_in(self._mirror, write.number)
            await self._mirror.flush()

        try:
            await self._writer.write(act, random, [write], edit, of=requests.Update)
        except ShoalError as error:
            if not error.retryable and self._mirror is not None:
                mirror, self._mirror = self._mirror, None
                with suppress(ShoalError):
                    await mirror.close()
            raise

    async def _batch(self, act: Act, random: Random) -> None:
        if self._batch_head is None:
            async with self._reading(self._batched):
                heads = (await self._space.thread(self._batched).heads()).get("main", [NO_HEAD])
            self._batch_head = heads[0]
        parent = self._batch_head
        save = self._begin("save", self._batched, act)
        writes = [save, *(self._begin(kind, self._batched, act, batch=save.number) for kind in ("append", "add"))]

        async def commit() -> None:
            async with self._space.batch(durability=act.durability) as batch:
                thread = batch.thread(self._batched)
                saved = thread.save(state_of(save.number), parent=parent, on_conflict="fork")
                thread.journal.append(content_of(writes[1].number))
                batch.counter(self._batched).add(amount(writes[2].number))
            self._batch_head = saved.reply.id

        await self._writer.write(act, random, writes, commit)

    def _begin(
        self,
        kind: WriteKind,
        name: str,
        act: Act,
        *,
        key: str = "",
        by: int = 0,
        over: list[int] | None = None,
        batch: int = 0,
    ) -> Invoked:
        return self._record.invoked(
            kind,
            name,
            session="" if key else self._client.name,
            durability=self._durability if kind == "edit" else act.durability,
            key=key,
            by=by,
            over=over,
            batch=batch,
            who=self._client.name,
        )

    # ── reads ─────────────────────────────────────────────────────────────────

    async def _load(self, act: Act, random: Random) -> None:
        async with self._reading(self.name):
            try:
                found = await self._thread.load()
            except NotFound:
                self._show("save", self.name)
                return
            self._head = found.id
            self._show("save", self.name, ids=list(found.heads))
            number = found.state.get("step", 0)
            if found.state != state_of(number):
                self._record.violated(
                    "10", f"{self._client.at} shows a checkpoint of {self.name} that nobody saved: {found.id}"
                )

    async def _read_journal(self, act: Act, random: Random) -> None:
        whole = random.random() < 0.25 or self._follower.is_new
        async with self._reading(self.name):
            events = await self._follower.read(anew=whole)
            for event in events:
                if event.event != content_of(event.event["number"]):
                    self._record.violated("10", f"{self._client.at} shows an event of {self.name} that nobody appended")
            self._show("append", self.name, numbers=numbers_of(events), whole=whole)

    async def _count(self, act: Act, random: Random) -> None:
        await self._read_counter()

    async def _read_counter(self, *, stale: bool = False) -> None:
        counter = self._record.amounts.counter(self.name)
        async with self._reading(counter):
            self._show("add", counter, value=await self._space.counter(counter).value(stale=stale))

    async def _read_register(self, act: Act, random: Random) -> None:
        async with self._reading(self.name):
            self._values = await self._register.siblings()
            self._show("assign", self.name, numbers=self._values)

    async def _read_document(self, act: Act, random: Random) -> None:
        async with self._reading(self.name), await self._space.document(self.name) as document:
            self._show("edit", self.name, numbers=numbers_in(document.to_py()))

    def _show(
        self,
        kind: WriteKind,
        name: str,
        *,
        ids: list[str] | None = None,
        numbers: list[int] | None = None,
        value: int = 0,
        whole: bool = True,
    ) -> None:
        at_s = asyncio.get_running_loop().time()
        self._record.shown(Shown(self._client.name, kind, name, ids or [], numbers or [], value, whole, self._client.at, at_s))
        if kind != "save" or ids:  # That there is no checkpoint shows nothing that a crash could take back.
            self._assurance.answered(self._client, "local")

    @asynccontextmanager
    async def _reading(self, name: str) -> AsyncIterator[None]:
        try:
            yield
        except ShoalError as error:
            self._record.refused(self._client.name, name, error, self._client.at)
            raise

    async def _let_go(self, error: ShoalError) -> None:
        """Go on from what the node has; if even that fails, the next act meets the error again."""
        self._record.let_go(self._client.name, self.name, error)
        self._take_handles()
        with suppress(ShoalError):  # It is noted.
            await self._read_counter(stale=True)


def edit_in(document: Document, number: int) -> None:
    """Leave `number` in a map, an array and a text, and change what others left, all as one edit."""
    written, listed, told = document.map(ROOT), document.array(LISTED), document.text(TOLD)
    scratch = document.map(SCRATCH)
    with document.transaction():
        written[str(number)] = number
        listed.append(number)
        told.insert(len(told), f"{number};")
        name = "xyz"[number % 3]
        if name in scratch:
            del scratch[name]
        else:
            scratch[name] = number
