"""A program that is killed: turn by turn it records a step in each of the harness's stores, as its capabilities do."""

from __future__ import annotations

import asyncio
import sys
from decimal import Decimal

from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart
from pydantic_ai_harness.memory import MemoryOperation
from pydantic_ai_harness.planning import PlanItem, TaskStatus
from pydantic_ai_harness.spend import SpendEntry
from pydantic_ai_harness.step_persistence import ContinuableSnapshot, StepEvent, ToolEffectRecord

import shoal
from shoal.client.store import Store
from shoal.integrations.harness import ShoalMemoryStore, ShoalPlanStore, ShoalSpendStore, ShoalStepStore

RUN, FILE, WINDOW, SPACE = "trial", "main/notes.md", "day/2026-01-02", "crew"


class Turns:
    """The four stores, and what a turn does in them. A turn that is repeated changes nothing."""

    def __init__(self, store: Store) -> None:
        self.steps = ShoalStepStore(store, space=SPACE, max_snapshots_per_run=3)
        self.memory = ShoalMemoryStore(store, space=SPACE)
        self.spend = ShoalSpendStore(store, space=SPACE)
        self.plan = ShoalPlanStore(store, space=SPACE)

    async def turn(self, nth: int) -> None:
        """One turn, or what is left of it; each part is told."""
        if all(item.id != f"{nth}" for item in await self.plan.get_items()):
            await self.plan.add_item(PlanItem(id=f"{nth}", content=f"turn {nth}"))
        print("planned", nth, flush=True)  # noqa: T201
        await self.spend.add_many([SpendEntry(key=WINDOW, usd=Decimal("0.1"), requests=1, token=f"{nth}")])
        print("spent", nth, flush=True)  # noqa: T201
        file = await self.memory.read(FILE, max_chars=2**20)
        operation = MemoryOperation(id=f"{nth}", fingerprint=f"{nth}")
        if await self.memory.get_operation(operation) is None:
            content = f"{'' if file is None else file.content}{nth}\n"
            version = None if file is None else file.version
            await self.memory.write(FILE, content, expected_version=version, operation=operation)
        print("noted", nth, flush=True)  # noqa: T201
        await self.steps.append_event(
            StepEvent(run_id=RUN, kind="tool_call_completed", step_index=nth, idempotency_key=f"event-{nth}")
        )
        said: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart(f"{each}")]) for each in range(nth + 1)]
        await self.steps.save_snapshot(
            ContinuableSnapshot(run_id=RUN, step_index=nth, messages=said, idempotency_key=f"{nth}:snapshot")
        )
        print("saved", nth, flush=True)  # noqa: T201
        await self.steps.record_tool_effect(
            ToolEffectRecord(tool_call_id=f"{nth}", tool_name="note", run_id=RUN, status="completed")
        )
        await self.plan.update_item(f"{nth}", status=TaskStatus.completed)

    async def first(self) -> int:
        """The first turn that is not completed."""
        return sum(item.status is TaskStatus.completed for item in await self.plan.get_items())


async def main(urls: str, turns: int) -> None:
    async with shoal.connect(urls, durability="quorum", wait=30) as store:
        work = Turns(store)
        first = await work.first()
        print("began", first, flush=True)  # noqa: T201
        for nth in range(first, turns):
            await work.turn(nth)
            print("acknowledged", nth, flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
