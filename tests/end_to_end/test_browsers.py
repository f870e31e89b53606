"""A page in a real browser that asks a real node, from another origin and from the node itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import served
from tests.end_to_end.browser import Page, browser, needs_chromium
from tests.support.site import site

pytestmark = needs_chromium

ASKED = """
(async () => {
  const node = %r, told = {};
  const ask = async (method, path, body, headers = {}) => {
    const options = {method, headers: body === undefined ? headers : {"Content-Type": "application/json", ...headers}};
    if (body !== undefined) options.body = JSON.stringify(body);
    const answer = await fetch(node + path, options);
    return {status: answer.status, bookmark: answer.headers.get("Shoal-Bookmark"), etag: answer.headers.get("ETag"),
            body: method === "HEAD" ? null : await answer.json()};
  };
  told.put = await ask("PUT", "/v1/spaces/crew/registers/r", {value: {plan: 1}}, {"Idempotency-Key": "once"});
  told.get = await ask("GET", "/v1/spaces/crew/registers/r", undefined, {"Shoal-Bookmark": told.put.bookmark});
  told.missing = await ask("GET", "/v1/spaces/crew/threads/none/checkpoints/latest");
  told.nowhere = await ask("PATCH", "/nowhere", {});
  told.deleted = await ask("DELETE", "/v1/spaces/crew/documents/d");
  const watching = new EventSource(node + "/v1/spaces/crew/watch?kind=counter");
  const changed = new Promise((done, failed) => {
    watching.addEventListener("change", event => done(JSON.parse(event.data)));
    watching.onerror = () => failed(new Error("the stream broke"));
  });
  await new Promise(began => watching.addEventListener("began", began));
  await ask("POST", "/v1/spaces/crew/counters/c", {add: 1});
  told.change = (await changed).name;
  watching.close();
  told.socket = await new Promise(done => {
    const socket = new WebSocket(node.replace("http", "ws") + "/v1/yjs/crew/board");
    socket.onopen = () => { done("open"); socket.close(); };
    socket.onerror = () => done("refused");
  });
  return told;
})()
"""

REFUSED = """
(async () => {
  const node = %r, told = {};
  const failed = promise => promise.then(() => "answered", () => "refused");
  told.get = await failed(fetch(node + "/v1/spaces/crew/counters/c"));
  told.post = await failed(fetch(node + "/v1/spaces/crew/counters/c", {method: "POST", body: '{"add": 1}',
                                 headers: {"Content-Type": "application/json"}}));
  told.simple = await failed(fetch(node + "/v1/spaces/crew/counters/c", {method: "POST", body: '{"add": 1}'}));
  told.stream = await new Promise(done => {
    const watching = new EventSource(node + "/v1/spaces/crew/watch");
    watching.onopen = () => done("answered");
    watching.onerror = () => { done("refused"); watching.close(); };
  });
  told.socket = await new Promise(done => {
    const socket = new WebSocket(node.replace("http", "ws") + "/v1/session");
    socket.onopen = () => done("answered");
    socket.onerror = () => done("refused");
  });
  return told;
})()
"""


@asynccontextmanager
async def visited(chromium_address: str, origin: str) -> AsyncIterator[Page]:
    async with browser(chromium_address) as page:
        await page.open(origin)
        yield page


@pytest.mark.parametrize("everybody", [False, True])
async def test_a_page_of_an_allowed_origin_asks_streams_and_joins(
    tmp_path: Path, chromium_address: str, everybody: bool
) -> None:
    async with site() as origin:
        allowed = "*" if everybody else f"https://app.example.com, {origin}"
        with served(tmp_path / "state", config={"SHOAL_ALLOWED_ORIGINS": allowed}) as (_, node):
            async with visited(chromium_address, origin) as page:
                told: dict[str, Any] = await page(ASKED % node)
    assert (told["put"]["status"], told["get"]["body"]["value"]) == (200, {"plan": 1})
    assert told["put"]["bookmark"]
    assert told["get"]["bookmark"]
    assert (told["missing"]["status"], told["missing"]["body"]["code"]) == (404, "not-found")
    assert (told["nowhere"]["status"], told["nowhere"]["body"]["code"]) == (404, "not-found")
    assert told["deleted"]["body"] == {"existed": False}
    assert told["change"] == "c"
    assert told["socket"] == "open"


async def test_a_page_of_another_origin_reaches_nothing(tmp_path: Path, chromium_address: str) -> None:
    async with site() as origin:
        config = {"SHOAL_ALLOWED_ORIGINS": "https://app.example.com"}
        with served(tmp_path / "state", config=config) as (_, node):
            async with visited(chromium_address, origin) as page:
                told = await page(REFUSED % node)
            assert set(told.values()) == {"refused"}
            # The node's own page may ask, and finds that nothing was written.
            async with browser(chromium_address) as page:
                await page.open(f"{node}/docs")
                path = f"{node}/v1/spaces/crew/counters/c"
                assert await page(f"fetch({path!r}).then(answer => answer.json())") == {"value": 0}


SHOWN = """
new Promise(done => {
  const viewer = document.querySelector("rapi-doc");
  const look = () => {
    const text = viewer.shadowRoot ? viewer.shadowRoot.textContent : "";
    const there = text.includes("Save a checkpoint") && text.includes("Put an item");
    there ? done(true) : setTimeout(look, 500);  // Each look reads all of a large page.
  };
  look();
})
"""


async def test_the_description_is_shown_and_no_other_host_is_asked(tmp_path: Path, chromium_address: str) -> None:
    with served(tmp_path / "state") as (_, node):
        async with browser(chromium_address) as page:
            await page.open(f"{node}/docs")
            assert await page(SHOWN)
            assert {url for url in page.requested if not url.startswith(("data:", "blob:"))} == {
                f"{node}/docs",
                f"{node}/docs/rapidoc.js",
                f"{node}/v1/openapi.json",
            }
            assert page.complaints == []
