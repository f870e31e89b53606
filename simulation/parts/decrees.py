"""Keys of the quorum register, which agents read and change on several nodes.

Laws:
- Operations are linearizable (8): `simulation.judging.linearity` explains what clients were told, or there is no explanation.
- Healed, each node reads each key, and shows what the last change left (9).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection
from random import Random

from shoal.cluster.consensus.ballots import ID_BYTES
from shoal.errors import NoQuorum, OutcomeUnknown, RegisterChanged, ShoalError
from shoal.node.consensus.quorum_register import Versioned
from shoal.protocol.session import Session
from simulation.judging.linearity import Operation, broken
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.part import Bench, Deeds
from simulation.plan import Act, ActKind
from simulation.world.client import Client

_SERVES_S_MAX = 20.0
"""Healed, the register answers within this virtual time."""

_ATTEMPTS_MAX = 3  # Of a change that is repeated, with its id, while its outcome is unknown.


class Decrees:
    """All operations, by key."""

    kinds: tuple[ActKind, ...] = ("change-decree", "read-decree")

    def __init__(self) -> None:
        self.operations: defaultdict[str, list[Operation]] = defaultdict(list)
        self._client: Client | None = None
        self._numbers = 0

    def deeds(self, bench: Bench) -> Deeds:
        self._client = self._client or bench.client
        agent = _Agent(self, bench)
        return {"change-decree": agent.change, "read-decree": agent.read}

    def begun(self, key: str, *, expected: int = -1) -> Operation:
        """A new operation: a change, if it expects a version."""
        self._numbers += expected >= 0
        operation = Operation(self._numbers if expected >= 0 else 0, expected, _now())
        self.operations[key].append(operation)
        return operation

    def erased(self, losses: Losses) -> Collection[bytes]:
        return ()

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        """Of all nodes at once: the first time that it is asked, of any."""
        client, self._client = self._client, None
        if client is None:
            return []
        found: list[Violation] = []
        for key in sorted(self.operations):
            for node in client.cluster.hosts:
                found += await self._last_read(client, key, node) if not found else ()
            found += [Violation("8", f"{key}: {what}") for what in broken(self.operations[key])]
        return found

    async def _last_read(self, client: Client, key: str, node: str) -> list[Violation]:
        ends_at = _now() + _SERVES_S_MAX
        while True:
            operation = self.begun(key)
            try:
                show(operation, await client.within(node, lambda node: node.register.read(key)))
            except (NoQuorum, OutcomeUnknown) as error:
                if _now() < ends_at:
                    continue
                return [Violation("9", f"healed, {node} cannot read {key}: {error.message}")]
            return []


class _Agent:
    def __init__(self, decrees: Decrees, bench: Bench) -> None:
        self._decrees = decrees
        self._bench = bench
        self._key = bench.name
        self._version = 0  # Seen last.

    async def read(self, act: Act, random: Random) -> None:
        operation = self._decrees.begun(self._key)
        try:
            found = await self._within(random, operation)
        except ShoalError as error:
            self._bench.refused(error)
            raise
        show(operation, found)
        self._version = found.version
        self._bench.did(f"read version {found.version}")

    async def change(self, act: Act, random: Random) -> None:
        """Change what it saw last, or a version before; repeat it elsewhere while the outcome is unknown, or for no reason."""
        if random.random() < 0.5:
            await self.read(act, random)
        expected = max(0, self._version - (random.random() < 0.1))
        operation = self._decrees.begun(self._key, expected=expected)
        id = operation.number.to_bytes(ID_BYTES, "big")
        for nth in range(_ATTEMPTS_MAX):
            try:
                made = await self._within(random, operation, id if nth or act.repeat else None)
            except RegisterChanged as error:
                found = error.detail["version"]
                assert isinstance(found, int)
                operation.outcome, operation.version, operation.ended_s = "refused", found, _now()
                self._version = found
                return
            except NoQuorum as error:
                operation.outcome, operation.ended_s = "denied", _now()
                self._bench.refused(error)
                raise
            except OutcomeUnknown as error:
                self._bench.refused(error)
                if not act.repeat:
                    raise
            except ShoalError as error:
                if not nth:
                    operation.outcome, operation.ended_s = "denied", _now()
                self._bench.refused(error)
                raise
            else:
                if operation.outcome == "made" and operation.version != made.version:
                    self._bench.violated("8", f"change {operation.number} made versions {operation.version} and {made.version}")
                operation.outcome, operation.version, operation.ended_s = "made", made.version, _now()
                self._version = made.version
                self._bench.did(f"change {operation.number} to version {made.version}")
                if not act.repeat or nth:
                    return

    async def _within(self, random: Random, operation: Operation, id: bytes | None = None) -> Versioned:
        """On any node."""
        client, key = self._bench.client, self._key
        node = random.choice(list(client.cluster.hosts))
        if not operation.number:
            return await client.within(node, lambda node: node.register.read(key))
        content = b"%d" % operation.number
        return await client.within(node, lambda node: node.register.change(key, operation.expected, content, id=id))


def show(operation: Operation, found: Versioned) -> None:
    """Take note of what a read showed."""
    operation.outcome, operation.version, operation.ended_s = "shown", found.version, _now()
    operation.content = int(found.content or b"0")


def _now() -> float:
    return asyncio.get_running_loop().time()
