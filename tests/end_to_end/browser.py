"""A headless Chromium, driven by a test over its DevTools protocol."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE_S = 60
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--no-default-browser-check", "--no-proxy-server", "--remote-debugging-port=0"),
)

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: Debian's package `chromium` has it")


class Page:
    """One page, and what it asked for."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = count(1)
        self._session: str | None = None
        self._target = ""
        self.requested: list[str] = []
        self.complaints: list[str] = []  # Uncaught errors, and what the browser itself logs as one.

    async def open(self, url: str, *, profile: str | None = None) -> None:
        """Show `url`, and wait until it is loaded."""
        within = {} if profile is None else {"browserContextId": profile}
        self._target = (await self._call("Target.createTarget", url="about:blank", **within))["targetId"]
        attached = await self._call("Target.attachToTarget", targetId=self._target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Network", "Runtime", "Log", "Page"):
            await self._call(f"{domain}.enable")
        await self._call("Page.navigate", url=url)
        await self("new Promise(done => document.readyState === 'complete' ? done() : addEventListener('load', () => done()))")

    async def close(self) -> None:
        """Close it, as its person does: it may say good-bye, and waits for nothing."""
        await self._call("Page.close")
        self._session = None
        async with asyncio.timeout(PATIENCE_S):
            while self._target in {each["targetId"] for each in (await self._call("Target.getTargets"))["targetInfos"]}:
                await asyncio.sleep(0.01)

    async def crash(self) -> None:
        """End its process without a word."""
        await self._send("Page.crash")
        self._session = None
        await self._call("Target.closeTarget", targetId=self._target)

    async def profile(self) -> str:
        """A new profile, in which pages can be opened: what they store is theirs."""
        context: str = (await self._call("Target.createBrowserContext"))["browserContextId"]
        return context

    async def __call__(self, expression: str) -> Any:
        """The value of JavaScript, once its promise is kept."""
        answer = await self._call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def run(self, code: str, given: Any = None) -> Any:
        """What the body of an asynchronous function returns, with `given` in its scope."""
        return await self(f"(async () => {{ const given = {json.dumps(given)}; {code} }})()")

    async def _send(self, method: str, **parameters: Any) -> int:
        number = next(self._numbers)
        asked = {"id": number, "method": method, "params": parameters}
        await self._socket.send_json(asked if self._session is None else {**asked, "sessionId": self._session})
        return number

    async def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = await self._send(method, **parameters)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                told = json.loads(await self._socket.receive_str())
                if told.get("id") == number:
                    assert "error" not in told, told
                    result: dict[str, Any] = told["result"]
                    return result
                self._note(told)

    def _note(self, told: dict[str, Any]) -> None:
        match told.get("method"):
            case "Network.requestWillBeSent":
                self.requested.append(told["params"]["request"]["url"])
            case "Network.webSocketCreated":
                self.requested.append(told["params"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(told["params"]["exceptionDetails"]))
            case "Log.entryAdded" if told["params"]["entry"]["level"] == "error":
                self.complaints.append(str(told["params"]["entry"]))


@asynccontextmanager
async def browser(directory: Path) -> AsyncIterator[Page]:
    """A page of a browser with a profile of its own in `directory`, which is empty."""
    async with browsing(directory) as page:
        yield await page()


@asynccontextmanager
async def browsing(directory: Path) -> AsyncIterator[Callable[[], Awaitable[Page]]]:
    """A browser that makes any number of pages, with a profile of its own in `directory`, which is empty."""
    assert CHROMIUM is not None
    process = await asyncio.create_subprocess_exec(
        *(CHROMIUM, *FLAGS, f"--user-data-dir={directory}"), stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE
    )
    assert process.stderr is not None
    draining = None
    try:
        async with asyncio.timeout(PATIENCE_S):
            told = b""
            while (found := re.search(rb"DevTools listening on (ws://\S+)", told)) is None:
                told = await process.stderr.readline()
                assert told, "the browser ended"
        draining = asyncio.create_task(process.stderr.read())  # So that it never waits for its reader.
        async with aiohttp.ClientSession() as http, AsyncExitStack() as stack:

            async def page() -> Page:
                return Page(await stack.enter_async_context(http.ws_connect(found[1].decode(), max_msg_size=0)))

            yield page
    finally:
        process.kill()
        await process.wait()
        if draining is not None:
            await draining
