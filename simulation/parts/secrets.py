"""Secrets that agents write in spaces whose rules of redaction change, while hooks fail and nodes lose their disks.

Laws, all of them 41:
- A node that holds rules, because it answered so or because all nodes were said to, lets nothing through that they replace:
  it is in no row that was ever written to a disk, in no answer and in no error.
- An acknowledged write names what was replaced in it, and shows the rest as it was given.
- A write whose hook fails, and one with a secret in a name, is refused, and nothing of it is written anywhere.
- Nothing else is refused.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf
from random import Random
from typing import Any

import shoal
from shoal.client.connection import StoreConnection
from shoal.client.store import Space
from shoal.cluster.operation import partition_of
from shoal.config import Config
from shoal.errors import NotFound, OutcomeUnknown, RedactionFailed, RedactionRefused, ShoalError
from shoal.kinds.redaction.flows import PatternToSet
from shoal.kinds.redaction.state.rules import RULES
from shoal.names import RESERVED
from shoal.protocol import requests
from shoal.protocol.requests import PutEntry, RemoveEntry, Write
from shoal.protocol.session import Session
from shoal.storage.interface import MemoryStorage
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.part import Bench, Deeds
from simulation.plan import Act, ActKind
from simulation.world.hooks import FAILURES, NAMES, SLOW

FAMILY = "secrets"
REDACTED = "41"
KEY, CARD, TAG, NAME, PLAIN = "key", "card", "tag", "name", "plain"
KINDS = (KEY, CARD, TAG, NAME)
WAYS = ("register", "entry", "event", "state", "item", "batch", "number", "name")
_ALL = frozenset(KINDS)
_RULES = partition_of(RESERVED, RULES)
_SEEN = re.compile(
    rb"sk-zq(?P<key>\d{6})k|4929(?P<card>\d{6})00000\d|TOP-zq(?P<tag>\d{6})|Ada-zq(?P<name>\d{6})|pl(?P<plain>\d{6})pl"
)
_WHOLE = 0.8
"""The share of the rules that are for all kinds of secrets: whatever is set beside them, they hold."""
_UNSET = 0.3
_NUMBER_BYTES = 9  # A card as a packed number.


def token(kind: str, number: int) -> str:
    """The text that is looked for: of one kind, in one write."""
    match kind:
        case "key":
            return f"sk-zq{number:06d}k" + "A" * 16
        case "card":
            return _card(number)
        case "tag":
            return f"TOP-zq{number:06d}zq"
        case "name":
            return f"Ada-zq{number:06d}h"
        case _:
            return f"pl{number:06d}pl"


def _card(number: int) -> str:
    digits = f"4929{number:06d}00000"
    total = sum(int(digit) if nth % 2 else int(digit) * 2 - 9 * (digit > "4") for nth, digit in enumerate(digits))
    return f"{digits}{-total % 10}"


def seen_in(content: bytes) -> Iterator[tuple[str, int]]:
    """The secrets, and the marks of writes, in some bytes."""
    for match in _SEEN.finditer(content):
        kind = match.lastgroup
        assert kind is not None
        yield kind, int(match[kind])
    at = content.find(b"\xcf\x00\x11")  # 4,929 × 10¹² and what follows it, as a packed number.
    while at >= 0:
        digits = str(int.from_bytes(content[at + 1 : at + _NUMBER_BYTES], "big")).encode()
        if card := re.fullmatch(rb"4929(\d{6})00000\d", digits):
            yield CARD, int(card[1])
        at = content.find(b"\xcf\x00\x11", at + 1)


@dataclass(slots=True)
class Change:
    """The rules of a space as somebody set them, or took them away. `heard`: when each node was seen to hold them."""

    number: int
    kinds: frozenset[str]
    begun_s: float
    ended_s: float = inf
    heard: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


@dataclass(slots=True)
class Written:
    """A write. `node` took it, if only one may have; `listed` are the kinds that the answer named."""

    number: int
    way: str
    kinds: frozenset[str]
    begun_s: float
    fails: bool = False  # Its hook does.
    in_name: bool = False
    ended_s: float = inf
    node: str = ""
    told: bool = False
    refused: bool = False
    is_once: bool = False  # It left once.
    listed: frozenset[str] = frozenset()


@dataclass(slots=True)
class Guarded:
    """One space: its changes, and what was written in it."""

    changes: list[Change] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)


class Sightings:
    """What was ever written to any disk: the watcher of all of them."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, int], str] = {}

    def mounted(self, storage: MemoryStorage, /) -> None:
        """It was seen as it was written."""

    def replaced(self) -> None:
        """It was seen as it was written."""

    def restored(self, storage: MemoryStorage, /) -> None:
        """The same of what a backup gives back."""
        for key, value in storage.scan(b"", None):
            for found in (*seen_in(key), *seen_in(value)):
                self.seen.setdefault(found, f"a row {key[:1]!r} of a restore")

    def wrote(self, rows: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]], /) -> None:
        for key, value in rows.items():
            for content in (key, value or b""):
                for found in seen_in(content):
                    self.seen.setdefault(found, f"a row {key[:1]!r}")

    def synced(self) -> None:
        """It was seen as it was written."""


class Secrets:
    """By space: the changes of its rules, and what was written."""

    kinds: tuple[ActKind, ...] = ("write-secret", "rule-secrets", "unrule-secrets", "read-secrets")

    def __init__(self) -> None:
        self.spaces: defaultdict[str, Guarded] = defaultdict(Guarded)
        self.sightings = Sightings()
        self.numbers = count(1)
        self.nodes: list[str] = []
        self.unexplained: list[str] = []

    def deeds(self, bench: Bench) -> Deeds:
        if not self.nodes:
            self.nodes = list(bench.client.cluster.hosts)
            for host in bench.client.cluster.hosts.values():
                host.disk.watchers.append(self.sightings)
        agent = _Agent(self, bench)
        return {
            "write-secret": agent.write,
            "rule-secrets": agent.rule,
            "unrule-secrets": agent.unrule,
            "read-secrets": agent.read,
        }

    def erased(self, losses: Losses) -> Collection[bytes]:
        return ()

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        found = [] if losses.of_disks else [*self.unexplained]
        for name, guarded in sorted(self.spaces.items()):
            space = Space(StoreConnection(session, Config(), "local", Random(0).randbytes, "judge"), name)
            for written in guarded.written:
                found += self._leaked(guarded, written, losses)
            found += await _altered(space, guarded.written)
        return [Violation(REDACTED, text) for text in found]

    def _leaked(self, guarded: Guarded, written: Written, losses: Losses) -> Iterator[str]:
        which = f"write {written.number} ({written.way})"
        owed = {kind for kind in written.kinds if self.is_owed(guarded, written, kind, losses)}
        for kind in sorted(owed | (written.listed if written.is_once else frozenset())):
            if where := self.sightings.seen.get((kind, written.number)):
                yield f"the {kind} of {which} is in {where}"
            if written.told and kind not in written.listed:
                yield f"the {kind} of {which} is not listed as replaced"
        is_owed = written.fails and self.is_owed(guarded, written, NAME, losses)
        if is_owed or (written.in_name and owed) or (written.refused and written.is_once):
            if written.told:
                yield f"{which} was to be refused, and was acknowledged"
            if where := self.sightings.seen.get((PLAIN, written.number)):
                yield f"{which} was refused, and {where} has it"

    def is_owed(self, guarded: Guarded, written: Written, kind: str, losses: Losses) -> bool:
        """Whether each node that may have taken a write held rules for a kind of secret all the time."""
        nodes = [written.node] if written.node else self.nodes
        lasting = [
            change
            for change in guarded.changes
            if kind in change.kinds
            and all(
                kind in other.kinds
                for other in guarded.changes
                if other is not change and other.begun_s < written.ended_s and other.ended_s > change.begun_s
            )
        ]
        return all(any(_held(change, node, written, losses) for change in lasting) for node in nodes)


def _held(change: Change, node: str, written: Written, losses: Losses) -> bool:
    return any(
        heard_s <= written.begun_s and losses.held(node, heard_s, written.ended_s) for heard_s in change.heard.get(node, ())
    )


async def _altered(space: Space, writes: Sequence[Written]) -> list[str]:
    """What is shown otherwise than the answer said."""
    found = []
    events = [each.event["text"] async for each in space.thread("journal").journal.read()]
    for written in writes:
        if not written.told or not written.is_once or written.in_name:
            continue
        shown = await _shown(space, written, events)
        wrong = [
            kind
            for kind in written.kinds
            if shown is not None and (token(kind, written.number) in shown) == (kind in written.listed)
        ]
        if wrong:
            found.append(
                f"write {written.number} ({written.way}) named {sorted(written.listed)}, and {', '.join(wrong)} is not so"
            )
    return found


async def _shown(space: Space, written: Written, events: Sequence[str]) -> str | None:
    number = written.number
    try:
        match written.way:
            case "register" | "number":
                value = await space.register(f"r{number}").get()
                return None if value is None else str(value)
            case "entry":
                entries = {each.key: each for each in await space.map("map").entries()}
                return " ".join(entries[f"k{number}"].siblings) if f"k{number}" in entries else None
            case "state":
                return str((await space.thread(f"t{number}").load()).state["text"])
            case "item":
                item = await space.items.get(("items",), f"k{number}")
                return None if item is None else str(item.value["text"])
    except NotFound:
        return None
    return next((text for text in events if token(PLAIN, number) in text), None)


class _Agent:
    def __init__(self, secrets: Secrets, bench: Bench) -> None:
        self._secrets = secrets
        self._bench = bench
        name = f"{{guarded-{bench.name.rpartition('/')[2]}}}"  # All of it is in one partition.
        self._guarded = secrets.spaces[name]
        self._space = Space(bench.space._connection, name)

    # ── rules ─────────────────────────────────────────────────────────────────

    async def rule(self, act: Act, random: Random) -> None:
        await self._set(
            act, random, _ALL if random.random() < _WHOLE else frozenset(random.sample(KINDS, random.randint(1, 3)))
        )

    async def _set(self, act: Act, random: Random, kinds: frozenset[str]) -> None:
        change = Change(next(self._secrets.numbers), kinds, _now())
        regex = r"TOP-zq\d{6}zq" if TAG in kinds else f"none-{change.number}-x"

        async def send() -> None:
            await self._space.redaction.set(
                credentials=KEY in kinds,
                cards=CARD in kinds,
                patterns=[PatternToSet(f"c{change.number}", regex)],
                hooks=[NAMES] if NAME in kinds else [],
            )

        await self._change(act, random, change, send, PutEntry)

    async def unrule(self, act: Act, random: Random) -> None:
        if random.random() >= _UNSET:
            await self._set(act, random, _ALL)
            return

        async def send() -> None:
            await self._space.redaction.unset()

        await self._change(act, random, Change(next(self._secrets.numbers), frozenset(), _now()), send, RemoveEntry)

    async def _change(
        self, act: Act, random: Random, change: Change, send: Callable[[], Awaitable[None]], of: type[Write[Any]]
    ) -> None:
        self._guarded.changes.append(change)
        try:
            is_once = await self._bench.at(_RULES).send(act, random, send, of=of)
        except ShoalError as error:
            self._bench.refused(error)
            raise
        # All nodes hold it. A second attempt may still be on its way, and finds that it was made.
        change.ended_s = _now()
        for node in self._secrets.nodes:
            change.heard[node].append(change.ended_s)
        self._bench.did(f"{of.__name__} {change.number} for {sorted(change.kinds)}{'' if is_once else ', more than once,'}")

    async def read(self, act: Act, random: Random) -> None:
        before = self._bench.client.dialled
        try:
            told = await self._space.redaction.get()
            if self._bench.client.dialled - before <= 1:
                for change in self._guarded.changes:
                    if any(each.name == f"c{change.number}" for each in told.patterns):
                        change.heard[self._bench.client.at].append(_now())
            shown = [str(entry.siblings) for entry in await self._space.map("map").entries()]
            shown += [str(each.event) async for each in self._space.thread("journal").journal.read()]
        except ShoalError as error:
            self._bench.refused(error)
            raise
        for found in seen_in(" ".join(shown).encode()):
            self._secrets.sightings.seen.setdefault(found, f"an answer of {self._bench.client.at}")

    # ── writes ────────────────────────────────────────────────────────────────

    async def write(self, act: Act, random: Random) -> None:
        number, way = next(self._secrets.numbers), random.choice(WAYS)
        kinds = frozenset({CARD}) if way == "number" else frozenset(random.sample(KINDS, random.randint(1, 4)))
        if way == "name":
            kinds -= {NAME}  # A hook sees no names.
        control = random.choice((*FAILURES, SLOW, "", "", "", "")) if way not in ("number", "name") else ""
        written = Written(number, way, kinds, _now(), fails=control in FAILURES, in_name=way == "name")
        self._guarded.written.append(written)
        text = " ".join((token(PLAIN, number), "says", *(token(kind, number) for kind in sorted(kinds)), control))
        send, of = self._way(written, text, act)
        listed: list[requests.Replaced] = []

        async def sent() -> None:
            with shoal.redactions() as found:
                await send()
            listed.extend(found)

        try:
            written.is_once = await self._bench.at(partition_of(self._space.name, "")).send(act, random, sent, of=of)
        except ShoalError as error:
            self._failed(written, error, act)
            raise
        written.told = True
        written.listed = frozenset(map(_kind_of, listed))
        if written.is_once:
            written.ended_s, written.node = _now(), self._bench.client.at
        self._bench.did(f"write {number} ({way}), with {sorted(written.listed)} replaced, of {sorted(kinds)}")

    def _failed(self, written: Written, error: ShoalError, act: Act) -> None:
        if isinstance(error, RedactionFailed | RedactionRefused | OutcomeUnknown):
            for kind, number in seen_in(f"{error.message} {error.detail}".encode()):
                self._bench.violated(REDACTED, f"the {kind} of write {number} is in the error {error.code}")
        if isinstance(error, RedactionFailed | RedactionRefused):
            written.refused, written.is_once = True, not act.repeat and error.written == "no"
            self._bench.did(f"be refused ({error.code}) write {written.number} ({written.way})")
            if not (written.fails if isinstance(error, RedactionFailed) else written.in_name):
                self._secrets.unexplained.append(f"write {written.number} ({written.way}) was refused: {error.message}")
        else:
            self._bench.refused(error)

    def _way(self, written: Written, text: str, act: Act) -> tuple[Callable[[], Awaitable[object]], type[Write[Any]]]:
        """How a write is sent, and its kind of request."""
        space, number, durability = self._space, written.number, act.durability
        register, entries, thread = space.register(f"r{number}"), space.map("map"), space.thread(f"t{number}")
        card, journal = int(token(CARD, number)), space.thread("journal").journal
        state = {"text": text}
        ways: dict[str, tuple[Callable[[], Awaitable[object]], type[Write[Any]]]] = {
            "register": (lambda: register.set(text, durability=durability), requests.Assign),
            "number": (lambda: register.set(card, durability=durability), requests.Assign),
            "entry": (lambda: entries.set(f"k{number}", text, durability=durability), PutEntry),
            "name": (lambda: entries.set(text.strip(), "plain", durability=durability), PutEntry),
            "item": (lambda: space.items.put(("items",), f"k{number}", state, durability=durability), requests.PutItem),
            "state": (lambda: thread.save(state, metadata=state, durability=durability), requests.Save),
            "event": (lambda: journal.append(state, durability=durability), requests.Append),
            "batch": (lambda: self._batch(state, act), requests.Batch),
        }
        return ways[written.way]

    async def _batch(self, event: dict[str, str], act: Act) -> None:
        async with self._space.batch(durability=act.durability) as batch:
            batch.counter("n").add(1)
            batch.thread("journal").journal.append(event)


def _kind_of(replaced: requests.Replaced) -> str:
    return {"credentials": KEY, "cards": CARD, NAMES: NAME}.get(replaced.rule, TAG)


def _now() -> float:
    return asyncio.get_running_loop().time()
