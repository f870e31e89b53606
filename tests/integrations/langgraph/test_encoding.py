from __future__ import annotations

from typing import Any

import msgspec
import ormsgpack
import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.base import CipherProtocol, SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from shoal import values
from shoal.errors import InvalidValue
from shoal.integrations.langgraph import encoding

SERDE = JsonPlusSerializer(allowed_msgpack_modules=None)

VALUES: list[Any] = [None, b"", b"bytes", bytearray(b"x"), "text", 7, [1, [2]], {"a": None}, HumanMessage("hi", id="1")]


class Reversed(CipherProtocol):
    """It hides, and is no more than a test needs."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "reversed", plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "reversed"
        return ciphertext[::-1]


@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("serde", [SERDE, EncryptedSerializer(Reversed(), SERDE)], ids=["plain", "encrypted"])
def test_a_value_comes_back_as_it_was(serde: SerializerProtocol, value: Any) -> None:
    packed = encoding.pack_value(serde, value)
    values.check(packed)  # What a node asks of it.
    found = encoding.unpack_value(serde, packed)
    assert found == value
    assert type(found) is type(value)


def test_a_value_is_the_serialisers_bytes_and_grows_at_its_end() -> None:
    short, long = (encoding.pack_value(SERDE, [HumanMessage(str(n), id=str(n)) for n in range(size)]) for size in (3, 4))
    assert short == SERDE.dumps_typed([HumanMessage(str(n), id=str(n)) for n in range(3)])[1]
    assert long[1:].startswith(short[1:])


@pytest.mark.parametrize("metadata", [{}, {"step": 1, "source": "loop"}, {str(n): n for n in range(20)}])
def test_metadata_is_plain_to_shoal(metadata: dict[str, Any]) -> None:
    checkpoint = {"v": 4, "id": "i", "channel_versions": {"a": "1"}}
    packed = encoding.pack_metadata(SERDE, checkpoint, metadata, "parent")
    shown = values.decode(packed)
    assert isinstance(shown.pop("langgraph"), bytes)
    assert shown == metadata
    assert encoding.unpack_metadata(SERDE, packed) == (checkpoint, metadata, "parent")


@pytest.mark.parametrize("metadata", [{"writes": HumanMessage("hi", id="1")}, {"langgraph": 1, "step": 2}])
def test_metadata_that_is_not_plain_comes_back_too(metadata: dict[str, Any]) -> None:
    packed = encoding.pack_metadata(SERDE, {"v": 4}, metadata, "")
    assert set(values.decode(packed)) == {"langgraph"}
    assert encoding.unpack_metadata(SERDE, packed) == ({"v": 4}, metadata, "")


def test_the_checkpoint_of_somebody_else_is_none_of_ours() -> None:
    for metadata in ({}, {"step": 1}, {"langgraph-ish": b""}):
        assert encoding.unpack_metadata(SERDE, values.encode(metadata)) is None


def test_a_later_form_is_refused() -> None:
    later = msgspec.msgpack.encode(encoding.Envelope(2, "", "msgpack", b"\x80"))
    with pytest.raises(InvalidValue, match="Upgrade"):
        encoding.unpack_metadata(SERDE, msgspec.msgpack.encode({"langgraph": later}))


def test_a_graphs_value_cannot_pass_for_typed_bytes() -> None:
    """Else it could name the type that it is read back as, "pickle" for one."""
    hostile = ormsgpack.packb(ormsgpack.Ext(83, ormsgpack.packb(["pickle", b"cos\nsystem\n"])))

    class Careless:
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            return "msgpack", hostile

        def loads_typed(self, data: tuple[str, bytes]) -> Any:
            return data

    packed = encoding.pack_value(Careless(), "anything")
    assert encoding.unpack_value(Careless(), packed) == ("msgpack", hostile)


@pytest.mark.answers("bytes-of-a-state-run-code-when-they")
def test_nothing_is_pickled_and_what_is_not_allowed_is_not_made() -> None:
    class Unknown:
        pass

    with pytest.raises(TypeError, match="not msgpack serializable"):
        encoding.pack_value(SERDE, Unknown())
    with pytest.raises(NotImplementedError, match="pickle"):
        encoding.unpack_value(SERDE, msgspec.msgpack.encode(msgspec.msgpack.Ext(83, msgspec.msgpack.encode(["pickle", b"x"]))))
