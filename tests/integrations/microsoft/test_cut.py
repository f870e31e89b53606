"""A session and a workflow that two nodes have continued while they were cut off from each other."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from agent_framework import Message, WorkflowCheckpoint

from shoal.integrations.microsoft import ShoalCheckpointStorage, ShoalHistoryProvider
from tests.integrations.cutting import both, pair, until

RUNS = 3


def run_of(name: str, nth: int) -> list[Message]:
    return [Message("user", [f"{name} asks {nth}"]), Message("assistant", [f"{name} answers {nth}"])]


@pytest.mark.answers("two-nodes-that-are-cut-off-from-each-other")
async def test_the_turns_of_each_run_stay_together(tmp_path: Path) -> None:
    async with pair(tmp_path) as nodes:
        one, other = ShoalHistoryProvider(nodes.one), ShoalHistoryProvider(nodes.other)
        await one.save_messages("s", [Message("user", ["hello"])])
        await until(partial(other.get_messages, "s"), lambda found: len(found) == 1)
        await nodes.cut()
        for nth in range(RUNS):
            await one.save_messages("s", run_of("one", nth))
            await other.save_messages("s", run_of("other", nth))
        await nodes.heal()
        whole = 1 + 2 * 2 * RUNS
        healed = await both(
            [partial(each.get_messages, "s") for each in (one, other)],
            lambda found: len(found) == whole,
        )
        texts = [[message.text for message in found] for found in healed]
        assert texts[0] == texts[1]
        asked, answered = texts[0][1::2], texts[0][2::2]
        assert answered == [text.replace("asks", "answers") for text in asked]
        for name in ("one", "other"):
            assert [text for text in asked if text.startswith(f"{name} ")] == [f"{name} asks {nth}" for nth in range(RUNS)]


@pytest.mark.answers("two-nodes-that-are-cut-off-from-each-other")
async def test_both_chains_of_checkpoints_are_there(tmp_path: Path) -> None:
    async with pair(tmp_path) as nodes:
        storages = ShoalCheckpointStorage(nodes.one), ShoalCheckpointStorage(nodes.other)
        first = WorkflowCheckpoint(workflow_name="flow", graph_signature_hash="h", checkpoint_id="first")
        await storages[0].save(first)
        listing = [partial(storage.list_checkpoints, workflow_name="flow") for storage in storages]
        await until(listing[1], lambda found: len(found) == 1)
        await nodes.cut()
        before = {"one": "first", "other": "first"}
        for nth in range(RUNS):
            for name, storage in zip(before, storages, strict=True):
                made = WorkflowCheckpoint(
                    workflow_name="flow",
                    graph_signature_hash="h",
                    checkpoint_id=f"{name}-{nth}",
                    previous_checkpoint_id=before[name],
                    state={"by": name, "n": nth},
                )
                await storage.save(made)
                before[name] = made.checkpoint_id
        await nodes.heal()
        for found in await both(listing, lambda found: len(found) == 1 + 2 * RUNS):
            by_id = {checkpoint.checkpoint_id: checkpoint for checkpoint in found}
            for name in before:
                chain, at = [], f"{name}-{RUNS - 1}"
                while at != "first":
                    chain.append((by_id[at].state["by"], by_id[at].state["n"]))
                    at = by_id[at].previous_checkpoint_id or ""
                assert chain == [(name, nth) for nth in reversed(range(RUNS))]
