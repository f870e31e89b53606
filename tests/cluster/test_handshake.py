from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cluster import handshake
from shoal.cluster.handshake import ACCEPTED, HANDSHAKE_BYTES_MAX, PEER_PROTOCOL, Accepting, Dialling, Side, refusal
from shoal.cluster.peering import Identity
from shoal.errors import InvalidValue, NotFound, PeerRefused, ShoalError
from tests.support.examples import examples

NEAR = Side(Identity(b"n" * 16, "n1:7400", "shoal 1", opening=b"o" * 16), "crew", b"secret", "0.14.13")
FAR = Side(Identity(b"f" * 16, "n2:7400", "shoal 2", opening=b"p" * 16), "crew", b"secret", "0.14.2")

unpack = msgspec.msgpack.decode
pack = msgspec.msgpack.encode


def dialling(side: Side = NEAR) -> Dialling:
    return Dialling(side, nonce=b"1" * 32)


def accepting(side: Side = FAR) -> Accepting:
    return Accepting(side, nonce=b"2" * 32)


def meet(near: Side, far: Side) -> tuple[Identity, Identity]:
    """Whom each side met."""
    dialler, acceptor = dialling(near), accepting(far)
    dialler_is = acceptor.proven(dialler.welcomed(acceptor.greeted(dialler.hello)))
    dialler.accepted(ACCEPTED)
    assert dialler.peer is not None
    return dialler.peer, dialler_is


@pytest.mark.parametrize("key", [b"", b"secret"])
def test_two_nodes_of_one_cluster_learn_who_the_other_is(key: bytes) -> None:
    assert meet(NEAR._replace(key=key), FAR._replace(key=key)) == (FAR.identity, NEAR.identity)


def test_a_node_tells_its_members_unless_they_do_not_fit() -> None:
    members = ("n1:7400", "n2:7400")
    near = NEAR._replace(identity=NEAR.identity._replace(members=members))
    assert meet(near, FAR)[1].members == members
    many = tuple(f"{number}.{'x' * 200}:7400" for number in range(200))
    near, far = (side._replace(identity=side.identity._replace(members=many)) for side in (NEAR, FAR))
    assert [met.members for met in meet(near, far)] == [(), ()]


def test_a_node_of_an_earlier_version_which_tells_no_members_is_met() -> None:
    *hello, members, _epoch, _originals = unpack(dialling().hello)
    assert members == []
    acceptor = accepting()
    acceptor.greeted(pack(hello))
    assert acceptor.peer == NEAR.identity


def test_a_refusal_reaches_the_other_side_with_its_class_text_and_reason() -> None:
    dialler, acceptor = dialling(), accepting(FAR._replace(cluster="other"))
    with pytest.raises(PeerRefused) as here:
        acceptor.greeted(dialler.hello)
    with pytest.raises(PeerRefused) as there:
        dialler.welcomed(refusal(here.value))
    assert there.value.message == here.value.message
    assert there.value.detail == {"reason": "cluster"}
    assert (acceptor.told, dialler.told) == (False, True)


@pytest.mark.answers("client-id-loses-bits-between-versions")
def test_an_acceptor_refuses_another_cluster_and_engine_at_the_hello() -> None:
    for change, reason in ((FAR._replace(cluster="x"), "cluster"), (FAR._replace(engine="0.15.0"), "engine")):
        with pytest.raises(PeerRefused) as refused:
            accepting(change).greeted(dialling().hello)
        assert refused.value.detail["reason"] == reason


def test_a_dialler_refuses_another_cluster_and_engine_at_the_welcome() -> None:
    for change, reason in ((NEAR._replace(cluster="x"), "cluster"), (NEAR._replace(engine="1.14.13"), "engine")):
        dialler = dialling(change)
        with pytest.raises(PeerRefused) as refused:
            dialler.welcomed(welcome_for(dialler.hello, FAR))
        assert refused.value.detail["reason"] == reason


def welcome_for(hello: bytes, side: Side) -> bytes:
    """The welcome of an acceptor that checks nothing."""
    own = dialling(side).hello
    digests = hashlib.sha256(hello).digest() + hashlib.sha256(own).digest()
    return pack(("peer-welcome", own, hmac.digest(side.key, b"shoal peer acceptor" + digests, "sha256")))


@pytest.mark.parametrize(("near", "far"), [(b"one", b"other"), (b"", b"secret"), (b"secret", b"")])
def test_a_dialler_refuses_an_acceptor_that_does_not_hold_its_key(near: bytes, far: bytes) -> None:
    dialler, acceptor = dialling(NEAR._replace(key=near)), accepting(FAR._replace(key=far))
    with pytest.raises(PeerRefused) as refused:
        dialler.welcomed(acceptor.greeted(dialler.hello))
    assert refused.value.detail["reason"] == "key"


@pytest.mark.parametrize("proof", [b"", b"x" * 32])
def test_an_acceptor_refuses_a_dialler_without_the_proof(proof: bytes) -> None:
    acceptor = accepting()
    acceptor.greeted(dialling().hello)
    with pytest.raises(PeerRefused) as refused:
        acceptor.proven(pack(("peer-proof", proof)))
    assert refused.value.detail["reason"] == "key"


def test_an_acceptors_own_proof_sent_back_to_it_proves_nothing() -> None:
    acceptor = accepting()
    _, _, proof = unpack(acceptor.greeted(dialling().hello))
    with pytest.raises(PeerRefused):
        acceptor.proven(pack(("peer-proof", proof)))


def test_a_proof_serves_only_the_meeting_it_was_made_in() -> None:
    dialler, acceptor = dialling(), accepting()
    proof = dialler.welcomed(acceptor.greeted(dialler.hello))
    later = Accepting(FAR, nonce=b"3" * 32)
    later.greeted(dialler.hello)
    with pytest.raises(PeerRefused):
        later.proven(proof)


@pytest.mark.parametrize("at", range(2, 8))
def test_a_welcome_that_was_changed_on_its_way_is_refused_before_it_is_believed(at: int) -> None:
    dialler, acceptor = dialling(), accepting()
    tag, packed, proof = unpack(acceptor.greeted(dialler.hello))
    fields = unpack(packed)
    fields[at] = NEAR.identity.node if at == 3 else "x" if isinstance(fields[at], str) else b"x" * len(fields[at])
    with pytest.raises(PeerRefused) as refused:
        dialler.welcomed(pack((tag, pack(fields), proof)))
    assert refused.value.detail["reason"] == "key"  # And not "cluster", "engine" or "self", which it then seems to be.


@pytest.mark.parametrize(("opening", "reason"), [(NEAR.identity.opening, "self"), (b"q" * 16, "clone")])
def test_a_node_tells_itself_from_a_copy_of_its_directory(opening: bytes, reason: str) -> None:
    dialler, acceptor = dialling(), accepting(NEAR._replace(identity=NEAR.identity._replace(opening=opening)))
    with pytest.raises(PeerRefused) as refused:
        dialler.welcomed(acceptor.greeted(dialler.hello))
    assert refused.value.detail["reason"] == reason


@pytest.mark.parametrize("hello", [["peer-hello", 1], ["peer-hello", PEER_PROTOCOL + 1, {"of": "another shape"}, 1.5]])
def test_a_hello_of_another_version_is_refused_as_such_whatever_its_shape(hello: list[object]) -> None:
    with pytest.raises(PeerRefused) as refused:
        accepting().greeted(pack(hello))
    assert refused.value.detail["reason"] == "protocol"
    with pytest.raises(PeerRefused) as refused:
        dialling().welcomed(pack(("peer-welcome", pack(hello), b"")))
    assert refused.value.detail["reason"] == "protocol"


@pytest.mark.parametrize("newest", [PEER_PROTOCOL + 1, PEER_PROTOCOL + 5])
def test_a_newer_node_is_met_and_its_version_is_known(newest: int) -> None:
    """Whether it speaks this version is for it to decide."""
    hello = unpack(dialling().hello)
    hello[1] = newest
    dialler, acceptor = pack(hello), accepting()
    _, own, _ = unpack(acceptor.greeted(dialler))
    digests = hashlib.sha256(dialler).digest() + hashlib.sha256(own).digest()
    proof = hmac.digest(b"secret", b"shoal peer dialler" + digests, "sha256")
    assert acceptor.proven(pack(("peer-proof", proof))).protocol == newest


@pytest.mark.answers("versions-work-together")
def test_the_last_releases_version_is_met_and_an_older_one_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the next release would have it."""
    old = dialling().hello
    for name, version in (("PEER_PROTOCOL", PEER_PROTOCOL + 1), ("PEER_PROTOCOL_OLDEST", PEER_PROTOCOL)):
        monkeypatch.setattr(handshake, name, version)
    acceptor = accepting()
    acceptor.greeted(old)
    assert acceptor.peer is not None
    assert acceptor.peer.protocol == PEER_PROTOCOL
    monkeypatch.setattr(handshake, "PEER_PROTOCOL_OLDEST", PEER_PROTOCOL + 1)
    with pytest.raises(PeerRefused, match="one release at a time"):
        accepting().greeted(old)


def test_elements_that_a_later_release_adds_are_proven_and_ignored() -> None:
    longer = pack([*unpack(dialling().hello), "new"])
    acceptor = accepting()
    _, own, _ = unpack(acceptor.greeted(longer))
    digests = hashlib.sha256(longer).digest() + hashlib.sha256(own).digest()
    proof = hmac.digest(b"secret", b"shoal peer dialler" + digests, "sha256")
    assert acceptor.proven(pack(("peer-proof", proof))) == NEAR.identity


def test_a_message_over_its_bound_is_refused() -> None:
    hello = unpack(dialling().hello)
    hello[5] = "n" * HANDSHAKE_BYTES_MAX
    with pytest.raises(InvalidValue, match=str(HANDSHAKE_BYTES_MAX)):
        accepting().greeted(pack(hello))


def test_a_refusal_fits_a_message_whatever_the_error_says() -> None:
    dialler = dialling()
    with pytest.raises(NotFound):
        dialler.welcomed(refusal(NotFound("é" * HANDSHAKE_BYTES_MAX)))


STEPS: list[Callable[[bytes], object]] = [
    lambda message: accepting().greeted(message),
    lambda message: accepting().proven(message),
    lambda message: dialling().welcomed(message),
    lambda message: dialling().accepted(message),
]

parts = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**64 - 1),
    st.text(max_size=8),
    st.binary(max_size=20),
    st.sampled_from([b"x" * 16, b"x" * 32, 1]),
)
tags = st.sampled_from(["peer-hello", "peer-welcome", "peer-proof", "peer-accepted", "peer-refused"])
almost = st.builds(lambda tag, rest: pack([tag, *rest]), tags, st.lists(parts, max_size=9))
wrapped = st.builds(lambda hello, proof: pack(["peer-welcome", hello, proof]), almost | st.binary(), st.binary())


@given(st.sampled_from(STEPS), st.binary() | almost | wrapped)
@examples(300)
def test_any_bytes_are_accepted_or_a_typed_error(step: Callable[[bytes], object], message: bytes) -> None:
    with suppress(ShoalError):
        step(message)


@given(st.data())
@examples(100)
def test_a_hello_cut_short_is_refused(data: st.DataObject) -> None:
    hello = dialling().hello
    with pytest.raises(InvalidValue):
        accepting().greeted(hello[: data.draw(st.integers(0, len(hello) - 1))])


def test_a_proof_is_the_hmac_that_the_document_names() -> None:
    assert handshake._prove(b"k", role=b"r", dialler=b"d", acceptor=b"a") == (
        hmac.new(b"k", b"r" + hashlib.sha256(b"d").digest() + hashlib.sha256(b"a").digest(), hashlib.sha256).digest()
    )


def test_a_copy_tells_of_which_directories_it_is_one() -> None:
    originals = (b"1" * 16, b"2" * 16)
    near = NEAR._replace(identity=NEAR.identity._replace(originals=originals))
    assert meet(near, FAR)[1].originals == originals


@pytest.mark.parametrize("originals", [[b"short"], [b"1" * 16] * 65, ["1" * 16]])
def test_a_hello_with_impossible_originals_is_refused(originals: list[object]) -> None:
    *hello, _originals = unpack(dialling().hello)
    with pytest.raises(InvalidValue):
        accepting().greeted(pack([*hello, originals]))
