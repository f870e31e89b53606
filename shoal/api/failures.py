"""The errors of each route, for its description.

Law: errors that all routes of a kind share follow from the route's declaration; a route names the others. The
description of an error is the first sentence of its class's docstring.
"""

from __future__ import annotations

from shoal import errors
from shoal.api.http import problems
from shoal.api.route import Route
from shoal.errors import ShoalError
from shoal.workflows.streams.decisions import StreamGone

ALWAYS: tuple[type[ShoalError], ...] = (
    errors.InvalidInput,
    problems.Malformed,
    problems.CrossOrigin,
    problems.WrongHost,
    problems.UriTooLong,
    problems.ExpectationFailed,
    problems.HeadersTooLarge,
    errors.Overloaded,
    ShoalError,
)
_GUARDED = (errors.Unauthenticated, errors.Forbidden)
_NAMED = (errors.InvalidName,)
_BODY = (
    errors.InvalidName,
    errors.InvalidValue,
    problems.RequestTimeout,
    errors.TooLarge,
    problems.UnsupportedMediaType,
    problems.UnsupportedEncoding,
)
_STATE = (
    errors.InvalidValue,
    errors.SessionBehind,
    errors.BookmarkLost,
    errors.CatchingUp,
    errors.NotAMember,
    errors.StoreCorrupt,
)
_WRITE = (
    errors.Unsupported,
    errors.KeyReused,
    errors.KeyExpired,
    errors.LeaseHeld,
    errors.LeaseLost,
    errors.ShuttingDown,
    errors.ReadOnly,
    errors.ClockWrong,
    errors.NoQuorum,
    errors.OutcomeUnknown,
    errors.StorageFull,
)
_STREAM = (errors.NotFound, StreamGone, errors.Unavailable, errors.NoQuorum, errors.ShuttingDown)
_STREAM_WRITE = (errors.Conflict,)


def failures(route: Route) -> list[type[ShoalError]]:
    """The errors of a route, ordered by status and code."""
    found = {
        *ALWAYS,
        *(() if route.is_open else _GUARDED),
        *(_NAMED if "{" in route.path else ()),
        *(_BODY if route.body is not None else ()),
        *(_STATE if route.has_bookmark else ()),
        *(_WRITE if route.writes else ()),
        *((errors.ShuttingDown, errors.ReadOnly, errors.CatchingUp, errors.NotAMember) if route.path == "/readyz" else ()),
        *route.errors,
    }
    return sorted(found, key=lambda error: (error.status, error.code))


def of_stream(*, writes: bool) -> list[type[ShoalError]]:
    """The errors of a request to a stream, ordered likewise."""
    found = {*ALWAYS, *_GUARDED, *_NAMED, *_STATE, *_STREAM, *(_BODY + _WRITE + _STREAM_WRITE if writes else ())}
    return sorted(found, key=lambda error: (error.status, error.code))


def told(error: type[ShoalError]) -> str:
    """The description of an error, in one line: a clause without a capital and a full stop."""
    if error is ShoalError:
        return "the node met an unexpected error; see its log"
    sentence = (error.__doc__ or "").partition("\n")[0].partition(". ")[0].rstrip(".")
    return sentence[:1].lower() + sentence[1:]
