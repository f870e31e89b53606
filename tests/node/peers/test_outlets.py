"""Messages go out to the nodes that know them."""

from __future__ import annotations

import pytest

from shoal.cluster import messages
from shoal.cluster.comparing import Clock
from shoal.cluster.handshake import PEER_PROTOCOL
from shoal.cluster.messages import Digest
from shoal.cluster.peering import Identity
from shoal.node.peers.replica import Outlets


class Taken:
    """An outlet that takes everything."""

    address, waiting_bytes = "", 0

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def offer(self, message: bytes, /) -> bool:
        self.messages.append(message)
        return True


@pytest.mark.answers("versions-work-together")
def test_a_kind_of_message_that_a_version_brought_goes_to_no_older_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "SINCE", {Clock: PEER_PROTOCOL})
    outlets = Outlets(dropped=lambda node, message: None, bytes_max=1)
    links = {}
    for node, protocol in ((b"old", PEER_PROTOCOL - 1), (b"same", 0), (b"new", PEER_PROTOCOL + 1)):
        links[node] = Taken()
        outlets.linked(Identity(node, node.decode(), "shoal", protocol=protocol), links[node])
    outlets.send(links, Clock(1, 2))
    outlets.send(links, Digest(b""))
    assert {node: len(taken.messages) for node, taken in links.items()} == {b"old": 1, b"same": 2, b"new": 2}
    assert outlets.oldest == PEER_PROTOCOL - 1
    outlets.linked(Identity(b"old", "old", "shoal"), links[b"old"])  # It was upgraded.
    assert outlets.oldest == PEER_PROTOCOL
    outlets.send(links, Clock(1, 2))
    assert len(links[b"old"].messages) == 2


def test_a_node_of_an_older_version_that_has_left_is_forgotten() -> None:
    outlets = Outlets(dropped=lambda node, message: None, bytes_max=1)
    outlets.linked(Identity(b"old", "old", "shoal", protocol=PEER_PROTOCOL - 1), taken := Taken())
    outlets.unlinked(b"old", taken)
    assert outlets.oldest == PEER_PROTOCOL - 1  # It may come back.
    outlets.forget(b"old")
    assert outlets.oldest == PEER_PROTOCOL


def test_a_full_queue_is_told_of() -> None:
    class Full(Taken):
        def offer(self, message: bytes, /) -> bool:
            return False

    dropped: list[tuple[bytes, object]] = []
    outlets = Outlets(dropped=lambda node, message: dropped.append((node, message)), bytes_max=1)
    outlets.linked(Identity(b"full", "full", "shoal"), Full())
    outlets.linked(Identity(b"free", "free", "shoal"), Taken())
    outlets.send([b"full", b"free", b"unlinked"], Clock(1, 2))
    assert dropped == [(b"full", Clock(1, 2))]


def test_each_message_names_the_epoch() -> None:
    outlets = Outlets(dropped=lambda node, message: None, bytes_max=1, epoch=lambda: 7)
    outlets.linked(Identity(b"peer", "peer", "shoal"), taken := Taken())
    outlets.send([b"peer"], Digest(b""))
    outlets.offer(b"peer", Digest(b""))
    assert [messages.unstamped(message)[0] for message in taken.messages] == [7, 7]
