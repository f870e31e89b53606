"""Nodes that are filled as in life, and pages in Chromium that look at them. No page may log an error or break its policy."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import pytest

from tests.page import filling

T = TypeVar("T")

CHROMIUM = os.environ.get("SHOAL_CHROMIUM", "/usr/bin/chromium")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
AXE = Path(os.environ.get("SHOAL_AXE", "build/axe/axe.min.js"))
# The page tells these itself, in words: a node that does not answer, a token that is missing, a refusal.
EXPECTED = ("Failed to load resource", "net::ERR_", "CORS policy", "WebSocket connection to")


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    found = [socket.socket() for _ in range(count)]
    try:
        for each in found:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in found]
    finally:
        for each in found:
            each.close()


def apart(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns, in a thread of its own: Playwright has the loop of this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


class Node:
    """A node in a process of its own."""

    def __init__(self, directory: Path, port: int, *arguments: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        command = [
            sys.executable,
            "-m",
            "shoal",
            "serve",
            "--data",
            str(directory),
            "--listen",
            f"127.0.0.1:{port}",
            *arguments,
        ]
        with (directory.parent / f"{directory.name}.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    async def ready(self) -> None:
        """Wait until it serves."""
        async with asyncio.timeout(60), aiohttp.ClientSession() as session:
            while True:
                assert self._process.poll() is None, "the node ended; its log is beside its directory"
                try:
                    async with session.get(f"{self.url}/readyz") as answer:
                        if answer.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.1)

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self._process.kill()
        self._process.wait()


@contextmanager
def nodes(directory: Path, count: int, *arguments: str) -> Iterator[list[Node]]:
    """A cluster of `count` nodes."""
    ports = free_ports(count)
    joins = [[f"--join=127.0.0.1:{other}" for other in ports if other != port] for port in ports]
    made = [
        Node(directory / f"n{number}", port, *join, *arguments)
        for number, (port, join) in enumerate(zip(ports, joins, strict=True), 1)
    ]
    try:

        async def all_ready() -> None:
            await asyncio.gather(*(node.ready() for node in made))

        apart(all_ready())
        yield made
    finally:
        for node in made:
            node.kill()


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One node, filled; tests that write take threads of their own."""
    with nodes(tmp_path_factory.mktemp("page"), 1) as (made,):
        apart(filling.fill(made.url))
        yield made


@pytest.fixture(scope="session")
def shared(node: Node) -> Node:
    """The node, which also holds what the views of shared state and of comparing show, in the space `filling.SHARED`."""
    apart(filling.fill_shared(node.url, filling.SHARED))
    apart(filling.disagree(node.url, filling.SHARED, "chosen"))
    return node


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[Node]]:
    """Three nodes, filled, of which a test may kill one."""
    with nodes(tmp_path, 3) as made:
        apart(filling.fill(made[0].url, others=5))
        yield made


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium."""
    if not Path(CHROMIUM).exists():
        pytest.skip(f"there is no Chromium at {CHROMIUM}: SHOAL_CHROMIUM names one")
    playwright = pytest.importorskip("playwright.sync_api", reason="the extra `page` installs it: pip install -e .[page]")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield started
        started.close()


Show = Callable[..., Any]


@pytest.fixture
def show(browser: Any) -> Iterator[Show]:
    """Open an address of a node; what the page logged as an error, or threw, fails the test at its end."""
    wrong: list[str] = []
    contexts: list[Any] = []

    def open_page(node: Node, address: str = "", *, width: int = 1440, height: int = 900, touch: bool | None = None) -> Any:
        is_touched = width < 720 if touch is None else touch
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="light", has_touch=is_touched, is_mobile=is_touched
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(f"{node.url}/{address}")
        page.locator(".sentence:visible").first.wait_for()
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [each for each in wrong if not any(part in each for part in EXPECTED)] == []


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core."""
    if not AXE.exists():
        if shutil.which("npm") is None:
            pytest.skip("axe-core is fetched with npm, which is not installed")
        AXE.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["clients/page/bundle.sh", "--axe", str(AXE.parent)], check=True)
    return AXE.read_text()


@pytest.fixture
def violations(axe: str) -> Callable[..., list[str]]:
    """What axe-core has against a page, by the rules of WCAG 2.2 AA, or by these alone."""

    def found(page: Any, *rules: str) -> list[str]:
        # The page's own policy admits no script but its own; a script of the debugger is none of the page's.
        if not page.evaluate("'axe' in window"):
            page.evaluate(axe)
        wanted = list(rules) or ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
        result = page.evaluate("(only) => axe.run(document, {runOnly: only})", wanted)
        return [f"{each['id']}: {node['html'][:160]}" for each in result["violations"] for node in each["nodes"]]

    return found
