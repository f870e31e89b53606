"""A node serves every operation that is declared: each is in the tables that its base class says, and in no others."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from shoal.errors import InvalidInput
from shoal.protocol import requests
from shoal.protocol.requests import Maintenance, MultiRead, ObjectRead, ObjectWrite, Read, Request
from shoal.protocol.requests.families import operations
from tests.node.conftest import Bench


def of(base: type[Request[Any]]) -> set[type]:
    return {kind for kind in operations() if issubclass(kind, base)}


def test_every_write_is_checked_and_has_a_writer(bench: Bench) -> None:
    issuer = bench.node.service._database.issuer
    assert set(issuer._writers) == of(ObjectWrite)
    assert set(issuer._checks) == of(ObjectWrite) | of(Maintenance)


@pytest.mark.answers("node-issues-what-peers-refuse")
async def test_a_nodes_own_requests_are_checked_like_a_clients(bench: Bench) -> None:
    """Peers refuse an operation that is not legal, for ever, so it must not be issued."""
    database = bench.node.service._database
    with pytest.raises(InvalidInput, match="a fencing number is 1 to"):
        database.issue(requests.MarkLease("crew", "t", 0, "", over=True), None)
    assert database.issuer.operations == 0


def test_every_maintenance_is_carried_out(bench: Bench) -> None:
    assert set(bench.node.service._database._kinds.maintenance) == of(Maintenance)


def test_every_read_of_an_object_has_one_reader(bench: Bench) -> None:
    kinds = bench.node.service._database._kinds
    assert not set(kinds.readers) & set(kinds.scans)
    assert set(kinds.readers) | set(kinds.scans) == of(ObjectRead)


def test_every_other_read_is_answered_in_one_place(bench: Bench) -> None:
    service = bench.node.service
    answers, of_sessions = set(service._reads._answers), set(service.presences.of_sessions)
    subscriptions = set(service._subscriptions._kinds)
    assert subscriptions == set(get_args(requests.Subscription))
    assert not answers & of_sessions
    assert answers | of_sessions | subscriptions | {MultiRead} == of(Read) - of(ObjectRead)
