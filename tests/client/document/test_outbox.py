"""Edits that wait to be sent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pycrdt
import pytest

from shoal.kinds.document.handle.mirror import Outbox

pytestmark = pytest.mark.virtual_time


@pytest.mark.answers("merging-many-updates-at-once-takes-quadratic-time")
def test_many_edits_are_merged_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's merge takes time that grows with the square of the number of updates."""
    merge, merged_at_once = pycrdt.merge_updates, []

    def merge_updates(*updates: bytes) -> bytes:
        merged_at_once.append(len(updates))
        return merge(*updates)

    monkeypatch.setattr(pycrdt, "merge_updates", merge_updates)
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=1)
    content: Any = SimpleNamespace(doc=doc, update_since=doc.get_update)
    outbox = Outbox(content, bytes_max=1 << 20)
    doc.observe(lambda event: outbox.add(event.update))
    text = doc.get("t", type=pycrdt.Text)
    for _ in range(200):
        text += "x"
    update, edits, _ = outbox.take()
    copy: pycrdt.Doc[Any] = pycrdt.Doc(client_id=2)
    copy.apply_update(update)
    assert (edits, str(copy.get("t", type=pycrdt.Text))) == (200, "x" * 200)
    assert 1 < max(merged_at_once) <= 32


def filled(bytes_max: int) -> tuple[Outbox, pycrdt.Text]:
    """An outbox that is full, and the text that was edited."""
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=1)
    content: Any = SimpleNamespace(doc=doc, update_since=doc.get_update)
    outbox = Outbox(content, bytes_max=bytes_max)
    doc.observe(lambda event: outbox.add(event.update))
    text = doc.get("t", type=pycrdt.Text)
    while not outbox.is_full:
        text += "x" * 1500
    return outbox, text


def test_a_full_outbox_fits_in_one_request() -> None:
    outbox, _ = filled(4096)
    update, edits, _ = outbox.take()
    assert edits == outbox.edits
    assert len(update) <= 4096


def test_edits_that_were_sent_in_vain_wait() -> None:
    outbox, text = filled(4096)
    for _ in range(3):
        update, edits, clock = outbox.take()
        outbox.fall_behind()
        assert outbox.is_full
    text += "y"
    outbox.confirm(edits, clock)
    assert not outbox.is_full
    assert len(outbox.take()[0]) < len(update)


def test_beyond_its_bound_it_keeps_no_edits() -> None:
    outbox, text = filled(4096)
    while outbox._bytes <= 4096:
        text += "x" * 1500
    assert outbox._updates == []
    copy: pycrdt.Doc[Any] = pycrdt.Doc(client_id=2)
    copy.apply_update(outbox.take()[0])
    assert str(copy.get("t", type=pycrdt.Text)) == str(text)
