"""A cluster's certificate authority (CA), the certificates that it issues to nodes, as files, and what such a file says.

Making certificates by hand with `openssl` is long and easy to get wrong. Keys are EC P-256 and not Ed25519, which browsers
do not take.

    DIR/ca.pem                    the CA's certificate, for clients
    DIR/authority/ca-key.pem      its private key: it stays here, off the nodes
    DIR/NAME/cert.pem, key.pem    one node's certificate and private key
    DIR/NAME/ca.pem               a copy, so that DIR/NAME is all that the node needs

Laws:
- A private key is created with mode 0600, in a directory with mode 0700, and appears in no message.
- No file is overwritten, except that of a node whose certificate is renewed. The CA's key never is.
- A certificate does not outlast its CA.
- No clock is read: `now` is an argument.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

from shoal.errors import InvalidConfig, InvalidName

AUTHORITY_DAYS = 3650
NODE_DAYS = 365
"""Some systems reject certificates that are valid for more than 825 days."""

CERT, KEY, CA = "cert.pem", "key.pem", "ca.pem"

_AUTHORITY, _CA_KEY = "authority", "ca-key.pem"
_LOCAL = ("localhost", "127.0.0.1", "::1")  # So that commands and health checks on the node's own machine work.
_BACKDATED = timedelta(hours=1)  # The clocks of other machines may be slow.
_NAME = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_-]{1,63})*")


class Held(Struct, frozen=True):
    """A certificate in an authority's directory."""

    name: str  # The node's; "ca" for the authority.
    file: Path
    certificate: Certificate
    trouble: str  # Why it cannot be used; empty if it can.


def found(directory: Path, *, now: datetime) -> Held:
    """Make a new authority in `directory`, which may exist.

    Raises:
        InvalidConfig: there is one already, or the directory cannot be written.
    """
    for file in (directory / CA, directory / _AUTHORITY / _CA_KEY):
        if file.exists():
            raise InvalidConfig(
                f"{file} exists: this directory has a CA, which is never overwritten. Nothing was written. "
                f"For another node: `shoal tls node {directory} NAME`."
            )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Shoal cluster CA {os.urandom(4).hex()}")])
    certificate = (
        _begun(subject, subject, key.public_key(), now - _BACKDATED, now + timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(is_authority=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / _AUTHORITY).mkdir(mode=0o700, exist_ok=True)
        _create(directory / _AUTHORITY / _CA_KEY, _pem(key), mode=0o600)
        _create(directory / CA, certificate.public_bytes(Encoding.PEM), mode=0o644)
    except OSError as error:
        raise _unwritable(error, directory) from None
    return Held("ca", directory / CA, described(certificate), "")


def check_node(name: str, names: Sequence[str]) -> None:
    """Check the name of a node, and the other names and addresses of its certificate.

    Raises:
        InvalidName: one of them is neither a DNS name nor an IP address, or the node's name is taken by a file of the CA.
    """
    for each in (name, *names):
        if not _is_address(each) and not _NAME.fullmatch(each):
            raise InvalidName(
                f"{each[:100]!r} is neither a DNS name nor an IP address. Nothing was written. Write a host without a port, "
                "such as n1.example.com or 10.0.0.5."
            )
    if name in (_AUTHORITY, CA):
        raise InvalidName(f"{name!r} is the name of a file of the CA. Nothing was written. Choose another name for the node.")


def issue(
    directory: Path, name: str, names: Sequence[str] = (), *, now: datetime, days: int = NODE_DAYS, renew: bool = False
) -> Held:
    """Issue a key and a certificate to a node, for `name`, `names` (DNS names, IP addresses) and this machine's own names.

    With `renew` they replace the node's existing ones, and keep their names unless `names` are given.

    Raises:
        InvalidConfig: the authority is missing, broken or expired; the node has a certificate, and `renew` is not given
            (or has none, and it is); the files cannot be written.
        InvalidName: a name is neither a DNS name nor an IP address.
    """
    check_node(name, names)
    key_file, authority = _authority(directory, now=now)
    place = directory / name
    exists = (place / CERT).exists() or (place / KEY).exists()
    if exists and not renew:
        raise InvalidConfig(
            f"{name} has a certificate in {place}. Nothing was written. "
            f"`shoal tls node {directory} {name} --renew` replaces it."
        )
    if renew and not exists:
        raise InvalidConfig(f"{name} has no certificate in {place} to renew. Nothing was written. Leave out --renew.")
    kept = described(loaded(place / CERT)).names if renew and not names else ()
    every = list(dict.fromkeys((name, *names, *kept, *_LOCAL)))
    key = ec.generate_private_key(ec.SECP256R1())
    ends = min(now + timedelta(days=days), authority.not_valid_after_utc)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    certificate = (
        _begun(subject, authority.subject, key.public_key(), now - _BACKDATED, ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(is_authority=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.SubjectAlternativeName(list(map(_general, every))), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key_file.public_key()), critical=False)
        .sign(key_file, hashes.SHA256())
    )
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        _replace(place / CA, authority.public_bytes(Encoding.PEM), mode=0o644)
        _replace(place / KEY, _pem(key), mode=0o600)
        _replace(place / CERT, certificate.public_bytes(Encoding.PEM), mode=0o644)
    except OSError as error:
        raise _unwritable(error, directory) from None
    return Held(name, place / CERT, described(certificate), "")


def held(directory: Path, *, now: datetime) -> list[Held]:
    """The authority's certificate and those of its nodes, each with its trouble if it has any.

    Raises:
        InvalidConfig: the directory has no authority.
    """
    authority = loaded(_ca_file(directory))
    found = described(authority)
    listed = [Held("ca", directory / CA, found, found.trouble(now))]
    for file in sorted(directory.glob(f"*/{CERT}")):
        certificate = loaded(file)
        trouble = described(certificate).trouble(now)
        if not signed_by(certificate, authority):
            trouble = f"not signed by {directory / CA}"
        elif not (file.parent / KEY).exists():
            trouble = trouble or f"its key {KEY} is missing"
        listed.append(Held(file.parent.name, file, described(certificate), trouble))
    return listed


def _authority(directory: Path, *, now: datetime) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    certificate = loaded(_ca_file(directory))
    file = directory / _AUTHORITY / _CA_KEY
    try:
        key = load_pem_private_key(file.read_bytes(), password=None)
    except OSError as error:
        raise InvalidConfig(
            f"the CA's private key {file} cannot be read: {error.strerror}. Nothing was written. Certificates are issued "
            "where the CA was made."
        ) from None
    except (ValueError, TypeError):
        raise InvalidConfig(f"{file} is not a private key without a password, in PEM form. Nothing was written.") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise InvalidConfig(
            f"{file} is not the key of {directory / CA}: they do not belong together. Nothing was written. Restore both from "
            "one backup, or make a new CA in another directory."
        )
    trouble = described(certificate).trouble(now)
    if trouble:
        raise InvalidConfig(
            f"the CA {directory / CA} is {trouble}. Nothing was written. "
            "Make a new CA in another directory with `shoal tls init`."
        )
    return key, certificate


def _ca_file(directory: Path) -> Path:
    file = directory / CA
    if not file.exists():
        raise InvalidConfig(
            f"there is no CA in {directory}: {file} is missing. Nothing was written. `shoal tls init {directory}` makes one."
        )
    return file


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, starts: datetime, ends: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(starts)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general(name: str) -> x509.GeneralName:
    return x509.IPAddress(ip_address(name)) if _is_address(name) else x509.DNSName(name)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    pem: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem


def _create(file: Path, content: bytes, *, mode: int) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())


def _replace(file: Path, content: bytes, *, mode: int) -> None:
    new = file.with_suffix(".new")
    new.unlink(missing_ok=True)
    _create(new, content, mode=mode)
    new.replace(file)


def _unwritable(error: OSError, directory: Path) -> InvalidConfig:
    return InvalidConfig(
        f"{error.filename or directory} cannot be written: {error.strerror}. Files before it may have been written. "
        "Mend that, and run the command again."
    )


class Certificate(Struct, frozen=True):
    """The facts of one certificate that Shoal uses."""

    subject: str  # The common name; empty if there is none.
    names: tuple[str, ...]  # The DNS names and IP addresses for which it is valid.
    starts: datetime
    ends: datetime
    is_authority: bool

    @property
    def ends_s(self) -> float:
        """Its end, in seconds since 1970."""
        return self.ends.timestamp()

    def trouble(self, now: datetime) -> str:
        """Why it is not valid at this time; empty if it is."""
        if now > self.ends:
            return f"expired on {day(self.ends)}"
        if now < self.starts:
            return f"not valid before {self.starts:%Y-%m-%d %H:%M}Z; check the clock"
        return ""


def day(when: datetime) -> str:
    """A date for people."""
    return f"{when.astimezone(UTC):%Y-%m-%d}"


def loaded(file: Path) -> x509.Certificate:
    """The first certificate in a PEM file.

    Raises:
        InvalidConfig: the file cannot be read, or contains no certificate.
    """
    try:
        return x509.load_pem_x509_certificates(file.read_bytes())[0]
    except OSError as error:
        raise InvalidConfig(f"the certificate {file} cannot be read: {error.strerror}. Nothing was changed.") from None
    except ValueError:
        raise InvalidConfig(f"{file} contains no certificate in PEM form. Nothing was changed.") from None


def read(file: Path) -> Certificate:
    """The facts in the first certificate of a PEM file.

    Raises:
        InvalidConfig: the file cannot be read, or contains no certificate.
    """
    return described(loaded(file))


def described(found: x509.Certificate) -> Certificate:
    """The facts in a certificate."""
    common = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    names: list[str] = []
    is_authority = False
    for extension in found.extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName):
            names += extension.value.get_values_for_type(x509.DNSName)
            names += map(str, extension.value.get_values_for_type(x509.IPAddress))
        elif isinstance(extension.value, x509.BasicConstraints):
            is_authority = extension.value.ca
    return Certificate(
        str(common[0].value) if common else "",
        tuple(names),
        found.not_valid_before_utc,
        found.not_valid_after_utc,
        is_authority,
    )


def signed_by(found: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether the authority signed the certificate."""
    try:
        found.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
