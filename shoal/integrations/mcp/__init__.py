"""Shoal as an MCP server: tools and resources on one space, for agents and programs that speak the Model Context Protocol.

shoal mcp --data ./state --space crew             # threads, journals, documents, items and shared values
shoal mcp --url http://127.0.0.1:7400 --memory    # the nine tools of the reference memory server
shoal mcp --url http://127.0.0.1:7400 --listen 127.0.0.1:7500    # over HTTP, each client with its own token
"""

try:
    import mcp.server as _  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"shoal.integrations.mcp needs the package mcp, and {missing.name!r} is not installed. "
        "Install it in a clone of Shoal: pip install '.[mcp]'",
        name=missing.name,
    ) from None

from shoal.integrations.mcp.server import serve

__all__ = ["serve"]
