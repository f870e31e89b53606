"""A lease or a claim is used by the author whose token acquired it, or by an administrator."""

from __future__ import annotations

import os
from typing import Any

import aiohttp
import pytest

import shoal
from shoal.access.bearer import AuthorSecrets
from shoal.errors import Forbidden, InvalidInput, LeaseHeld, LeaseLost
from shoal.protocol import requests
from tests.access.conftest import Mint, Serve, Served

GRANT = "crew:read,write"
SECRET = "0123456789abcdef" * 2


def holding(author: str) -> AuthorSecrets:
    return AuthorSecrets(author, entropy=os.urandom)


def nobody(*_: str) -> bool:
    return False


def bound(author: str, secret: str = SECRET) -> str:
    request: Any = holding(author).bound(requests.AcquireLease("crew", "n", 30_000, token=secret), nobody)
    return str(request.token)


def test_a_secret_is_bound_once_and_to_its_author() -> None:
    assert bound("ana") == bound("ana") != bound("bo")
    assert bound("ana", bound("ana")) == bound("ana")
    assert bound("ana").startswith(SECRET[:16])
    assert bound("bo", bound("ana")) != bound("ana")
    assert bound("ana", "") != bound("ana", "")
    assert bound("ana", bound("ana").upper()) == bound("ana")


@pytest.mark.parametrize("secret", ["no hex", "00", "00" * 17])
def test_public_values_are_left_to_the_node(secret: str) -> None:
    assert bound("ana", secret) == secret


def uses(secret: str) -> list[requests.Request[Any]]:
    """Every request that uses the secret of a lease or of a claim."""
    term = requests.Term("crew", "n", False, 1, secret)
    claim = requests.Term("crew", "t", False, 1, secret, "w", "0" * 64)
    complete = requests.CompleteItem("crew", "t", "w", "0" * 64, 1, secret)
    return [
        requests.RenewLease("crew", "n", 1, secret),
        requests.ReleaseLease("crew", "n", 1, secret),
        requests.RenewLeases([term]),
        requests.Fenced([term], requests.Add("crew", "c", 1)),
        requests.Fenced([claim], requests.Add("crew", "c", 1)),
        requests.ExtendClaim("crew", "t", "w", "0" * 64, 1, secret),
        complete,
        requests.FailItem("crew", "t", "w", "0" * 64, 1, secret),
        requests.Batch([requests.Add("crew", "c", 1), complete]),
        requests.Fenced([], requests.Batch([complete])),
    ]


@pytest.mark.answers("client-that-learned-the-secret-of-anothers-lease")
@pytest.mark.parametrize("nth", range(len(uses(""))))
def test_each_use_takes_the_author_or_the_right_to_administer(nth: int) -> None:
    request = uses(bound("ana"))[nth]
    assert holding("ana").bound(request, nobody) is request
    assert holding("bo").bound(request, lambda *_: True) is request
    with pytest.raises(Forbidden) as caught:
        holding("bo").bound(request, nobody)
    assert (caught.value.detail["action"], caught.value.written) == ("admin", "no")
    assert SECRET[:16] not in str(caught.value)


def test_every_request_with_a_fence_and_a_secret_is_checked_or_made_by_nodes() -> None:
    from shoal.protocol.requests.families import operations

    made_by_nodes = {requests.BeginAttempt, requests.Swap}
    found = {kind for kind in operations() if {"fence", "token"} <= set(kind.__struct_fields__)}
    assert found - made_by_nodes == {type(each) for each in uses("")} & found
    terms = {kind for kind in operations() if "terms" in kind.__struct_fields__} | {requests.RenewLeases, requests.Fenced}
    assert terms <= {type(each) for each in uses("")}


# ── at a node ─────────────────────────────────────────────────────────────────


@pytest.fixture
async def served(serve: Serve, mint: Mint) -> Served:
    return await serve(token_keys=mint.keys, lease_poll_s=0.01)


@pytest.mark.answers("client-that-learned-the-secret-of-anothers-lease")
async def test_another_author_with_the_stolen_secret_cannot_use_it(mint: Mint, links: Any) -> None:
    ana = await links(mint.make(GRANT, author="ana"))
    granted = await ana.call(requests.AcquireLease("crew", "n", 30_000, token=SECRET))
    thief = await links(mint.make(GRANT, author="bo"))
    for request in (
        requests.RenewLease("crew", "n", granted.fence, granted.token),
        requests.ReleaseLease("crew", "n", granted.fence, granted.token),
        requests.Fenced([requests.Term("crew", "n", False, granted.fence, granted.token)], requests.Add("crew", "c", 1)),
    ):
        with pytest.raises(Forbidden):
            await thief.call(request)
    with pytest.raises(LeaseHeld):
        await thief.call(requests.AcquireLease("crew", "n", 30_000, token=granted.token))
    again = await links(mint.make(GRANT, author="ana"))  # With a newer token.
    assert (await again.call(requests.RenewLease("crew", "n", granted.fence, granted.token))).granted
    assert (await again.call(requests.AcquireLease("crew", "n", 30_000, token=SECRET))).fence == granted.fence


async def test_an_administrator_releases_what_another_holds(mint: Mint, links: Any) -> None:
    ana = await links(mint.make(GRANT, author="ana"))
    granted = await ana.call(requests.AcquireLease("crew", "n", 30_000))
    ops = await links(mint.make("crew:admin", author="ops"))
    assert (await ops.call(requests.ReleaseLease("crew", "n", granted.fence, granted.token))).released
    with pytest.raises(LeaseLost):
        await ana.call(requests.RenewLease("crew", "n", granted.fence, granted.token))
    with pytest.raises(InvalidInput):
        await ana.call(requests.AcquireLease("crew", "n", 30_000, token="no hex"))


@pytest.mark.answers("worker-under-another-name")
async def test_leases_and_claims_of_clients_work_as_without_tokens(served: Served, mint: Mint) -> None:
    async with shoal.connect(served.url, token=mint.make(GRANT, author="ana").text) as store:
        space = store.space("crew")
        async with space.lease("nightly", ttl=5.0) as lease:
            await lease.renew()
            await space.counter("n").add(1)
        worklist = space.worklist("pages")
        await worklist.add({"page-1": {"url": "/1"}})
        job = await worklist.claim(ttl=5.0)
        assert job is not None
        async with job:
            await job.complete({"ok": True})
        assert await space.counter("n").value() == 1


async def test_over_http_a_lease_is_renewed_with_the_secret_of_the_answer(
    served: Served, mint: Mint, http: aiohttp.ClientSession
) -> None:
    url, ana, bo = f"{served.url}/v1/spaces/crew/leases/n", mint.make(GRANT, author="ana"), mint.make(GRANT, author="bo")
    async with http.post(url, json={"ttl": 30}, headers=ana.header) as answer:
        granted = await answer.json()
    ticket = {"fence": granted["fence"], "token": granted["token"]}
    for made, status in ((bo, 403), (ana, 200)):
        async with http.put(url, json=ticket, headers=made.header) as answer:
            assert answer.status == status
    for made, status in ((bo, 403), (ana, 200)):
        async with http.post(f"{url}/release", json=ticket, headers=made.header) as answer:
            assert answer.status == status
