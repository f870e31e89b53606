"""Steps: agents cause effects outside, die in the middle of them, and others go on.

Laws (invariant 14):
- An effect is not repeated: nobody calls again what may have happened, until a human
  who looked outside says that it did not.
- A step that anybody was told is done is done, with the result that was stored first;
  one whose effect happened is done or unresolved, and nothing else.
- `resume` shows every step whose effect happened before, if it says that a quorum confirmed what it shows.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection
from itertools import count
from random import Random
from typing import NamedTuple

from shoal import values
from shoal.errors import ShoalError, StepFailed, StepSettled, StepUnresolved
from shoal.protocol import requests
from shoal.protocol.requests import BeginStep, EndStep, ResolveStep
from shoal.protocol.session import Session
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.part import Bench, Deeds, Told
from simulation.plan import Act, ActKind
from simulation.workload.random_agents import SPACE

EFFECT = "14"

_WINDOW_S = 2.0  # In each a new step is there to be done: agents that act at once meet at one that nobody has begun.
_LATER = 0.3  # The share of the acts that go on with an earlier one.
_CALL_S = 0.4


class Place(NamedTuple):
    thread: str
    key: str


class _Died(BaseException):
    """The agent's process is gone, in the middle of a call."""


class _Broke(Exception):
    """The call failed before it had any effect."""


class Steps:
    """`effects` are those that happened, in the world outside."""

    kinds: tuple[ActKind, ...] = ("step", "settle-steps")

    def __init__(self) -> None:
        self.effects: defaultdict[Place, list[int]] = defaultdict(list)
        self.done: defaultdict[Place, list[tuple[int, Told]]] = defaultdict(list)  # Results that agents were told.
        self.overlooked: list[
            tuple[str, Told]
        ] = []  # Effects that an agent was told do not exist, and how durable their intents were.
        self.busy: Counter[Place] = Counter()  # By agents that live: no human takes them for dead.
        self.numbers = count(1)

    def deeds(self, bench: Bench) -> Deeds:
        agent = _Agent(self, bench)
        return {"step": agent.step, "settle-steps": agent.settle}

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        found = [Violation(EFFECT, text) for text, told in self.overlooked if told.is_owed(losses)]
        for thread in sorted({place.thread for place in self.effects | self.done}):
            steps = {step.key: step async for step in _listed(session, thread)}
            open_ones = {step.key async for step in _listed(session, thread, only_open=True)}
            for key, step in steps.items():
                if (step.state == "open") != (key in open_ones):
                    found.append(Violation(EFFECT, f"step {key} of {thread} is {step.state}, and listed otherwise"))
            for place in sorted(self.effects.keys() | self.done.keys()):
                if place.thread == thread:
                    found += self._judged(place, steps.get(place.key), losses)
        return found

    def erased(self, losses: Losses) -> Collection[bytes]:
        return ()

    def _judged(self, place: Place, step: requests.Step | None, losses: Losses) -> list[Violation]:
        state = "not there" if step is None else step.state
        found = []
        if self.effects[place] and state not in ("done", "open"):
            found.append(Violation(EFFECT, f"step {place.key} of {place.thread} has had its effect, and is {state}"))
        for result, told in self.done[place]:
            if told.is_owed(losses) and (step is None or step.state != "done" or values.decode(step.result) != result):
                text = (
                    f"step {place.key} of {place.thread} was done with {result}, acknowledged {told.durability}, and is {state}"
                )
                found.append(Violation("3", text))
        return found


class _Agent:
    def __init__(self, steps: Steps, bench: Bench) -> None:
        self._steps = steps
        self._bench = bench
        self._thread = bench.space.thread(bench.name)
        self._known: dict[str, int] = {}  # Results that this session was told.

    async def step(self, act: Act, random: Random) -> None:
        place = Place(self._bench.name, self._key(act, random))
        way = random.random()

        async def call() -> int:
            await asyncio.sleep(random.uniform(0, _CALL_S))
            if way < 0.1:
                raise _Broke
            if way < 0.2:
                raise _Died
            number = self._affect(place)
            await asyncio.sleep(random.uniform(0, _CALL_S))
            if way < 0.35:
                raise _Died
            return number

        async def carry_out() -> None:
            result = await self._thread.step("effect", key=place.key, call=call)
            self._told(place, result)

        self._steps.busy[place] += 1
        try:
            await self._bench.send(act, random, carry_out, of=random.choice((BeginStep, EndStep)))
        except (_Died, _Broke, StepUnresolved, StepFailed) as end:
            self._bench.did(f"not the step {place.key}, for {type(end).__name__.strip('_')},")
        except ShoalError as error:
            self._bench.refused(error)
            raise
        finally:
            self._steps.busy[place] -= 1

    def _key(self, act: Act, random: Random) -> str:
        if act.as_of is not None:
            return f"step-{int(act.as_of / _WINDOW_S)}"
        newest = int(act.at / _WINDOW_S)
        return f"step-{random.randint(0, newest) if random.random() < _LATER else newest}"

    def _affect(self, place: Place) -> int:
        number = next(self._steps.numbers)
        if before := self._steps.effects[place]:
            self._bench.violated(EFFECT, f"the effect of {place.key} happens again, after {before[0]}")
        before.append(number)
        self._bench.did(f"effect {number} for step {place.key}")
        return number

    def _told(self, place: Place, result: int) -> None:
        self._bench.did(f"the step {place.key} with {result}")
        if result not in self._steps.effects[place]:
            self._bench.violated("10", f"step {place.key} came to {result}, which is nobody's result")
        if self._known.setdefault(place.key, result) != result:
            self._bench.violated(EFFECT, f"step {place.key} came to {self._known[place.key]}, and then to {result}")
        self._steps.done[place].append((result, self._bench.told()))

    async def settle(self, act: Act, random: Random) -> None:
        """A human looks at what is unresolved, and outside."""
        happened = [place for place, effects in self._steps.effects.items() if effects and place.thread == self._bench.name]
        before = {place.key: self._bench.told("quorum") for place in happened}
        try:
            confirmed = (await self._thread.resume()).reason.quorum
            there = {record.key: record async for record in self._thread.steps()}
        except ShoalError as error:
            self._bench.refused(error)
            raise
        for key, result in self._known.items():
            if key not in there or there[key].state != "done" or there[key].result != result:
                self._bench.violated("7", f"this session was told that {key} came to {result}, and is shown otherwise")
        for key in sorted(before.keys() - there.keys()) if confirmed else ():
            asked = f"{self._bench.client.name} was told by {self._bench.client.at}"
            text = f"{asked} that a quorum knows no step {key}, whose effect had happened"
            self._steps.overlooked.append((text, before[key]))
        for record in there.values():
            place = Place(self._bench.name, record.key)
            if record.state == "open" and not self._steps.busy[place]:
                await self._settle(act, random, place)

    async def _settle(self, act: Act, random: Random, place: Place) -> None:
        happened = self._steps.effects[place]

        async def resolve() -> None:
            if happened:
                await self._thread.resolve(place.key, "result", value=happened[0], by="human", durability=act.durability)
                self._steps.done[place].append((happened[0], self._bench.told(act.durability)))
                self._bench.did(f"as a human: {happened[0]} is the result of {place.key}")
            else:
                await self._thread.resolve(place.key, "retry", by="human", durability=act.durability)
                self._bench.did(f"as a human: {place.key} is free again")

        self._steps.busy[place] += 1
        try:
            await self._bench.send(act, random, resolve, of=ResolveStep)
        except StepSettled:
            pass
        except ShoalError as error:
            self._bench.refused(error)
            raise
        finally:
            self._steps.busy[place] -= 1


async def _listed(session: Session, thread: str, *, only_open: bool = False) -> AsyncIterator[requests.Step]:
    after = ""
    while True:
        page = await session.call(requests.ListSteps(SPACE, thread, only_open, after))
        for step in page.items:
            yield step
        if not page.more:
            return
        after = page.items[-1].position
