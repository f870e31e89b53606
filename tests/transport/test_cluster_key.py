"""The cluster's key while nodes run: links and the file it is in."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from shoal.config import Config
from shoal.errors import InvalidConfig
from shoal.transport.keyring import ClusterKey, Keyring
from tests.transport.dummy_node import CONFIG, DummyNode, until

Make = Callable[..., Awaitable[DummyNode]]
OLD, NEW = CONFIG.cluster_key, "another secret of the nodes"
STEPS = [Keyring(OLD), Keyring(OLD, new=NEW), Keyring(NEW, old=OLD), Keyring(NEW)]


async def test_links_go_on_until_the_key_they_proved_is_dropped(make: Make) -> None:
    a, b = await make(b"a"), await make(b"b")
    a.start(b.address)
    first = await a.outlet()
    for step in STEPS[1:3]:
        for node in (a, b):
            node.ring = step
            await node.peers.rekeyed()
        assert first.offer(step.key.encode())
        assert (await b.next())[1] == step.key.encode()
    assert a.losses.empty()
    b.ring = STEPS[3]
    await b.peers.rekeyed()
    second = await a.outlet()
    assert second.proven_key == NEW.encode()
    assert second.offer(b"by the new key")
    assert (await b.next())[1] == b"by the new key"


async def test_a_dropped_key_ends_the_links_that_a_node_dialled(make: Make) -> None:
    a, b = await make(b"a"), await make(b"b")
    a.start(b.address)
    await a.outlet()
    a.ring, b.ring = STEPS[3], STEPS[2]
    await a.peers.rekeyed()
    assert (await a.outlet()).proven_key == NEW.encode()


async def test_a_peer_with_the_dropped_key_alone_is_refused(make: Make) -> None:
    a, b = await make(b"a"), await make(b"b")
    a.ring = STEPS[3]
    a.start(b.address)
    await until(lambda: a.reported("peer-not-linked", "peer-refuses"))
    assert "cluster_key" in a.reported("peer-not-linked", "peer-refuses")[0]
    assert not any(secret in str(a.events + b.events) for secret in (OLD, NEW))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "cluster.key"
    write(file, STEPS[0].text)
    return file


def write(file: Path, text: str, mode: int = 0o600) -> None:
    beside = file.with_name("beside")
    beside.write_text(text)
    beside.chmod(mode)
    os.replace(beside, file)


def test_a_file_is_loaded_again_when_it_changes(file: Path) -> None:
    key = ClusterKey(Config(cluster_key_file=str(file)))
    assert (key.ring, key.is_file, key.has_changed()) == (STEPS[0], True, False)
    write(file, STEPS[1].text)
    assert key.has_changed()
    key.reload()
    assert (key.ring, key.has_changed()) == (STEPS[1], False)


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("weak\n", 0o600, "too weak"),
        (STEPS[1].text, 0o644, "every user"),
        ("", 0o600, "no key"),
        (f"{OLD}\nnew {OLD}\n", 0o600, "twice"),
    ],
)
def test_a_broken_file_leaves_the_former_keys(file: Path, text: str, mode: int, why: str) -> None:
    key = ClusterKey(Config(cluster_key_file=str(file)))
    write(file, text, mode)
    with pytest.raises(InvalidConfig, match=why):
        key.reload()
    assert key.ring == STEPS[0]
    assert why in key.trouble
    assert "The former keys stay in use." in key.trouble
    write(file, STEPS[1].text)
    key.reload()
    assert (key.ring, key.trouble) == (STEPS[1], "")


def test_a_file_made_private_is_loaded_again(file: Path) -> None:
    key = ClusterKey(Config(cluster_key_file=str(file)))
    write(file, STEPS[1].text, 0o644)
    with pytest.raises(InvalidConfig, match="chmod 600"):
        key.reload()
    file.chmod(0o600)  # As the error says.
    assert key.has_changed()
    key.reload()
    assert (key.ring, key.trouble) == (STEPS[1], "")


def test_a_missing_file_stops_a_start_and_nothing_that_runs(file: Path) -> None:
    key = ClusterKey(Config(cluster_key_file=str(file)))
    file.unlink()
    assert key.has_changed()
    with pytest.raises(InvalidConfig, match="No such file"):
        key.reload()
    assert key.ring == STEPS[0]
    with pytest.raises(InvalidConfig, match="No such file"):
        ClusterKey(Config(cluster_key_file=str(file)))


def test_a_key_of_the_settings_does_not_change() -> None:
    key = ClusterKey(msgspec.structs.replace(CONFIG))
    assert (key.ring, key.is_file, key.has_changed()) == (STEPS[0], False, False)
    key.reload()
    assert key.ring == STEPS[0]
