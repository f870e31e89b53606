"""The error of a request that has written something before it fails.

Law: once a request has written anything, its error does not say that nothing was written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from shoal.errors import OutcomeUnknown, ShoalError

_NOTHING = re.compile(r"\s*Nothing (of it )?was [a-z]+( now)?[.;]")


@contextmanager
def partly(done: object, what: str, advice: str) -> Iterator[None]:
    """Run the rest of a request. If `done` is true, the request has written something: `what`.

    Raises:
        OutcomeUnknown: the rest failed with an error that says that nothing was written.
    """
    try:
        yield
    except ShoalError as error:
        if not done or error.written != "no":
            raise
        raise after(error, what, advice) from error


def after(error: ShoalError, what: str, advice: str) -> OutcomeUnknown:
    """The error to raise in place of one that says that nothing was written, if something was.

    `what` tells what was written, and `advice` what the caller can do.
    """
    return OutcomeUnknown(f"{what}, and the next part failed: {why(error)}. {advice}", **error.detail)


def why(error: ShoalError) -> str:
    """The text of an error, without its statement about writes."""
    return _NOTHING.sub("", error.message).strip().rstrip(".")
