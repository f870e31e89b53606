"""Tokens of OIDC issuers: their keys are fetched, kept and replaced, and what an issuer says is not believed blindly."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from secrets import token_hex
from typing import Any

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, rsa

import shoal
from shoal.access.access import Access
from shoal.config import Config
from shoal.errors import Forbidden, InvalidConfig, ShoalError, Unauthenticated
from shoal.protocol.requests import Save
from tests.access.conftest import Mint, Serve, Served

PATIENT = Config(request_timeout_s=30.0, reach_timeout_s=30.0)
AUDIENCE = "shoal-of-tests"


class Issuer:
    """An OIDC issuer on this machine."""

    def __init__(self) -> None:
        self.url = ""
        self.keys: dict[str, Any] = {}
        self.listed: list[dict[str, Any]] | None = None  # What it lists, if that is not its keys.
        self.describes: dict[str, Any] = {}  # In place of what is true.
        self.status = 200
        self.asked = 0
        self.add("rsa", rsa.generate_private_key(65537, 2048), jwt.algorithms.RSAAlgorithm)

    def add(self, kid: str, key: Any, algorithm: Any) -> None:
        jwk = json.loads(algorithm.to_jwk(key.public_key()))
        self.keys[kid] = (key, {**jwk, "kid": kid, "use": "sig"})

    async def describe(self, _: web.Request) -> web.Response:
        self.asked += 1
        return web.json_response({"issuer": self.url, "jwks_uri": f"{self.url}/keys"} | self.describes, status=self.status)

    async def list(self, _: web.Request) -> web.Response:
        listed = [jwk for _, jwk in self.keys.values()] if self.listed is None else self.listed
        return web.json_response({"keys": listed}, status=self.status)

    def token(self, kid: str = "rsa", algorithm: str = "RS256", **claims: Any) -> str:
        now = int(time.time())
        said = {
            "iss": self.url,
            "sub": "ada",
            "jti": token_hex(8),
            "aud": AUDIENCE,
            "exp": now + 600,
            "iat": now,
            "shoal": ["crew:counter:append"],
        }
        return jwt.encode(said | claims, self.keys[kid][0], algorithm=algorithm, headers={"kid": kid})


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    found = Issuer()
    app = web.Application()
    app.router.add_get("/.well-known/openid-configuration", found.describe)
    app.router.add_get("/keys", found.list)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield found
    await runner.cleanup()


@pytest.fixture
async def served(issuer: Issuer, serve: Serve) -> Served:
    served = await serve(oidc_issuers=issuer.url, oidc_audience=AUDIENCE, oidc_pause_s=0.02, oidc_look_s=3600.0)
    await fetched(served)
    return served


def access_of(served: Served) -> Access:
    assert served.access is not None
    return served.access


async def fetched(served: Served) -> None:
    await access_of(served).issuers.fetch()


async def told(served: Served, token: str) -> ShoalError | int:
    try:
        async with shoal.connect(served.url, token=token, config=PATIENT) as store:
            return int(await store.space("crew").counter("n").add(1))
    except ShoalError as error:
        return error if error.written == "no" else 0


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def test_tokens_of_an_issuer_count_for_what_they_grant(issuer: Issuer, served: Served) -> None:
    issuer.add("ec", ec.generate_private_key(ec.SECP256R1()), jwt.algorithms.ECAlgorithm)
    await fetched(served)
    assert await told(served, issuer.token()) == 1
    assert await told(served, issuer.token("ec", "ES256")) == 2
    objects = [{"space": "crew", "families": ["counter"], "actions": ["append"]}]
    assert await told(served, issuer.token(shoal=objects)) == 3
    assert isinstance(await told(served, issuer.token(shoal=["other:admin"])), Forbidden)


async def test_both_kinds_of_tokens_count_beside_each_other(issuer: Issuer, serve: Serve, mint: Mint) -> None:
    both = await serve(token_keys=mint.keys, oidc_issuers=issuer.url, oidc_audience=AUDIENCE)
    await fetched(both)
    assert await told(both, issuer.token()) == 1
    assert await told(both, mint.make("crew:counter:append").text) == 2


@pytest.mark.answers("false-tokens-do-not-count", note="of OIDC issuers")
@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "another-service"},
        {"aud": None},
        {"iss": "https://elsewhere.example"},
        {"iss": "shoal"},
        {"exp": 1},
        {"exp": None},
        {"shoal": None},
        {"shoal": "crew:read"},
        {"shoal": ["crew"]},
        {"shoal": ["crew:read"] * 65},
        {"sub": None},
        {"jti": None},
        {"jti": ""},
    ],
)
async def test_missing_claims_of_an_issuers_token_are_named(issuer: Issuer, served: Served, claims: dict[str, Any]) -> None:
    said = jwt.decode(issuer.token(), options={"verify_signature": False}) | claims
    token = jwt.encode(
        {name: value for name, value in said.items() if value is not None},
        issuer.keys["rsa"][0],
        algorithm="RS256",
        headers={"kid": "rsa"},
    )
    assert isinstance(await told(served, token), Unauthenticated)


@pytest.mark.answers("false-tokens-do-not-count", note="of OIDC issuers")
async def test_a_key_is_not_used_with_another_algorithm(issuer: Issuer, served: Served) -> None:
    public = issuer.keys["rsa"][1]
    forged = jwt.encode(
        jwt.decode(issuer.token(), options={"verify_signature": False}), public["n"], algorithm="HS256", headers={"kid": "rsa"}
    )
    assert isinstance(await told(served, forged), Unauthenticated)


@pytest.mark.answers("false-tokens-do-not-count", note="of OIDC issuers")
async def test_an_issuer_that_is_away_closes_nothing(issuer: Issuer, served: Served) -> None:
    issuer.status = 503
    await fetched(served)
    assert await told(served, issuer.token()) == 1
    for describes in ({"issuer": "https://other.example"}, {"jwks_uri": "http://elsewhere.example/keys"}, {"jwks_uri": 7}):
        issuer.status, issuer.describes = 200, describes
        issuer.listed = []
        await fetched(served)
        assert isinstance(await told(served, issuer.token()), int)


async def test_before_its_keys_came_an_issuer_lets_nobody_in(issuer: Issuer, serve: Serve) -> None:
    issuer.status = 503
    served = await serve(oidc_issuers=issuer.url, oidc_audience=AUDIENCE, oidc_pause_s=0.02)
    assert isinstance(await told(served, issuer.token()), Unauthenticated)
    issuer.status = 200
    async with asyncio.timeout(30):
        while not isinstance(await told(served, issuer.token()), int):
            await asyncio.sleep(0.02)


async def test_a_new_key_is_fetched_when_a_token_names_it_and_an_old_one_ends(issuer: Issuer, served: Served) -> None:
    former = issuer.token()
    assert await told(served, former) == 1
    del issuer.keys["rsa"]
    issuer.add("next", rsa.generate_private_key(65537, 2048), jwt.algorithms.RSAAlgorithm)
    async with asyncio.timeout(30):
        while not isinstance(await told(served, issuer.token("next")), int):
            await asyncio.sleep(0.02)
    assert isinstance(await told(served, former), Unauthenticated)


async def test_unknown_keys_do_not_make_a_node_ask_an_issuer_again_and_again(issuer: Issuer, serve: Serve) -> None:
    served = await serve(oidc_issuers=issuer.url, oidc_audience=AUDIENCE, oidc_pause_s=1000.0)
    await until(lambda: access_of(served).gate._issuers[issuer.url].keys)
    issuer.add("unlisted", rsa.generate_private_key(65537, 2048), jwt.algorithms.RSAAlgorithm)
    for _ in range(5):
        assert isinstance(await told(served, issuer.token("unlisted")), Unauthenticated)
    assert issuer.asked == 1


async def test_keys_that_are_secrets_or_too_short_or_broken_are_left_out(issuer: Issuer, served: Served) -> None:
    issuer.add("short", rsa.generate_private_key(65537, 1024), jwt.algorithms.RSAAlgorithm)
    good, short = issuer.keys["rsa"][1], issuer.keys["short"][1]
    issuer.listed = [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "secret"},
        {"kty": "RSA", "kid": "broken", "n": "!", "e": "AQAB"},
        {**good, "kid": "for-encryption", "use": "enc"},
        {**good, "kid": 7},
        short,
        good,
    ]
    await fetched(served)
    assert set(access_of(served).gate._issuers[issuer.url].keys) == {"rsa"}


@pytest.mark.parametrize(
    ("issuers", "audience"),
    [
        ("http://login.example.com", "a"),
        ("login.example.com", "a"),
        ("https://", "a"),
        ("https://user@login.example.com", "a"),
        ("shoal", "a"),
        ("https://[", "a"),
        ("https://login.example.com", ""),
    ],
)
async def test_a_wrong_issuer_is_told_at_the_start(serve: Serve, issuers: str, audience: str) -> None:
    with pytest.raises(InvalidConfig, match="Nothing was started"):
        await serve(oidc_issuers=issuers, oidc_audience=audience)


async def test_authors_of_issuers_are_told_apart(issuer: Issuer, serve: Serve, mint: Mint) -> None:
    both = await serve(token_keys=mint.keys, oidc_issuers=issuer.url, oidc_audience=AUDIENCE)
    await fetched(both)
    theirs, ours = issuer.token(shoal=["crew:write"]), mint.make("crew:write", author="ada").text
    for token, mine, other in ((theirs, f"ada@{issuer.url}", "ada"), (ours, "ada", f"ada@{issuer.url}")):
        async with shoal.connect(both.url, token=token, config=PATIENT) as store:
            session = store.connection.session
            await session.call(Save("crew", "t", {"n": b"\x01"}, author=mine))
            with pytest.raises(Forbidden, match="this token's writes are by"):
                await session.call(Save("crew", "t", {"n": b"\x01"}, author=other))
