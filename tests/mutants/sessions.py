"""Bugs in what a session is owed, on whatever node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from shoal.crdt.dot import VersionVector
from shoal.errors import BookmarkLost, SessionBehind
from shoal.node.peers.quorum import Quorum
from shoal.node.reads.reads import Reads
from shoal.node.service import Service
from shoal.protocol import requests
from shoal.protocol.bookmark import Bookmark, SharedBookmark
from shoal.protocol.requests import AnyReply, AnyWrite, Durability, Term
from shoal.transport.link import Link
from tests.mutants.mutant import Mutant


def reads_ignore_the_bookmark(patch: pytest.MonkeyPatch) -> None:
    sound = Reads.answer

    async def answer(self: Reads, request: requests.AnyRead, bookmark: Bookmark, *, stale: bool) -> AnyReply:
        shown = Bookmark()
        reply = await sound(self, request, shown, stale=stale)
        bookmark.join(shown)
        return reply

    patch.setattr(Reads, "answer", answer)


def writes_ignore_the_bookmark(patch: pytest.MonkeyPatch) -> None:
    sound = Service._write

    async def write(
        self: Service,
        request: AnyWrite,
        bookmark: Bookmark,
        key: str | None,
        durability: Durability,
        *,
        stale: bool,
        terms: Sequence[Term] = (),
    ) -> AnyReply:
        return await sound(self, request, bookmark, key, durability, stale=True, terms=terms)

    patch.setattr(Service, "_write", write)
    begin = Service.begin
    patch.setattr(
        Service, "begin", lambda *given, key, durability, stale: begin(*given, key=key, durability=durability, stale=True)
    )


def who_waited_too_long_is_shown_less(patch: pytest.MonkeyPatch) -> None:
    sound = Quorum.wait_applied

    async def wait_applied(self: Quorum, partition: int, wanted: VersionVector, /) -> None:
        try:
            await sound(self, partition, wanted)
        except (SessionBehind, BookmarkLost):
            return

    patch.setattr(Quorum, "wait_applied", wait_applied)


def reads_are_not_in_the_bookmark(patch: pytest.MonkeyPatch) -> None:
    sound = Reads.answer

    async def answer(self: Reads, request: requests.AnyRead, bookmark: Bookmark, *, stale: bool) -> AnyReply:
        forgotten = Bookmark()
        forgotten.join(bookmark)
        return await sound(self, request, forgotten, stale=stale)

    patch.setattr(Reads, "answer", answer)


def what_was_seen_is_not_told_to_the_client(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SharedBookmark, "news", lambda self: [])


def a_bookmark_is_left_behind_at_fail_over(patch: pytest.MonkeyPatch) -> None:
    sound = Link.__init__

    def init(self: Link, *args: Any, bookmark: Bookmark, **options: Any) -> None:
        sound(self, *args, bookmark=Bookmark(), **options)

    patch.setattr(Link, "__init__", init)


MUTANTS = (
    Mutant(reads_ignore_the_bookmark, "a read does not wait for what its session has seen", ("2", "7")),
    Mutant(writes_ignore_the_bookmark, "a write does not wait for what its session has seen", ("7", "9")),
    Mutant(who_waited_too_long_is_shown_less, "a session that waited too long is shown less, and not told", ("7",)),
    Mutant(reads_are_not_in_the_bookmark, "what a read showed is not in the bookmark", ("2", "7")),
    Mutant(what_was_seen_is_not_told_to_the_client, "a reply comes without what the bookmark grew by", ("7",)),
    Mutant(a_bookmark_is_left_behind_at_fail_over, "a client fails over without its bookmark", ("7",)),
)
