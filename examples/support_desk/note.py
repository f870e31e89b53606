"""A client of the Model Context Protocol that reads the desk, and adds a note to each ticket.

    python -m examples.support_desk.note http://127.0.0.1:7400 ./desk

It stands for an application such as Claude Desktop, which starts `shoal mcp` in the same way, and for its user, Carla. Each
write has an idempotency key. So it can be killed at any point and start from the beginning: a note is there once.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters

from examples.support_desk.desk import SPACE, arguments, say

NOTES = {
    "Ada": "a customer since 2019",
    "Ben": "asked last week, too",
    "Cem": "pays by invoice",
    "Dora": "has sent back six sofas",
}


async def call(client: Client, tool: str, **given: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, given)
    if result.is_error:
        raise RuntimeError(f"{tool}: {result.content}")
    return dict(result.structured_content or {})


async def main() -> None:
    url, _ = arguments(sys.argv)
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "shoal", "mcp", "--url", url, "--space", SPACE, "--by", "carla"]
    )
    async with Client(server) as client:
        for name in (await call(client, "list_names", kind="thread", prefix="ticket-"))["names"]:
            ticket = (await call(client, "load_thread", thread=name))["state"]
            note = f"Carla: {NOTES[ticket['customer']]}"
            await call(client, "edit_thread", thread=name, append={"notes": [note]}, idempotency_key=f"carla-{name}")
            say(f"noted on {name}: {note}")
            await asyncio.sleep(0.2)  # She reads.


if __name__ == "__main__":
    asyncio.run(main())
