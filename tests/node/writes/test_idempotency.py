"""The form in which the idempotency table compares requests."""

from __future__ import annotations

from typing import Any

from msgspec import field

from shoal.node.writes.idempotency import pack
from shoal.protocol import requests
from shoal.protocol.requests import Write


class Today(Write[Any], array_like=True, frozen=True, tag="given"):
    space: str
    amount: int = 1
    removed: list[str] = field(default_factory=list)


class Tomorrow(Write[Any], array_like=True, frozen=True, tag="given"):
    """The same request in a later version, that has two fields more."""

    space: str
    amount: int = 1
    removed: list[str] = field(default_factory=list)
    fork: bool = False
    detail: dict[str, str] = field(default_factory=dict)


class Other(Write[Any], array_like=True, frozen=True, tag="other"):
    space: str


def packed(*writes: Write[Any]) -> bytes:
    request = writes[0] if len(writes) == 1 else requests.Batch(list(writes))  # type: ignore[arg-type]
    return pack(request, requests.Added(value=1, added=True))  # type: ignore[arg-type]


def test_a_request_that_is_sent_again_after_an_upgrade_is_the_same() -> None:
    for space, amount, removed in (("north", 1, []), ("north", 2, []), ("north", 1, ["red"])):
        assert packed(Today(space, amount, removed)) == packed(Tomorrow(space, amount, removed))
        assert packed(Today(space, amount, removed), Today("west")) == packed(
            Tomorrow(space, amount, removed), Tomorrow("west")
        )


def test_requests_that_differ_in_any_field_differ() -> None:
    written = [
        Tomorrow("north"),
        Tomorrow("south"),
        Tomorrow("north", 2),
        Tomorrow("north", removed=["red"]),
        Tomorrow("north", fork=True),
        Tomorrow("north", detail={"red": ""}),
        Other("north"),
    ]
    assert len({packed(write) for write in written}) == len(written)
    assert len({packed(write, Other("west")) for write in written}) == len(written)
