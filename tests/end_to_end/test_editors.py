"""Editors of rich text on a real cluster: ProseMirror's binding, Quill's deltas and Lexical's shape, beside an agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pycrdt
import pytest

import shoal
from shoal.demo.nodes import Node, cluster
from shoal.kinds.document.handle.document import Document
from shoal.kinds.document.state.content import to_py
from tests.end_to_end.editors import DOCUMENT, PATIENCE_S, SPACE, Editor, editor, needs_node

pytestmark = needs_node


def paragraph(*children: Any) -> dict[str, Any]:
    return {"tag": "paragraph", "attributes": {}, "children": list(children)}


class Table(NamedTuple):
    """Two editors and an agent, each at a node of its own if there are three."""

    nodes: list[Node]
    one: Editor
    other: Editor
    agent: Document

    async def agreed(self, having: Callable[[Any], bool]) -> Any:
        """Wait until the agent's page is as wanted, and the editors hold the same; what it is."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                await self.agent.flush()
                page = self.agent.to_py().get("page", [])
                held = [(await each("state"))["page"] for each in (self.one, self.other)]
                if having(page) and held == [page, page]:
                    break
                await asyncio.sleep(0.01)
        assert await self.one("prosemirror") == await self.other("prosemirror"), "also as ProseMirror reads it"
        return page


@pytest.fixture
async def table(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Table]:
    async with cluster(tmp_path, size=request.param, name="editors", temporary=False) as nodes, AsyncExitStack() as stack:
        one, other = [await stack.enter_async_context(editor()) for _ in range(2)]
        await one.connect(nodes[0])
        await other.connect(nodes[1 % len(nodes)])
        store = await stack.enter_async_context(shoal.connect(nodes[-1].url))
        agent = await stack.enter_async_context(await store.space(SPACE).document(DOCUMENT, author="critic"))
        yield Table(nodes, one, other, agent)


def written(page: list[Any]) -> str:
    """The characters of a page, in order."""
    if isinstance(page, dict):
        return written(page["children"]) if "children" in page else "".join(map(str, (run["insert"] for run in page["text"])))
    return page if isinstance(page, str) else "".join(map(written, page))


@pytest.mark.answers("rich-text-editor-overwrites-what-others-type")
@pytest.mark.thorough
@pytest.mark.parametrize("table", [3], indirect=True)
async def test_prosemirrors_and_an_agent_edit_one_page_offline_too_and_after_a_kill(table: Table) -> None:
    one, other, agent = table.one, table.other, table.agent
    heading = {"type": "heading", "attrs": {"level": 1}, "content": [{"type": "text", "text": "Plan"}]}
    lines = [{"type": "paragraph", "content": [{"type": "text", "text": text}]} for text in ("hello", "world")]
    await one("write", {"type": "doc", "content": [heading, *lines]})
    start = await table.agreed(lambda page: len(page) == 3)
    assert start == [
        {"tag": "heading", "attributes": {"level": 1}, "children": ["Plan"]},
        paragraph("hello"),
        paragraph("world"),
    ]
    assert agent.roots["page"] == "xml", "told from how the editor uses it"

    # All at once: in one paragraph, in one word of it, and among the blocks.
    page = agent.xml("page")
    first, second = (block.children[0] for block in list(page.children)[1:3])  # type: ignore[union-attr]
    assert isinstance(first, pycrdt.XmlText)
    assert isinstance(second, pycrdt.XmlText)
    for number in range(8):
        await one("type", 1, 0, "a")
        await other("type", 1, -1, "b")
        first.insert(0, "é😀")
        await other("mark", 2, 0, 5, "strong")
        await one("level", 0, 1 + number % 3)
        second.insert(0, "c")
    page.children.append(pycrdt.XmlElement("paragraph", {}, [pycrdt.XmlText("from the agent")]))
    whole = await table.agreed(
        lambda page: len(page) == 4 and page[0]["attributes"] == {"level": 2} and len(written(page)) == 28 + 5 * 8
    )
    assert [written(whole).count(each) for each in "ac"] == [10, 8]
    assert written(whole).count("b") == 8
    assert written(whole).count("é😀") == 8
    assert any(run.get("attributes") == {"strong": {}} for run in whole[2]["children"][0]["text"])

    # One is offline, and edits; so do the others, and one of them by what it wants the page to be.
    await one("disconnect")
    await one("type", 0, -1, " offline")
    await one("block", 1, {"type": "horizontal_rule"})
    await other("type", 2, -1, " meanwhile")
    wanted = agent.to_py()
    wanted["page"][3]["children"] = ["by the agent"]
    agent.replace(wanted)
    await agent.flush()
    await one.connect(table.nodes[0])
    merged = await table.agreed(
        lambda page: len(page) == 5 and all(word in written(page) for word in ("offline", "meanwhile", "by the"))
    )
    assert [node["tag"] for node in merged] == ["heading", "horizontal_rule", "paragraph", "paragraph", "paragraph"]
    assert merged[4] == paragraph("by the agent")

    # The node of one dies without a word; its editor goes on at another, with what it edited meanwhile.
    table.nodes[0].kill()
    while table.nodes[0].is_running:
        await asyncio.sleep(0.01)
    await one("remove_block", 1)
    await one("type", 0, -1, ", after the end")
    await one.connect(table.nodes[1])
    after = await table.agreed(lambda page: len(page) == 4 and "after the end" in written(page))

    # It comes back, and shows the same, to whoever reads it over HTTP.
    await table.nodes[0].start()
    url = f"{table.nodes[0].url}/v1/spaces/{SPACE}/documents/%7Bplan%7D%2Fboard"
    async with aiohttp.ClientSession() as http, asyncio.timeout(PATIENCE_S):
        while True:
            async with http.get(url) as answer:
                if answer.status == 200 and (await answer.json())["page"] == after:
                    break
            await asyncio.sleep(0.01)
        patch = [{"op": "replace", "path": "/page/0/attributes/level", "value": 3}]
        async with http.patch(url, json=patch) as answer:
            assert answer.status == 200
    patched = await table.agreed(lambda page: bool(page[0]["attributes"] == {"level": 3}))
    assert patched[1:] == after[1:]
    assert (await one("prosemirror"))["content"][0]["attrs"] == {"level": 3}


@pytest.mark.answers("rich-text-editor-overwrites-what-others-type")
@pytest.mark.parametrize("table", [1], indirect=True)
async def test_quills_formats_and_embedded_objects_travel_and_stay(table: Table) -> None:
    one, other, agent = table.one, table.other, table.agent
    picture = {"insert": {"image": "a.png"}, "attributes": {"width": 20}}
    await one("delta", [{"insert": "bold", "attributes": {"bold": True}}, {"insert": " plain "}, picture, {"insert": "\n"}])
    async with asyncio.timeout(PATIENCE_S):
        while agent.to_py().get("rich") != "bold plain \n":
            await asyncio.sleep(0.01)
    await other("until", {"rich": (await one("state"))["rich"]})  # Its delta counts from what it has.
    await one("disconnect")
    await one("delta", [{"retain": 4, "attributes": {"italic": True}}])
    rich = agent.text("rich")
    agent.replace(
        {**agent.to_py(), "rich": "bold plain end\n"}
    )  # Before it sees what the other writes: it would take that away.
    await other("delta", [{"retain": 4}, {"insert": "er", "attributes": {"bold": True}}])
    await agent.flush()
    await one.connect(table.nodes[0])
    expected: list[dict[str, Any]] = [
        {"insert": "bolder", "attributes": {"bold": True, "italic": True}},
        {"insert": " plain "},
        picture,
        {"insert": "end", "attributes": {"width": 20}},  # As in any editor: what is typed takes on the formats before it.
        {"insert": "\n"},
    ]
    for each in (one, other):
        await each("until", {"rich": expected})
    async with asyncio.timeout(PATIENCE_S):
        # The words and their formats are of several writers: either may come last.
        while runs(rich) != expected:
            await asyncio.sleep(0.01)
    assert agent.to_py()["rich"] == "bolder plain end\n"


def runs(rich: pycrdt.Text) -> list[dict[str, Any]]:
    """A text as Quill's delta shows it."""
    pairs = [(to_py(chunk), to_py(formats or {})) for chunk, formats in rich.diff()]
    return [{"insert": chunk, "attributes": formats} if formats else {"insert": chunk} for chunk, formats in pairs]


@pytest.mark.parametrize("table", [1], indirect=True)
async def test_a_root_that_is_an_xml_text_as_lexicals_is_shown_and_kept(table: Table) -> None:
    await table.one("lexical", "hello")
    await table.other("lexical", "world")
    async with asyncio.timeout(PATIENCE_S):
        while len(table.agent.to_py().get("lexical", [])) != 2:
            await asyncio.sleep(0.01)
        while len((await table.one("lexical_state"))["paragraphs"]) != 2:
            await asyncio.sleep(0.01)
    state = await table.one("lexical_state")
    assert state == await table.other("lexical_state")
    assert state["dir"] == "ltr"
    shown = table.agent.to_py()["lexical"]
    assert sorted(node["text"][1]["insert"] for node in shown) == ["hello", "world"]
    assert shown[0]["text"][0] == {"shared": {"__type": "text"}}
    assert shown[0]["attributes"] == {"__type": "paragraph"}
