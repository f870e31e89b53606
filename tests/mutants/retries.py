"""Bugs in what makes a request that is sent twice count once."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from shoal.crdt.dot import Dot
from shoal.errors import NoQuorum
from shoal.node import service
from shoal.node.peers.incoming import Incoming
from shoal.node.peers.quorum import Quorum
from shoal.node.transaction import Transaction
from shoal.node.writes.idempotency import IdempotencyTable
from shoal.node.writes.issuing import Issuer
from shoal.protocol.requests import AnyReply, AnyRequest
from shoal.storage import keys
from shoal.storage.keys import Kind
from shoal.transport.link import Link
from tests.mutants.mutant import Mutant, forget_implied_keys


def the_greatest_dot_of_a_key_is_kept(patch: pytest.MonkeyPatch) -> None:
    def greatest(self: Incoming, own: Transaction, number: int, key: str, dot: Dot, wall_ms: int) -> bool:
        row = keys.request_key(number, key)
        claimed = own.get(row)
        own.put(row, max(dot.pack(), claimed or b""))
        return claimed is None

    patch.setattr(Incoming, "_claim", greatest)


def replicas_forget_keys(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Incoming, "_claim", lambda self, own, number, key, *_: own.get(keys.request_key(number, key)) is None)


def a_key_is_not_looked_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IdempotencyTable, "find", lambda self, *_: None)


def data_types_forget_the_key_of_a_request(patch: pytest.MonkeyPatch) -> None:
    forget_implied_keys(patch, Kind.COUNTER, Kind.REGISTER, Kind.THREAD)


def a_retry_goes_without_its_key(patch: pytest.MonkeyPatch) -> None:
    sound = Link.call

    async def call(self: Link, request: AnyRequest, /, *, key: str | None = None, **options: Any) -> AnyReply:
        return await sound(self, request, key=None, **options)

    patch.setattr(Link, "call", call)


def one_write_alone_forgets_its_key(patch: pytest.MonkeyPatch) -> None:
    """The short way of `Issuer`, without what a second sending is known by."""
    sound = Issuer._issue_alone
    patch.setattr(Issuer, "_issue_alone", lambda self, writing: sound(self, replace(writing, key=None)))


def what_was_written_is_denied_afterwards(patch: pytest.MonkeyPatch) -> None:
    sound = Quorum._late
    patch.setattr(Quorum, "_late", lambda self, *given: NoQuorum(sound(self, *given).message))
    patch.setattr(service, "after", lambda error, what, advice: type(error)(error.message, **error.detail))


MUTANTS = (
    Mutant(the_greatest_dot_of_a_key_is_kept, "of two operations with one key the greatest dot answers", ("4",)),
    Mutant(replicas_forget_keys, "replicas drop the idempotency keys of what they receive", ("4", "5", "6")),
    Mutant(a_key_is_not_looked_up, "an idempotency key is not looked up before it is used", ("4", "5", "6")),
    Mutant(one_write_alone_forgets_its_key, "the short way of a write forgets its idempotency key", ("4", "5", "6")),
    Mutant(data_types_forget_the_key_of_a_request, "of one request at two nodes both operations count", ("5", "6")),
    Mutant(a_retry_goes_without_its_key, "a client fails over without its idempotency key", ("5", "6")),
    Mutant(
        what_was_written_is_denied_afterwards,
        'an error after a write was made says "nothing was written"',
        ("5", "13"),
    ),
)
