"""CrewAI on Shoal: the states of flows in a durable, replicated store.

with ShoalFlowPersistence.open("./state") as persistence:
    set_flow_persistence_factory(lambda: persistence)  # for every @persist, or RefundFlow(persistence=persistence)
    RefundFlow().kickoff()
"""

try:
    import crewai.flow.persistence as _  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"shoal.integrations.crewai needs the package crewai, and {missing.name!r} is not installed. "
        "Install it in a clone of Shoal: pip install '.[crewai]'",
        name=missing.name,
    ) from None

from shoal.integrations.crewai.persistence import ShoalFlowPersistence

__all__ = ["ShoalFlowPersistence"]
