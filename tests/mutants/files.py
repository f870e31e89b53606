"""Bugs in the files of threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from shoal.crdt.rows import Rows
from shoal.kinds.file import state as files
from shoal.kinds.file.serving import files as serving
from shoal.node.collection import garbage
from shoal.node.handler import Piece
from shoal.protocol.requests import NameFile, PutFile
from shoal.storage import interface
from shoal.storage.commit import GroupCommit
from simulation.parts.files import PIECE_BYTES
from tests.mutants.mutant import Mutant

_LATE_S = 1.0


def a_content_that_an_event_names_is_collected(patch: pytest.MonkeyPatch) -> None:
    def referred(_rows: object, _hashes: object) -> Generator[None, None, dict[bytes, bytes]]:
        yield
        return {}

    patch.setattr(serving, "referred", referred)
    patch.setattr(garbage, "referred", referred)


def a_shared_chunk_goes_with_its_first_file(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(files, "is_unused", lambda _rows, _digest: True)


def a_file_without_a_chunk_is_acknowledged(patch: pytest.MonkeyPatch) -> None:
    sound = files.has_chunk

    def has_chunk(rows: Rows, digest: bytes) -> bool:
        return digest[0] % 2 == 0 or sound(rows, digest)

    def put(self: serving.Files, _rows: object, request: PutFile) -> Generator[Any, Any, Any]:
        self._proved.put((request.space, request.thread, files.content_of(bytes.fromhex(request.sha256), request.manifest)))
        return (yield Piece(NameFile(*[getattr(request, name) for name in request.__struct_fields__])))

    patch.setattr(files, "has_chunk", has_chunk)
    patch.setattr(files, "size_of", lambda _rows, _digest: PIECE_BYTES)
    patch.setattr(serving.Files, "_put", put)


def a_write_does_not_wait_for_what_is_laid_down(patch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def laying(self: GroupCommit, values: Sequence[bytes], digest_of: interface.DigestOf) -> AsyncIterator[None]:
        large = [value for value in values if len(value) >= interface.LARGE_BYTES_MIN]
        lay = self._storage.begin_laying(large, digest_of) if large else None
        if lay is not None:
            asyncio.get_running_loop().call_later(_LATE_S, lay)
        yield

    patch.setattr(GroupCommit, "laying", laying)


MUTANTS = (
    Mutant(
        a_write_does_not_wait_for_what_is_laid_down,
        "a file's chunks are laid down beside the write that names them, not before",
        ("3", "10"),
        profile="laid",
    ),
    Mutant(a_content_that_an_event_names_is_collected, "a content to which an event refers is collected", ("3", "10")),
    Mutant(a_shared_chunk_goes_with_its_first_file, "a chunk that two files share goes with the first", ("3", "10", "4")),
    Mutant(
        a_file_without_a_chunk_is_acknowledged, "a file is acknowledged although a chunk of it is missing", ("3", "4", "10")
    ),
)
