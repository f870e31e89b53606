"""The part of the workload that writes notes beside labels, and drops them."""

from __future__ import annotations

from typing import cast

from simulation.judging.obligations import Losses
from simulation.parts.labels import Labels
from simulation.parts.part import Told
from simulation.workload.agents import Agents
from simulation.world.cluster import SimulatedCluster
from tests.simulation.test_parts import CALM, broken, carry_out, scene


def test_notes_that_are_lost_unknown_or_shown_again_are_found() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> list[list[str]]:
        part = cast(Labels, agents.parts["labels"])
        await carry_out(agents, "annotate", 9)
        found = [await broken(cluster, agents, "labels")]
        label = part.labels[0]
        told = Told("local", "n1", 1.0)
        label.notes[99] = told
        found.append(await broken(cluster, agents, "labels"))
        del label.notes[99]
        first = next(iter(label.notes))
        was = label.notes.pop(first)
        found.append(await broken(cluster, agents, "labels"))
        label.notes[first] = was
        label.is_dropped, label.dropped, label.is_doubtful = True, told, False
        found.append(await broken(cluster, agents, "labels"))
        return found

    assert scene(work) == [[], ["3"], ["10"], ["15"]]


def test_notes_that_were_dropped_are_owed_no_more_and_no_disk_may_hold_them() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> tuple[list[str], int, int]:
        part = cast(Labels, agents.parts["labels"])
        await carry_out(agents, "annotate", 9)
        await carry_out(agents, "unlabel", 3)
        dropped = [label for label in part.labels if label.dropped is not None]
        sure = [label for label in dropped if not label.is_doubtful]
        return await broken(cluster, agents, "labels"), len(dropped), len(sure) - len(part.erased(Losses(CALM)))

    found, dropped, unlisted = scene(work)
    assert (found, unlisted) == ([], 0)
    assert dropped
