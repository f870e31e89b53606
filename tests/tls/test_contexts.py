"""The files of a node are checked before it starts, and each error names the file and what to do."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from shoal.config import Config, checked
from shoal.errors import InvalidConfig
from shoal.tls import authority, contexts


@pytest.fixture
def config(tmp_path: Path) -> Config:
    now = datetime.now(UTC)
    authority.found(tmp_path, now=now)
    authority.issue(tmp_path, "n1", now=now)
    authority.issue(tmp_path, "n2", now=now)
    return Config(
        tls_cert=str(tmp_path / "n1" / "cert.pem"),
        tls_key=str(tmp_path / "n1" / "key.pem"),
        tls_ca=str(tmp_path / "ca.pem"),
        join="n2:7400",
    )


def refused(config: Config, **settings: str) -> str:
    with pytest.raises(InvalidConfig) as caught:
        contexts.listening(msgspec.structs.replace(config, **settings))
    return caught.value.message


def test_nothing_older_than_tls_1_3_is_spoken(config: Config) -> None:
    for context in (contexts.listening(config), contexts.dialling_peers(config), contexts.dialling_nodes(config)):
        assert context.minimum_version == ssl.TLSVersion.TLSv1_3


def test_clients_are_asked_for_a_certificate_only_by_a_node_with_peers(config: Config) -> None:
    assert contexts.listening(config).verify_mode == ssl.CERT_OPTIONAL
    assert contexts.listening(msgspec.structs.replace(config, join="")).verify_mode == ssl.CERT_NONE


def test_a_missing_file_is_named(config: Config) -> None:
    assert "tls_cert: /nowhere.pem cannot be read: No such file" in refused(config, tls_cert="/nowhere.pem")
    assert "tls_key: /nowhere.pem cannot be read" in refused(config, tls_key="/nowhere.pem")
    assert "tls_ca: /nowhere.pem cannot be read" in refused(config, tls_ca="/nowhere.pem")


def test_a_key_of_another_certificate_is_refused(config: Config) -> None:
    other = config.tls_key.replace("n1", "n2")
    assert f"the private key {other} does not belong to the certificate" in refused(config, tls_key=other)


def test_files_that_are_no_certificate_are_refused(config: Config, tmp_path: Path) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    nonsense.chmod(0o600)
    assert "are not a certificate and its private key" in refused(config, tls_cert=str(nonsense))
    assert "are not a certificate and its private key" in refused(config, tls_key=str(nonsense))
    assert "contains no certificate" in refused(config, tls_ca=str(nonsense))


@pytest.mark.answers("tls-is-checked")
@pytest.mark.parametrize("mode", [0o604, 0o602, 0o644])
def test_a_key_that_every_user_may_read_is_refused(config: Config, mode: int) -> None:
    Path(config.tls_key).chmod(mode)
    assert f"`chmod o= {config.tls_key}` mends that" in refused(config)


def test_a_key_that_a_group_may_read_is_taken(config: Config) -> None:
    Path(config.tls_key).chmod(0o640)  # As in a mounted secret.
    contexts.listening(config)


def test_a_key_with_a_password_is_refused_without_asking(config: Config) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    Path(config.tls_key).write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"hush")))
    assert "the private key has a password" in refused(config)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tls_cert": "c"}, "tls_cert is set, but not tls_key"),
        ({"tls_key": "k"}, "tls_key is set, but not tls_cert"),
        ({"tls_cert": "c", "tls_key": "k", "join": "n2:7400"}, "tls_ca is not set"),
        ({"tls_ca": "a", "join": "n2:7400"}, "tls_ca is set, but not tls_cert"),
    ],
)
def test_settings_that_belong_together_are_given_together(settings: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        checked(msgspec.convert(settings, Config))
