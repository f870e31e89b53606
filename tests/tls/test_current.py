"""Certificates that change while the node runs: new connections get the new ones, existing ones go on."""

from __future__ import annotations

import asyncio
import signal
import ssl
import time
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest

import shoal
from shoal.config import Config
from shoal.errors import InvalidConfig, Unsupported
from shoal.tls import contexts
from shoal.tls.authority import read
from shoal.tls.current import CurrentTls
from tests.cli.conftest import PATIENCE_S, served
from tests.tls.conftest import Certificates, Serve, Served

DAY_S = 24 * 3600.0


async def shown(url: str, ca: str) -> bytes:
    """The certificate that a port shows to a new connection."""
    host, _, port = url.removeprefix("https://").partition(":")
    context = ssl.create_default_context(cafile=ca)
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return found


def tls_of(served: Served) -> CurrentTls:
    assert served.tls is not None
    return served.tls


@pytest.mark.answers("certificates-change-in-place")
async def test_new_connections_get_the_new_certificate_and_existing_ones_go_on(
    certificates: Certificates, serve: Serve
) -> None:
    node = await serve(**certificates.settings("n1"))
    before = await shown(node.url, certificates.ca)
    async with shoal.connect(node.url, tls_ca=certificates.ca) as store:
        counter = store.space("s").counter("n")
        await counter.add(1)
        certificates.issue("n1", renew=True)
        assert tls_of(node).has_changed()
        tls_of(node).reload()
        assert not tls_of(node).has_changed()
        await counter.add(1)
        assert await counter.value() == 2
    assert await shown(node.url, certificates.ca) != before


async def test_files_with_other_rights_are_read_again(certificates: Certificates, serve: Serve) -> None:
    settings = certificates.settings("n1")
    node = await serve(**settings)
    Path(settings["tls_key"]).chmod(0o640)  # As one does whose node could not read a new key.
    assert tls_of(node).has_changed()


@pytest.mark.answers("certificates-change-in-place")
async def test_another_ca_is_taken_over_too(certificates: Certificates, serve: Serve, tmp_path: Path) -> None:
    node = await serve(join="127.0.0.1:9", **certificates.settings("n1"))
    other = Certificates(tmp_path / "other")
    for kind, file in other.settings("n1").items():
        Path(certificates.settings("n1")[kind]).write_bytes(Path(file).read_bytes())
    tls_of(node).reload()
    context = ssl.create_default_context(cafile=other.ca)
    shown_to_it = other.settings("n2")
    context.load_cert_chain(shown_to_it["tls_cert"], shown_to_it["tls_key"])
    async with aiohttp.ClientSession() as http, http.get(f"{node.url}/healthz", ssl=context) as answer:
        assert answer.status == 200
    with pytest.raises(Unsupported, match="not trusted here"):
        async with shoal.connect(node.url, tls_ca=certificates.ca) as store:
            await store.status()


@pytest.mark.answers("certificates-change-in-place")
async def test_a_broken_file_keeps_the_certificate_and_is_told(certificates: Certificates, serve: Serve) -> None:
    node = await serve(**certificates.settings("n1"))
    before = await shown(node.url, certificates.ca)
    Path(certificates.settings("n1")["tls_cert"]).write_text("nonsense")
    with pytest.raises(InvalidConfig, match="The former ones stay in use"):
        tls_of(node).reload()
    assert await shown(node.url, certificates.ca) == before
    assert "the new TLS files are not used" in tls_of(node).trouble
    certificates.issue("n1", names=["n1"], renew=True)
    tls_of(node).reload()
    assert tls_of(node).trouble == ""


def test_the_end_of_a_certificate_is_told_a_month_before(certificates: Certificates) -> None:
    now_s = datetime.now(UTC).timestamp()
    config = Config(**certificates.settings("n1"))  # type: ignore[arg-type]
    tls = CurrentTls(config, now_s=lambda: now_s)
    assert tls.ends_s == read(Path(config.tls_cert)).ends_s
    assert tls.trouble == ""
    now_s += 336 * DAY_S
    assert f"the node's certificate expires on {tls.until}; renew it" in tls.trouble
    now_s += 30 * DAY_S
    assert f"has expired on {tls.until}; renew it" in tls.trouble


@pytest.mark.answers("certificates-change-in-place")
async def test_a_process_loads_new_files_on_sighup_and_by_itself_and_shows_their_end(
    certificates: Certificates, tmp_path: Path
) -> None:
    certificates.issue("n1", days=20)
    options = ["--tls", str(certificates.directory / "n1"), "--set", "tls_look_s=0.05"]
    with served(tmp_path / "state", *options) as (process, url):
        before = await shown(url, certificates.ca)
        async with shoal.connect(url, tls_ca=certificates.ca) as store:
            status = await store.status()
            assert "expires on" in status.tls_trouble
            certificates.issue("n1", renew=True)
            async with asyncio.timeout(PATIENCE_S):
                while (status := await store.status()).tls_trouble:
                    await asyncio.sleep(0.02)
            assert status.tls_ends_ms == read(certificates.directory / "n1" / "cert.pem").ends_s * 1000
        context = ssl.create_default_context(cafile=certificates.ca)
        async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics", ssl=context) as answer:
            told = dict(line.rsplit(" ", 1) for line in (await answer.text()).splitlines())
        assert float(told["shoal_tls_expires_timestamp_seconds"]) == status.tls_ends_ms / 1000
        assert await shown(url, certificates.ca) != before
        process.send_signal(signal.SIGHUP)
        assert await shown(url, certificates.ca)  # It goes on.
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert "the TLS files are loaded" in errors
    assert "PRIVATE" not in errors


def test_the_end_that_is_told_is_no_later_than_the_one_in_use(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates.issue("n1", days=20)
    directory = certificates.directory / "n1"
    in_use = read(directory / "cert.pem").ends_s
    listening = contexts.listening

    def replaced_meanwhile(config: Config) -> ssl.SSLContext:
        made = listening(config)
        certificates.issue("n1", renew=True)
        return made

    monkeypatch.setattr(contexts, "listening", replaced_meanwhile)
    config = Config(tls_cert=str(directory / "cert.pem"), tls_key=str(directory / "key.pem"), tls_ca=str(certificates.ca))
    assert CurrentTls(config, now_s=time.time).ends_s == in_use
