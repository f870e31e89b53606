from __future__ import annotations

from hashlib import sha256

import pytest

from shoal.errors import StoreCorrupt
from shoal.node.tiering.packs import OpenedPack, Pack, Packing

KEY, OTHER = b"k" * 32, b"o" * 32
CHUNKS = {b"D" + sha256(chunk).digest(): chunk for chunk in (b"secret" * 400, b"text" * 999)}


def packed() -> Pack:
    packing = Packing(KEY)
    for row, chunk in CHUNKS.items():
        packing.add(row, chunk)
    return packing.finish()


def test_a_pack_gives_back_what_was_put() -> None:
    pack = packed()
    opened = OpenedPack(pack.name, pack.content, KEY)
    assert dict(opened.chunks()) == CHUNKS
    for row, stub in pack.stubs.items():
        assert (stub.pack, stub.key, stub.size) == (pack.name, KEY, len(CHUNKS[row]))
        assert opened.rows[row] == (stub.start, stub.size)


@pytest.mark.parametrize("at", [0, 9, 700, -3])
def test_an_altered_pack_is_refused(at: int) -> None:
    pack = packed()
    altered = bytearray(pack.content)
    altered[at] ^= 1
    with pytest.raises(StoreCorrupt, match="was altered in the object store"):
        OpenedPack(pack.name, bytes(altered), KEY)


@pytest.mark.parametrize("content", [b"", b"SHOLPAK1", b"of another cluster"])
def test_another_object_is_no_pack(content: bytes) -> None:
    with pytest.raises(StoreCorrupt):
        OpenedPack(packed().name, content, KEY)


def test_a_key_of_another_pack_opens_nothing() -> None:
    pack = packed()
    with pytest.raises(StoreCorrupt, match="cannot be opened with the key"):
        OpenedPack(pack.name, pack.content, OTHER)


def test_a_pack_shows_nothing_of_its_chunks() -> None:
    content = packed().content
    assert b"secret" not in content
    assert b"texttext" not in content
    assert not any(row[1:] in content for row in CHUNKS)


def test_chunks_have_the_hash_of_their_row() -> None:
    packing = Packing(KEY)
    row = b"D" + sha256(b"another").digest()
    packing.add(row, b"a chunk")
    pack = packing.finish()
    with pytest.raises(StoreCorrupt, match="does not hold a chunk that was put there"):
        OpenedPack(pack.name, pack.content, KEY).chunk(row)
