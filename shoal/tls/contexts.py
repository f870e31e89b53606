"""The TLS contexts of clients and nodes: TLS 1.3, and files that are checked before they are used.

Law: a private key that every user of the machine may read is refused, and no key is ever part of a message.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from ipaddress import ip_address
from typing import Any, Never

from shoal.config import Config
from shoal.errors import InvalidConfig

_EVERYBODY = 0o007
_VERSION = 0xA0  # The tag of a certificate's version, which is optional.


def listening(config: Config) -> ssl.SSLContext:
    """A context for the port of a node with `tls_cert`. If it has peers, it asks for their certificates, and requires none.

    Raises:
        InvalidConfig: a file is missing or broken, or the files do not belong together.
    """
    context = _of(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # A session that is resumed would keep the certificates of its beginning.
    _show(context, config)
    if config.join:
        _trust(context, config.tls_ca)
        _refuse_revoked(context, config.tls_crl)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def dialling_peers(config: Config, *, by_name: bool = True) -> ssl.SSLContext:
    """A context for links to peers: both ends show a certificate of `tls_ca`.

    The CA issues certificates to nodes of this cluster alone, so any of them is a member's. The name by which a peer is dialled
    is compared only if `tls_peer_names` says so, and not if it is dialled by an address that no certificate contains, as those
    to which a seed leads are (`by_name` False): then its own name is compared, once it has told it.

    Raises:
        InvalidConfig: as `listening`.
    """
    context = _of(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = by_name and config.tls_peer_names == "own"
    _show(context, config)
    _trust(context, config.tls_ca)
    _refuse_revoked(context, config.tls_crl)
    return context


def dialling_nodes(config: Config) -> ssl.SSLContext:
    """A client's context: it trusts `tls_ca`, or the system's CAs if that is empty.

    Raises:
        InvalidConfig: `tls_ca` cannot be read, or is no certificate.
    """
    return _for_client(config.tls_ca, _stamp(config.tls_ca) if config.tls_ca else 0)


def key_of(certificate: bytes) -> bytes:
    """SHA-256 of the public key (SubjectPublicKeyInfo, RFC 5280) in a certificate that is verified, in DER form."""
    start, _ = _element(certificate, 0)  # The certificate,
    at, _ = _element(certificate, start)  # and in it what is signed:
    if certificate[at] == _VERSION:
        _, at = _element(certificate, at)
    for _ in range(5):  # serial number, algorithm, issuer, validity, subject.
        _, at = _element(certificate, at)
    _, stop = _element(certificate, at)
    return sha256(certificate[at:stop]).digest()


def names_host(certificate: Mapping[str, Any], host: str) -> bool:
    """Whether a verified certificate, as `ssl` tells of it, is valid for this DNS name or IP address."""
    try:
        wanted = str(ip_address(host.strip("[]")))
    except ValueError:
        wanted = host.lower()
    named = certificate.get("subjectAltName", ())
    return any(str(ip_address(name)) == wanted if kind == "IP Address" else name.lower() == wanted for kind, name in named)


def _element(encoded: bytes, at: int) -> tuple[int, int]:
    """Where the content of a DER element begins, and where it ends."""
    length, start = encoded[at + 1], at + 2
    if length & 0x80:
        count = length & 0x7F
        length, start = int.from_bytes(encoded[start : start + count], "big"), start + count
    return start, start + length


@lru_cache(maxsize=8)
def _for_client(authority: str, _: int) -> ssl.SSLContext:
    context = _of(ssl.PROTOCOL_TLS_CLIENT)
    if authority:
        _trust(context, authority)
    else:
        context.load_default_certs()
    return context


def _of(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _show(context: ssl.SSLContext, config: Config) -> None:
    for field in ("tls_cert", "tls_key"):
        _stamp(getattr(config, field), field=field)
    if os.name == "posix" and os.stat(config.tls_key).st_mode & _EVERYBODY:
        raise InvalidConfig(
            f"every user of this machine may read or change the private key {config.tls_key}. Nothing was started. "
            f"`chmod o= {config.tls_key}` mends that; a mounted secret has a setting for its mode.",
            field="tls_key",
        )
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key, password=_refuse_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise InvalidConfig(
                f"the private key {config.tls_key} does not belong to the certificate {config.tls_cert}. Nothing was started. "
                "Give the two files that were issued together.",
                field="tls_key",
            ) from None
        raise InvalidConfig(
            f"{config.tls_cert} and {config.tls_key} are not a certificate and its private key in PEM form. "
            "Nothing was started.",
            field="tls_cert",
        ) from None


def _refuse_password() -> Never:
    raise InvalidConfig(
        "the private key has a password, and a node cannot ask for it. Nothing was started. Give a key without one, in a "
        "file that only the node may read.",
        field="tls_key",
    )


def _trust(context: ssl.SSLContext, authority: str) -> None:
    _stamp(authority)
    try:
        context.load_verify_locations(authority)
    except ssl.SSLError:
        raise InvalidConfig(
            f"tls_ca: {authority} contains no certificate in PEM form. Nothing was sent or started.", field="tls_ca"
        ) from None


def _refuse_revoked(context: ssl.SSLContext, revoked: str) -> None:
    """Refuse what the CA's list names. A list that has expired refuses every certificate: the newest one may name more."""
    if not revoked:
        return
    _stamp(revoked, field="tls_crl")
    before = context.cert_store_stats()["crl"]
    with suppress(ssl.SSLError):
        context.load_verify_locations(revoked)
    if context.cert_store_stats()["crl"] == before:
        raise InvalidConfig(
            f"tls_crl: {revoked} contains no list of revoked certificates in PEM form. Nothing was started.", field="tls_crl"
        )
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _stamp(file: str, *, field: str = "tls_ca") -> int:
    """When a file was changed.

    Raises:
        InvalidConfig: it cannot be read.
    """
    try:
        with open(file, "rb") as opened:
            return os.fstat(opened.fileno()).st_mtime_ns
    except OSError as error:
        raise InvalidConfig(
            f"{field}: {file} cannot be read: {error.strerror}. Nothing was sent or started.", field=field
        ) from None
