"""What the page costs and how soon it shows something: real nodes, real Chromium (`pip install -e .[page]`).

Each figure is of one browser and one node on one machine, over loopback. `SHOAL_CHROMIUM` names another browser.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import uvloop

import shoal
from benchmarks.cluster import free_ports
from benchmarks.figures import Effort, Figure, Section, Target
from shoal.client.store import Space

T = TypeVar("T")

_CHROMIUM = os.environ.get("SHOAL_CHROMIUM", "/usr/bin/chromium")
_ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
_VIEWS = ("now", "threads", "work", "audit")
_PAGES, _SPACES = 10, 4  # Pages that are open at an idle node, and spaces that it has.
_TASKS = 64
_CHANGES = 30
_REFRESHES_S, _LEAST_BYTES = 3.0, 2000  # The list of spaces alone is no refresh.
_SETTLES_S = 4.0  # A view's first requests, and those that follow from its first change.
_LOOKS = 2400  # 50 ms apart: a machine that is busy makes a figure bad, and must not end all of them.
_ROW = ".tbody .tr, .ask"

# The moment at which the first row is on the screen: the frame after it is in the document.
_PAINTED = f"""
const later = requestAnimationFrame
const painted = () => {{ window.painted = performance.now() }}
const seen = () => later(document.querySelector({_ROW!r}) ? painted : seen)
later(seen)
window.painted = window.longest = 0
const told = (list) => {{ window.longest = Math.max(window.longest, ...list.getEntries().map((task) => task.duration)) }}
new PerformanceObserver(told).observe({{ type: 'longtask' }})
window.texts = {{}}
const note = () => {{
  for (const [text, at] of Object.entries(window.texts)) {{
    if (at === 0 && document.body.textContent.includes(text)) later(() => {{ window.texts[text] = Date.now() }})
  }}
}}
const all = {{ childList: true, subtree: true, characterData: true }}
addEventListener('DOMContentLoaded', () => new MutationObserver(note).observe(document.body, all))
"""

_METHOD = (
    "`shoal serve` and Debian's Chromium, headless, driven by Playwright over loopback; one browser, whose cache is empty for "
    "each page. *First rows*: from the begin of the navigation to the frame after the first row is in the document. *Longest "
    "task*: what blocks the page's thread while its table is scrolled by wheel events, 60 a second, as far as it reaches "
    "(tasks below 50 ms are not told, and count as 0). *A refresh*: the bytes on the wire, headers included, in the 3 s after "
    "one save, for the view that is open; if nothing comes in them, in the 3 s after the first that comes within a minute. *On "
    "the screen*: from the acknowledgement of a change by node 2 to the frame in which a page of node 1 shows it, one each "
    f"0.7 to 1.2 s. *Ten pages*: the processor time of a node with {_SPACES} spaces in 30 s with ten open pages that show all "
    "spaces, less that in 30 s before without any."
)


def run(effort: Effort) -> Section:
    if not Path(_CHROMIUM).exists() or find_spec("playwright") is None:
        told = (
            f"Not measured: there is no {_CHROMIUM} (`SHOAL_CHROMIUM` names another one), or the extra `page` is not installed."
        )
        return Section("The page", told, [])
    with _chromium() as browser:
        with tempfile.TemporaryDirectory() as directory:
            figures = [*_of_many(browser, Path(directory) / "store", effort)]
        with tempfile.TemporaryDirectory() as directory:
            figures += _of_cluster(browser, Path(directory), effort)
    return Section("The page", _METHOD, figures)


@contextmanager
def _chromium() -> Iterator[Any]:
    with import_module("playwright.sync_api").sync_playwright() as running:
        browser = running.chromium.launch(executable_path=_CHROMIUM, args=list(_ARGUMENTS))
        yield browser
        browser.close()


def _apart(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns, in a thread of its own: Playwright has the loop of this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(uvloop.run, work).result()


# ── a store of many threads ───────────────────────────────────────────────────────────────────────────────────────────


def _of_many(browser: Any, directory: Path, effort: Effort) -> Iterator[Figure]:
    _apart(_filled(directory, effort.threads))
    many = f"{effort.threads:,} threads"
    with _node(directory) as (url, pid):
        for view in ("now", "threads"):
            paints = tuple(_painted_ms(browser, f"{url}/#/crew/{view}") for _ in range(effort.repeats))
            yield Figure(f"{view} of {many}, first rows", "ms", paints, Target("≤", 1000))
        longest = tuple(_scrolled_ms(browser, f"{url}/#/crew/threads") for _ in range(effort.repeats))
        yield Figure(f"table of {many}, longest task while scrolled", "ms", longest, Target("≤", 50), worst=True)
        for view in _VIEWS:
            sizes = tuple(_refreshed_kb(browser, url, view, nth) for nth in range(effort.repeats))
            yield Figure(f"{view} of {many}, a refresh", "KB", sizes, Target("≤", 100), worst=True)
        shares = tuple(_share_of_a_core(browser, url, pid, seconds=15 * effort.seconds) for _ in range(min(2, effort.repeats)))
        yield Figure(f"{_PAGES} open pages at an idle node", "% of a core", shares, Target("≤", 1))


async def _filled(directory: Path, threads: int) -> None:
    async with shoal.open(directory) as store:
        numbers = iter(range(threads))
        await asyncio.gather(*(_fill(store.space("crew"), numbers) for _ in range(_TASKS)))
        for nth in range(1, _SPACES):
            await _fill(store.space(f"crew-{nth}"), iter(range(20)))
        for nth in range(8):
            await store.space("crew").thread(f"asks-{nth}").request_approval(f"refund {nth}?", by="agent")
            await store.space("crew").thread(f"failed-{nth}").fail("no money")
            await store.space("crew").thread(f"jobs-{nth}").worklist("pages").add([f"page {n}" for n in range(20)])


async def _fill(space: Space, numbers: Iterator[int]) -> None:
    for number in numbers:
        message = {"role": "user", "content": f"agent {number}: " + "and so on " * 10}
        thread = space.thread(f"thread-{number:06}", author="agent")
        await thread.save({"messages": [message]}, metadata={"tags": ["bench"]}, durability="memory")


@contextmanager
def _opened(browser: Any, address: str) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.add_init_script(_PAINTED)
    page.goto(address)
    try:
        yield page
    finally:
        context.close()


def _value(page: Any, expression: str) -> float:
    """The value of an expression, once it is one: the page's policy forbids Playwright's own waiting."""
    for _ in range(_LOOKS):
        if found := page.evaluate(expression):
            return float(found)
        page.wait_for_timeout(50)
    raise AssertionError(f"{expression} has no value after {_LOOKS * 50 / 1000:.0f} s")


def _painted_ms(browser: Any, address: str) -> float:
    with _opened(browser, address) as page:
        return _value(page, "window.painted")


def _scrolled_ms(browser: Any, address: str) -> float:
    with _opened(browser, address) as page:
        _value(page, "window.painted")
        page.wait_for_timeout(1500)
        page.evaluate("window.longest = 0")
        page.mouse.move(400, 500)
        for _ in range(180):
            page.mouse.wheel(0, 400)
            page.wait_for_timeout(16)
        page.wait_for_timeout(500)
        return float(page.evaluate("window.longest"))


def _refreshed_kb(browser: Any, url: str, view: str, nth: int) -> float:
    with _opened(browser, f"{url}/#/crew/{view}") as page:
        wire = page.context.new_cdp_session(page)
        wire.send("Network.enable")
        received = [0.0]
        wire.on("Network.dataReceived", lambda event: received.append(event["encodedDataLength"]))
        wire.on("Network.responseReceived", lambda event: received.append(event["response"]["encodedDataLength"]))
        seen = -1
        while seen != len(received):  # Until all that is loaded at first is here.
            seen = len(received)
            page.wait_for_timeout(_SETTLES_S * 1000)
        received.clear()
        _apart(_changed(url, f"thread-{nth:06}", nth))
        page.wait_for_timeout(_REFRESHES_S * 1000)
        for _ in range(_LOOKS // 4):  # What costs a node much is loaded seldom: a refresh that comes later counts, too.
            if sum(received) > _LEAST_BYTES:
                break
            page.wait_for_timeout(100)
            if sum(received) > _LEAST_BYTES:
                page.wait_for_timeout(_REFRESHES_S * 1000)
        return sum(received) / 1000


async def _changed(url: str, name: str, number: int) -> None:
    async with shoal.connect(url) as store:
        await store.space("crew").thread(name).update({"number": number})


def _share_of_a_core(browser: Any, url: str, pid: int, *, seconds: float) -> float:
    time.sleep(_SETTLES_S)
    alone = _busy(pid, seconds, time.sleep)
    contexts = [browser.new_context(viewport={"width": 1440, "height": 900}) for _ in range(_PAGES)]
    try:
        pages = [context.new_page() for context in contexts]
        for page in pages:
            page.goto(f"{url}/#/*/now")
        pages[0].wait_for_timeout(_SETTLES_S * 1000)
        busy = _busy(pid, seconds, lambda seconds: pages[0].wait_for_timeout(seconds * 1000))
    finally:
        for context in contexts:
            context.close()
    return 100 * (busy - alone)


def _busy(pid: int, seconds: float, wait: Callable[[float], object]) -> float:
    """The share of a core that a process takes meanwhile."""
    began, before = time.monotonic(), _cpu_s(pid)
    wait(seconds)
    return (_cpu_s(pid) - before) / (time.monotonic() - began)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ── a change at another node ──────────────────────────────────────────────────────────────────────────────────────────


def _of_cluster(browser: Any, directory: Path, effort: Effort) -> list[Figure]:
    ports = free_ports(3)
    joins = [[f"--join=127.0.0.1:{other}" for other in ports if other != port] for port in ports]
    count = _CHANGES if effort.repeats > 2 else 6
    with (
        _node(directory / "n1", ports[0], *joins[0]) as (first, _),
        _node(directory / "n2", ports[1], *joins[1]) as (second, _),
        _node(directory / "n3", ports[2], *joins[2]),
    ):
        _apart(_begun(second))
        with _opened(browser, f"{first}/#/crew/now") as page:
            _value(page, "window.painted")
            page.wait_for_timeout(_SETTLES_S * 1000)
            took = [_shown_ms(page, second, nth) for nth in range(count)]
    return [Figure("a change acknowledged at another node, on the screen", "ms", tuple(took), Target("≤", 300))]


async def _begun(url: str) -> None:
    async with shoal.connect(url) as store:
        for nth in range(20):
            await store.space("crew").thread(f"agent-{nth}").save({"n": nth})


def _shown_ms(page: Any, url: str, nth: int) -> float:
    text = f"may I do number {nth:03}?"
    page.evaluate("(text) => { window.texts[text] = 0 }", text)
    page.wait_for_timeout(700 + nth * 137 % 500)
    at_ms = _apart(_asked(url, nth, text))
    return _value(page, f"window.texts[{text!r}]") - at_ms


async def _asked(url: str, nth: int, text: str) -> float:
    async with shoal.connect(url) as store:
        await store.space("crew").thread(f"agent-{nth % 20}").request_approval(text, by="agent")
        return time.time() * 1000


@contextmanager
def _node(directory: Path, port: int = 0, *arguments: str) -> Iterator[tuple[str, int]]:
    """`shoal serve`, by its URL and the id of its process."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
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
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.terminate()
