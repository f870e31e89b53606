"""Links between peers: dialled, lost and dialled again, as `shoal.cluster.peering` says.

Laws:
- A wire goes from one life of a node to one life of another, and ends with either.
  What a dead sender had sent still arrives; what a dead receiver had not taken is gone.
- Fine weather keeps order, and loses nothing. Bad weather loses, repeats and
  reorders single messages, which is worse than sockets are: what guarantees
  convergence does not rely on links.
- A cut loses what is under way, and the link breaks a while after, as a heartbeat
  would find. So does one to a machine that pauses for too long.
- The next message of a wire is read once the last was taken, and the first of a new
  wire once the older one of that node has ended.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import TYPE_CHECKING, NamedTuple, get_args
from zlib import crc32

from shoal.cluster import messages
from shoal.cluster.comparing import Clock
from shoal.cluster.peering import Identity
from shoal.errors import Disconnected, PeerRefused, ShoalError
from simulation.world.incarnation import Fenced
from simulation.world.network import APART_S, REORDERED_S, Network
from simulation.world.sockets import PATIENCE
from simulation.world.trace import Trace

if TYPE_CHECKING:
    from simulation.world.bucket import SimulatedBucket
    from simulation.world.host import SimulatedNode

DELAY_S_FIRST = 0.05  # Before the second attempt, at most; it doubles from there.
_SLOWEST = 16  # Failures in a row: by then the delay is at its bound.

_APART = frozenset({Clock})
"""Kinds of messages that draw from a source of their own, so that plans which were saved before them show the same."""

_KINDS = {kind.__struct_config__.tag: kind.__name__ for kind in get_args(messages.Message)}
_TAGS_APART = frozenset(kind.__struct_config__.tag for kind in _APART)


class Refusal(NamedTuple):
    """Why `target` closed a link of `source`, or did not take one."""

    source: str
    target: str
    code: str  # The error itself would hold all that was under way where it was raised: nodes that are long gone.


class Wiring:
    """What all wires of a cluster share. `problems` are bugs that receiving came upon. `buckets` are by URL."""

    def __init__(
        self,
        network: Network,
        trace: Trace,
        *,
        random_for: Callable[[str], Random],
        problems: list[str],
        buckets: Mapping[str, SimulatedBucket] | None = None,
    ) -> None:
        self.buckets = buckets or {}
        self.network = network
        self.trace = trace
        self.random_for = random_for
        self.problems = problems
        self.refusals: list[Refusal] = []
        self.newest: dict[tuple[str, str], Wire] = {}

    def refuse(self, source: str, target: str, error: ShoalError) -> None:
        self.refusals.append(Refusal(source, target, error.code))
        self.trace.mark(target, f"refuses {source}:", f"{error.code}: {error.message}")


class Wire:
    """One direction of a link: the `Outlet` of its sender, who is told that it broke by `broken`."""

    def __init__(self, source: SimulatedNode, target: SimulatedNode, *, address: str, wiring: Wiring, random: Random) -> None:
        self.address = address
        self.ends = (source.name, target.name)
        self.waiting_bytes = 0
        self.broken = asyncio.Event()
        self._identity = source.peer.identity()
        self._peer = target.peer
        self._source, self._target = source.life, target.life
        self._config = source.config
        self._wiring = wiring
        self._network = wiring.network
        self._random = random
        self._random_apart = wiring.random_for(f"apart/{source.name}/{target.name}/{source.life.number}")
        self._held: deque[bytes] = deque()
        self._inbox: deque[bytes | None] = deque()  # None: nothing more comes.
        self._stirred = asyncio.Event()
        self._last_due = 0.0
        self._silence = 0
        self._line = self._network.add(self)
        older, wiring.newest[self.ends] = wiring.newest.get(self.ends), self
        self._delivery = self._target.begin(self._deliver(older))

    # ── the outlet ────────────────────────────────────────────────────────────

    def offer(self, message: bytes, /) -> bool:
        """See `Outlet.offer`."""
        self._source.check()
        if self.broken.is_set():
            return True  # As a socket that broke and does not know it: what it takes is gone.
        if self.waiting_bytes and self.waiting_bytes + len(message) > self._config.peer_send_bytes_max:
            return False
        random = self._random_apart if message[1] in _TAGS_APART else self._random
        if self._network.is_lost(random, self.ends, len(message)):
            self._note("loses", message)
            return True
        self._send(message, random)
        if self._network.is_duplicated(random, self.ends):
            self._send(message, random)
        return True

    def _send(self, message: bytes, random: Random) -> None:
        self.waiting_bytes += len(message)
        due = self._network.now() + self._network.delay_s(random, self.ends)
        if self._network.is_overtaken(random, self.ends):
            due += random.uniform(0.0, REORDERED_S)
        else:
            due = self._last_due = max(due, self._last_due + APART_S)
        asyncio.get_running_loop().call_at(due, self._arrive, message)

    # ── under way ─────────────────────────────────────────────────────────────

    def _arrive(self, message: bytes) -> None:
        passage = "lost" if self.broken.is_set() or self._target.over else self._network.passage(*self.ends)
        if passage == "lost":
            self.waiting_bytes -= len(message)
            self._note("loses", message)
        elif passage == "held" or self._held:
            self._held.append(message)
        else:
            self._put(message)

    def _put(self, message: bytes | None) -> None:
        self._inbox.append(message)
        self._stirred.set()

    def silenced(self, paused: str | None, /) -> None:
        """See `Line`: a cut is noticed even if it is over by then; a pause only if it lasts."""
        self._silence += 1
        patience_s = self._config.peer_heartbeat_s * self._random.uniform(*PATIENCE)
        give_up = self.sever if paused is None else partial(self._give_up, self._silence)
        asyncio.get_running_loop().call_later(patience_s, give_up)

    def flow(self) -> None:
        """See `Line`."""
        if self._network.both_open(*self.ends):
            self._silence += 1
        while self._held and self._network.passage(*self.ends) == "open":
            self._put(self._held.popleft())

    def _give_up(self, silence: int) -> None:
        if self._silence == silence:
            self.sever()

    def sever(self) -> None:
        """It is lost, and what is under way as well; what the target is taking it still takes. Twice is allowed."""
        self._part()
        self._held.clear()
        self._inbox.clear()
        self._put(None)

    def drain(self) -> None:
        """Its sender is gone: what is under way arrives, and then it ends."""
        due = max(self._last_due, self._network.now() + REORDERED_S)
        asyncio.get_running_loop().call_at(due, self._drained)

    def lose_soon(self) -> None:
        """Its target is gone, which the sender's machine hears a moment later."""
        asyncio.get_running_loop().call_later(self._network.delay_s(self._random, self.ends), self.sever)

    def _drained(self) -> None:
        self._part()
        self._put(None)

    def _part(self) -> None:
        if not self.broken.is_set():
            self._wiring.trace.note(self.ends[0], "loses its link to", self.ends[1])
            self.broken.set()
            self._network.remove(self._line)

    # ── at the target ─────────────────────────────────────────────────────────

    async def _deliver(self, older: Wire | None) -> None:
        if older is not None:
            older.sever()
            await asyncio.wait([older._delivery])
            older = None  # It holds a node that may have ended.
        while (message := await self._next()) is not None:
            self.waiting_bytes -= len(message)
            self._note("hears", message)
            try:
                await self._peer.received(self._identity, message)
            except ShoalError as error:
                self._wiring.refuse(*self.ends, error)
                self.sever()
            except Exception:
                self._wiring.problems.append(f"{self._target} received a message of {self._source}: {traceback.format_exc()}")
                self.sever()

    async def _next(self) -> bytes | None:
        while not self._inbox:
            self._stirred.clear()
            await self._stirred.wait()
        return self._inbox.popleft()

    def _note(self, what: str, message: bytes) -> None:
        source, target = self.ends
        kind = _KINDS.get(messages.unstamped(message)[1][1], "?")
        self._wiring.trace.note(target, what, f"{kind} of {source}: {len(message)} bytes {crc32(message):08x}")


class Dialler:
    """Keeps a link from `source`, in the life that it has now, to `target`, whatever life that one is in."""

    def __init__(self, source: SimulatedNode, target: SimulatedNode, *, wiring: Wiring) -> None:
        self._source = source
        self._target = target
        self._life = source.life
        self._wiring = wiring
        self._network = wiring.network
        self._random = wiring.random_for(f"link/{source.name}/{target.name}/{source.life.number}")
        self._met: Identity | None = None  # Whom it reached last.

    async def keep(self) -> None:
        """Dial, hold, dial again, until cancelled."""
        failures = 1
        while True:
            await asyncio.sleep(self._delay_s(failures))
            await self._source.running()
            self._met = None
            try:
                await self._hold(*await self._dial())
                failures = 1
            except Disconnected:
                failures += 1
            except ShoalError as error:
                self._wiring.refuse(self._source.name, self._target.name, error)
                if isinstance(error, PeerRefused):
                    self._source.peer.refused(self._target.address, error, self._met)
                failures = _SLOWEST

    async def _dial(self) -> tuple[Identity, Wire]:
        """
        Raises:
            Disconnected: it cannot be reached, or is about to stop.
            ShoalError: it does not take this node.
        """
        source, target = self._source, self._source.routes.get(self._target.name, self._target)
        if not await self._network.travel(source.name, target.name, self._random):
            await asyncio.sleep(source.config.peer_connect_timeout_s)
            raise Disconnected("no answer")
        if not target.up:
            raise Disconnected("nobody listens there")
        if target.stopping:
            raise Disconnected("it takes no links any more")
        life, identity = target.life, target.peer.identity()
        self._met = identity
        self._admit(target)
        reached = await self._network.travel(target.name, source.name, self._random)
        if not reached or life.over or target.stopping:
            raise Disconnected("the connection broke")
        return identity, Wire(source, target, address=self._target.address, wiring=self._wiring, random=self._random)

    def _admit(self, target: SimulatedNode) -> None:
        """
        Raises:
            ShoalError: the target does not take this node, or is linked under another address, which the dialler sees.
        """
        there = target.peer.identity().node
        for member in self._source.peer.quorum.members.all:
            if member.outlet is not None and member.node == there and member.address != self._target.address:
                raise PeerRefused(f"{self._target.address} is linked as {member.address}. Nothing was written.", reason="twice")
        try:
            target.life.run(target.peer.admit, self._source.peer.identity())
        except Fenced:
            self._life.check()
            raise Disconnected("the connection broke") from None

    async def _hold(self, identity: Identity, wire: Wire) -> None:
        peer = self._source.peer
        self._wiring.trace.note(self._source.name, "is linked to", self._target.name)
        try:
            peer.linked(identity, wire)
            await wire.broken.wait()
            await self._source.running()
        finally:
            if not self._life.over:  # What a dead node had sent still arrives.
                wire.sever()
                peer.unlinked(identity, wire)

    def _delay_s(self, failures: int) -> float:
        bound_s = min(self._source.config.reconnect_delay_s_max, DELAY_S_FIRST * (1 << min(failures - 1, _SLOWEST)))
        return self._random.uniform(0.0, bound_s)
