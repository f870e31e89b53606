"""The support desk runs where the SDKs of all its parties are installed: see tests/integrations/suites.py."""

from __future__ import annotations

from importlib.util import find_spec

_SDKS = ("agents", "langgraph", "mcp")
collect_ignore = [] if all(map(find_spec, _SDKS)) else ["test_support_desk.py"]
