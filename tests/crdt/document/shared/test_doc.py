"""A panic of the Yjs engine is an error of ours, and what it broke is used no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pycrdt
import pytest

from shoal.errors import EngineFailed
from shoal.kinds.document.shared.doc import Doc
from shoal.kinds.document.state.content import open_root
from shoal.kinds.document.state.live import LiveDocument


def panic(root: Any) -> None:
    """Give the engine a value that was not checked."""
    pycrdt.Map._set(root, "k", 2**70)


def test_a_panic_is_an_error_and_the_document_is_broken() -> None:
    doc = Doc()
    entries = open_root(doc, "m", "map")
    entries["a"] = 1
    with pytest.raises(EngineFailed, match="Open the document again"):
        panic(entries)
    assert doc.broken
    for use in (
        lambda: entries.__setitem__("b", 2),
        lambda: entries.to_py(),
        doc.get_update,
        lambda: doc.get("t", type=pycrdt.Text),
    ):
        with pytest.raises(EngineFailed):
            use()


@pytest.mark.parametrize("where", ["in a transaction", "in an observer"])
def test_a_panic_leaves_no_transaction_open(where: str) -> None:
    doc = Doc()
    entries, text = open_root(doc, "m", "map"), open_root(doc, "t", "text")
    use: Callable[[], None]
    if where == "in an observer":
        text.observe(lambda event: event.target.doc._doc and text.integrated.remove_range(doc._txn._txn, 99, 1))  # type: ignore[union-attr]

        def use() -> None:
            text.insert(0, "x")
    else:

        def use() -> None:
            with doc.transaction():
                entries["a"] = 1
                panic(entries)

    with pytest.raises((EngineFailed, ExceptionGroup)):
        use()
    assert doc._txn is None


def test_a_live_document_that_failed_is_built_again() -> None:
    live = LiveDocument(bytes_max=1 << 20, roots_max=8)
    assert live.sound
    with pytest.raises(EngineFailed):
        panic(open_root(live._replica.doc, "m", "map"))
    assert not live.sound
