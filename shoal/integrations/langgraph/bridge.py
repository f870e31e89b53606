"""The bridge of all integrations, under the name that it had here first."""

from shoal.integrations.bridge import LOST, Bridge

__all__ = ["LOST", "Bridge"]
