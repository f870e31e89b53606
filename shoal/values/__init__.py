"""Values as bytes: msgpack with a closed, registered set of extension types.

Laws:
- `decode` returns a value equal to the one that `encode` was given, in type too: a tuple
  stays a tuple, a set a set. (`bytearray` and `memoryview` become `bytes`.)
- Decoding runs no code that this process did not register: never pickle, never
  an import by name. Bytes that are not a value raise `InvalidValue`, nothing else.
- Equal values give equal bytes if their dicts were filled in the same order;
  sets are sorted by their encoded items.
- Text must be valid Unicode: a lone surrogate is refused, because UTF-8 has no bytes
  for it. NaN, infinities and −0.0 are kept, bit for bit.
- Lists and dicts nest up to 1,024 deep (64 within eight or more extension
  values), extension values up to `NESTED_MAX`; a value is at most
  `VALUE_BYTES_MAX` bytes. Cycles are refused.

Native: None, bool, int of 64 bits, float, str, bytes, list, dict (any hashable
key). Extensions: longer ints, complex, tuple, set, frozenset, datetime, date,
time, timedelta, Decimal, UUID, OrderedDict, defaultdict (of a built-in type, or
none), deque, Counter, paths, NumPy arrays and scalars, and every class that was
registered. Any other class is refused, even a subclass of one of these; for an enum,
a model, a named tuple or a subclass of str the error says how to register it. `to_json` and
`from_json` are the same for people; `project` shows packed bytes as a schema sees them.
"""

from shoal.values.codec import VALUE_BYTES_MAX, check, decode, decode_channel, encode
from shoal.values.forms import NESTED_MAX, canonical
from shoal.values.registry import register
from shoal.values.tagged import from_json, project, to_json

__all__ = [
    "NESTED_MAX",
    "VALUE_BYTES_MAX",
    "canonical",
    "check",
    "decode",
    "decode_channel",
    "encode",
    "from_json",
    "project",
    "register",
    "to_json",
]
