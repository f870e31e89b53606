"""The outbox of a mirror: local edits that are not yet known to be durable.

Laws:
- The outbox is bounded in bytes, and the bound loses nothing. The document itself holds every edit, so
  beyond the bound, or after a failure, the mirror sends the document's difference from the confirmed state
  instead of single edits. It does the same after many edits, because the difference joins consecutive typing
  and is smaller.
- It is full at half of what one request may have: all that waits leaves as one request, and the edit that
  fills it must fit in, too. What was sent and is not confirmed waits, however often it was sent.
"""

from __future__ import annotations

from shoal.kinds.document.handle.content import Content
from shoal.kinds.document.state.live import merged
from shoal.kinds.document.state.yjs import pack_state, parse_state

# The difference lists every deletion of the document, so it is only smaller after some edits.
_MERGED_MAX = 512


class Outbox:
    """The outbox of one mirror. `edits` counts the local edits, `written` those that are confirmed."""

    def __init__(self, content: Content, *, bytes_max: int) -> None:
        self.edits = self.written = 0
        self._content, self._bytes_max = content, bytes_max
        self._updates: list[bytes] = []
        self._bytes = 0  # Of all unwritten edits,
        self._taken = 0  # and of those that were taken last.
        self._behind = False  # Whether `_updates` lacks some unwritten edits.
        self._confirmed = 0  # Our client's clock up to which edits are written.

    @property
    def is_full(self) -> bool:
        """Whether so many bytes wait that no further edit should be made."""
        return self._bytes > self._bytes_max // 2

    def begin(self) -> None:
        """Note that the document holds what others edited before; an earlier mirror may have edited under our client id."""
        if not self.edits:
            self._confirmed = parse_state(self._content.doc.get_state()).get(self._content.doc.client_id, 0)

    def add(self, update: bytes) -> None:
        """Add a local edit."""
        self.edits += 1
        self._bytes += len(update)
        self._updates.append(update)
        if self._bytes > self._bytes_max:
            self.fall_behind()

    def take(self, *, lacked_by: bytes | None = None) -> tuple[bytes, int, int]:
        """The unwritten edits as one update; how many edits it covers in all, and our client's clock after it.

        With a state vector: all updates, of any author, that a node in that state lacks.
        """
        clocks = parse_state(self._content.doc.get_state())
        client = self._content.doc.client_id
        if lacked_by is not None:
            update = self._content.update_since(lacked_by)
        elif self._behind or len(self._updates) > _MERGED_MAX:
            update = self._content.update_since(pack_state({**clocks, client: self._confirmed}))
        else:
            update = merged(self._updates)
        self._updates, self._taken, self._behind = [], self._bytes, False
        return update, self.edits, clocks.get(client, 0)

    def confirm(self, edits: int, clock: int) -> None:
        """Note that edits up to this number and clock are durable."""
        self.written, self._confirmed = edits, clock
        self._bytes, self._taken = self._bytes - self._taken, 0

    def fall_behind(self) -> None:
        """Note that the taken edits may not have been written."""
        self._updates, self._behind = [], True
