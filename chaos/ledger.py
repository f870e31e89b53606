"""What workers caused, and what each node holds of it: what must have happened once, or not at all.

Laws:
- A deed is noted when its outcome is known: "yes" was acknowledged, "no" was refused
  with nothing written, "unknown" is either. An effect is noted when it happens.
- Each add has a bit of its counter to itself, so that one that was lost cannot hide
  behind another of unknown outcome.
- Nothing here asks a node for more than one that is alone can tell.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from shoal.client.store import Store

WORK = "work"
"""The space of what is noted here: `Found` is of another."""

JOBS = "jobs"
"""The worklist of each thread that has one."""

Kind = Literal["effect", "step", "add", "grant", "spend", "put", "done", "save", "read"]
Outcome = Literal["yes", "no", "unknown"]


class Deed(msgspec.Struct, frozen=True):
    """`name` is the object's; `key` the step's, the item's or the checkpoint's; `value` the amount, or the result."""

    kind: Kind
    name: str
    key: str = ""
    value: int = 0
    outcome: Outcome = "yes"
    code: str = ""  # Of the error, if there was one.
    node: str = ""  # The nodes that the client knew.


class Step(msgspec.Struct):
    state: str
    result: int | None


class Holding(msgspec.Struct):
    """What one node holds of the workers' space."""

    counters: dict[str, int] = {}
    budgets: dict[str, tuple[int, int]] = {}  # Granted, spent.
    steps: dict[str, dict[str, Step]] = {}  # By thread, by key.
    jobs: dict[str, dict[str, str]] = {}  # By thread, by key: who did it; "" if nobody did.
    saves: dict[str, dict[str, int]] = {}  # By thread, by checkpoint: what it was made of.


class Broken(NamedTuple):
    invariant: str
    what: str
    culprit: str


async def hold(store: Store, deeds: Sequence[Deed]) -> Holding:
    """Read from one node all that deeds are about."""
    held, space = Holding(), store.space(WORK)
    async for name in space.counters():
        held.counters[name] = await space.counter(name).value()
    async for name in space.budgets():
        rights = await space.budget(name).rights()
        held.budgets[name] = rights.granted, rights.spent
    async for name in space.threads():
        thread = space.thread(name)
        held.steps[name] = {step.key: Step(step.state, step.result) async for step in thread.steps()}
        jobs = held.jobs[name] = {}
        async for item in thread.worklist(JOBS).pending():
            jobs[item.key] = ""
        async for item in thread.worklist(JOBS).finished():
            jobs[item.key] = item.done[0].by
    for deed in deeds:
        if deed.kind == "save" and deed.outcome == "yes":
            saved = await space.thread(deed.name).load(deed.key)
            held.saves.setdefault(deed.name, {})[deed.key] = saved.state["number"]
    return held


def broken_by(deeds: Sequence[Deed], held: Holding) -> Iterator[Broken]:
    """What one node holds against what was done."""
    yield from _steps(deeds, held)
    yield from _adds(deeds, held)
    yield from _budgets(deeds, held)
    yield from _jobs(deeds, held)
    for deed in deeds:
        if deed.kind == "save" and deed.outcome == "yes" and held.saves.get(deed.name, {}).get(deed.key) != deed.value:
            yield Broken("3", "acknowledged, then lost", f"save {deed.key[:16]} of thread {deed.name} in space {WORK}")


def broken_anywhere(deeds: Sequence[Deed], holdings: Mapping[str, Holding]) -> Iterator[Broken]:
    """What no node need be asked about, and what nodes hold differently."""
    happened = Counter((deed.name, deed.key) for deed in deeds if deed.kind == "effect")
    for (name, key), times in happened.items():
        if times > 1:
            yield Broken("14", "an effect was repeated", f"step {key} of thread {name} in space {WORK}, {times} times")
    if len({msgspec.json.encode(held, order="deterministic") for held in holdings.values()}) > 1:
        yield Broken("4", "replicas differ", "in what the workers did")


def _steps(deeds: Sequence[Deed], held: Holding) -> Iterator[Broken]:
    happened = {(deed.name, deed.key): deed.value for deed in deeds if deed.kind == "effect"}
    told = {(deed.name, deed.key): deed.value for deed in deeds if deed.kind == "step" and deed.outcome == "yes"}
    for name, key in happened.keys() | told.keys():
        step = held.steps.get(name, {}).get(key)
        state = "not there" if step is None else step.state
        if state not in ("open", "done"):
            yield Broken(
                "14", "an effect happened, and its step is free", f"step {key} of thread {name} in space {WORK} is {state}"
            )
        elif (name, key) in told and (step is None or step.result != told[name, key]):
            yield Broken(
                "3", "acknowledged, then lost", f"the result of step {key} of thread {name} in space {WORK}, which is {state}"
            )


def _adds(deeds: Sequence[Deed], held: Holding) -> Iterator[Broken]:
    certain, possible = defaultdict[str, int](int), defaultdict[str, int](int)
    for deed in deeds:
        if deed.kind == "add" and deed.outcome != "no":
            possible[deed.name] |= deed.value
            certain[deed.name] |= deed.value if deed.outcome == "yes" else 0
    for name in possible.keys() | held.counters.keys():
        value = held.counters.get(name, 0)
        if certain[name] & ~value or value & ~possible[name]:
            lost = _bits(certain[name] & ~value)
            invented = _bits(value & ~possible[name])
            text = f"counter {name} in space {WORK} holds {value:#x}: adds {lost} are missing, adds {invented} were never made"
            yield Broken("5", "a counter does not add up", text)


def _bits(adds: int) -> str:
    """The numbers of the bits that are set: each add has one of its own."""
    return ", ".join(str(bit) for bit in range(adds.bit_length()) if adds >> bit & 1) or "none"


def _budgets(deeds: Sequence[Deed], held: Holding) -> Iterator[Broken]:
    sums = defaultdict[tuple[str, str, bool], int](int)
    for deed in deeds:
        if deed.kind in ("grant", "spend") and deed.outcome != "no":
            sums[deed.name, deed.kind, deed.outcome == "yes"] += deed.value
    for name in {name for name, _, _ in sums} | held.budgets.keys():
        granted, spent = held.budgets.get(name, (0, 0))
        if spent > granted:
            yield Broken("17", "a budget is overspent", f"budget {name} in space {WORK}: {spent} of {granted}")
        for kind, value in (("grant", granted), ("spend", spent)):
            certain = sums[name, kind, True]
            if not certain <= value <= certain + sums[name, kind, False]:
                text = f"{kind}s of budget {name} in space {WORK} are {value}: {certain} are certain, "
                text += f"{sums[name, kind, False]} more possible"
                yield Broken("17", "a budget does not add up", text)


def _jobs(deeds: Sequence[Deed], held: Holding) -> Iterator[Broken]:
    for deed in deeds:
        if deed.kind not in ("put", "done"):
            continue
        by = held.jobs.get(deed.name, {}).get(deed.key)
        if deed.outcome == "yes" and (by is None or (deed.kind == "done" and not by)):
            yield Broken(
                "16",
                "an item was lost",
                f"item {deed.key} of worklist {JOBS}, thread {deed.name} in space {WORK}, {deed.kind} and acknowledged",
            )
        if deed.kind == "put" and deed.outcome == "no" and by is not None:
            yield Broken(
                "13",
                "refused with nothing written, yet there",
                f"item {deed.key} of worklist {JOBS}, thread {deed.name} in space {WORK}",
            )
