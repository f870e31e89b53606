"""The Claude Agent SDK on Shoal: transcripts of sessions in a durable, replicated store.

async with ShoalSessionStore.open("./state") as store:
    options = ClaudeAgentOptions(session_store=store)
"""

try:
    import claude_agent_sdk as _  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"shoal.integrations.claude needs the package claude-agent-sdk, and {missing.name!r} is not installed. "
        "Install it in a clone of Shoal: pip install '.[claude]'",
        name=missing.name,
    ) from None

from shoal.integrations.claude.sessions import ShoalSessionStore

__all__ = ["ShoalSessionStore"]
