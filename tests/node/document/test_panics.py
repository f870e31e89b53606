"""A node whose Yjs engine failed in a document answers with an error, and builds the document again."""

from __future__ import annotations

from typing import Any

import pycrdt
import pytest

from shoal.errors import EngineFailed
from shoal.protocol import requests
from tests.node.conftest import Opener


def typed(word: str, client_id: int) -> bytes:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=client_id)
    doc.get("t", type=pycrdt.Text).insert(0, word)
    return doc.get_update()


async def test_a_document_whose_engine_failed_is_built_again(open_bench: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    def panic(root: Any, _walk: Any) -> None:
        pycrdt.Text.__delitem__(root, 99)

    session = open_bench().node.session()
    await session.call(requests.Update("s", "d", typed("one", 1), {"t": "text"}))
    with monkeypatch.context() as patch:
        patch.setattr("shoal.kinds.document.state.live.to_py", panic)
        with pytest.raises(EngineFailed):
            await session.call(requests.ReadDocumentJson("s", "d"))
    await session.call(requests.Update("s", "d", typed("two", 2), {"t": "text"}))
    assert len((await session.call(requests.ReadDocumentJson("s", "d"))).json) == len('{"t":"onetwo"}')
