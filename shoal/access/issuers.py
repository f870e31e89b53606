"""The keys of OIDC issuers: fetched when the node starts, kept, and fetched again (OpenID Connect Discovery 1.0; RFC 7517).

Laws:
- An issuer that cannot be reached closes nothing: its former keys stay in use. Before they came for the first time, its
  tokens are refused, and the node serves everybody else.
- Only algorithms with public keys are accepted, of the kind that the key has. Keys that are shared secrets are left out.
- Addresses are https, or of this machine. Redirects are not followed; answers and numbers of keys are bounded.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import jwt
import structlog
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from shoal.access.gate import Gate
from shoal.access.tokens import ISSUER, Keys
from shoal.config import Config
from shoal.errors import InvalidConfig, Unavailable

ALGORITHMS = ("EdDSA", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "RS256", "RS384", "RS512")
_BYTES_MAX = 1 << 20  # Of one answer.
_KEYS_MAX = 64  # Of one issuer.
_RSA_BITS_MIN = 2048
_DISCOVERY = "/.well-known/openid-configuration"


class Issuers:
    """The OIDC issuers of a node's configuration.

    Raises:
        InvalidConfig: one is no address, or `oidc_audience` is missing.
    """

    def __init__(self, gate: Gate, config: Config) -> None:
        self._gate = gate
        self._config = config
        self._issuers = [_checked(part.strip()) for part in config.oidc_issuers.split(",") if part.strip()]
        if self._issuers and not config.oidc_audience:
            raise InvalidConfig(
                "oidc_issuers is set, but not oidc_audience: the name under which the issuers know this cluster. Without it, "
                "tokens for other services would count here. Nothing was started.",
                field="oidc_audience",
            )
        for issuer in self._issuers:
            gate.trust(Keys(issuer, config.oidc_audience, ALGORITHMS, {}))

    async def follow(self) -> None:
        """Fetch the keys now, and again every `oidc_look_s` or when a token names an unknown one, until cancelled."""
        if not self._issuers:
            return
        while True:
            await self.fetch()
            self._gate.unknown.clear()
            await asyncio.sleep(min(self._config.oidc_pause_s, self._config.oidc_look_s))
            try:
                async with asyncio.timeout(max(0.0, self._config.oidc_look_s - self._config.oidc_pause_s)):
                    await self._gate.unknown.wait()
            except TimeoutError:
                pass

    async def fetch(self) -> None:
        """Fetch the keys of all issuers; the log says which could not be had."""
        for issuer in self._issuers:
            try:
                async with asyncio.timeout(self._config.oidc_timeout_s):
                    keys = await self._keys(issuer)
            except (Unavailable, aiohttp.ClientError, OSError) as error:
                reason = error.message if isinstance(error, Unavailable) else str(error) or "it did not answer in time"
                structlog.get_logger("shoal").warning("oidc issuer", issuer=issuer, reason=reason, keys="the former ones")
            else:
                self._gate.trust(Keys(issuer, self._config.oidc_audience, ALGORITHMS, keys))

    async def _keys(self, issuer: str) -> Mapping[str, Any]:
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http:
            described = await _json(http, issuer.rstrip("/") + _DISCOVERY)
            if described.get("issuer") != issuer:
                raise Unavailable("its description is of another issuer.")
            where = described.get("jwks_uri")
            if not isinstance(where, str) or not _is_safe(where):
                raise Unavailable("its description names no safe address of its keys.")
            listed = (await _json(http, where)).get("keys")
        if not isinstance(listed, list) or len(listed) > _KEYS_MAX:
            raise Unavailable(f"it lists no keys, or more than {_KEYS_MAX}.")
        found = {kid: key for each in listed if isinstance(each, dict) for kid, key in _usable(each)}
        if not found:
            raise Unavailable("none of its keys can be used.")
        return found


async def _json(http: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    async with http.get(url, allow_redirects=False) as answer:
        if answer.status != 200:
            raise Unavailable(f"{url} answered with status {answer.status}.")
        raw = await answer.content.read(_BYTES_MAX + 1)
        while len(raw) <= _BYTES_MAX and not answer.content.at_eof():
            raw += await answer.content.read(_BYTES_MAX + 1 - len(raw))
    if len(raw) > _BYTES_MAX:
        raise Unavailable(f"{url} answered with more than {_BYTES_MAX} bytes.")
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Unavailable(f"{url} did not answer with a JSON object.")
    return found


def _usable(listed: dict[str, Any]) -> list[tuple[str, Any]]:
    """A key with its id; nothing if it is none that signs tokens."""
    kid = listed.get("kid")
    if not isinstance(kid, str) or listed.get("use", "sig") != "sig" or listed.get("kty") == "oct" or "d" in listed:
        return []
    try:
        key = jwt.PyJWK.from_dict(listed).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return []
    if isinstance(key, RSAPublicKey) and key.key_size < _RSA_BITS_MIN:
        return []
    return [(kid, key)]


def _checked(issuer: str) -> str:
    if not _is_safe(issuer) or issuer == ISSUER or "@" in issuer:
        raise InvalidConfig(
            f"oidc_issuers contains {issuer[:80]!r}. An issuer is an https:// URL. Nothing was started.", field="oidc_issuers"
        )
    return issuer


def _is_safe(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    if parts.username is not None or not host:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and _is_here(host))


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
