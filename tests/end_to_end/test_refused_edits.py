"""Edits that a node will never take: the mirror says so, can be closed, and the document goes on without them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pycrdt
import pytest

import shoal
from shoal import Config
from shoal.errors import EditsRefused, GenerationEnded, ShoalError, TooLarge

BOUND_S = 20
CONFIG = Config(document_bytes_max=20_000, reconnect_delay_s_max=0.01)


@pytest.mark.real_time("files")
@pytest.mark.parametrize("kind", [TooLarge, GenerationEnded, EditsRefused])
async def test_a_node_that_never_takes_edits_is_told_of(tmp_path: Path, kind: type[ShoalError]) -> None:
    async with shoal.open(tmp_path / "state", config=CONFIG) as store, asyncio.timeout(BOUND_S):
        space = store.space("s")
        document = await space.document("d")
        text = document.text("t")
        text += "größe"
        await document.flush()
        if kind is TooLarge:
            text += "x" * 30_000
        elif kind is GenerationEnded:
            text += "x"
            await (await space.document("d")).delete()
        else:
            pycrdt.Text.insert(text, 3, "|")  # By the engine's count, within a character.
        with pytest.raises(kind, match=r"is not written|was deleted"):
            await document.flush()
        with pytest.raises(kind):
            text += "more"
        with pytest.raises(kind):
            document.map("elsewhere")
        with pytest.raises(kind):
            await document.close()
        async with await space.document("d") as anew:
            anew.map("m")["k"] = 1
        shown = (await space.document("d")).to_py()
        assert shown == ({"m": {"k": 1}} if kind is GenerationEnded else {"m": {"k": 1}, "t": "größe"})
