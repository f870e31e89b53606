"""A headless Chromium, driven by a test over its DevTools protocol."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from threading import Thread
from typing import Any

import aiohttp
import pytest

# The first is the same browser without what draws its windows; it takes less than half of the processor time.
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, PROGRAMS)), None)
PATIENCE_S = 240  # On a machine with other work, the description of all operations takes a minute to be laid out.
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--no-default-browser-check", "--no-proxy-server", "--remote-debugging-port=0"),
)

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here: Debian's package `chromium-headless-shell` has it"
)


class Page:
    """One page, and what it asked for."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = count(1)
        self._session: str | None = None
        self._target = ""
        self._profile = ""
        self.requested: list[str] = []
        self.complaints: list[str] = []  # Uncaught errors, and what the browser itself logs as one.

    async def begin(self) -> None:
        """Have a profile, which outlives the page and ends with its connection."""
        self._profile = (await self._call("Target.createBrowserContext", disposeOnDetach=True))["browserContextId"]

    async def open(self, url: str) -> None:
        """Show `url`, and wait until it is loaded."""
        made = await self._call("Target.createTarget", url="about:blank", browserContextId=self._profile)
        self._target = made["targetId"]
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


@contextmanager
def chromium(directory: Path) -> Iterator[str]:
    """A browser with a profile of its own in `directory`, which is empty, and the address at which it is driven."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={directory}"]
    with Popen(command, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, start_new_session=True) as process:
        assert process.stderr is not None
        try:
            told = b""
            while (found := re.search(rb"DevTools listening on (ws://\S+)", told)) is None:
                told = process.stderr.readline()
                assert told, "the browser ended"
            Thread(target=process.stderr.read, daemon=True).start()  # So that it never waits for its reader.
            yield found[1].decode()
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # It may be a script that runs the browser.


@asynccontextmanager
async def browsing(address: str) -> AsyncIterator[Callable[[], Awaitable[Page]]]:
    """What makes any number of pages of a browser, each in a profile of its own that ends with the context."""
    async with aiohttp.ClientSession() as http, AsyncExitStack() as stack:

        async def page() -> Page:
            made = Page(await stack.enter_async_context(http.ws_connect(address, max_msg_size=0)))
            await made.begin()
            return made

        yield page


@asynccontextmanager
async def browser(address: str) -> AsyncIterator[Page]:
    """A page of a browser, in a profile of its own."""
    async with browsing(address) as page:
        yield await page()
