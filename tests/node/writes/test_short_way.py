"""The short way of a single write and the generic one: the same rows, byte for byte, and the same for peers and watchers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.cluster.handshake import PEER_PROTOCOL
from shoal.config import Config
from shoal.errors import ShoalError
from shoal.kinds.label.state import Note
from shoal.node.node import Node
from shoal.node.watching.feed import Feed
from shoal.node.writes.erasing import Eraser
from shoal.node.writes.issuing import Issued, Issuer, Logged, Outbound
from shoal.protocol import requests
from shoal.protocol.requests import NO_HEAD, AnyReply, AnyWrite
from shoal.storage.interface import MemoryStorage
from simulation.world.environment import SimulatedEnvironment

ACTS = 120

packed = msgspec.msgpack.encode


class _Kept(MemoryStorage):
    """What was written, in its order."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[list[tuple[bytes, bytes | None]]] = []

    def write(self, rows: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]] = (), /) -> int:
        self.writes.append(list(rows.items()))
        return super().write(rows, ranges)


class _Course(NamedTuple):
    """What became of the same acts at one node."""

    writes: list[list[tuple[bytes, bytes | None]]]
    answers: list[AnyReply | str]
    shipped: list[tuple[object, ...]]
    staged: list[object]


class _Acts:
    """Requests, drawn beside what earlier ones were answered. Both nodes are asked the same."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.saved: list[str] = []

    def next(self) -> tuple[AnyWrite, str | None]:
        random = self.random
        made = random.choice([self._save, self._save, self._append, self._annotate, self._add, self._assign, self._rare])()
        key = f"k{random.randrange(40)}" if random.random() < 0.3 else None
        return made, key

    def _thread(self) -> str:
        return f"t{self.random.randrange(3)}"

    def _value(self) -> bytes:
        size = self.random.choice([1, 20, 300, 20_000])
        return packed("x" * self.random.randrange(size))

    def _save(self) -> AnyWrite:
        random = self.random
        whole = {name: packed([random.randrange(9)] * random.randrange(40)) for name in "abc" if random.random() < 0.8}
        request = requests.Save("crew", self._thread(), whole, branch=random.choice(["main", "main", "other"]))
        match random.randrange(8):
            case 0:
                return replace(request, label=f"l{random.randrange(4)}")
            case 1:
                return replace(request, label=f"/{random.randrange(4)}", headless=True)
            case 2:
                return replace(request, delta=True, appended={"d": packed([random.randrange(9)])})
            case 3 if self.saved:
                return replace(request, parent=random.choice(self.saved), fork=True)
            case 4:
                return replace(request, parent=NO_HEAD)
        return request

    def _append(self) -> AnyWrite:
        key = f"e{self.random.randrange(20)}" if self.random.random() < 0.4 else None
        return requests.Append("crew", self._thread(), self._value(), key)

    def _annotate(self) -> AnyWrite:
        notes = [Note(b"n%d" % self.random.randrange(3), self._value())]
        return requests.Annotate("crew", self._thread(), f"/{self.random.randrange(4)}", notes)

    def _add(self) -> AnyWrite:
        key = f"a{self.random.randrange(20)}" if self.random.random() < 0.4 else None
        return requests.Add("crew", f"n{self.random.randrange(2)}", self.random.randrange(-9, 9), key)

    def _assign(self) -> AnyWrite:
        return requests.Assign("crew", f"r{self.random.randrange(2)}", self._value(), by=self.random.choice(["", "ann"]))

    def _rare(self) -> AnyWrite:
        random, thread = self.random, self._thread()
        made: list[AnyWrite] = [
            requests.AlterSet("crew", "s", [packed(random.randrange(9))], [packed(random.randrange(9))]),
            requests.DeleteThread("crew", thread),
            requests.DeleteCounter("crew", "n0"),
            requests.DeleteRegister("crew", "r1"),
            requests.DeleteBranch("crew", thread, "other"),
            requests.Unlabel("crew", thread, [f"l{random.randrange(4)}"]),
            requests.AddEntry("crew", "m", "k", 1),
            requests.Batch([requests.Add("crew", "{x}1", 1), requests.Assign("crew", "{x}2", packed(1))]),
            requests.Move("crew", thread, "main", random.choice(self.saved) if self.saved else "none"),
        ]
        return random.choice(made)


async def _course(seed: int, patch: pytest.MonkeyPatch, *, generic: bool) -> _Course:
    short: list[object] = []
    sound = Issuer._issue_alone
    with patch.context() as way:
        if generic:
            way.setattr(Issuer, "_issue_alone", Issuer._issue_each)
        else:

            def alone(self: Issuer, writing: Any) -> Issued:
                short.append(writing)
                return sound(self, writing)

            way.setattr(Issuer, "_issue_alone", alone)
        storage, simulated = _Kept(), SimulatedEnvironment(seed)
        node = Node(storage, config=Config(), environment=simulated.environment)
        course, acts = _Course(storage.writes, [], [], []), _Acts(seed)
        logged: list[Logged] = []
        node._database.issuer.replicate(Outbound(logged.append, lambda _: None, lambda: PEER_PROTOCOL))
        way.setattr(node._database.issuer._feed, "wanted", lambda _: True)
        way.setattr(Feed, "stage", lambda _, number, staged, vectors: course.staged.append((number, staged, vectors)))
        session = node.session()
        for _ in range(ACTS):
            request, key = acts.next()
            simulated.now_ms += acts.random.randrange(3)
            try:
                reply: AnyReply | str = await session.call(request, key=key)
            except ShoalError as error:
                reply = f"{type(error).__name__}: {error.message}"
            if isinstance(reply, requests.Saved):
                acts.saved.append(reply.id)
            course.answers.append(reply)
        course.shipped.extend(_told(each) for each in logged)
        await node.stop()
    assert generic or short
    return course


def _told(logged: Logged) -> tuple[object, ...]:
    return logged.number, logged.partition.number, logged.shipment, logged.space, logged.may_precede


async def _check(seed: int, patch: pytest.MonkeyPatch) -> None:
    short = await _course(seed, patch, generic=False)
    generic = await _course(seed, patch, generic=True)
    assert short.answers == generic.answers
    assert short.writes == generic.writes
    assert short.shipped == generic.shipped
    assert short.staged == generic.staged


@given(st.integers(0, 2**32 - 1))
async def test_the_short_way_writes_what_the_generic_one_does(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        await _check(seed, patch)


async def test_acts_take_both_ways_and_end_in_all_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    course = await _course(1, monkeypatch, generic=False)
    kinds = {type(answer).__name__ for answer in course.answers}
    assert {"Saved", "Appended", "Annotated", "Added", "Assigned", "BatchReply", "str"} <= kinds


def _forgets_the_key(patch: pytest.MonkeyPatch) -> None:
    sound = Issuer._issue_alone
    patch.setattr(Issuer, "_issue_alone", lambda self, writing: sound(self, replace(writing, key=None)))


def _lists_nothing(patch: pytest.MonkeyPatch) -> None:
    sound = Issuer._issue_alone

    def alone(self: Issuer, writing: Any) -> Issued:
        with patch.context() as meanwhile:
            meanwhile.setattr(Eraser, "follow", lambda *_: None)
            return sound(self, writing)

    patch.setattr(Issuer, "_issue_alone", alone)


@pytest.mark.parametrize("plant", [_forgets_the_key, _lists_nothing])
async def test_a_bug_in_the_short_way_is_found(plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        with pytest.raises(AssertionError):
            await _check(1, patch)
