"""The opening of all integrations, under the name that it had here first."""

from shoal.integrations.opening import Opening, checked_store

__all__ = ["Opening", "checked_store"]
