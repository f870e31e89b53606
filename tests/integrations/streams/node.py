"""Programs under Node.js that use the packages of this suite."""

from __future__ import annotations

import asyncio
import shutil
import sys

from tests.cli.conftest import clean_environment

NODE = shutil.which("node") or shutil.which("nodejs") or "node"


async def ran(*arguments: str, url: str) -> tuple[int | None, str]:
    """Run Node.js with these arguments; its exit status, and all that it said. The program finds `url` as STREAMS_URL."""
    process = await asyncio.create_subprocess_exec(
        *(NODE, *arguments),
        cwd=sys.prefix,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**clean_environment(), "STREAMS_URL": url},
    )
    said, _ = await process.communicate()
    return process.returncode, said.decode()
