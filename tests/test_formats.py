"""Later versions open what a version wrote, and understand what it said: each format has its recording in tests/fixtures.

If one of these fails because a format was changed that no release has, record it anew: `python -m tests.fixtures`.
Once a release has it, its recording stays as it is, and the change must be one that these tests allow.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.cluster import messages
from shoal.config import Config
from shoal.kinds import Kind
from shoal.node.environment import system_environment
from shoal.node.node import open_node
from shoal.node.verification.verify import verify
from shoal.protocol import frames, requests
from shoal.protocol.frames import CallFrame, Hello, PushFrame, ReplyFrame, SubscribeFrame, Welcome
from shoal.protocol.requests import AnyReply
from shoal.storage import keys
from shoal.storage.layout import FORMAT_NUMBER
from shoal.storage.rocks import RocksStorage
from simulation.world.environment import START_MS
from tests.fixtures.recording import HERE, Recording, is_greeting, load

FORMATS = sorted(int(path.name.removeprefix("format-").partition(".")[0]) for path in HERE.glob("format-*"))
RECORDINGS = {number: load(number) for number in FORMATS}
CONFIG = Config()
OF_THE_NODE = (keys.META, *keys.DERIVED_TABLES)

each = pytest.mark.parametrize("recording", RECORDINGS.values(), ids=map(str, RECORDINGS))


def extends(again: Any, recorded: Any) -> bool:
    """Whether what was recorded is encoded as it was, but for elements that were added at the ends of arrays."""
    if isinstance(recorded, list):
        return isinstance(again, list) and len(again) >= len(recorded) and all(map(extends, again, recorded))
    if isinstance(recorded, dict):
        return again.keys() == recorded.keys() and all(extends(again[key], value) for key, value in recorded.items())
    return bool(again == recorded)


def same(again: bytes, recorded: bytes) -> bool:
    return extends(*(msgspec.msgpack.decode(packed, strict=False) for packed in (again, recorded)))


def directory(path: Path, recording: Recording) -> Path:
    """A store of this version's, with the recorded rows."""
    storage = RocksStorage.open(path, config=CONFIG, now_ms=0)
    storage.write(dict(recording.rows))
    storage.sync()
    storage.close()
    return path


def test_the_present_format_is_recorded() -> None:
    assert FORMAT_NUMBER in FORMATS, "record it: python -m tests.fixtures"


def test_the_recording_has_rows_of_nearly_every_kind() -> None:
    recorded = {key[3] for key, _ in RECORDINGS[FORMAT_NUMBER].rows if key[:1] == keys.OBJECT}
    assert set(Kind) - recorded <= {Kind.ITEMS, Kind.SCHEMA}, "record it anew, with other seeds: python -m tests.fixtures"


@pytest.mark.answers("versions-work-together")
@each
async def test_a_directory_is_opened_verified_and_read_back_row_by_row(tmp_path: Path, recording: Recording) -> None:
    path = directory(tmp_path / "store", recording)
    then = dataclasses.replace(system_environment(), now_ms=lambda: START_MS + 60_000)  # Nothing has expired yet.
    node = await open_node(path, config=CONFIG, environment=then)
    session = node.session()
    spaces = await session.call(requests.ListSpaces())
    assert spaces.names
    await node.stop()
    storage = RocksStorage.open(path, config=CONFIG, now_ms=0)
    assert not verify(storage, config=CONFIG).problems
    rows = {key: value for key, value in storage.scan(b"", None) if key[:1] not in OF_THE_NODE}
    storage.close()
    assert rows == {key: value for key, value in recording.rows if key[:1] not in OF_THE_NODE}


@pytest.mark.answers("versions-work-together")
@each
def test_messages_among_peers_are_understood_and_encoded_as_they_were(recording: Recording) -> None:
    for message in recording.peers:
        epoch, packed = messages.unstamped(message)
        assert same(messages.encode(messages.decode(packed)), packed)
        assert messages.stamped(packed, epoch) == message


@pytest.mark.answers("versions-work-together")
@each
def test_recorded_messages_of_clients_are_still_understood(recording: Recording) -> None:
    for message in recording.callers:
        if is_greeting(message):
            assert isinstance(frames.decode_hello(message), Hello)
            continue
        for frame in frames.decode_caller_frames(message):
            match frame:
                case CallFrame(request=packed):
                    assert same(msgspec.msgpack.encode(frames.decode_request(packed)), packed)
                case SubscribeFrame(subscription=packed):
                    assert same(msgspec.msgpack.encode(frames.decode_subscription(packed)), packed)


@each
def test_recorded_answers_of_nodes_are_still_understood(recording: Recording) -> None:
    for message in recording.nodes:
        if is_greeting(message):
            assert isinstance(frames.decode_welcome(message), Welcome)
            continue
        for frame in frames.decode_node_frames(message):
            match frame:
                case ReplyFrame(reply=packed) if bytes(packed) != b"\xc0":
                    assert same(msgspec.msgpack.encode(frames.decode_reply(packed, AnyReply)), packed)
                case PushFrame(push=packed):
                    assert same(msgspec.msgpack.encode(frames.decode_push(packed)), packed)
