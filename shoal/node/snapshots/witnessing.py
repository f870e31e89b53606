"""Has a peer's snapshot confirmed by the other owners, and confirms those that others take.

Laws:
- A snapshot is used only once `shoal.cluster.comparing` believes it. Nothing was replaced until then, and the partition
  is served.
- A witness answers from what is durable there, read in steps. It answers at most `snapshots_open_max` at once.
- An owner at another vector is asked again, for `quorum_timeout_s` at most. It is moving, as operations are on their way.
- The entries of garbage that a snapshot brings are entries of each witness, or belong to a generation that has ended there.
  What arrives after a deletion leaves other entries than what arrived before, and all rows of such a generation go anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from shoal.cluster.comparing import GARBAGE_MAX, Roots, RootsMessage, RootsRequest, Word, is_believed
from shoal.crdt import deletion
from shoal.crdt.dot import HORIZON, Origin, VersionVector
from shoal.errors import ShoalError, StoreCorrupt
from shoal.node.collection.entries import Garbage, unpack
from shoal.node.context import NodeContext
from shoal.node.retired import Retirement, Summary
from shoal.node.snapshots.checking import (
    TABLES,
    Content,
    Left,
    Rooting,
    in_slices,
    mark_of,
    mark_of_ended,
    tables_that_differ,
    vector_root,
)
from shoal.node.snapshots.switching import Row
from shoal.node.turns import Background
from shoal.records import NamedTuple
from shoal.storage import cold, keys
from shoal.storage.interface import Snapshot

_HEAD_BYTES = 3  # Of each key: the table and the partition.
_GENERATIONS_AT_ONCE = 256  # That are looked at before others get a turn.
_ASKS = 16  # Times that an owner at another vector is asked.


class Verdict(NamedTuple):
    """Whether a snapshot is believed."""

    agreeing: list[bytes]  # The other owners that have the same rows,
    others: list[bytes]  # and those that have other ones at the same vector.
    doubt: str = ""  # Why it is not believed; empty: it is.


class Owners(NamedTuple):
    """The other owners, as far as they are known. See `Members.teachers`."""

    nodes: Collection[bytes]
    needed: int
    everyone: int
    learners: Collection[bytes]
    linked: Collection[bytes]
    learns: bool  # Whether this node is a learner itself.


class Others(NamedTuple):
    """The others with whom a node exchanges snapshots, as it knows them."""

    owners: Callable[[], Owners]
    named: Callable[[bytes], str]  # The name of a node, for people.
    is_removed: Callable[[bytes], bool]  # Whether a node's directory was removed.
    unsure: Callable[[int], Collection[bytes]]  # The objects of a partition that lack data here, and cannot be compared.


@dataclass(slots=True)
class _Question:
    """A snapshot that waits to be believed."""

    number: int
    words: dict[bytes, Word] = field(default_factory=dict)
    asked: dict[bytes, float] = field(default_factory=dict)  # When it was asked last.
    heard: dict[bytes, Roots] = field(default_factory=dict)  # Answers that are to be compared.
    stirred: asyncio.Event = field(default_factory=asyncio.Event)
    differing: dict[bytes, list[str]] = field(default_factory=dict)  # By owner that has other rows: in what.


class _Held(NamedTuple):
    """A partition of this node at one moment."""

    rows: Snapshot
    live: list[Origin]
    base: VersionVector
    summary: Summary
    cold: set[bytes]  # The objects with chunks in an object store.


class Witnesses:
    """Both sides."""

    def __init__(self, context: NodeContext, others: Others, *, send: Callable[[bytes, RootsMessage], None]) -> None:
        self._storage = context.storage.raw  # Stubs are of objects that are left out.
        self._commit = context.commit
        self._partitions = context.partitions
        self._others = others
        self._send = send
        self._environment = context.environment
        self._open_max = context.config.snapshots_open_max
        self._wait_s = context.config.quorum_timeout_s
        self._answering = Background()
        self._answers = 0  # Under way.
        self._questions: dict[int, _Question] = {}  # As many as there are snapshots that were staged.
        self._last_id = 0

    async def stop(self) -> None:
        """Answer nobody any more."""
        await self._answering.close()

    def heard(self, peer: bytes, message: RootsMessage) -> None:
        """Take a message of a peer."""
        if isinstance(message, RootsRequest):
            self._asked(peer, message)
            return
        question = self._questions.get(message.id)
        if question is not None and question.number == message.partition and peer in question.asked:
            question.heard[peer] = message
            question.stirred.set()

    # ── asking ────────────────────────────────────────────────────────────────

    async def believe(self, sender: bytes, number: int, content: Content, pieces: Callable[[], Iterable[list[Row]]]) -> Verdict:
        """Ask whether a snapshot is believed, for a bounded time. `pieces` reads its rows.

        Raises:
            StoreCorrupt: what was staged cannot be read.
        """
        self._last_id += 1
        id, question = self._last_id, _Question(number)
        self._questions[id] = question
        live = {origin: content.tips[origin] for origin in content.live}
        request = RootsRequest(id, number, vector_root(live), content.base.pack(), content.summary.forgotten)
        until = self._environment.monotonic() + self._wait_s
        try:
            while not self._is_believed(sender, question):
                now = self._environment.monotonic()
                question.stirred.clear()
                if now >= until or not self._ask(sender, question, request, now):
                    return self._verdict(question, self._doubt(sender, question))
                try:
                    async with asyncio.timeout(self._wait_s / _ASKS):
                        await question.stirred.wait()
                except TimeoutError:
                    continue
                for node in list(question.heard):
                    await self._compare(node, question.heard.pop(node), question, content, pieces)
            return self._verdict(question)
        finally:
            del self._questions[id]

    def _is_believed(self, sender: bytes, question: _Question) -> bool:
        owners = self._others.owners()
        return is_believed(
            sender,
            question.words,
            owners=owners.nodes,
            learners=owners.learners,
            needed=owners.needed,
            everyone=owners.everyone,
            learns=owners.learns,
        )

    def _ask(self, sender: bytes, question: _Question, request: RootsRequest, now: float) -> bool:
        """Ask the owners that may still confirm it. Returns whether there are any."""
        left = [node for node in self._others.owners().linked if node != sender and node not in question.heard]
        left = [node for node in left if question.words.get(node) in (None, Word.ELSEWHERE)]
        for node in left:
            if now - question.asked.get(node, -self._wait_s) >= self._wait_s / _ASKS:
                question.asked[node] = now
                self._send(node, request)
        return bool(left)

    async def _compare(
        self, node: bytes, answer: Roots, question: _Question, content: Content, pieces: Callable[[], Iterable[list[Row]]]
    ) -> None:
        if not answer.roots:
            question.words[node] = Word.ELSEWHERE
            return
        try:
            base = content.base.join(VersionVector.unpack(answer.base))
        except ValueError:
            return
        left = Left(base, max(content.summary.forgotten, answer.forgotten), frozenset(answer.unsure))
        rooting = Rooting(content.live, left)
        for rows in pieces():
            for some in in_slices(rows):
                rooting.take(some)
                await self._environment.pause()
        differing = tables_that_differ(rooting.roots(), answer.roots)
        known = frozenset(answer.garbage)
        if not all(mark in known or ended in known for mark, ended in content.garbage.items()):
            differing.append("garbage")
        if content.summary.forgotten_hlc > answer.forgotten_hlc:
            differing.append("forgotten origins")
        question.words[node] = Word.OTHER if differing else Word.SAME
        if differing:
            question.differing[node] = differing

    def _verdict(self, question: _Question, doubt: str = "") -> Verdict:
        return Verdict([node for node, word in question.words.items() if word is Word.SAME], list(question.differing), doubt)

    def _doubt(self, sender: bytes, question: _Question) -> str:
        owners = self._others.owners()
        why = [f"{self._others.named(node)} has others ({', '.join(tables)})" for node, tables in question.differing.items()]
        silent = [node for node in owners.nodes if node != sender and question.words.get(node) in (None, Word.ELSEWHERE)]
        why += [f"{self._others.named(node)} did not confirm them" for node in silent]
        advice = (
            " If that does not end, one of these nodes lies, or its disk is wrong: compare them with `shoal verify`, and take "
            "the wrong one out with `shoal cluster forget`."
        )
        return (
            f"most of the other {owners.everyone} owners do not have its rows: {'; '.join(why) or 'they were not reached'}. "
            f"Nothing was replaced; it is tried again.{advice if question.differing else ''}"
        )

    # ── answering ─────────────────────────────────────────────────────────────

    def _asked(self, peer: bytes, request: RootsRequest) -> None:
        partition = self._partitions.load(request.partition)
        if partition.closed or vector_root(partition.tips) != request.vector or self._answers >= self._open_max:
            self._send(peer, Roots(request.id, request.partition))
            return
        self._answers += 1
        base = VersionVector((origin, tip.sequence) for origin, tip in partition.bases.items())
        away = cold.objects(self._storage, request.partition)
        held = _Held(self._storage.snapshot(), list(partition.tips), base, partition.retired.summary, away)
        self._answering.start(self._answer(peer, request, held))

    async def _answer(self, peer: bytes, request: RootsRequest, held: _Held) -> None:
        try:
            await self._commit.wait_durable(self._commit.written)
            self._send(peer, await self._roots(request, held))
        except (ShoalError, ValueError):  # It is no witness: a block of it is damaged, or too much waits to be swept.
            self._send(peer, Roots(request.id, request.partition))
        finally:
            held.rows.close()
            self._answers -= 1

    async def _roots(self, request: RootsRequest, held: _Held) -> Roots:
        """
        Raises:
            StoreCorrupt, StorageError: something cannot be read.
            ValueError: the request cannot be.
        """
        number, forgotten, forgotten_hlc = request.partition, held.summary.forgotten, held.summary.forgotten_hlc
        entries: list[bytes] = []
        generations: dict[bytes, Garbage] = {}  # To which the entries belong, by mark.
        unsure = {mark_of(name) for name in self._others.unsure(number)}
        unsure.update(mark_of(of) for of in held.cold)
        if len(unsure) > GARBAGE_MAX:
            raise StoreCorrupt(f"too many objects of partition {number} have chunks in an object store.")
        for key, packed in held.rows.scan(*keys.rows_of(keys.GARBAGE, number)):
            garbage = unpack(packed)
            entries.append(mark_of(key, packed))
            generations[mark_of_ended(number, garbage)] = garbage
            unsure.add(mark_of(keys.object_rows(number, *garbage.target)))
            if len(entries) > GARBAGE_MAX:
                raise StoreCorrupt(f"too much waits to be swept in partition {number}.")
        for nth, (mark, garbage) in enumerate(generations.items(), 1):
            if _has_ended(held.rows, number, garbage):
                entries.append(mark)
            if nth % _GENERATIONS_AT_ONCE == 0:
                await self._environment.pause()
        left = Left(held.base.join(VersionVector.unpack(request.base)), max(forgotten, request.forgotten), frozenset(unsure))
        rooting = Rooting(held.live, left)
        for table in TABLES:
            for some in in_slices(held.rows.scan(*keys.rows_of(table, number))):
                rooting.take(some)
                if table == keys.RETIRED:
                    forgotten_hlc = max([forgotten_hlc, *_forgotten(some, request.forgotten)])
                await self._environment.pause()
        return Roots(request.id, number, rooting.roots(), held.base.pack(), forgotten, forgotten_hlc, entries, list(unsure))


def _has_ended(held: Snapshot, number: int, garbage: Garbage) -> bool:
    key = keys.object_rows(number, *garbage.target) + deletion.ROW
    return any(deletion.unpack(packed).generation > garbage.generation for _, packed in held.scan(key, key + b"\x00"))


def _forgotten(rows: Iterable[Row], until: int) -> Iterator[int]:
    """The times of the last operations of the origins in these rows that were retired by then."""
    for key, value in rows:
        if not key[_HEAD_BYTES:].startswith(HORIZON):
            found = Retirement.unpack(value)
            if found.time <= until:
                yield found.tip.hlc
