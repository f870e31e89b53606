"""Documents and updates that tests of documents make."""

from __future__ import annotations

import hashlib
from typing import Any

import pycrdt
from hypothesis import strategies as st

from shoal.crdt.dot import Dot, Origin, VersionVector
from shoal.crdt.rows import Stamp
from shoal.kinds.document.state.document import RootKind, Update
from shoal.kinds.document.state.live import LiveDocument
from tests.support.edits import ACTIONS, AUTHORS, Step

STEPS = st.lists(st.builds(Step, st.integers(0, AUTHORS - 1), st.integers(0, ACTIONS - 1), st.integers(0, 23)), max_size=20)


def live(*, bytes_max: int = 1 << 20, roots_max: int = 8, **built: Any) -> LiveDocument:
    return LiveDocument(bytes_max=bytes_max, roots_max=roots_max, **built)


def stamp(origin: int, sequence: int, hlc: int) -> Stamp:
    return Stamp(Dot(Origin(bytes([origin]) * 16), sequence), hlc, 0, VersionVector())


def mutation(payload: bytes, roots: dict[str, RootKind]) -> Update:
    return Update(hashlib.sha256(payload).digest(), roots)


def edited(root: str, kind: type[Any], client_id: int = 5) -> tuple[pycrdt.Doc[Any], Any]:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=client_id)
    return doc, doc.get(root, type=kind)


def map_update(value: Any, *, client_id: int = 5, root: str = "m") -> bytes:
    doc, entries = edited(root, pycrdt.Map, client_id)
    entries["k"] = value
    return doc.get_update()
