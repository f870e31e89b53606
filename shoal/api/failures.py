"""The errors that a route can answer with, for its description.

Law: those that all routes of a kind have follow from what the route declares; a route names the others. What an
error is, is told where its class is: in the tree of `shoal.errors`, or in its docstring.
"""

from __future__ import annotations

import re

from shoal import errors
from shoal.api.http import problems
from shoal.api.route import Route
from shoal.errors import ShoalError

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
_NAMED = (errors.InvalidName,)
_BODY = (
    errors.InvalidName,
    errors.InvalidValue,
    problems.RequestTimeout,
    errors.TooLarge,
    problems.UnsupportedMediaType,
    problems.UnsupportedEncoding,
)
_STATE = (errors.InvalidValue, errors.SessionBehind, errors.BookmarkLost, errors.CatchingUp, errors.StoreCorrupt)
_WRITE = (
    errors.Unsupported,
    errors.KeyReused,
    errors.KeyExpired,
    errors.ShuttingDown,
    errors.ReadOnly,
    errors.NoQuorum,
    errors.OutcomeUnknown,
    errors.StorageFull,
)


def failures(route: Route) -> list[type[ShoalError]]:
    """In the order of their status."""
    found = {
        *ALWAYS,
        *(_NAMED if "{" in route.path else ()),
        *(_BODY if route.body is not None else ()),
        *(_STATE if route.has_bookmark else ()),
        *(_WRITE if route.writes else ()),
        *((errors.ShuttingDown, errors.ReadOnly) if route.path == "/readyz" else ()),
        *route.errors,
    }
    return sorted(found, key=lambda error: (error.status, error.code))


def told(error: type[ShoalError]) -> str:
    """What it means."""
    if error is ShoalError:
        return "the node met an error that it did not expect; its log says more"
    return _TREE.get(error.__name__) or (error.__doc__ or "").partition("\n")[0].rstrip(".")


_TREE = dict(re.findall(r"[├└]── (\w+) {2,}(.+)", errors.__doc__ or ""))
