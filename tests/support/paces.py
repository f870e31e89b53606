"""How often the nodes of a fleet look for work that is due."""

from __future__ import annotations

from typing import Any

from shoal.config import Config

USUAL: dict[str, Any] = {"tick_s": Config().tick_s, "sync_interval_s": Config().sync_interval_s}
"""As in production. A fleet's nodes look ten times as often, unless they are told otherwise; in virtual time, which passes
at no cost, looks that find nothing are most of the cost.
"""
