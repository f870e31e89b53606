"""Cutting files into chunks, and proving them as they are read."""

from __future__ import annotations

import random
from hashlib import sha256
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.config import Config
from shoal.errors import StoreCorrupt
from shoal.kinds.file import flows, proven
from shoal.kinds.file.flows import Chunker, Download
from shoal.kinds.file.state import Chunk, is_manifest, pack_manifest, unpack_manifest
from shoal.protocol.requests import ChunksRead, FileInfo, FileShown
from shoal.workflows.connection import Connection
from simulation.bounds import altered

SMALL = {"file_chunk_bytes_min": 256, "file_chunk_bytes_usual": 1024, "file_chunk_bytes_max": 8192}
KINDS = [False, *([True] if flows.compiled_cut() is not None else [])]


def cut(data: bytes, step: int, *, compiled: bool) -> list[bytes]:
    with altered(**SMALL):
        chunker = Chunker(compiled=compiled)
        chunks = [chunk for start in range(0, len(data), step) for chunk in chunker.feed(data[start : start + step])]
        return [*chunks, *chunker.finish()]


@pytest.mark.parametrize("compiled", KINDS)
@given(st.integers(0, 60_000), st.integers(1, 20_000), st.integers(0, 9), st.booleans())
def test_chunks_make_the_file_however_it_is_handed_over(compiled: bool, size: int, step: int, seed: int, is_text: bool) -> None:
    made = random.Random(seed)
    data = bytes(made.choices(b"ab ", k=size)) if is_text else made.randbytes(size)
    chunks = cut(data, step, compiled=compiled)
    assert b"".join(chunks) == data
    assert all(0 < len(chunk) <= 8192 for chunk in chunks)
    assert all(len(chunk) >= 256 for chunk in chunks[:-1])
    assert chunks == cut(data, max(1, size), compiled=compiled)


def test_a_hash_is_said_of_one_object_for_a_while() -> None:
    chunk, hash = bytes(range(250)), b"h" * 32
    same = bytes(bytearray(chunk))
    with proven.saying({hash: chunk}):
        assert (proven.said(chunk), proven.digest_of(chunk)) == (hash, hash)
        assert (proven.said(same), proven.digest_of(same)) == (None, sha256(chunk).digest())
    assert proven.said(chunk) is None


@pytest.mark.parametrize("compiled", KINDS)
def test_a_long_run_of_one_byte_is_cut(compiled: bool) -> None:
    assert max(map(len, cut(bytes(100_000), 50_000, compiled=compiled))) <= 8192


@pytest.mark.parametrize("compiled", KINDS)
def test_an_insertion_moves_only_cuts_near_it(compiled: bool) -> None:
    data = random.Random(1).randbytes(1 << 24)
    with altered(file_chunk_bytes_max=1 << 20, file_chunk_bytes_min=1 << 15, file_chunk_bytes_usual=1 << 18):
        first, second = (
            [*(chunker := Chunker(compiled=compiled)).feed(each), *chunker.finish()]
            for each in (data, data[:9] + b"x" + data[9:])
        )
    assert len(set(first) & set(second)) >= 0.5 * len(first)


@pytest.mark.parametrize("compiled", KINDS)
@pytest.mark.parametrize("step", [1000, 60_000])
def test_small_chunks_are_shared_too(compiled: bool, step: int) -> None:
    data = random.Random(1).randbytes(60_000)
    first, second = (set(cut(each, step, compiled=compiled)) for each in (data, b"more" + data))
    assert len(first) > 2 * (len(data) // SMALL["file_chunk_bytes_max"]), "the usual size decides, not the greatest"
    assert len(first & second) >= 0.8 * len(first)


def test_a_chunker_keeps_to_its_limit() -> None:
    chunker = Chunker()
    chunker.limit(100_000)
    data = random.Random(1).randbytes(1 << 20)
    chunks = [*chunker.feed(data), *chunker.finish()]
    assert b"".join(chunks) == data
    assert max(map(len, chunks)) <= 100_000


@given(st.lists(st.tuples(st.binary(min_size=32, max_size=32), st.integers(1, 2**32 - 1)), max_size=20))
def test_a_manifest_is_read_as_it_was_written(entries: list[tuple[bytes, int]]) -> None:
    chunks = [Chunk(*entry) for entry in entries]
    packed, size = pack_manifest(chunks), sum(size for _, size in entries)
    assert unpack_manifest(packed) == chunks
    assert is_manifest(packed, size)
    assert not is_manifest(packed, size + 1)
    assert not is_manifest(packed + b"\0", size)


@given(st.binary(max_size=200), st.integers(0, 1 << 40))
def test_any_bytes_are_a_manifest_or_not(packed: bytes, size: int) -> None:
    if is_manifest(packed, size):
        assert sum(chunk.size for chunk in unpack_manifest(packed)) == size


class _Lying:
    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks

    async def call(self, _request: object, /, **_given: object) -> Any:
        return ChunksRead(self._chunks)


def download(chunks: list[bytes], sent: list[bytes], hash: str) -> Download:
    entries = [Chunk(sha256(chunk).digest(), len(chunk)) for chunk in chunks]
    file = FileInfo("a", hash, sum(map(len, chunks)), "text/plain", 0)
    connection = Connection(cast("Any", _Lying(sent)), Config(), "local")
    return Download(connection, "s", "t", FileShown(file, pack_manifest(entries)))


@pytest.mark.parametrize("sent", [[b"one", b"TWO"], [], [b"one", b"two", b"three"]])
async def test_bytes_that_are_not_the_files_are_refused(sent: list[bytes]) -> None:
    with pytest.raises(StoreCorrupt):
        [piece async for piece in download([b"one", b"two"], sent, sha256(b"onetwo").hexdigest()).read()]


async def test_a_file_of_another_hash_is_refused_at_its_end() -> None:
    with pytest.raises(StoreCorrupt):
        [piece async for piece in download([b"one"], [b"one"], "00" * 32).read()]
