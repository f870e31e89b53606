"""Registers that agents set by `compare_and_set`, on several nodes, each to a number of its own.

Laws:
- All calls for one register are linearizable (8): each value was set once, on the value before it, in one order that does not
  contradict time. `simulation.judging.linearity` explains what clients were told, or there is no explanation.
- Healed, each node carries out such a call within bounded time (9).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from random import Random

from shoal import values
from shoal.errors import NotAMember, OutcomeUnknown, RegisterChanged, ShoalError
from shoal.protocol.requests import CompareAndSet
from shoal.protocol.session import Session
from simulation.judging.linearity import Operation, broken
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.part import Bench, Deeds
from simulation.plan import Act, ActKind
from simulation.workload.random_agents import SPACE

_SERVES_S_MAX = 40.0
"""Healed, a register is compared within this virtual time, although nodes died with its lease."""

_NOBODY = -1  # What no register is: a call that expects it is told the value.


class Elections:
    """All calls, by register. An operation's `expected` and `content` are values here; the judge makes versions of them."""

    kinds: tuple[ActKind, ...] = ("elect", "ask-who-leads")

    def __init__(self) -> None:
        self.operations: defaultdict[str, list[Operation]] = defaultdict(list)
        self.numbers = 0

    def deeds(self, bench: Bench) -> Deeds:
        agent = _Agent(self, bench)
        return {"elect": agent.elect, "ask-who-leads": agent.ask}

    def begun(self, register: str, *, expected: int = _NOBODY) -> Operation:
        """A new operation: it sets the register if it expects a value, and else asks for it."""
        self.numbers += expected != _NOBODY
        operation = Operation(0 if expected == _NOBODY else self.numbers, expected, _now())
        self.operations[register].append(operation)
        return operation

    def erased(self, losses: Losses) -> Collection[bytes]:
        return ()

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        found: list[Violation] = []
        for register, operations in sorted(self.operations.items()):
            found += await self._asked(session, register)
            if losses.spare("quorum", "", 0.0):
                found += [Violation("8", f"{register}: {what}") for what in broken(versioned(operations))]
        return found

    async def _asked(self, session: Session, register: str) -> list[Violation]:
        ends_at = _now() + _SERVES_S_MAX
        while True:
            operation = self.begun(register)
            nobody = values.encode(_NOBODY)
            try:
                await session.call(CompareAndSet(SPACE, register, nobody, nobody))
            except RegisterChanged as error:
                show(operation, error)
                return []
            except ShoalError as error:
                if _now() >= ends_at:
                    return [Violation("9", f"healed, {register} cannot be compared: {error.message}")]
                await asyncio.sleep(0.1)


class _Agent:
    def __init__(self, elections: Elections, bench: Bench) -> None:
        self._elections = elections
        self._bench = bench
        self._register = bench.space.register(bench.name)
        self._known = 0  # The value that it saw last; 0: none.

    async def ask(self, act: Act, random: Random) -> None:
        """What is the value, on all nodes?"""
        operation = self._elections.begun(self._bench.name)
        try:
            await self._elsewhere(random, _NOBODY, _NOBODY)
        except RegisterChanged as error:
            show(operation, error)
            self._known = operation.content
            self._bench.did(f"see {self._known}")
        except ShoalError as error:
            self._bench.refused(error)
            raise

    async def elect(self, act: Act, random: Random) -> None:
        """Set it, on what was seen last, or on what a node shows."""
        if random.random() < 0.3:
            self._known = await self._register.get(0) or 0
        operation = self._elections.begun(self._bench.name, expected=self._known)
        is_far = random.random() < 0.4

        async def send() -> None:
            for nth in range(1 + (is_far and act.repeat)):
                if is_far:
                    key = f"elect-{operation.number}" if act.repeat else None
                    with suppress(*((OutcomeUnknown,) if act.repeat and not nth else ())):
                        await self._elsewhere(random, operation.expected, operation.number, key)
                        made()
                else:
                    await self._register.compare_and_set(
                        operation.expected or None, operation.number, durability=act.durability
                    )
                    made()

        def made() -> None:
            if operation.outcome != "made":
                operation.outcome, operation.ended_s = "made", _now()

        try:
            if is_far:
                await send()
            else:
                await self._bench.send(act, random, send, of=CompareAndSet)
        except RegisterChanged as error:
            told = replace(operation, number=0, expected=_NOBODY)
            show(told, error)
            self._elections.operations[self._bench.name].append(told)
            if operation.outcome == "made":
                self._bench.violated("8", f"{operation} was refused when it was repeated")
            elif not act.repeat or is_far:  # Otherwise what is sent again may find the value that is expected.
                operation.outcome, operation.ended_s = "denied", _now()
            if told.content == operation.expected:
                self._bench.violated("8", f"{operation} was refused, and expected what there was")
            self._known = told.content
        except ShoalError as error:
            if error.written == "no" and not act.repeat:
                operation.outcome, operation.ended_s = "denied", _now()
            self._bench.refused(error)
            raise
        else:
            self._known = operation.number
            self._bench.did(f"set {operation.number} on {operation.expected}")

    async def _elsewhere(self, random: Random, expected: int, value: int, key: str | None = None) -> None:
        """By a client that has seen nothing, on any node; as clients do, it leaves one that is no member for another."""
        client = self._bench.client
        names = list(client.cluster.hosts)
        chosen = random.choice(names)
        request = CompareAndSet(SPACE, self._bench.name, values.encode(expected or None), values.encode(value))
        for name in [chosen, *(name for name in names if name != chosen)]:
            try:
                await client.within(name, lambda node: node.session().call(request, key=key))
                return
            except NotAMember as error:
                refusal = error
        raise refusal


def show(operation: Operation, error: RegisterChanged) -> None:
    """Take note of the value that a refusal told."""
    shown = error.detail["value"]
    assert isinstance(shown, str)
    operation.outcome, operation.ended_s = "shown", _now()
    operation.content = 0 if shown == "None" else int(shown)


def versioned(operations: list[Operation]) -> list[Operation]:
    """The operations with versions: a value's version is one more than that of the value that its call expected."""
    parents = {each.number: each.expected for each in operations if each.number}

    def version(number: int) -> int:
        found = 0
        while number:
            found, number = found + 1, parents[number]
        return found

    told = {"made": lambda each: version(each.number), "shown": lambda each: version(each.content)}
    return [
        replace(
            each,
            expected=version(each.expected) if each.number else _NOBODY,
            version=told[each.outcome](each) if each.outcome in told else -1,
        )
        for each in operations
    ]


def _now() -> float:
    return asyncio.get_running_loop().time()
