"""Peers over TLS: both ends show a certificate of the cluster's CA, and whoever cannot is refused with the reason."""

from __future__ import annotations

import asyncio
import os
import ssl
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

import shoal
from chaos.ports import free_ports
from shoal.cluster.handshake import Dialling, Side
from shoal.cluster.peering import Identity
from shoal.errors import InvalidConfig, PeerRefused
from shoal.logs import events
from shoal.logs.lines import captured
from shoal.transport.peer_link import PEER_PATH
from tests.tls.conftest import WAIT_S, Certificates, Serve, Served, until

UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
}


KEYED = {"cluster_key": "a secret of the nodes alone"}


async def two(serve: Serve, one: dict[str, str], other: dict[str, str]) -> tuple[Served, Served]:
    """Two members with these settings."""
    ports = free_ports(2)
    join = ",".join(f"127.0.0.1:{port}" for port in ports)
    a, b = [
        await serve(
            **{
                "join": join,
                "listen_port": port,
                "cluster_key": "a secret of the nodes alone",
                "quorum_timeout_s": WAIT_S,
                **settings,
            }
        )
        for port, settings in zip(ports, (one, other), strict=True)
    ]
    return a, b


async def test_members_with_certificates_of_one_ca_replicate(certificates: Certificates, serve: Serve) -> None:
    a, b = await two(serve, certificates.settings("n1"), certificates.settings("n2"))
    await until(lambda: a.linked and b.linked)
    async with shoal.connect(a.url, tls_ca=certificates.ca, durability="all") as store:
        await store.space("s").counter("n").add(7)
    async with shoal.connect(b.url, tls_ca=certificates.ca) as store:
        assert await store.space("s").counter("n").value() == 7


@pytest.mark.answers("peers-prove-themselves")
async def test_a_member_with_a_certificate_of_another_ca_is_refused_on_both_sides(
    certificates: Certificates, serve: Serve, tmp_path: Path
) -> None:
    other = Certificates(tmp_path / "other")
    a, b = await two(serve, certificates.settings("n1"), other.settings("n2"))
    await until(lambda: "is not trusted" in a.reason(b) and "is not trusted" in b.reason(a))
    assert "of a CA that is not trusted here" in a.reason(b)
    assert "tls_ca, on all nodes" in a.reason(b)
    assert not a.linked


@pytest.mark.answers("peers-prove-themselves")
async def test_a_member_whose_certificate_is_not_accepted_is_told(
    certificates: Certificates, serve: Serve, tmp_path: Path
) -> None:
    """It trusts the others' CA, but shows a certificate of its own."""
    other = Certificates(tmp_path / "other")
    both = tmp_path / "both.pem"
    both.write_bytes(Path(certificates.ca).read_bytes() + Path(other.ca).read_bytes())
    a, b = await two(serve, certificates.settings("n1"), {**other.settings("n2"), "tls_ca": str(both)})
    await until(lambda: "it may not accept this node's certificate" in b.reason(a))
    await until(lambda: "is not trusted" in a.reason(b))


async def test_a_member_with_an_expired_certificate_is_told(certificates: Certificates, serve: Serve) -> None:
    certificates.issue("n2", days_ago=400)
    a, b = await two(serve, certificates.settings("n1"), certificates.settings("n2"))
    await until(lambda: "its certificate has expired" in a.reason(b))
    await until(lambda: "it may not accept this node's certificate" in b.reason(a))


@pytest.mark.answers("peers-prove-themselves")
async def test_a_plain_member_and_one_with_tls_refuse_each_other(certificates: Certificates, serve: Serve) -> None:
    a, b = await two(serve, certificates.settings("n1"), {})
    await until(lambda: "does not speak TLS, and this node does" in a.reason(b))
    await until(lambda: "speaks TLS, and this node does not" in b.reason(a))
    assert "on all nodes of the cluster, or on none" in a.reason(b)
    assert "on all nodes of the cluster, or on none" in b.reason(a)


@pytest.mark.answers("peers-prove-themselves")
async def test_a_certificate_does_not_replace_the_key_of_the_cluster(certificates: Certificates, serve: Serve) -> None:
    a, b = await two(
        serve, certificates.settings("n1"), {**certificates.settings("n2"), "cluster_key": "a secret of other nodes"}
    )
    await until(lambda: "key" in a.reason(b))
    assert not a.linked


@pytest.mark.answers("peers-prove-themselves")
async def test_a_peer_without_a_certificate_is_refused_and_a_client_is_not(certificates: Certificates, serve: Serve) -> None:
    a = await serve(join="127.0.0.1:9", **certificates.settings("n1"))
    context = ssl.create_default_context(cafile=certificates.ca)
    async with aiohttp.ClientSession() as http:
        async with http.get(a.url + PEER_PATH, ssl=context, headers=UPGRADE) as answer:
            document = await answer.json()
        async with http.get(f"{a.url}/healthz", ssl=context) as answer:
            assert answer.status == 200
    assert (document["status"], document["code"]) == (403, "peer-refused")
    assert "a peer must show a certificate of the cluster's CA" in document["detail"]


async def test_a_certificate_of_another_ca_ends_the_handshake(certificates: Certificates, serve: Serve, tmp_path: Path) -> None:
    a = await serve(join="127.0.0.1:9", **certificates.settings("n1"))
    stranger = Certificates(tmp_path / "other").settings("n2")
    context = ssl.create_default_context(cafile=certificates.ca)
    context.load_cert_chain(stranger["tls_cert"], stranger["tls_key"])
    async with aiohttp.ClientSession() as http:
        with pytest.raises((aiohttp.ClientError, ConnectionError)):
            async with asyncio.timeout(WAIT_S):
                await http.get(a.url + PEER_PATH, ssl=context)


async def dial_as(identity: Identity, shown: dict[str, str], url: str) -> None:
    """Shake hands with a node under any identity, with the cluster's key and the certificate of some member.

    Raises:
        PeerRefused: it was refused.
    """
    context = ssl.create_default_context(cafile=shown["tls_ca"])
    context.check_hostname = False
    context.load_cert_chain(shown["tls_cert"], shown["tls_key"])
    side = Side(identity=identity, cluster="shoal", key=b"a secret of the nodes alone", engine=version("pycrdt"))
    async with aiohttp.ClientSession() as http, http.ws_connect(url + PEER_PATH, ssl=context) as socket:
        dialling = Dialling(side, nonce=os.urandom(32))
        await socket.send_bytes(dialling.hello)
        await socket.send_bytes(dialling.welcomed(await socket.receive_bytes()))
        dialling.accepted(await socket.receive_bytes())


async def test_a_member_cannot_present_itself_as_another_one(certificates: Certificates, serve: Serve) -> None:
    a, b = await two(serve, certificates.settings("n1"), certificates.settings("n2"))
    await until(lambda: a.linked and b.linked)
    assert a.node.replicator is not None
    assert b.node.replicator is not None
    other = a.node.replicator.identity()
    with pytest.raises(PeerRefused, match="shows the key of"):
        await dial_as(other._replace(node=os.urandom(16)), certificates.settings("n2"), a.url)


def revoked(certificates: Certificates, *names: str) -> str:
    """The file of the CA's list of revoked certificates, with those of these nodes."""
    key = load_pem_private_key((certificates.directory / "authority" / "ca-key.pem").read_bytes(), password=None)
    issuer = x509.load_pem_x509_certificate(Path(certificates.ca).read_bytes()).subject
    now = datetime.now(UTC)
    listed = x509.CertificateRevocationListBuilder(issuer, now, now + timedelta(days=1))
    for name in names:
        certificate = x509.load_pem_x509_certificate((certificates.directory / name / "cert.pem").read_bytes())
        entry = x509.RevokedCertificateBuilder(certificate.serial_number, now).build()
        listed = listed.add_revoked_certificate(entry)
    assert isinstance(key, EllipticCurvePrivateKey)
    file = certificates.directory / "revoked.pem"
    file.write_bytes(listed.sign(key, SHA256()).public_bytes(Encoding.PEM))
    return str(file)


async def test_a_member_whose_certificate_is_revoked_is_refused(certificates: Certificates, serve: Serve) -> None:
    one, other = certificates.settings("n1"), certificates.settings("n2")
    a, b = await two(serve, one | {"tls_crl": revoked(certificates, "n2")}, other)
    await until(lambda: "revoked" in a.reason(b))
    assert not a.linked


async def test_a_list_of_others_refuses_nobody(certificates: Certificates, serve: Serve) -> None:
    one, other = certificates.settings("n1"), certificates.settings("n2")
    certificates.settings("n3")
    list_of_others = {"tls_crl": revoked(certificates, "n3")}
    a, b = await two(serve, one | list_of_others, other | list_of_others)
    await until(lambda: a.linked and b.linked)


async def test_a_file_that_is_no_list_of_revoked_certificates_is_named(certificates: Certificates, serve: Serve) -> None:
    with pytest.raises(InvalidConfig, match="contains no list of revoked certificates"):
        await two(serve, certificates.settings("n1") | {"tls_crl": certificates.ca}, certificates.settings("n2"))


async def test_at_the_first_contact_a_certificate_speaks_for_its_names_alone(certificates: Certificates, serve: Serve) -> None:
    """As of a thief of the files of n2, before the node has ever met n3."""
    address = "n1:7400,n2:7400,n3:7400"
    a = await serve(join=address, advertise="n1:7400", tls_peer_names="own", **KEYED, **certificates.settings("n1"))
    assert a.node.replicator is not None
    for claimed, refused in (("n3:7400", True), ("n2:7400", False)):
        identity = a.node.replicator.identity()._replace(node=os.urandom(16), name=claimed, opening=os.urandom(16))
        if refused:
            with pytest.raises(PeerRefused, match="does not name that host"):
                await dial_as(identity, certificates.settings("n2"), a.url)
        else:
            await dial_as(identity, certificates.settings("n2"), a.url)


async def test_without_names_the_first_key_at_an_address_is_believed(certificates: Certificates, serve: Serve) -> None:
    """What docs/TLS.md says of the default."""
    a = await serve(join="n1:7400,n2:7400,n3:7400", advertise="n1:7400", **KEYED, **certificates.settings("n1"))
    assert a.node.replicator is not None
    identity = a.node.replicator.identity()._replace(node=os.urandom(16), name="n3:7400", opening=os.urandom(16))
    await dial_as(identity, certificates.settings("n2"), a.url)
    with pytest.raises(PeerRefused, match="shows the key of"):
        await dial_as(identity._replace(name="n1:7400", node=os.urandom(16)), certificates.settings("n2"), a.url)


async def test_a_node_that_is_dialled_must_show_its_own_certificate(certificates: Certificates, serve: Serve) -> None:
    elsewhere = "127.0.0.2"  # Of this machine, and in no certificate.
    b = await serve(join="127.0.0.1:9", listen_host=elsewhere, **KEYED, **certificates.settings("n2"))
    a = await serve(join=b.address, tls_peer_names="own", **KEYED, **certificates.settings("n1"))
    await until(lambda: "is not trusted" in a.reason(b))
    assert not a.linked


async def test_members_with_their_own_certificates_are_linked(certificates: Certificates, serve: Serve) -> None:
    own = {"tls_peer_names": "own"}
    a, b = await two(serve, own | certificates.settings("n1"), own | certificates.settings("n2"))
    await until(lambda: a.linked and b.linked)


async def by_one_name(serve: Serve, *settings: dict[str, str]) -> list[Served]:
    """Members that find each other by a name which leads to addresses that no certificate names, as containers' do."""
    ports = free_ports(len(settings))

    async def resolve(host: str, _port: int) -> list[str]:
        assert host == "shoal"
        return [f"127.0.5.1:{port}" for port in ports]

    common = {"join": "shoal:7400", "cluster_size": len(settings), "listen_host": "0.0.0.0", "tls_peer_names": "own"}
    return [
        await serve(
            **{**common, **KEYED, "listen_port": port, "advertise": f"127.0.0.1:{port}", "resolve": resolve, **each},
        )
        for port, each in zip(ports, settings, strict=True)
    ]


@pytest.mark.answers("members-change-safely")
async def test_members_with_their_own_certificates_find_each_other_by_one_name(
    certificates: Certificates, serve: Serve
) -> None:
    nodes = await by_one_name(serve, *(certificates.settings(f"n{number}") for number in (1, 2, 3)))
    await until(lambda: all(node.linked == 2 for node in nodes))


async def test_a_node_found_by_one_name_must_show_its_own_certificate(certificates: Certificates, serve: Serve) -> None:
    """As a thief of the files of n2, who tells to be another member."""
    stolen = certificates.settings("n2") | {"advertise": "127.0.0.9:7400"}
    with captured() as lines:
        a, b = await by_one_name(serve, certificates.settings("n1"), stolen)
        asked = f"127.0.5.1:{b.url.rpartition(':')[2]}"  # The other one is told the same of its own question.

        def refused() -> bool:
            found = [line.fields for line in lines if line.event is events.SEED_LEADS_NOWHERE]
            return any(each["seed"] == asked and "does not name that host" in str(each["reason"]) for each in found)

        await until(refused)
    assert a.linked == 0
