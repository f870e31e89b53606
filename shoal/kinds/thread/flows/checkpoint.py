"""Checkpoints as handles show them, and states as requests carry them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from shoal import values
from shoal.errors import InvalidInput, InvalidValue
from shoal.names import check_names
from shoal.protocol import requests
from shoal.protocol.bookmark import Bookmark
from shoal.schemas.pointers import redacted
from shoal.workflows.moments import moment


class Checkpoint(Struct, frozen=True):
    """An immutable snapshot of a thread's channels."""

    id: str
    parents: tuple[str, ...]
    branch: str
    heads: tuple[str, ...]  # The branch's heads when this was answered, the winner first.
    wall_ms: int
    schema: str
    schema_version: int
    _metadata: bytes
    _channels: Mapping[str, bytes] | None
    author: str = ""
    label: str = ""
    hashes: Mapping[str, str] = {}  # Per channel; empty in the answer to a save.
    _setting: bytes = b""
    _seen: bytes = b""
    readable_from: int = 0  # The oldest version of its schema whose readers understand it; 0: only its own.
    secret: tuple[str, ...] = ()  # JSON pointers to values that must not be shown.

    def __repr__(self) -> str:
        return f"Checkpoint({self.id!r}, branch={self.branch!r}, time={self.time.isoformat()!r})"

    @property
    def time(self) -> datetime:
        """When it was saved, by the clock of the node that saved it."""
        return moment(self.wall_ms)

    @property
    def forked(self) -> bool:
        """Whether the branch had more than one head."""
        return len(self.heads) > 1

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata given to the save, decoded anew at each access."""
        return dict(values.decode(self._metadata))

    @property
    def setting(self) -> dict[str, Any]:
        """The configuration and dependencies of its author, if they changed; `Thread.why` has them
        for every checkpoint.
        """
        return dict(values.decode(self._setting)) if self._setting else {}

    @property
    def seen(self) -> str:
        """The bookmark of what its author had read elsewhere since the previous save, for `Store.observe`."""
        return Bookmark.unpack(self._seen).text()

    @property
    def state(self) -> dict[str, Any]:
        """Channel name → value. Decoded again at each access, so you can change it freely.

        Raises:
            InvalidInput: the checkpoint came from a history without states, or was saved as a change.
            InvalidValue: a value's type is not registered here.
        """
        if self._channels is None:
            raise InvalidInput(f"checkpoint {self.id} came without its state. Get it with load({self.id!r}).")
        return {name: values.decode_channel(packed, self.schema) for name, packed in self._channels.items()}

    @property
    def redacted(self) -> dict[str, Any]:
        """The state for display, with «secret» in place of its secret fields."""
        return redacted(self.state, self.secret)


def encode_channels(state: Mapping[str, Any]) -> dict[str, bytes]:
    """Channel → packed value."""
    if type(state) is not dict and not isinstance(state, Mapping):  # isinstance of the abstract class is slow.
        raise InvalidValue(f"a state is a mapping of channel names to values, not {type(state).__name__}. Nothing was written.")
    check_names("channel", state)
    return {name: values.encode(value, where=f"state[{name!r}]") for name, value in state.items()}


def encode_appended(append: Mapping[str, Iterable[Any]]) -> dict[str, bytes]:
    """Channel → a packed list of the elements to add at its end."""
    check_names("channel", append)
    for name, elements in append.items():
        if isinstance(elements, str | bytes | Mapping) or not isinstance(elements, Iterable):
            raise InvalidInput(
                f"append[{name!r}] is a list of elements, not {type(elements).__name__}. Nothing was written. "
                "For one element use thread.append."
            )
    return {name: values.encode(list(elements), where=f"append[{name!r}]") for name, elements in append.items()}


def encode_metadata(metadata: Mapping[str, Any] | None) -> bytes:
    """The packed metadata; None is an empty map.

    Raises:
        InvalidValue: it is not a mapping, or cannot be serialised.
    """
    if metadata is None:
        return b"\x80"
    if not isinstance(metadata, Mapping):
        raise InvalidValue(f"metadata is a mapping of names to values, not {type(metadata).__name__}. Nothing was written.")
    return values.encode(dict(metadata), where="metadata")


def is_id(place: str) -> bool:
    """Whether `place` is the id of a checkpoint rather than the name of a branch."""
    return len(place) == 64 and not place.strip("0123456789abcdef")


def saved_checkpoint(saved: requests.Saved, request: requests.Save) -> Checkpoint:
    """The checkpoint of a save's reply; with its state, unless it was saved as a change."""
    return Checkpoint(
        saved.id,
        tuple(saved.parents),
        saved.branch,
        tuple(saved.heads),
        saved.wall_ms,
        request.schema,
        request.schema_version,
        request.metadata,
        None if request.delta else request.channels,
        request.author,
        request.label,
        {},
        request.setting,
        request.seen,
        request.readable_from,
        tuple(saved.secret or request.secret),
    )


def shown_checkpoint(found: requests.Checkpoint, *, channels: bool) -> Checkpoint:
    """A checkpoint as handles show it; with its state if `channels`."""
    return Checkpoint(
        found.id,
        tuple(found.parents),
        found.branch,
        tuple(found.heads),
        found.wall_ms,
        found.schema,
        found.schema_version,
        found.metadata,
        found.channels if channels else None,
        found.author,
        found.label,
        found.hashes,
        found.setting,
        found.seen,
        found.readable_from,
        tuple(found.secret),
    )
