"""Agents that edit one text at the same time, each by the positions of a Python string, and a reader of the changes."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pycrdt
import pytest

from tests.client.document.conftest import FakeSession, Mirror, settled

pytestmark = pytest.mark.virtual_time

PIECES = ["a", "é", "中文", "📊", "👩‍👩‍👧", "e\u0301", "\r\n", "größe", "𝔘b"]
KINDS = ["text", "text in a map", "XML"]


def text_of(document: Any, kind: str) -> Any:
    if kind == "text":
        return document.text("t")
    return document.map("m")["t"] if kind == "text in a map" else document.xml("x").children[0].children[0]


def begin(document: Any, kind: str) -> None:
    if kind == "text":
        document.text("t").insert(0, "größe📊")
    elif kind == "text in a map":
        document.map("m")["t"] = pycrdt.Text("größe📊")
    else:
        document.xml("x").children.append(pycrdt.XmlElement("p", {}, [pycrdt.XmlText("größe📊")]))


def edit(random: Random, text: Any) -> None:
    """One edit, which does to the text what it does to a list of its characters."""
    model = list(str(text))
    start, stop = sorted((random.randint(0, len(model)), random.randint(0, len(model))))
    if random.random() < 0.5:
        piece = random.choice(PIECES)
        text.insert(start, piece)
        model[start:start] = piece
    else:
        del text[start : min(stop, start + 3)]
        del model[start : min(stop, start + 3)]
    assert (str(text), len(text)) == ("".join(model), len(model))


def redone(shown: str, change: Any) -> str:
    """A text after a change."""
    if change.kind == "set" or isinstance(change.new, pycrdt.Text):
        return str(change.new)
    at = change.path[-1]
    if change.kind == "insert":
        return f"{shown[:at]}{change.new}{shown[at:]}"
    assert shown[at : at + len(change.old)] == change.old
    return f"{shown[:at]}{shown[at + len(change.old) :]}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(8))
async def test_agents_edit_one_text_by_characters(session: FakeSession, mirror: Mirror, kind: str, seed: int) -> None:
    random = Random(seed)
    first = await mirror()
    begin(first, kind)
    await first.flush()
    agents = [first, await mirror(), await mirror()]
    reader = await mirror()
    changes, shown = reader.changes(timeout=1), str(text_of(reader, kind))
    for _ in range(6):
        for agent in agents:
            for _ in range(random.randint(0, 3)):
                edit(random, text_of(agent, kind))
        await asyncio.gather(*(agent.flush() for agent in agents))
        await settled()
        assert len({str(text_of(each, kind)) for each in (*agents, reader)}) == 1
    async for change in changes:
        shown = redone(shown, change)
    assert shown == str(text_of(reader, kind)) == str(text_of(first, kind))
