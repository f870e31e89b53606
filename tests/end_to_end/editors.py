"""JavaScript clients that we did not write, driven by a test: `yjs`, `y-websocket` and `y-prosemirror` under Node."""

from __future__ import annotations

import asyncio
import json
import shutil
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from shoal.demo.nodes import Node

BUNDLE = Path(__file__).parent / "yjs" / "bundle.cjs"
NODE = shutil.which("node") or shutil.which("nodejs")
PATIENCE_S = 60
SPACE, DOCUMENT = "crew", "{plan}/board"

needs_node = pytest.mark.skipif(NODE is None, reason="no Node.js here: Debian's package `nodejs` has it")


class Editor:
    """One client; what it is asked for is in tests/end_to_end/yjs/client.js."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def __call__(self, name: str, *arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([name, *arguments]).encode() + b"\n")
        answer = await asyncio.wait_for(self._process.stdout.readline(), PATIENCE_S)
        assert answer, "the client ended"
        said = json.loads(answer)
        assert "error" not in said, said
        return said["is"]

    async def connect(self, node: Node) -> None:
        await self("connect", f"{node.url.replace('http:', 'ws:')}/v1/yjs/{SPACE}", "%7Bplan%7D%2Fboard")


@asynccontextmanager
async def editor() -> AsyncIterator[Editor]:
    assert NODE is not None
    process = await asyncio.create_subprocess_exec(NODE, str(BUNDLE), stdin=PIPE, stdout=PIPE, limit=1 << 20)
    try:
        yield Editor(process)
    finally:
        process.kill()
        await process.wait()
