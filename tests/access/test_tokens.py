"""Tokens that are not what they seem: each is refused with its reason, and none of it shows the token."""

from __future__ import annotations

import base64
import json
import os
import time
import traceback
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st

from shoal.access import gate as gates
from shoal.access import grants, keys
from shoal.access.bearer import TOKEN_BYTES_MAX, TOKEN_GRANTS_MAX, Token
from shoal.access.gate import Gate, author_of
from shoal.config import Config
from shoal.errors import InvalidConfig, InvalidInput, ShoalError, Unauthenticated
from shoal.names import RESERVED
from shoal.protocol import requests
from simulation.bounds import altered
from tests.access.conftest import Made, Mint


def verified(text: str, mint: Mint, *, now_s: float | None = None, cluster: str = "shoal") -> Token:
    known = keys.load(mint.keys, cluster=cluster)
    return gates.verified(
        text,
        {known.issuer: known},
        now_s=time.time() if now_s is None else now_s,
        bytes_max=TOKEN_BYTES_MAX,
        grants_max=TOKEN_GRANTS_MAX,
    )


def signed(mint: Mint, header: dict[str, Any], key: Any, algorithm: str, **claims: Any) -> str:
    made = mint.make("*:read")
    said = jwt.decode(made.text, options={"verify_signature": False}) | claims
    return jwt.encode({k: v for k, v in said.items() if v is not None}, key, algorithm=algorithm, headers=header)


def key_of(mint: Mint) -> tuple[str, Any, bytes]:
    """The id of the current key, the private key, and the public one's bytes."""
    id = (mint.directory / "signing" / "current").read_text().strip()
    private = serialization.load_pem_private_key((mint.directory / "signing" / f"{id}.pem").read_bytes(), None)
    public = private.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return id, private, public


def test_a_token_says_what_it_was_made_with(mint: Mint) -> None:
    made = mint.make("crew-*:thread,items:read,append", "other:admin", author="ada")
    assert verified(made.text, mint) == made.token
    assert made.token.told()["grants"] == ["crew-*:thread,items:read,append", "other:*:admin"]


def by_hand(header: dict[str, Any], claims: dict[str, Any], signature: bytes) -> str:
    parts = [json.dumps(header).encode(), json.dumps(claims).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def hmac_signed(header: dict[str, Any], claims: dict[str, Any], secret: bytes) -> str:
    import hashlib
    import hmac

    head = by_hand(header, claims, b"").rstrip(".")
    mac = hmac.new(secret, head.encode(), hashlib.sha256).digest()
    return f"{head}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


def claims_of(made: Made) -> dict[str, Any]:
    found: dict[str, Any] = jwt.decode(made.text, options={"verify_signature": False})
    return found


@pytest.mark.answers("false-tokens-do-not-count")
def test_the_algorithm_that_a_token_names_is_not_believed(mint: Mint) -> None:
    id, _, public = key_of(mint)
    claims = claims_of(mint.make("*:admin"))
    raw = base64.urlsafe_b64decode(json.loads(Path(mint.keys).read_text())["keys"][0]["x"] + "=")
    for text in (
        by_hand({"alg": "none", "typ": "JWT", "kid": id}, claims, b""),
        by_hand({"alg": "None", "kid": id}, claims, b""),
        by_hand({"kid": id}, claims, b""),
        hmac_signed({"alg": "HS256", "kid": id}, claims, public),
        hmac_signed({"alg": "HS256", "kid": id}, claims, raw),
        by_hand({"alg": "EdDSA", "kid": id}, claims, b"\0" * 64),
        by_hand({"alg": "EdDSA", "kid": id}, claims, b""),
        by_hand({"alg": ["EdDSA"], "kid": id}, claims, b"\0" * 64),
    ):
        with pytest.raises(Unauthenticated) as caught:
            verified(text, mint)
        assert caught.value.detail["reason"] in ("signature", "malformed")


def test_another_algorithm_of_the_same_key_is_refused() -> None:
    private, issuer = rsa.generate_private_key(65537, 2048), "https://id.example"
    known = gates.Keys(issuer, "shoal", ("RS256",), {"k": private.public_key()})
    claims = {"iss": issuer, "aud": "shoal", "sub": "ana", "jti": "1", "exp": 100, gates.GRANTS: ["crew:read"]}
    issuers = {issuer: known}

    def signed_by(algorithm: str) -> Token:
        text = jwt.encode(claims, private, algorithm=algorithm, headers={"kid": "k"})
        return gates.verified(text, issuers, now_s=0.0, bytes_max=5000, grants_max=5)

    assert signed_by("RS256").author == "ana@id.example"
    for algorithm in ("PS256", "RS512"):
        with pytest.raises(Unauthenticated) as caught:
            signed_by(algorithm)
        assert caught.value.detail["reason"] == "signature"


@pytest.mark.answers("false-tokens-do-not-count")
def test_each_claim_is_checked(mint: Mint) -> None:
    id, private, _ = key_of(mint)

    def reason(header: dict[str, Any] | None = None, **claims: Any) -> object:
        with pytest.raises(Unauthenticated) as caught:
            verified(signed(mint, {"kid": id} if header is None else header, private, "EdDSA", **claims), mint)
        assert caught.value.written == "no"
        assert "Nothing was written" in caught.value.message
        return caught.value.detail["reason"]

    now = int(time.time())
    assert reason(aud="other") == reason(aud=["other", "others"]) == reason(aud=None) == "audience"
    assert reason(exp=now - 1) == "expired"
    assert reason(nbf=now + 3600) == "early"
    assert reason(iss="somebody") == reason(iss=None) == "issuer"
    assert reason(header={"kid": "unknown"}) == reason(header={}) == "key"
    for wrong in (
        {"exp": None},
        {"exp": "never"},
        {"exp": True},
        {"exp": 1e300},
        {"nbf": -1},
        {"sub": None},
        {"sub": ""},
        {"sub": "a\nb"},
        {"sub": 7},
        {"jti": "x" * 200},
        {"jti": ""},
        {"jti": None},
        {"shoal": None},
        {"shoal": "admin"},
        {"shoal": [{"space": "*", "actions": ["root"]}]},
        {"shoal": [{"space": "*", "actions": []}]},
        {"shoal": [{"space": "*", "actions": ["read"], "families": ["everything"]}]},
        {"shoal": [{"space": "*", "actions": ["read"], "more": 1}]},
        {"shoal": [{"space": "*", "actions": ["read"]}] * 65},
    ):
        # What PyJWT itself rejects is "malformed" or "signature".
        assert reason(**wrong) in ("claims", "malformed", "signature", "too-large"), wrong


def test_a_token_of_another_key_and_a_changed_one_are_refused(mint: Mint, tmp_path: Path) -> None:
    other = Mint(tmp_path / "other").make("*:admin")
    with pytest.raises(Unauthenticated) as caught:
        verified(other.text, mint)
    assert caught.value.detail["reason"] == "key"
    head, body, mark = mint.make("*:read").text.split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    claims["shoal"] = [{"space": "*", "actions": ["admin"]}]
    forged = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    with pytest.raises(Unauthenticated) as caught:
        verified(f"{head}.{forged}.{mark}", mint)
    assert caught.value.detail["reason"] == "signature"


@pytest.mark.answers("false-tokens-do-not-count")
def test_a_token_of_a_megabyte_is_not_looked_at(mint: Mint) -> None:
    with pytest.raises(Unauthenticated) as caught:
        verified("e" * (1 << 20), mint)
    assert caught.value.detail["reason"] == "too-large"
    assert len(caught.value.message) < 300
    with pytest.raises(InvalidInput, match="at most 3584"):
        keys.issue(
            mint.directory,
            "a",
            [grants.parsed(f"{'x' * 200}-{number}:read") for number in range(30)],
            cluster="shoal",
            now_s=0,
            lasts_s=1,
            entropy=bytes,
            bytes_max=TOKEN_BYTES_MAX,
        )
    assert [each.author for each in keys.issued(mint.directory)] == []


@given(
    st.one_of(st.text(max_size=200), st.text("abcE.-_", max_size=60), st.binary(max_size=60).map(lambda b: b.decode("latin-1")))
)
def test_any_text_is_refused_and_never_shown(text: str) -> None:
    with pytest.raises(Unauthenticated) as caught:
        gates.verified(text, {}, now_s=0.0, bytes_max=TOKEN_BYTES_MAX, grants_max=1)
    assert caught.value.detail["reason"] in ("malformed", "issuer")
    if len(text) > 12:
        assert text not in "".join(traceback.format_exception(caught.value, chain=False))


@pytest.mark.answers("false-tokens-do-not-count")
@given(
    st.dictionaries(
        st.sampled_from(["alg", "kid", "typ", "crit", "b64"]), st.one_of(st.none(), st.text(max_size=9), st.booleans())
    ),
    st.dictionaries(
        st.sampled_from(["iss", "sub", "aud", "exp", "nbf", "jti", "shoal"]),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9), st.just("shoal")),
            lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
            max_leaves=6,
        ),
    ),
    st.binary(max_size=70),
)
def test_no_header_and_no_claim_gets_past_or_breaks_anything(header: Any, claims: Any, signature: bytes) -> None:
    known = gates.Keys("shoal", "shoal", ("EdDSA",), {})
    for text in (by_hand(header, claims, signature), by_hand(claims, header, signature)):
        with pytest.raises(Unauthenticated):
            gates.verified(text, {"shoal": known}, now_s=0.0, bytes_max=1 << 16, grants_max=4)


# ── grants ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "text", ["", "crew", "crew:", ":read", "crew:root", "crew:thread:", "crew:read,", f"{'x' * 1025}:read", "a:nothing:read,x"]
)
def test_a_malformed_grant_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidInput):
        grants.parsed(text)


def test_a_space_may_hold_colons() -> None:
    assert grants.parsed("a:b:read").space == "a:b"
    assert grants.parsed("a:b:thread:read").space == "a:b"
    assert grants.parsed("a:b:*:read").families == ["*"]


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_a_pattern_matches_whole_names(pattern: str, name: str) -> None:
    rights = grants.Rights("a", [grants.Grant(pattern, ["read"])])
    if not set(pattern) & set("*?["):
        assert rights.allow(name, "thread", "read") == (pattern == name != RESERVED)


def test_cluster_decisions_take_the_admin_right() -> None:
    assert not grants.Rights("a", [grants.Grant("*", ["read", "write"])]).allow(RESERVED, "map", "write")
    assert not grants.Rights("a", [grants.Grant("*", ["read", "write"])]).see(RESERVED)
    assert grants.Rights("a", [grants.Grant("*", ["admin"])]).allow(RESERVED, "map", "read")


def test_decisions_that_are_remembered_are_bounded() -> None:
    rights = grants.Rights("a", [grants.Grant("*", ["read"])])
    for number in range(10_000):
        assert rights.allow(str(number), "thread", "read")
    assert len(rights._decisions) <= 4096
    assert not rights.allow("x" * 2000, "thread", "read")


# ── files ─────────────────────────────────────────────────────────────────────


def test_the_private_key_is_readable_by_its_owner_alone_and_is_in_no_file_of_the_nodes(mint: Mint) -> None:
    [private] = (mint.directory / "signing").glob("*.pem")
    assert private.stat().st_mode & 0o777 == 0o600
    assert (mint.directory / "signing").stat().st_mode & 0o077 == 0
    assert '"d"' not in Path(mint.keys).read_text()


def test_keys_are_never_overwritten(mint: Mint) -> None:
    before = Path(mint.keys).read_bytes()
    with pytest.raises(InvalidInput, match="has keys"):
        keys.found(mint.directory)
    assert Path(mint.keys).read_bytes() == before


def test_after_a_rotation_former_tokens_count_until_all_of_a_key_have_expired(mint: Mint) -> None:
    now = time.time()
    long, short = mint.make("*:read", lasts_s=3600), None
    made, dropped = keys.rotate(mint.directory, now_s=now)
    assert dropped == []
    short = mint.make("*:read", lasts_s=60)
    assert (verified(long.text, mint), verified(short.text, mint)) == (long.token, short.token)
    assert short.token.key_id == made != long.token.key_id
    assert len(list((mint.directory / "signing").glob("*.pem"))) == 1  # No key that signs no more is left to be stolen.
    assert keys.rotate(mint.directory, now_s=now + 7200)[1] == [long.token.key_id]


def test_a_withdrawn_key_ends_its_tokens(mint: Mint) -> None:
    made = mint.make("*:read")
    _, dropped = keys.rotate(mint.directory, now_s=time.time(), withdraw=True)
    assert dropped == [made.token.key_id]
    with pytest.raises(Unauthenticated):
        verified(made.text, mint)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot be read"),
        (b"", "no JSON Web Key Set"),
        (b"{}", "no JSON Web Key Set"),
        (b'{"keys": []}', "1 to 32 keys"),
        (b'{"keys": [7]}', "no JSON Web Key Set"),
        (b'{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}', "no JSON Web Key Set"),
        (b'{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "AA"}]}', "no JSON Web Key Set"),
        (b'{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "AA", "d": "AA"}]}', "private key"),
        (b"[" * 60_000, "no JSON Web Key Set"),
        (b" " * 70_000, "more than 65536 bytes"),
    ],
)
def test_a_file_that_is_no_set_of_public_keys_is_refused(tmp_path: Path, content: bytes | None, why: str) -> None:
    file = tmp_path / "keys.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidConfig, match=why) as caught:
        keys.load(str(file), cluster="shoal")
    assert "Nothing was started" in caught.value.message


def test_a_damaged_list_of_issued_tokens_is_told(mint: Mint) -> None:
    mint.make("*:read")
    file = mint.directory / "issued.jsonl"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ShoalError, match="damaged"):
        keys.issued(mint.directory)


def test_an_author_of_another_issuer_names_it() -> None:
    assert author_of("shoal", "ada") == "ada"
    assert author_of("https://login.example.com/tenant", "ada") == "ada@login.example.com/tenant"
    assert author_of("http://127.0.0.1:9", "ada") == "ada@http://127.0.0.1:9"


def test_actions_include_others() -> None:
    def allowed(action: str) -> set[str]:
        rights = grants.Rights("a", [grants.parsed(f"crew:{action}")])
        return {each for each in grants.RIGHTS if rights.allow("crew", "thread", each)}

    assert allowed("read") == {"read"}
    assert allowed("write") == {"write", "append"}
    assert allowed("admin") == {"admin", "write", "append", "read"}
    assert allowed("impersonate") == {"impersonate"}
    assert allowed("reveal") == {"reveal"}


# ── the gate ──────────────────────────────────────────────────────────────────


def gate_of(mint: Mint) -> Gate:
    return Gate({"shoal": keys.load(mint.keys, cluster="shoal")}, config=Config(), now_s=time.time, entropy=os.urandom)


def test_a_token_is_verified_once(mint: Mint, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, made, seen = gate_of(mint), mint.make("crew:read"), []
    sound = gates.verified
    monkeypatch.setattr(gates, "verified", lambda text, *args, **more: seen.append(text) or sound(text, *args, **more))  # type: ignore[func-returns-value]
    first = gate.bearer(made.text, address="10.0.0.1")
    for _ in range(3):
        assert gate.bearer(made.text, address="10.0.0.2") is first
        first.check(requests.ReadCounter("crew", "n"))
    assert seen == [made.text]


def test_known_tokens_are_bounded(mint: Mint) -> None:
    gate = gate_of(mint)
    with altered(tokens_known_max=2):
        for _ in range(5):
            gate.bearer(mint.make("crew:read").text, address="10.0.0.1")
    assert len(gate._known) == 2


def test_a_revoked_token_ends_its_bearers(mint: Mint) -> None:
    gate, made, other = gate_of(mint), mint.make("crew:read"), mint.make("crew:read")
    bearers = [gate.bearer(each.text, address="10.0.0.1") for each in (made, other)]
    gate.revoke([made.token.id])
    with pytest.raises(Unauthenticated, match="is revoked"):
        bearers[0].check_valid()
    bearers[1].check_valid()
    gate.trust(gates.Keys("shoal", "shoal", ("EdDSA",), {}))
    with pytest.raises(Unauthenticated, match="withdrawn"):
        bearers[1].check_valid()
