"""Sequences of faults that break what each of them alone cannot: a disk lost, and a cut; an old copy, and what was erased.

Laws are those of `chaos.faults`. Which node does what, how long each gap is and how a cut is
made is drawn anew at each strike. A sequence adds deeds of its own to the ledger, so that the
judge sees whether what it was made to break holds.
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from typing import ClassVar

import shoal
from chaos.cluster import Node
from chaos.faults import CUT_S_MAX, DOWN_S_MAX, Clone, CutOff, Fault, Kill, Pause, Stage, StaleCopy, Strike, Wipe
from chaos.ledger import WORK, Deed
from shoal.config import Config
from shoal.errors import NotFound, ShoalError
from shoal.protocol.requests import Durability

SWEPT_S_MAX = 10.0
"""How long a sequence waits for what was pruned to be gone; it goes on all the same."""

_GAP_S = 1.0
_TRY_S = 2.0
_BLOB = "an observation that only one checkpoint had. "


class StepWipeCut:
    """A step is begun with two of three; one of them loses its disk, the other is cut off; the third begins it again."""

    name: ClassVar[str] = "step-wipe-cut"
    loses_disks: ClassVar[bool] = True

    async def strike(self, stage: Stage) -> Strike:
        cluster, network, desk = stage.cluster, stage.cluster.network, stage.desk
        writer, witness, *others = stage.order()
        thread, key = "composed", f"step-{desk.number()}"
        for other in others:
            network.isolate(other.name, stage.how())
        await stage.gap(_GAP_S)
        await desk.step_through(writer, thread, key, within_s=_TRY_S, dies=stage.random.random() < 0.5)
        began_s = cluster.now_s()
        await cluster.kill(witness)
        cluster.wipe(witness)
        network.heal()
        network.isolate(writer.name, stage.how())
        await stage.gap(_GAP_S)
        lifted_s = cluster.now_s()
        await cluster.launch(witness)
        for node in (*others, witness):
            await stage.gap(_GAP_S)
            await desk.step_through(node, thread, key, within_s=_TRY_S)
        network.heal()
        await stage.learn(witness)
        await desk.step_through(witness, thread, key, within_s=_TRY_S)
        return Strike(self.name, witness.name, began_s, lifted_s, cluster.now_s())


class CopyPruneCut:
    """A copy is made, others prune the head that it holds, it is put back, cut off, and saved on what is gone elsewhere."""

    name: ClassVar[str] = "copy-prune-cut"
    loses_disks: ClassVar[bool] = True

    async def strike(self, stage: Stage) -> Strike:
        cluster, network, desk = stage.cluster, stage.cluster.network, stage.desk
        restored, other, *_ = stage.order()
        thread = f"pruned-{desk.number()}"
        blob = [f"{_BLOB}{thread} {nth}" for nth in range(200)]
        await self._save(stage, other, thread, {"number": 1, "blob": blob}, durability="all", owed=False)
        await cluster.kill(restored)
        copy = cluster.copy(restored)
        await cluster.start(restored)
        await self._save(stage, other, thread, {"number": 2}, durability="all")
        await self._erase(stage, other, thread)
        began_s = cluster.now_s()
        await cluster.kill(restored)
        cluster.put_back(restored, copy)
        if stage.random.random() < 0.5:
            network.isolate(restored.name, stage.how())
        lifted_s = cluster.now_s()
        await cluster.launch(restored)
        await stage.gap(_GAP_S)
        state = {"number": desk.number(), "blob": blob}
        await self._save(stage, restored, thread, state, durability=stage.random.choice(("local", "quorum")))
        network.isolate(stage.random.choice(cluster.nodes).name, stage.how())
        await stage.gap(CUT_S_MAX / 2)
        await self._save(stage, restored, thread, state | {"number": desk.number()}, durability="quorum")
        network.heal()
        await stage.learn(restored)
        await self._save(stage, restored, thread, state | {"number": desk.number()}, durability="all")
        return Strike(self.name, restored.name, began_s, lifted_s, cluster.now_s())

    async def _erase(self, stage: Stage, node: Node, thread: str) -> None:
        with suppress(ShoalError):  # What cannot be pruned now makes the sequence harmless, not wrong.
            async with shoal.connect(node.url, durability="quorum") as store:
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
            async with asyncio.timeout(3 * _TRY_S), shoal.connect(node.url, durability=durability, config=config) as store:
                try:
                    handle = store.space(WORK).thread(thread)
                    with suppress(NotFound):
                        await handle.load()  # What is saved then builds on what this node has.
                    saved = await handle.save(state, on_conflict="fork")
                except ShoalError as error:
                    stage.desk.note(Deed("save", thread, "", number, "unknown", error.code, node.name))
                    return
                stage.desk.note(Deed("save", thread, saved.id, number, "yes" if owed else "unknown", node=node.name))


class WipeKill:
    """A node loses its disk, and while it learns another is killed, and later cut off."""

    name: ClassVar[str] = "wipe-kill"
    loses_disks: ClassVar[bool] = True

    async def strike(self, stage: Stage) -> Strike:
        cluster, network = stage.cluster, stage.cluster.network
        wiped, killed, *_ = stage.order()
        began_s = cluster.now_s()
        await cluster.kill(wiped)
        cluster.wipe(wiped)
        await stage.gap(_GAP_S)
        lifted_s = cluster.now_s()
        await cluster.launch(wiped)
        await stage.gap(_GAP_S / 2)
        await cluster.kill(killed)
        await stage.gap(DOWN_S_MAX)
        await cluster.launch(killed)
        if stage.random.random() < 0.5:
            network.isolate(stage.random.choice((wiped, killed)).name, stage.how())
            await stage.gap(CUT_S_MAX / 2)
            network.heal()
        await stage.learn(wiped)
        await cluster.admitted(killed)
        return Strike(self.name, wiped.name, began_s, lifted_s, cluster.now_s())


class Storm:
    """Moves in an order that is drawn: cuts, pauses and kills of any node, and of disks one after the other."""

    name: ClassVar[str] = "storm"
    loses_disks: ClassVar[bool] = True

    async def strike(self, stage: Stage) -> Strike:
        cluster, network, random = stage.cluster, stage.cluster.network, stage.random
        began_s, node = cluster.now_s(), stage.order()[0]
        copy, lost = None, False
        for _ in range(random.randint(3, 8)):
            match random.choice(("cut", "flap", "heal", "kill", "copy", "wipe", "put back", "learn")):
                case "cut":
                    network.cut(random.sample(network.routes, random.randint(1, len(network.routes))), stage.how())
                case "flap":
                    network.isolate(random.choice(cluster.nodes).name, stage.how())
                case "heal":
                    network.heal()
                case "kill":
                    await self._restart(stage, random.choice(cluster.nodes))
                case "copy" if not lost and copy is None:
                    await cluster.kill(node)
                    copy = cluster.copy(node)
                    await cluster.launch(node)
                case "wipe" if not lost:
                    await self._restart(stage, node, wiped=True)
                    lost = True
                case "put back" if not lost and copy is not None:
                    await cluster.kill(node)
                    cluster.put_back(node, copy)
                    await cluster.launch(node)
                    copy, lost = None, True
                case "learn" if lost:
                    network.heal()
                    await stage.learn(node)
                    lost = False
                case _:
                    pass
            await stage.gap(2 * _GAP_S)
        network.heal()
        if copy is not None:
            shutil.rmtree(copy)
        lifted_s = cluster.now_s()
        if lost:
            await stage.learn(node)
        for each in cluster.nodes:
            await cluster.admitted(each)
        return Strike(self.name, node.name, began_s, lifted_s, cluster.now_s())

    async def _restart(self, stage: Stage, node: Node, *, wiped: bool = False) -> None:
        await stage.cluster.kill(node)
        if wiped:
            stage.cluster.wipe(node)
        await stage.gap(_GAP_S)
        await stage.cluster.launch(node)


SINGLE: tuple[type[Fault], ...] = (Kill, Pause, CutOff, Wipe, StaleCopy, Clone)
COMPOSED: tuple[type[Fault], ...] = (StepWipeCut, CopyPruneCut, WipeKill, Storm)

FAULTS: dict[str, type[Fault]] = {fault.name: fault for fault in (*SINGLE, *COMPOSED)}

GROUPS: dict[str, tuple[str, ...]] = {
    "composed": tuple(fault.name for fault in COMPOSED),
    "every": tuple(FAULTS),
}
"""Names that stand for several."""
