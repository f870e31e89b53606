"""The header `Shoal-Lease`: the lease under which an HTTP request writes its threads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from shoal.errors import InvalidInput
from shoal.protocol.requests import Request, Term
from shoal.workflows.connection import HeldLease, HeldLeases, threads_of

HEADER = "Shoal-Lease"
NAMED = "The lease of the thread that is written: its fencing number, a period, and its token."

_FORM = re.compile(r"(\d{1,19})\.([0-9a-f]{32})")


def named_by(request: web.Request) -> HeldLeases | None:
    """The lease that a request names; None if it names none.

    Raises:
        InvalidInput: the header is not legal.
    """
    given = request.headers.get(HEADER)
    if given is None:
        return None
    form = _FORM.fullmatch(given)
    if form is None:
        raise InvalidInput(
            f"the header {HEADER} is a fencing number, a period and a token of 32 hex digits; got {given[:80]!r}. "
            "Nothing was written.",
            field=HEADER,
        )
    return _OfHeader(int(form[1]), form[2])


class _OfHeader(HeldLeases):
    """One lease, of whatever thread the request writes."""

    def __init__(self, fence: int, token: str) -> None:
        super().__init__()
        self._fence = fence
        self._token = token

    def __bool__(self) -> bool:
        return True

    def of(self, request: Request[Any]) -> Sequence[HeldLease]:
        """The leases of the threads that a request writes (`HeldLeases.of`)."""
        terms = [Term(space, thread, True, self._fence, self._token) for space, thread in threads_of(request)]
        return [HeldLease(term, _nothing, _nothing) for term in terms]


def _nothing() -> None:
    """The node checks the lease."""
