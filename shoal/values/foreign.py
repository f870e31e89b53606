"""Values that another framework packed, in plain form: to be shown, not to be used.

Law: nothing is built, imported or called. An object becomes a dict with its class's
name, in every process; so a state can be shown, and two compared, without the framework.

The name of a checkpoint's schema tells the framework. `LANGGRAPH` stands for
LangGraph's serialiser, whose extension codes differ from Shoal's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack  # type: ignore[import-untyped]

from shoal.errors import InvalidValue
from shoal.values import codec
from shoal.values.forms import NESTED_MAX

LANGGRAPH = "langgraph"
LANGGRAPH_TYPED = 83  # [kind, bytes]: a value that LangGraph's serialiser did not pack as msgpack.

_OBJECT_CODES = range(6)  # [module, class, arguments, …]
_ARRAY_CODE = 6  # [dtype, shape, order, bytes]
_SNAPSHOT_CODE = 7


def decode_channel(packed: bytes, schema: str) -> Any:
    """The value of a channel, in a checkpoint that was saved under `schema`.

    Raises:
        InvalidValue: the bytes are no value, or hold a class that is not registered.
        TooLarge: it is longer than `VALUE_BYTES_MAX`.
    """
    if schema != LANGGRAPH:
        return codec.decode(packed)
    codec.check(packed)
    return _decode(packed, 0)


def _decode(packed: bytes, depth: int) -> Any:
    if depth > NESTED_MAX:
        raise InvalidValue(f"more than {NESTED_MAX} objects lie inside each other.")
    try:
        return msgpack.unpackb(packed, ext_hook=_hook(depth + 1), strict_map_key=False, timestamp=3)
    except (InvalidValue, MemoryError):
        raise
    except Exception as failure:
        raise InvalidValue(f"the bytes cannot be shown as a value: {failure or type(failure).__name__}.") from failure


def _hook(depth: int) -> Callable[[int, bytes], Any]:
    def shown(code: int, packed: bytes) -> Any:
        if code == _SNAPSHOT_CODE:
            return {"class": "delta snapshot", "value": _decode(packed, depth)}
        parts = _decode(packed, depth) if code in _OBJECT_CODES or code in (_ARRAY_CODE, LANGGRAPH_TYPED) else None
        match code, parts:
            case 83, ["null", _]:
                return None
            case 83, ["bytes" | "bytearray", bytes(data)]:
                return data
            case 83, [str(kind), bytes(data)]:
                return {"class": kind, "value": data}
            case 6, [dtype, shape, order, data]:
                return {"class": "numpy.ndarray", "value": {"dtype": dtype, "shape": shape, "order": order, "bytes": data}}
            case _, [str(module), str(name), value, *_] if code in _OBJECT_CODES:
                return {"class": f"{module}.{name}", "value": value}
        return {"class": f"extension {code}", "value": packed}

    return shown
