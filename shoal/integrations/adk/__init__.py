"""Google's Agent Development Kit on Shoal: sessions, memories and artifacts in a durable, replicated store.

async with ShoalServices.open("./state") as shoal:
    runner = Runner(
        app_name="desk",
        agent=agent,
        session_service=shoal.sessions,
        memory_service=shoal.memories,
        artifact_service=shoal.artifacts,
    )

For `adk web` and `adk api_server`, in the `services.py` of the folder of agents:

from shoal.integrations.adk import register

register()  # then --session_service_uri shoal://n1:7400,n2:7400
"""

try:
    import google.adk.sessions as _  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"shoal.integrations.adk needs the package google-adk, and {missing.name!r} is not installed. "
        "Install it in a clone of Shoal: pip install '.[adk]'",
        name=missing.name,
    ) from None

from shoal.integrations.adk.artifacts import ShoalArtifactService
from shoal.integrations.adk.memories import ShoalMemoryService
from shoal.integrations.adk.sessions import ShoalServices, ShoalSessionService, register

__all__ = ["ShoalArtifactService", "ShoalMemoryService", "ShoalServices", "ShoalSessionService", "register"]
