"""The keys of a cluster's tokens, as files: public ones for the nodes, and the private one where tokens are made.

    DIR/keys.json          the public keys, as a JSON Web Key Set (RFC 7517): nodes get this file and no other
    DIR/signing/KEY.pem    a private key, named by its id, the thumbprint of RFC 7638; mode 0600
    DIR/signing/current    the id of the key that signs
    DIR/issued.jsonl       what was issued: ids, authors, grants and times, and no token

Laws:
- Nothing is overwritten but `keys.json`, `current` and `issued.jsonl`, and these are replaced in one step, or appended to.
- A private key is readable by its owner alone from the moment in which its file exists.
- A file with public keys that holds a private one is refused, because it would be copied to nodes.

The keys of OIDC issuers: fetched when the node starts, kept, and fetched again (OpenID Connect Discovery 1.0; RFC 7517).

Laws:
- An issuer that cannot be reached closes nothing: its former keys stay in use. Before they came for the first time, its
  tokens are refused, and the node serves everybody else.
- Only algorithms with public keys are accepted, of the kind that the key has. Keys that are shared secrets are left out.
- Addresses are https, or of this machine. Redirects are not followed; answers and numbers of keys are bounded.
"""

from __future__ import annotations

import asyncio
import json
import os
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import jwt
import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from shoal.access import gate
from shoal.access.bearer import Token
from shoal.access.gate import ALGORITHM, ISSUER, Gate, Keys
from shoal.access.grants import Grant
from shoal.config import Config
from shoal.errors import InvalidConfig, InvalidInput, NotFound, StorageError, Unavailable
from shoal.logs import events
from shoal.logs.lines import log

OIDC_LOOK_S = 3600.0  # Between two fetches of an issuer's keys.
OIDC_PAUSE_S = 10.0  # At least this long between two fetches, if tokens name keys that are not known.
OIDC_TIMEOUT_S = 10.0  # For one issuer's answer.

KEYS = "keys.json"
_SIGNING = "signing"
_CURRENT = "current"
_ISSUED = "issued.jsonl"
_BYTES_MAX = 64 * 1024  # Of the file with public keys.
_KEYS_MAX = 32
_ID_BYTES = 16


class Issued(msgspec.Struct, frozen=True):
    """A line of the list of issued tokens."""

    id: str
    author: str
    cluster: str
    key: str
    begins: int  # Seconds since 1970, as the next.
    ends: int
    grants: list[Grant]


def load(file: str, *, cluster: str) -> Keys:
    """The public keys in a file, for tokens of this cluster.

    Raises:
        InvalidConfig: it cannot be read, or is no set of public Ed25519 keys.
    """
    try:
        with open(file, "rb") as opened:
            raw = opened.read(_BYTES_MAX + 1)
    except OSError as error:
        raise _wrong(file, f"it cannot be read: {error.strerror}") from None
    if len(raw) > _BYTES_MAX:
        raise _wrong(file, f"it has more than {_BYTES_MAX} bytes")
    try:
        listed = json.loads(raw)["keys"]
        if not isinstance(listed, list) or not 0 < len(listed) <= _KEYS_MAX:
            raise _wrong(file, f"it must list 1 to {_KEYS_MAX} keys")
        return Keys(ISSUER, cluster, (ALGORITHM,), dict(_public(file, each) for each in listed))
    except (ValueError, KeyError, TypeError, RecursionError, jwt.PyJWTError):
        raise _wrong(file, "it is no JSON Web Key Set with Ed25519 keys") from None


def _public(file: str, listed: dict[str, Any]) -> tuple[str, Ed25519PublicKey]:
    if "d" in listed:
        raise _wrong(file, "it holds a private key; give nodes public ones alone")
    key = jwt.PyJWK.from_dict(listed, algorithm=ALGORITHM).key
    if not isinstance(key, Ed25519PublicKey):
        raise _wrong(file, "it holds a key that is not of Ed25519")
    return str(listed.get("kid") or thumbprint(key)), key


def _wrong(file: str, why: str) -> InvalidConfig:
    return InvalidConfig(
        f"the keys of tokens in {file} cannot be used: {why}. Nothing was started. `shoal token init DIR` makes DIR/{KEYS}.",
        field="token_keys",
    )


def thumbprint(key: Ed25519PublicKey) -> str:
    """The id of a key: its thumbprint (RFC 7638, RFC 8037)."""
    return _encoded(sha256(f'{{"crv":"Ed25519","kty":"OKP","x":"{_point(key)}"}}'.encode()).digest())


def _point(key: Ed25519PublicKey) -> str:
    return _encoded(key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw))


def _encoded(octets: bytes) -> str:
    return urlsafe_b64encode(octets).rstrip(b"=").decode()


# ── where tokens are made ─────────────────────────────────────────────────────


def found(directory: Path) -> str:
    """Make a directory with a first key, and return the key's id.

    Raises:
        InvalidInput: there are keys in it. Nothing was written.
        StorageError: it cannot be written.
    """
    with _writing(directory):
        if (directory / KEYS).exists() or (directory / _SIGNING).exists():
            raise InvalidInput(f"{directory} has keys. Nothing was written. Use `shoal token rotate`, or another directory.")
        directory.mkdir(parents=True, exist_ok=True)
        (directory / _SIGNING).mkdir(mode=0o700)
        return _add_key(directory, [])


def rotate(directory: Path, *, now_s: float, withdraw: bool = False) -> tuple[str, list[str]]:
    """Sign with a new key from now on. Returns its id, and the ids of the public keys that were dropped.

    Those are keys whose tokens have all expired; to `withdraw` is to drop all former keys, so that all their tokens end.

    Raises:
        NotFound, StorageError: the directory has no keys, or cannot be read or written.
    """
    with _writing(directory):
        needed = set() if withdraw else {each.key for each in issued(directory) if each.ends > now_s} | {_current(directory)}
        listed = _listed(directory)
        kept = [each for each in listed if each["kid"] in needed]
        dropped = [each for each in listed if each["kid"] not in needed]
        made = _add_key(directory, kept)
        for each in [*dropped, *kept]:
            # Nothing is signed with it any more, so it need not be kept where somebody could steal it.
            with suppress(FileNotFoundError):
                (directory / _SIGNING / f"{each['kid']}.pem").unlink()
        return made, [each["kid"] for each in dropped]


def issue(
    directory: Path,
    author: str,
    grants: list[Grant],
    *,
    cluster: str,
    now_s: float,
    lasts_s: float,
    entropy: Callable[[int], bytes],
    bytes_max: int,
) -> tuple[Token, str]:
    """Issue a token, and return it with its text, which is kept nowhere.

    Raises:
        NotFound, StorageError: the directory has no keys, or cannot be read or written.
        InvalidInput: the token would be too large, or is not valid otherwise.
    """
    with _writing(directory):
        id = _current(directory)
        key = _private(directory / _SIGNING / f"{id}.pem")
        ends_s = float(int(now_s + lasts_s))
        token = Token(entropy(_ID_BYTES).hex(), author, ISSUER, cluster, id, float(int(now_s)), ends_s, grants)
        text = gate.sign(token, key)
        if len(text) > bytes_max:
            raise InvalidInput(
                f"the token would have {len(text)} bytes, and nodes accept at most {bytes_max}. Nothing was written. "
                "Give it fewer or shorter grants.",
            )
        line = Issued(token.id, author, cluster, id, int(token.begins_s), int(token.ends_s), grants)
        with open(directory / _ISSUED, "ab") as opened:
            opened.write(msgspec.json.encode(line) + b"\n")
            opened.flush()
            os.fsync(opened.fileno())
        return token, text


def issued(directory: Path) -> list[Issued]:
    """The tokens that were issued, the oldest first.

    Raises:
        StorageError: the list cannot be read.
    """
    try:
        raw = (directory / _ISSUED).read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"{directory / _ISSUED} cannot be read: {error.strerror}. Nothing was written.") from None
    try:
        return [msgspec.json.decode(line, type=Issued) for line in raw.splitlines() if line.strip()]
    except msgspec.DecodeError as error:
        raise StorageError(f"{directory / _ISSUED} is damaged: {error}. Nothing was written. Mend its last line.") from None


def _add_key(directory: Path, others: list[dict[str, Any]]) -> str:
    key = Ed25519PrivateKey.generate()
    id = thumbprint(key.public_key())
    encoded = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    descriptor = os.open(directory / _SIGNING / f"{id}.pem", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(encoded)
        opened.flush()
        os.fsync(opened.fileno())
    mine = {"kty": "OKP", "crv": "Ed25519", "x": _point(key.public_key()), "kid": id, "use": "sig", "alg": ALGORITHM}
    # The nodes' file first: what is signed with a key must find it there.
    _replace(directory / KEYS, json.dumps({"keys": [*others, mine]}, indent=1).encode() + b"\n")
    _replace(directory / _SIGNING / _CURRENT, id.encode() + b"\n")
    return id


def _listed(directory: Path) -> list[dict[str, Any]]:
    load(str(directory / KEYS), cluster="")
    found: list[dict[str, Any]] = json.loads((directory / KEYS).read_bytes())["keys"]
    return found


def _current(directory: Path) -> str:
    try:
        return (directory / _SIGNING / _CURRENT).read_text().strip()
    except FileNotFoundError:
        raise NotFound(f"there is no signing key in {directory}. Nothing was written. `shoal token init` makes one.") from None


def _private(file: Path) -> Ed25519PrivateKey:
    try:
        key = serialization.load_pem_private_key(file.read_bytes(), password=None)
    except (ValueError, TypeError):
        raise StorageError(f"{file} is no private key. Nothing was written.") from None
    assert isinstance(key, Ed25519PrivateKey)
    return key


def _replace(file: Path, content: bytes) -> None:
    beside = file.with_name(f".{file.name}.new")
    with open(beside, "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    os.replace(beside, file)


@contextmanager
def _writing(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{error.filename or directory} cannot be used: {error.strerror}.") from None


ALGORITHMS = ("EdDSA", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "RS256", "RS384", "RS512")
_ANSWER_BYTES_MAX = 1 << 20  # Of one answer.
_ISSUER_KEYS_MAX = 64  # Of one issuer.
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
        """Fetch the keys now, and again every `OIDC_LOOK_S` or when a token names an unknown one, until cancelled."""
        if not self._issuers:
            return
        while True:
            await self.fetch()
            self._gate.unknown.clear()
            await asyncio.sleep(min(OIDC_PAUSE_S, OIDC_LOOK_S))
            try:
                async with asyncio.timeout(max(0.0, OIDC_LOOK_S - OIDC_PAUSE_S)):
                    await self._gate.unknown.wait()
            except TimeoutError:
                pass

    async def fetch(self) -> None:
        """Fetch the keys of all issuers; the log says which could not be had."""
        for issuer in self._issuers:
            try:
                async with asyncio.timeout(OIDC_TIMEOUT_S):
                    keys = await self._keys(issuer)
            except (Unavailable, aiohttp.ClientError, OSError) as error:
                reason = error.message if isinstance(error, Unavailable) else str(error) or "it did not answer in time"
                log(events.ISSUER_TROUBLE, issuer=issuer, reason=reason)
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
        if not isinstance(listed, list) or len(listed) > _ISSUER_KEYS_MAX:
            raise Unavailable(f"it lists no keys, or more than {_ISSUER_KEYS_MAX}.")
        found = {kid: key for each in listed if isinstance(each, dict) for kid, key in _usable(each)}
        if not found:
            raise Unavailable("none of its keys can be used.")
        return found


async def _json(http: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    async with http.get(url, allow_redirects=False) as answer:
        if answer.status != 200:
            raise Unavailable(f"{url} answered with status {answer.status}.")
        raw = await answer.content.read(_ANSWER_BYTES_MAX + 1)
        while len(raw) <= _ANSWER_BYTES_MAX and not answer.content.at_eof():
            raw += await answer.content.read(_ANSWER_BYTES_MAX + 1 - len(raw))
    if len(raw) > _ANSWER_BYTES_MAX:
        raise Unavailable(f"{url} answered with more than {_ANSWER_BYTES_MAX} bytes.")
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
