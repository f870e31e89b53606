"""The facts in a certificate: its subject, its names and its dates.

Nothing here reads a clock: `now` is an argument.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import NameOID
from msgspec import Struct

from shoal.errors import InvalidConfig


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
