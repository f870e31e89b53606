"""Pydantic AI's harness on Shoal: what its capabilities keep, in a durable, replicated store.

async with shoal.open("./state") as store:
    agent = Agent(model, capabilities=[StepPersistence(store=ShoalStepStore(store)), Memory(store=ShoalMemoryStore(store))])
"""

try:
    import pydantic_ai_harness as _  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"shoal.integrations.harness needs the package pydantic-ai-harness, and {missing.name!r} is not installed. "
        "Install it in a clone of Shoal: pip install '.[pydantic-harness]'",
        name=missing.name,
    ) from None

from shoal.integrations.harness.memory import ShoalMemoryStore
from shoal.integrations.harness.plans import ShoalPlanStore, ShoalSpendStore
from shoal.integrations.harness.steps import ShoalStepStore

__all__ = ["ShoalMemoryStore", "ShoalPlanStore", "ShoalSpendStore", "ShoalStepStore"]
