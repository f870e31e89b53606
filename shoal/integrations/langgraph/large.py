"""Large values of a graph's checkpoints and pending writes: files of the thread, and references in their place.

Laws:
- A value above a sixteenth of a request (`request_bytes_max`), and a list above a quarter, is a file; so is the largest of what
  is left, while all of it together is above half a request. So a state has any size, and a list that grows is stored by its new
  end for long.
- A file holds the bytes that the checkpoint would hold: an encrypting serialiser's are encrypted.
- What a reference stands for is decoded as what stands in its place: by the saver's serialiser, with its allow-list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from msgspec import structs

from shoal.client.connection import StoreConnection
from shoal.integrations.contents import Contents
from shoal.integrations.langgraph import encoding
from shoal.integrations.langgraph.encoding import is_list, reference_of, referring
from shoal.protocol.requests import Annotate, Note, Save

K = TypeVar("K")
_WORTH_BYTES = 4096  # Of a value that becomes a file because others are large, too.


class Large:
    """The large values of the threads of one space. `contents` are their files."""

    def __init__(self, connection: StoreConnection, space: str) -> None:
        self.contents = Contents(connection, space)
        most = connection.config.request_bytes_max
        self._value_max, self._list_max, self._together_max = most // 16, most // 4, most // 2

    def are_in(self, request: Save | Annotate) -> bool:
        """Whether a write has values that are to be files."""
        is_put = isinstance(request, Save)
        values = dict(enumerate(request.channels.values() if isinstance(request, Save) else _notes(request)))
        return sum(map(len, values.values())) > self._value_max and bool(self._chosen(values, lists=is_put))

    async def put(self, request: Save, *, least: bool = False) -> Save:
        """A put whose large values are files, as far as the space takes files. `least`: it holds a quarter of what it may."""
        chosen = self._chosen(request.channels, lists=True, share=4 if least else 1)
        if not chosen or not await self.contents.are_taken():
            return request
        channels = dict(request.channels)
        for name in chosen:
            channels[name] = referring(await self.contents.put(request.thread, channels[name], name=name))
        return structs.replace(request, channels=channels)

    async def annotated(self, request: Annotate) -> Annotate:
        """Pending writes whose large values are files, as far as the space takes files."""
        chosen = self._chosen(dict(enumerate(_notes(request))), lists=False)
        if not chosen or not await self.contents.are_taken():
            return request
        notes = list(request.notes)
        for nth in chosen:
            note = notes[nth]
            write = encoding.unpack_write(note.value)
            ref = await self.contents.put(request.thread, encoding.typed(write.kind, write.value), name=write.channel)
            notes[nth] = Note(note.name, encoding.written(write.task_path, write.channel, ref), note.first)
        return structs.replace(request, notes=notes)

    async def whole(self, thread: str, packed: bytes) -> bytes:
        """A channel's packed value, if need be from its file.

        Raises:
            NotFound: the checkpoint was deleted meanwhile, and its files were swept.
            InvalidValue: the reference is none.
        """
        ref = reference_of(packed)
        return packed if ref is None else await self.contents.get(thread, ref)

    def _chosen(self, values: Mapping[K, bytes], *, lists: bool, share: int = 1) -> list[K]:
        left, chosen = sum(map(len, values.values())), list[K]()
        for key, value in sorted(values.items(), key=lambda each: len(each[1]), reverse=True):
            if len(value) <= _WORTH_BYTES:
                break
            bound = self._list_max if lists and is_list(value) else self._value_max
            if len(value) > bound or left > self._together_max // share:
                chosen.append(key)
                left -= len(value)
        return chosen


def _notes(request: Annotate) -> list[bytes]:
    return [note.value for note in request.notes]
