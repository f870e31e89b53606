"""How many examples a property is tried with: `make thorough` draws all that are named, and `make test` a quarter of them."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

WHOLE = 100
"""The examples of a property that names no number, with the profile `thorough`."""


def is_quick() -> bool:
    """Whether this run draws a share of the examples only, and shrinks none of them."""
    return settings.get_current_profile_name() == "shoal"


def examples(number: int, **others: Any) -> settings:
    """Try a property with `number` examples in `make thorough`, and with the profile's share of them in other runs."""
    profile = settings.get_profile(settings.get_current_profile_name())
    return settings(max_examples=-(-number * profile.max_examples // WHOLE), **others)
