"""The beginnings of a mirrored document, as nodes have named them.

A beginning that was acknowledged under `local` can die with its node's disk while a mirror still shows it. The next node
may have another, and then no node knows both, so none could tell which one counts.

Law: of several beginnings only a node decides which one counts, and a mirror never takes the content of a second one from a
node that does not know the first. It restores the first before: then the node tells what does not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.kinds.document.handle.content import Content
from shoal.kinds.document.state import genesis
from shoal.kinds.document.state.document import RootKind
from shoal.protocol.requests import Beginning, DocumentState, RestoreBeginning


class Beginnings:
    """The beginnings that one mirror knows."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self._known: dict[bytes, dict[str, RootKind]] = {}

    def learn(self, told: Sequence[Beginning] | None) -> None:
        """Remember the beginnings that a node named."""
        self._known.update((each.digest, each.roots) for each in told or ())

    @property
    def shown(self) -> bytes:
        """The hash of the beginning that counts, of those known here; empty if none is known."""
        return min(self._known, default=b"")

    def is_lacked_by(self, state: DocumentState) -> bool:
        """Whether a node lacks the beginning that the mirror shows."""
        if state.beginnings is None or not self._known:
            return False
        return self.shown not in {each.digest for each in state.beginnings}

    def restored(self, space: str, document: str, *, authors: Mapping[int, str], generation: int) -> RestoreBeginning:
        """The request that gives a node the beginning that the mirror shows; there must be one."""
        digest = self.shown
        update, deletions = genesis.cut_out(self._content.doc, digest)
        author = authors.get(genesis.client_of(digest), "")
        return RestoreBeginning(space, document, digest, update, deletions, self._known[digest], author, generation)
