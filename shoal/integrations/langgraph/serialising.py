"""The saver's serialiser: LangGraph's, without the power to run code.

Laws:
- A saver decodes the kinds that it writes, null, bytes, bytearrays and msgpack, and no others: never pickle, and never
  the JSON of LangChain's objects. Anybody who may write to a thread chooses its bytes.
- Of the types that msgpack names, it makes LangGraph's safe ones and those that the caller allows. Another is an error that
  names it, and nothing is imported. Left as a dict, as LangGraph leaves it, it would fail later, in the graph.
- A serialiser that encrypts decodes ciphertext by its own rules, and what is not encrypted by these.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, Literal

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.event_hooks import SerdeEvent, register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from shoal.errors import InvalidInput, InvalidValue

AllowedTypes = Iterable[tuple[str, ...] | type] | Literal[True] | None
_WRITTEN = frozenset({"null", "bytes", "bytearray", "msgpack"})


class StrictSerializer(JsonPlusSerializer):
    """LangGraph's serialiser, which makes only types that are safe or allowed.

    Args:
        allowed: classes, or their modules and names. True allows all, which lets whoever writes to a thread run code here.
    """

    def __init__(self, allowed: AllowedTypes = None) -> None:
        super().__init__(allowed_msgpack_modules=allowed)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """The value of `dumps_typed`.

        Raises:
            InvalidValue: the bytes are none that this serialiser writes, or hold a type that it may not make.
        """
        kind = data[0]
        if kind not in _WRITTEN:
            raise InvalidValue(
                f"a stored value is of the kind {kind!r:.40}, which this saver never writes and does not decode: decoding "
                "it can run code. If you wrote it and trust all who may write here, pass a serialiser that decodes it: serde=."
            )
        blocked = _blocked.types = list[str]()
        try:
            value = super().loads_typed(data)
        except Exception as failure:  # Of the engine and of constructors: hostile bytes choose which.
            raise InvalidValue(f"a stored value cannot be decoded: {str(failure) or type(failure).__name__:.200}.") from failure
        finally:
            _blocked.types = None
        if blocked:
            raise InvalidValue(_refusal(blocked))
        return value


class SealedSerializer(EncryptedSerializer):
    """A serialiser that encrypts, as given; what was stored without encryption is decoded strictly."""

    def __init__(self, given: EncryptedSerializer, plain: StrictSerializer) -> None:
        super().__init__(given.cipher, given.serde)
        self._given = given
        self._plain = plain

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """As the given serialiser."""
        return self._given.dumps_typed(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """As the given serialiser, if it is ciphertext. Raises as `StrictSerializer.loads_typed` otherwise."""
        return self._given.loads_typed(data) if "+" in data[0] else self._plain.loads_typed(data)


def serialiser(given: SerializerProtocol | None, allowed: AllowedTypes) -> SerializerProtocol:
    """The serialiser of a saver that got these arguments.

    Raises:
        InvalidInput: types are allowed of a serialiser that has its own rule.
    """
    if given is None:
        return StrictSerializer(allowed)
    if isinstance(given, EncryptedSerializer):
        return SealedSerializer(given, StrictSerializer(allowed))
    if allowed is not None:
        raise InvalidInput(
            "allowed_msgpack_modules= is for the saver's own serialiser, and serde= replaces that. "
            "Nothing was opened. Allow the types where you make the serialiser: JsonPlusSerializer(allowed_msgpack_modules=…)."
        )
    return given


def _refusal(blocked: list[str]) -> str:
    shown = ", ".join(dict.fromkeys(blocked))
    first = blocked[0].rsplit(".", 1)
    return (
        f"a stored value holds a type that this saver may not make: {shown:.200}. The value stays as it is. If it is a type of "
        f"your graph, allow it where you open the saver: allowed_msgpack_modules=[({first[0]!r:.80}, {first[-1]!r:.80})]."
    )


class _Blocked(threading.local):
    """The types that were not made since the list was put there, in this thread."""

    types: list[str] | None = None


_blocked = _Blocked()


def _note(event: SerdeEvent) -> None:
    if _blocked.types is not None and event["kind"] in ("msgpack_blocked", "msgpack_method_blocked"):
        _blocked.types.append(f"{event['module']}.{event['name']}")


# LangGraph tells in events what it did not make, also inside of other values, where no hook of a subclass comes.
register_serde_event_listener(_note)
