"""Tokens: JSON Web Tokens (RFC 7519) that are signed with Ed25519 (RFC 8037), and verified without asking anybody.

Laws:
- A token is verified by the algorithm that belongs to its key, never by the one that it names itself.
- Its size is checked before anything else. Its text is in no error, and what an error shows of it is bounded.
- A token that could not be revoked, because it has no id, is not accepted.
- The author of another issuer's token is `SUBJECT@ISSUER`: issuers do not know of each other's names.
- No clock is read: `now_s` is an argument, in seconds since 1970.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from shoal.access.bearer import Token
from shoal.access.grants import grants_of
from shoal.errors import InvalidInput, InvalidName, Unauthenticated
from shoal.names import check_name
from shoal.records import NamedTuple

ALGORITHM = "EdDSA"
ISSUER = "shoal"
"""The issuer of tokens that `shoal token create` makes."""
GRANTS = "shoal"
"""The claim with the grants."""
EARLY_S = 60.0
"""A token counts so much before it begins, because clocks differ."""
RETRY_S = 1.0
"""Until a token may be shown again that is refused for a reason which passes by itself."""
_OF_TIME = ("key", "early", "closed")  # A key of an issuer arrives, the token's time begins, revoked ones expire.
_ID_MAX = 128
_SCHEME = "https://"  # Left out of an author; that of an address of this machine, which may be plain, is not.
_HOW = "Give another one: `token=`, SHOAL_TOKEN_FILE or `shoal --token-file FILE`."
_PLAIN = re.compile(r"[A-Za-z0-9_.-]*")


class Keys(NamedTuple):
    """The keys of an issuer, by their ids."""

    issuer: str
    audience: str
    algorithms: Sequence[str]
    keys: Mapping[str, Any]


def sign(token: Token, key: Ed25519PrivateKey) -> str:
    """The text of a token."""
    claims = {
        "iss": token.issuer,
        "sub": token.author,
        "aud": token.audience,
        "jti": token.id,
        "iat": int(token.begins_s),
        "nbf": int(token.begins_s),
        "exp": int(token.ends_s),
        GRANTS: msgspec.to_builtins(token.grants),
    }
    return jwt.encode(claims, key, algorithm=ALGORITHM, headers={"kid": token.key_id})


def refused(reason: str, why: str) -> Unauthenticated:
    """The error for a token that is not accepted; `reason` is for programs."""
    soon = {"retry_after_s": RETRY_S} if reason in _OF_TIME else {}
    return Unauthenticated(f"{why}. Nothing was written. {_HOW}", reason=reason, **soon)


def verified(text: str, issuers: Mapping[str, Keys], *, now_s: float, bytes_max: int, grants_max: int) -> Token:
    """The claims of a token, if one of these issuers has signed it and it is valid now.

    Raises:
        Unauthenticated: it is not valid; `detail["reason"]` is "too-large", "malformed", "issuer", "key", "signature",
            "audience", "early", "expired" or "claims".
    """
    if len(text) > bytes_max:
        raise refused("too-large", f"the token has {len(text)} bytes, and at most {bytes_max} are accepted")
    header, said = _unverified(text)
    known = issuers.get(said["iss"]) if isinstance(said.get("iss"), str) else None
    if known is None:
        raise refused("issuer", "the token is of an issuer that this node does not know")
    key_id = header.get("kid")
    key = known.keys.get(key_id) if isinstance(key_id, str) else None
    if key is None or not isinstance(key_id, str):
        raise refused("key", "the token is signed with a key that this node does not know")
    token = _token(_claims(text, known, key), known.issuer, key_id, grants_max=grants_max)._replace(audience=known.audience)
    if now_s >= token.ends_s:
        raise refused("expired", "the token has expired")
    if now_s < token.begins_s - EARLY_S:
        raise refused("early", "the token is not valid yet; check the clocks")
    return token


def unverified(text: str, *, grants_max: int) -> Token:
    """The claims of a token, without a proof that they are true, to be shown to its holder.

    Raises:
        Unauthenticated: it is none.
    """
    header, said = _unverified(text)
    return _token(said, str(said.get("iss", "")), str(header.get("kid", "")), grants_max=grants_max)


def _unverified(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    if not _PLAIN.fullmatch(text):
        raise refused("malformed", "what was given is no token")
    try:
        found = jwt.decode_complete(text, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise refused("malformed", "what was given is no token") from None
    return found["header"], found["payload"]


def _claims(text: str, known: Keys, key: Any) -> dict[str, Any]:
    options: Any = {"require": ["exp", "aud", "iss"], "verify_exp": False, "verify_nbf": False, "verify_iat": False}
    try:
        found: dict[str, Any] = jwt.decode(
            text, key, algorithms=list(known.algorithms), audience=known.audience, issuer=known.issuer, options=options
        )
    except (jwt.InvalidAudienceError, jwt.MissingRequiredClaimError) as error:
        if isinstance(error, jwt.InvalidAudienceError) or error.claim == "aud":
            raise refused("audience", f"the token is for another cluster than {known.audience!r}") from None
        raise refused("claims", f"the token lacks the claim {error.claim!r}") from None
    except (jwt.PyJWTError, ValueError, TypeError):
        raise refused("signature", "the token's signature is not valid") from None
    return found


def _token(said: dict[str, Any], issuer: str, key_id: str, *, grants_max: int) -> Token:
    begins, ends = said.get("nbf", 0), said.get("exp", -1)
    id, subject = said.get("jti"), said.get("sub")
    if not _is_time(begins) or not _is_time(ends):
        raise refused("claims", "a time of the token is not valid")
    if not isinstance(id, str) or not 0 < len(id) <= _ID_MAX:
        raise refused("claims", f"the token has no id of 1 to {_ID_MAX} characters (jti), so it could not be revoked")
    try:
        author = check_name("author", author_of(issuer, check_name("author", subject)))
        grants = grants_of(said.get(GRANTS), grants_max=grants_max)
    except (InvalidInput, InvalidName) as error:
        why = "its author is no name" if isinstance(error, InvalidName) else error.message.rstrip(".")
        raise refused("claims", f"the token is not valid: {why}") from None
    return Token(id, author, issuer, str(said.get("aud", "")), key_id, float(begins), float(ends), grants)


def author_of(issuer: str, subject: str) -> str:
    """The author that the writes of a token's holder name. No issuer's address has an `@`."""
    return subject if issuer == ISSUER else f"{subject}@{issuer.removeprefix(_SCHEME)}"


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**53
