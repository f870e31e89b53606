"""Three real nodes under random faults: whatever happens, what was promised is there once they are healed.

A run is made by its seed: who writes what where, which wires are cut or stall, which messages are lost, repeated or
reordered, who loses power and who its disk. How tasks interleave is the loop's; the seed is printed when a run fails.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from random import Random

import msgspec
import pycrdt
import pytest

from shoal import values
from shoal.cluster.operation import Tip
from shoal.config import Config
from shoal.crdt.rows import successor
from shoal.errors import BookmarkLost, Overloaded, SessionBehind, ShoalError
from shoal.protocol import requests
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import Durability
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from simulation.judging.checkers import DotLedger, check_acknowledged, check_found, check_storage
from simulation.judging.found import find
from simulation.judging.history import Acknowledged, Failed, History, Invoked, Refused, Shown, WriteKind, amount
from simulation.judging.replicas import check_replicas
from simulation.judging.sessions import check_sessions
from simulation.workload.random_agents import ROOT, SHARED, SPACE, channels_of, event_of, numbers_of, written_in
from simulation.world.fleet import Fleet

NAMES = "abc"
ATTEMPTS = 4
STEPS = 30
ACT_S = 0.0005
SETTINGS = {
    "tick_s": 0.002,
    "sync_interval_s": 0.01,
    "session_wait_s": 0.05,
    "quorum_timeout_s": 0.05,
    # So small that each of them is met.
    "document_snapshot_updates": 2,
    "push_bytes_max": 2000,
    "supply_bytes_max": 4000,
    "early_bytes_max": 20_000,
    "peer_send_bytes_max": 50_000,
}


class Roamer:
    """A client with a bookmark, that asks any node that is up; what fails it sends again elsewhere, under the same key."""

    def __init__(
        self, fleet: Fleet, history: History, *, name: str, numbers: itertools.count[int], random: Random, quorum: float
    ) -> None:
        self.name = name
        self._fleet = fleet
        self._history = history
        self._numbers = numbers
        self._random = random
        self._quorum = quorum  # How many of the writes ask for it.
        self._bookmark = Bookmark()
        self._positions: dict[str, str] = {}
        self._at = ""

    async def act(self) -> None:
        await (self.write if self._random.random() < 0.8 else self._read)()

    async def write(self) -> None:
        await self._random.choice([self._save, self._append, self._add, self._assign, self._edit])()

    # ── writes ────────────────────────────────────────────────────────────────

    async def _save(self) -> None:
        thread = self._random.choice((self.name, SHARED))
        parent = self._positions.get(thread, requests.NO_HEAD)
        reply = await self._write("save", thread, lambda n: requests.Save(SPACE, thread, channels_of(n), parent=parent))
        if isinstance(reply, requests.Saved):
            self._positions[thread] = self._random.choice(reply.heads)

    async def _append(self) -> None:
        thread = self._random.choice((self.name, SHARED))
        key = self._random.random() < 0.5
        await self._write(
            "append", thread, lambda n: requests.Append(SPACE, thread, event_of(n), f"event-{n}" if key else None)
        )

    async def _add(self) -> None:
        await self._write("add", SHARED, lambda n: requests.Add(SPACE, SHARED, amount(n)))

    async def _assign(self) -> None:
        await self._write("assign", self.name, lambda n: requests.Assign(SPACE, self.name, values.encode(n)))

    async def _edit(self) -> None:
        document = self._random.choice((self.name, SHARED))
        client_id = self._random.getrandbits(53)

        def request(number: int) -> requests.AnyWrite:
            doc: pycrdt.Doc[pycrdt.Map[int]] = pycrdt.Doc(client_id=client_id)
            doc.get(ROOT, type=pycrdt.Map)[str(number)] = number
            return requests.Update(SPACE, document, doc.get_update(), {ROOT: "map"})

        await self._write("edit", document, request)

    async def _write(self, kind: WriteKind, name: str, request: Callable[[int], requests.AnyWrite]) -> requests.AnyReply | None:
        number = next(self._numbers)
        self._history.note(Invoked(number, kind, name, self.name))
        made, durability = request(number), self._durability()
        errors: list[ShoalError] = []
        for _ in range(ATTEMPTS):
            try:
                reply = await self._call(made, key=f"key-{number}", durability=durability)
            except BookmarkLost:
                raise
            except ShoalError as error:
                errors.append(error)
                continue
            id = reply.id if isinstance(reply, requests.Saved | requests.Appended) else ""
            value = reply.value if isinstance(reply, requests.Added) else 0
            self._history.note(Acknowledged(number, id, value, self._at))
            return reply
        if all(error.written == "no" for error in errors):
            self._history.note(Failed(number, "no", errors[-1].code))
        return None

    def _durability(self) -> Durability:
        return "quorum" if self._random.random() < self._quorum else "local"

    async def _call(
        self, request: requests.AnyRequest, *, key: str | None = None, durability: Durability = "local"
    ) -> requests.AnyReply:
        if not self._fleet.members:
            raise Overloaded("no node is up", retry_after_s=0.01)
        self._at = self._random.choice(sorted(self._fleet.members))
        session = self._fleet[self._at].node.session(self._bookmark)
        return await session.call(request, key=key, durability=durability)

    # ── reads ─────────────────────────────────────────────────────────────────

    async def _read(self) -> None:
        kind, name, request = self._random.choice(self._reads())
        try:
            reply = await self._call(request)
        except BookmarkLost:
            raise
        except ShoalError as error:
            self._history.note(Refused(self.name, name, error.code))
        else:
            self._history.note(shown(Shown(self.name, kind, name, node=self._at), reply))

    def _reads(self) -> list[tuple[WriteKind, str, requests.AnyRead]]:
        return [
            ("save", self.name, requests.Heads(SPACE, self.name)),
            ("append", SHARED, requests.ReadJournal(SPACE, SHARED)),
            ("append", self.name, requests.ReadJournal(SPACE, self.name)),
            ("add", SHARED, requests.ReadCounter(SPACE, SHARED)),
            ("assign", self.name, requests.ReadRegister(SPACE, self.name)),
            ("edit", self.name, requests.ReadDocument(SPACE, self.name)),
        ]


def shown(empty: Shown, reply: requests.AnyReply) -> Shown:
    match reply:
        case requests.Branches(branches):
            return msgspec.structs.replace(empty, ids=branches.get("main", []))
        case requests.Events(events):
            return msgspec.structs.replace(empty, numbers=[values.decode(event.event)["number"] for event in events])
        case requests.CounterValue(value):
            return msgspec.structs.replace(empty, value=value)
        case requests.Siblings():
            return msgspec.structs.replace(empty, numbers=numbers_of(reply))
        case requests.DocumentState(update):
            return msgspec.structs.replace(empty, numbers=written_in(update))
    raise AssertionError(reply)


class Faults:
    """What goes wrong, by one generator; `heal` ends it all."""

    def __init__(self, fleet: Fleet, random: Random, *, disks_lost: bool) -> None:
        self._fleet = fleet
        self._random = random
        self._down: dict[str, MemoryStorage] = {}
        self._disks_lost = disks_lost
        fleet.spoil, fleet.jumble = self._spoil, self._jumble
        self._lossy = 0.0

    def _spoil(self, source: str, target: str, message: bytes) -> bytes | None:
        return None if self._random.random() < self._lossy else message

    def _jumble(self, queue: deque[bytes]) -> None:
        if self._random.random() < self._lossy:
            queue.append(self._random.choice(queue))
            self._random.shuffle(queue)

    async def strike(self) -> None:
        faults = [self._cut, self._cut_one_way, self._link, self._stall, self._hold_disk, self._lose, self._crash, self._start]
        await self._random.choice([*faults, *([self._wipe] if self._disks_lost else [])])()

    async def heal(self) -> None:
        self._fleet.spoil, self._fleet.jumble = lambda source, target, message: message, None
        for name in list(self._down):
            self._fleet.start(name, self._down.pop(name))
        for member in self._fleet.members.values():
            member.simulated.release_syncs()
        for name in NAMES:
            await self._fleet.isolate(name)
        for name in NAMES:
            self._fleet.link_all(name)

    def _up(self) -> str:
        return self._random.choice(sorted(self._fleet.members))

    async def _cut(self) -> None:
        await self._fleet.isolate(self._up())

    async def _cut_one_way(self) -> None:
        await self._fleet.cut(self._up(), self._up())

    async def _link(self) -> None:
        self._fleet.link_all(self._up())

    async def _stall(self) -> None:
        for wire in self._fleet.wires.values():
            if self._random.random() < 0.5:
                wire.open.clear()
            else:
                wire.open.set()

    async def _hold_disk(self) -> None:
        simulated = self._fleet[self._up()].simulated
        if simulated.gate.is_set():
            simulated.hold_syncs()
        else:
            simulated.release_syncs()

    async def _lose(self) -> None:
        self._lossy = self._random.choice((0.0, 0.1, 0.5))

    async def _crash(self) -> None:
        if len(self._fleet.members) > 1:
            name = self._up()
            self._fleet[name].simulated.release_syncs()
            self._down[name] = await self._fleet.crash(name, keep=self._random.choice((0, 0, 1, None)))

    async def _start(self) -> None:
        if self._down:
            name = self._random.choice(sorted(self._down))
            self._fleet.start(name, self._down.pop(name))

    async def _wipe(self) -> None:
        """Lose a disk, once the others hold all that is on it."""
        if self._down:
            return
        await self.heal()
        self._fleet.spoil, self._fleet.jumble = self._spoil, self._jumble
        name = self._up()
        self._fleet[name].simulated.hold_syncs()  # From here on it acknowledges and shows nothing new.
        async with asyncio.timeout(30):
            while not all(self._holds_all(other, name) for other in NAMES if other != name):
                await asyncio.sleep(0.002)
        await self._fleet.isolate(name)
        self._fleet[name].simulated.release_syncs()
        await self._fleet.crash(name)
        self._fleet.start(name, MemoryStorage())

    def _holds_all(self, holder: str, name: str) -> bool:
        held, wanted = durable_tips(self._fleet[holder].storage), durable_tips(self._fleet[name].storage)
        return all(held.get(place, 0) >= sequence for place, sequence in wanted.items())


def durable_tips(storage: MemoryStorage) -> dict[bytes, int]:
    left = storage.left_by_crash()
    return {key: Tip.unpack(tip).sequence for key, tip in left.scan(keys.VECTOR, successor(keys.VECTOR))}


async def trial(seed: int, *, steps: int = STEPS, quorum: float = 0.2, disks_lost: bool = True) -> History:
    """A run of `seed`, healed: all serve and hold the same, nothing is refused or waits, and each one's storage is sound."""
    random, history = Random(seed), History()
    async with Fleet(NAMES, seed=seed * 1000, **SETTINGS) as fleet:
        numbers, faults = itertools.count(1), Faults(fleet, random, disks_lost=disks_lost)
        roamers = [
            Roamer(fleet, history, name=f"roamer-{n}", numbers=numbers, random=Random(random.random()), quorum=quorum)
            for n in range(3)
        ]
        done = asyncio.Event()

        async def roam(roamer: Roamer) -> None:
            while not done.is_set():
                await roamer.act()
                await asyncio.sleep(ACT_S)

        async with asyncio.TaskGroup() as group:
            for roamer in roamers:
                group.create_task(roam(roamer))
            for _ in range(steps):
                await asyncio.sleep(random.random() * 0.006)
                await faults.strike()
            await faults.heal()
            await history.grown(3)  # Healed, it takes writes again.
            done.set()
        await settled(fleet)
        await judge(fleet, history)
    return history


async def settled(fleet: Fleet) -> None:
    """Return once each node serves, also one whose disk was lost, and all hold the same.

    Raises:
        TimeoutError: one waits for ever although all are up and linked, or they differ.
    """
    async with asyncio.timeout(10):
        await fleet.admitted()  # A wiped node may hold all there is before it has heard that this is all: until then it waits.
        await fleet.converged()


async def judge(fleet: Fleet, history: History) -> None:
    rows = [fleet.rows(name) for name in NAMES]
    assert rows[0] == rows[1] == rows[2]
    founds = {name: await find(fleet[name].node.session()) for name in NAMES}
    check_replicas(founds)
    check_found(history, founds["a"])
    check_sessions(history, founds["a"])
    for name in NAMES:
        check_storage(history, fleet[name].storage, dots=DotLedger(), config=Config())
        view = fleet[name].replicator.quorum.view()
        assert (view.early, view.quarantined) == (0, [])
    assert [error.message for error in fleet.refusals if error.code in ("invalid-value", "bad-operation")] == []


@pytest.mark.answers("state-is-a-fold", "session-guarantees")
@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(8, 25))])
async def test_promised_writes_are_there_after_any_faults(seed: int) -> None:
    history = await trial(seed)
    assert len(history.acknowledged) >= 3, "there was something to lose"


@pytest.mark.answers("acknowledged-writes-survive", note="a quorum's")
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(2, 5))])
async def test_a_quorums_write_outlives_any_disk(seed: int) -> None:
    random, history = Random(seed), History()
    async with Fleet(NAMES, seed=seed * 1000, **SETTINGS) as fleet:
        numbers = itertools.count(1)
        for _ in range(4):
            roamers = [
                Roamer(fleet, history, name=f"roamer-{next(numbers)}", numbers=numbers, random=random, quorum=1.0)
                for _ in range(12)
            ]
            acts = [asyncio.create_task(roamer.write()) for roamer in roamers]
            await asyncio.sleep(random.random() * 0.004)
            name = random.choice(NAMES)
            await fleet.crash(name)  # In the middle of it all.
            fleet.start(name, MemoryStorage())
            for ended in await asyncio.gather(*acts, return_exceptions=True):
                # A bookmark may name what only the lost disk held: nobody was promised that.
                assert ended is None or isinstance(ended, BookmarkLost), ended
            await fleet.converged()
        await settled(fleet)
        check_acknowledged(history, await find(fleet["a"].node.session()))
    assert history.acknowledged, "there was something to lose"


@pytest.mark.answers("session-guarantees")
async def test_a_node_not_heard_has_not_lost_its_writes() -> None:
    """Found by seed 14: a could send to everyone, and hear nobody."""
    async with Fleet(NAMES, session_wait_s=0.05) as fleet:
        await fleet.cut("b", "a")
        await fleet.cut("c", "a")
        bookmark = Bookmark()
        await fleet["b"].store(bookmark).space("crew").counter("n").add(7)
        with pytest.raises(SessionBehind):
            await fleet["a"].store(bookmark).space("crew").counter("n").value()
