"""A CA's directory: keys that are kept, files that are not overwritten, certificates with names and an end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from shoal.errors import InvalidConfig, InvalidName
from shoal.tls import authority

NOW = datetime(2030, 5, 1, 12, tzinfo=UTC)


def mode(file: Path) -> int:
    return file.stat().st_mode & 0o777


def contents(directory: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in directory.rglob("*") if file.is_file()}


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    authority.found(tmp_path / "tls", now=NOW)
    authority.issue(tmp_path / "tls", "n1", ["n1.example.com", "10.0.0.5"], now=NOW)
    return tmp_path / "tls"


@pytest.mark.answers("tls-is-checked")
def test_a_private_key_is_readable_by_its_owner_alone(ca: Path) -> None:
    assert mode(ca / "authority") == mode(ca / "n1") == 0o700
    assert mode(ca / "authority" / "ca-key.pem") == mode(ca / "n1" / "key.pem") == 0o600
    assert b"PRIVATE" not in (ca / "ca.pem").read_bytes() + (ca / "n1" / "cert.pem").read_bytes()


def test_the_directory_of_a_node_does_not_hold_the_key_of_the_ca(ca: Path) -> None:
    assert sorted(file.name for file in (ca / "n1").iterdir()) == ["ca.pem", "cert.pem", "key.pem"]
    assert (ca / "n1" / "ca.pem").read_bytes() == (ca / "ca.pem").read_bytes()


def test_a_certificate_is_for_its_names_and_for_the_own_machine(ca: Path) -> None:
    _, node = authority.held(ca, now=NOW)
    assert node.certificate.names == ("n1", "n1.example.com", "localhost", "10.0.0.5", "127.0.0.1", "::1")
    assert not node.certificate.is_authority


def test_the_dates_follow_the_clock_that_is_given(ca: Path) -> None:
    root, node = authority.held(ca, now=NOW)
    assert node.certificate.ends == NOW + timedelta(days=365)
    assert node.certificate.starts == NOW - timedelta(hours=1)
    assert root.certificate.ends == NOW + timedelta(days=3650)


def test_a_certificate_does_not_outlast_its_ca(ca: Path) -> None:
    late = NOW + timedelta(days=3640)
    made = authority.issue(ca, "n2", now=late)
    assert made.certificate.ends == NOW + timedelta(days=3650)


@pytest.mark.answers("tls-is-checked")
def test_a_ca_is_never_overwritten(ca: Path) -> None:
    before = contents(ca)
    with pytest.raises(InvalidConfig, match=r"never overwritten. Nothing was written. .*shoal tls node"):
        authority.found(ca, now=NOW)
    assert contents(ca) == before


def test_the_certificate_of_a_node_is_replaced_only_on_demand(ca: Path) -> None:
    before = contents(ca)
    with pytest.raises(InvalidConfig, match=r"Nothing was written. .* --renew"):
        authority.issue(ca, "n1", now=NOW)
    assert contents(ca) == before
    renewed = authority.issue(ca, "n1", now=NOW + timedelta(days=300), renew=True)
    assert renewed.certificate.ends == NOW + timedelta(days=665)
    assert set(renewed.certificate.names) == {"n1", "n1.example.com", "10.0.0.5", "localhost", "127.0.0.1", "::1"}
    assert (ca / "n1" / "key.pem").read_bytes() != before[ca / "n1" / "key.pem"]
    assert mode(ca / "n1" / "key.pem") == 0o600


def test_a_node_without_a_certificate_has_none_to_renew(ca: Path) -> None:
    with pytest.raises(InvalidConfig, match="Leave out --renew"):
        authority.issue(ca, "n2", now=NOW, renew=True)


@pytest.mark.parametrize("name", ["../n1", "n1:7400", "", "a b", "authority", "ca.pem", "-n"])
def test_a_name_that_is_no_host_is_refused(ca: Path, name: str) -> None:
    before = contents(ca)
    with pytest.raises(InvalidName, match="Nothing was written"):
        authority.issue(ca, name, now=NOW)
    assert contents(ca) == before


def test_without_a_ca_the_command_that_makes_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="shoal tls init"):
        authority.issue(tmp_path, "n1", now=NOW)
    with pytest.raises(InvalidConfig, match="shoal tls init"):
        authority.held(tmp_path, now=NOW)


def test_a_missing_key_of_the_ca_is_named(ca: Path) -> None:
    (ca / "authority" / "ca-key.pem").unlink()
    with pytest.raises(InvalidConfig, match=r"ca-key.pem cannot be read: No such file"):
        authority.issue(ca, "n2", now=NOW)


def test_a_key_of_another_ca_is_refused(ca: Path, tmp_path: Path) -> None:
    authority.found(tmp_path / "other", now=NOW)
    (ca / "ca.pem").write_bytes((tmp_path / "other" / "ca.pem").read_bytes())
    with pytest.raises(InvalidConfig, match="do not belong together"):
        authority.issue(ca, "n2", now=NOW)
    assert [each.trouble for each in authority.held(ca, now=NOW)] == ["", f"not signed by {ca / 'ca.pem'}"]


def test_an_expired_ca_issues_nothing(ca: Path) -> None:
    with pytest.raises(InvalidConfig, match="expired on 2040-04-28"):
        authority.issue(ca, "n2", now=NOW + timedelta(days=3651))


def test_expired_certificates_are_shown(ca: Path) -> None:
    assert [each.trouble for each in authority.held(ca, now=NOW + timedelta(days=366))] == ["", "expired on 2031-05-01"]


def test_a_broken_file_is_named_without_its_content(ca: Path) -> None:
    (ca / "authority" / "ca-key.pem").write_text("-----BEGIN PRIVATE KEY-----\nsecret\n")
    with pytest.raises(InvalidConfig, match=r"ca-key.pem is not a private key") as caught:
        authority.issue(ca, "n2", now=NOW)
    assert "secret" not in caught.value.message
