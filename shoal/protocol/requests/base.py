"""What every request and reply is made of."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

__all__ = ["NO_HEAD", "Durability", "Read", "Reply", "Request", "Write"]

Durability = Literal["memory", "local", "quorum", "all"]

NO_HEAD = ""
"""As `expect_head`: the branch must not exist yet. As `parent`: the checkpoint has none."""


class Request(Struct, array_like=True, frozen=True, tag=True):
    """Base of all requests."""


class Write(Request, array_like=True, frozen=True, tag=True):
    """Changes objects of one partition; may carry an idempotency key beside it."""


class Read(Request, array_like=True, frozen=True, tag=True):
    """Changes nothing."""


class Reply(Struct, array_like=True, frozen=True, tag=True):
    """Base of all replies and pushes."""
