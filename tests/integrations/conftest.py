"""The tests of an integration run where its SDK is installed: see tests/integrations/suites.py, and `make integrations`."""

from __future__ import annotations

from importlib.util import find_spec

_SDKS = {"claude": "claude_agent_sdk", "langgraph": "langgraph", "mcp": "mcp_types", "openai": "agents"}
collect_ignore = [folder for folder, sdk in _SDKS.items() if find_spec(sdk) is None]
