"""Sequences of faults that break what each of them alone cannot: a disk lost, and a cut; an old copy, and what was erased.

Laws are those of `chaos.faults`. Which node does what, how long each gap is and how a cut is
made is drawn anew at each strike. A sequence adds deeds of its own to the ledger, so that the
judge sees whether what it was made to break holds.
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path

from chaos.cluster import Node
from chaos.faults import (
    CUT_S_MAX,
    DOWN_S_MAX,
    JUMPS_S,
    OF_LOST_DISKS,
    Clock,
    Clone,
    CutOff,
    Fault,
    Full,
    Kill,
    OneWay,
    Pause,
    Stage,
    StaleCopy,
    Strike,
    Wipe,
    process,
)
from chaos.ledger import WORK, Deed
from chaos.processes import ProcessNode
from shoal.config import Config
from shoal.errors import NotFound, ShoalError
from shoal.protocol.requests import Durability

SWEPT_S_MAX = 10.0
"""How long a sequence waits for what was pruned to be gone; it goes on all the same."""

_GAP_S = 1.0
_TRY_S = 2.0
_BLOB = "an observation that only one checkpoint had. "


class StepWipeCut(Fault):
    """A step is begun with two of three; one of them loses its disk, the other is cut off; the third begins it again."""

    name = "step-wipe-cut"
    loses_disks = True
    told = OF_LOST_DISKS

    async def strike(self, stage: Stage) -> Strike:
        cluster, network, desk = stage.cluster, stage.cluster.network, stage.desk
        writer, witness, *others = stage.order()
        thread, key = "composed", f"step-{desk.number()}"
        for other in others:
            await network.isolate(other.name, stage.how())
        await stage.gap(_GAP_S)
        await desk.step_through(writer, thread, key, within_s=_TRY_S, dies=stage.random.random() < 0.5)
        began_s = cluster.now_s()
        await witness.kill()
        await witness.wipe()
        await network.heal()
        await network.isolate(writer.name, stage.how())
        await stage.gap(_GAP_S)
        lifted_s = cluster.now_s()
        await cluster.launch(witness)
        for node in (*others, witness):
            await stage.gap(_GAP_S)
            await desk.step_through(node, thread, key, within_s=_TRY_S)
        await network.heal()
        await stage.learn(witness)
        await desk.step_through(witness, thread, key, within_s=_TRY_S)
        return Strike(self.name, witness.name, began_s, lifted_s, cluster.now_s())


class CopyPruneCut(Fault):
    """A copy is made, others prune the head that it holds, it is put back, cut off, and saved on what is gone elsewhere."""

    name = "copy-prune-cut"
    loses_disks = True
    told = OF_LOST_DISKS

    async def strike(self, stage: Stage) -> Strike:
        cluster, network, desk = stage.cluster, stage.cluster.network, stage.desk
        first, other, *_ = stage.order()
        restored = process(first)
        thread = f"pruned-{desk.number()}"
        blob = [f"{_BLOB}{thread} {nth}" for nth in range(200)]
        await self._save(stage, other, thread, {"number": 1, "blob": blob}, durability="all", owed=False)
        await restored.kill()
        copy = restored.copy()
        await cluster.start(restored)
        await self._save(stage, other, thread, {"number": 2}, durability="all")
        await self._erase(stage, other, thread)
        began_s = cluster.now_s()
        await restored.kill()
        restored.put_back(copy)
        if stage.random.random() < 0.5:
            await network.isolate(restored.name, stage.how())
        lifted_s = cluster.now_s()
        await cluster.launch(restored)
        await stage.gap(_GAP_S)
        state = {"number": desk.number(), "blob": blob}
        await self._save(stage, restored, thread, state, durability=stage.random.choice(("local", "quorum")))
        await network.isolate(stage.random.choice(cluster.nodes).name, stage.how())
        await stage.gap(CUT_S_MAX / 2)
        await self._save(stage, restored, thread, state | {"number": desk.number()}, durability="quorum")
        await network.heal()
        await stage.learn(restored)
        await self._save(stage, restored, thread, state | {"number": desk.number()}, durability="all")
        return Strike(self.name, restored.name, began_s, lifted_s, cluster.now_s())

    async def _erase(self, stage: Stage, node: Node, thread: str) -> None:
        with suppress(ShoalError):  # What cannot be pruned now makes the sequence harmless, not wrong.
            async with stage.cluster.connect(node.url, durability="quorum") as store:
                await store.space(WORK).thread(thread).prune(keep_last=1)
        await stage.cluster.swept(SWEPT_S_MAX)
        await stage.gap(_GAP_S)

    async def _save(
        self,
        stage: Stage,
        node: Node,
        thread: str,
        state: dict[str, object],
        *,
        durability: Durability,
        owed: bool = True,
    ) -> None:
        """What is acknowledged `local` is owed, too: no disk is lost before all nodes are equal again."""
        number, config = state["number"], Config(request_timeout_s=_TRY_S)
        assert isinstance(number, int)
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(3 * _TRY_S),
                stage.cluster.connect(node.url, durability=durability, config=config) as store,
            ):
                try:
                    handle = store.space(WORK).thread(thread)
                    with suppress(NotFound):
                        await handle.load()  # What is saved then builds on what this node has.
                    saved = await handle.save(state, on_conflict="fork")
                except ShoalError as error:
                    stage.desk.note(Deed("save", thread, "", number, "unknown", error.code, node.name))
                    return
                stage.desk.note(Deed("save", thread, saved.id, number, "yes" if owed else "unknown", node=node.name))


class WipeKill(Fault):
    """A node loses its disk, and while it learns another is killed, and later cut off."""

    name = "wipe-kill"
    loses_disks = True
    told = OF_LOST_DISKS

    async def strike(self, stage: Stage) -> Strike:
        cluster, network = stage.cluster, stage.cluster.network
        wiped, killed, *_ = stage.order()
        began_s = cluster.now_s()
        await wiped.kill()
        await wiped.wipe()
        await stage.gap(_GAP_S)
        lifted_s = cluster.now_s()
        await cluster.launch(wiped)
        await stage.gap(_GAP_S / 2)
        await killed.kill()
        await stage.gap(DOWN_S_MAX)
        await cluster.launch(killed)
        if stage.random.random() < 0.5:
            await network.isolate(stage.random.choice((wiped, killed)).name, stage.how())
            await stage.gap(CUT_S_MAX / 2)
            await network.heal()
        await stage.learn(wiped)
        await cluster.admitted(killed)
        return Strike(self.name, wiped.name, began_s, lifted_s, cluster.now_s())


class Storm(Fault):
    """Moves in an order that is drawn: cuts and kills, a disk that is lost; clocks and full disks where the trial has them."""

    name = "storm"
    loses_disks = True
    told = OF_LOST_DISKS

    async def strike(self, stage: Stage) -> Strike:
        cluster, network, random = stage.cluster, stage.cluster.network, stage.random
        began_s, node = cluster.now_s(), process(stage.order()[0])
        disks = _Disks(stage, node)
        moves = ["cut", "flap", "one way", "heal", "kill", "disk"]
        moves += [fault for fault in (Full.name, Clock.name) if fault in stage.faults]
        for _ in range(random.randint(3, 8)):
            one = process(random.choice(cluster.nodes))
            match random.choice(moves):
                case "cut":
                    await network.cut(random.sample(network.routes, random.randint(1, len(network.routes))), stage.how())
                case "flap":
                    await network.isolate(one.name, stage.how())
                case "one way":
                    await network.deafen(random.choice(network.routes))
                case "heal":
                    await network.heal()
                case "kill":
                    await _restarted(stage, one)
                case "clock":
                    await one.set_clock(random.choice((-1, 0, 1)) * random.choice(JUMPS_S))
                case "full":
                    await disks.fill(one)
                case _:
                    await disks.move()
            await stage.gap(2 * _GAP_S)
        await network.heal()
        for each in cluster.nodes:
            await process(each).set_clock(0.0)
        lifted_s = cluster.now_s()
        await disks.end()
        for each in cluster.nodes:
            await cluster.admitted(each)
        return Strike(self.name, node.name, began_s, lifted_s, cluster.now_s())


class _Disks:
    """Of a storm: one node's disk is lost or set back, once, and later another's is full."""

    def __init__(self, stage: Stage, node: ProcessNode) -> None:
        self._stage = stage
        self._node = node
        self._copy: Path | None = None
        self._lost = False
        self._full: ProcessNode | None = None

    async def move(self) -> None:
        """A move that is drawn of those that are possible now."""
        if self._lost:
            await self._learn()
            return
        match self._stage.random.choice(("copy", "wipe", "put back")):
            case "copy" if self._copy is None:
                await self._node.kill()
                self._copy = self._node.copy()
                await self._stage.cluster.launch(self._node)
            case "put back" if self._copy is not None:
                await self._node.kill()
                self._node.put_back(self._copy)
                self._copy, self._lost = None, True
                await self._stage.cluster.launch(self._node)
            case "wipe":
                self._lost = True
                await _restarted(self._stage, self._node, wiped=True)
            case _:
                pass

    async def fill(self, node: ProcessNode) -> None:
        """Fill a disk, or give the room back if one is full. A node whose copy is to be put back needs the room."""
        if self._full is not None:
            await self._drain()
        elif node is not self._node:
            self._full = node
            await node.fill()

    async def end(self) -> None:
        """All disks have room, and none is lost any more."""
        await self._drain()
        if self._copy is not None:
            shutil.rmtree(self._copy)
        if self._lost:
            await self._learn()

    async def _learn(self) -> None:
        await self._stage.cluster.network.heal()
        await self._drain()  # It learns from all.
        await self._stage.learn(self._node)
        self._lost = False

    async def _drain(self) -> None:
        if self._full is not None:
            await self._full.drain()
            await _restarted(self._stage, self._full)
            self._full = None


async def _restarted(stage: Stage, node: Node, *, wiped: bool = False) -> None:
    await node.kill()
    if wiped:
        await node.wipe()
    await stage.gap(_GAP_S)
    await stage.cluster.launch(node)


SINGLE: tuple[type[Fault], ...] = (Kill, Pause, CutOff, OneWay, Wipe, StaleCopy, Clone, Full, Clock)
COMPOSED: tuple[type[Fault], ...] = (StepWipeCut, CopyPruneCut, WipeKill, Storm)

FAULTS: dict[str, type[Fault]] = {fault.name: fault for fault in (*SINGLE, *COMPOSED)}

GROUPS: dict[str, tuple[str, ...]] = {
    "composed": tuple(fault.name for fault in COMPOSED),
    "every": tuple(FAULTS),
}
"""Names that stand for several."""
