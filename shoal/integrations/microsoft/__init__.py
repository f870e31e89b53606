"""The Microsoft Agent Framework on Shoal: checkpoints of workflows, and histories of agents.

async with ShoalState.open("./state") as shoal:
    workflow = WorkflowBuilder(name="refund", start_executor=first, checkpoint_storage=shoal.checkpoints).build()
    agent = Agent(client=client, context_providers=[shoal.history])
"""

try:
    import agent_framework as _  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"shoal.integrations.microsoft needs the package agent-framework-core, and {missing.name!r} is not installed. "
        "Install it in a clone of Shoal: pip install '.[microsoft]'",
        name=missing.name,
    ) from None

from shoal.integrations.microsoft.checkpoints import ShoalCheckpointStorage
from shoal.integrations.microsoft.history import ShoalHistoryProvider
from shoal.integrations.microsoft.state import ShoalState

__all__ = ["ShoalCheckpointStorage", "ShoalHistoryProvider", "ShoalState"]
