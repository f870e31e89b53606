"""The token that a client shows to nodes: from the caller, a file, a function, or the environment.

Laws:
- A file is read, and a function called, for each connection and each request that is refused for its token, so that a new
  token is used as soon as there is one.
- A token is in no `repr`, message or traceback.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from inspect import isawaitable
from pathlib import Path, PurePath

from shoal.errors import InvalidConfig
from shoal.protocol.session import Credential

_BYTES_MAX = 64 * 1024  # Nodes accept far fewer; this bounds what is read.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")


class Credentials:
    """Where a client's token comes from.

    Raises:
        InvalidConfig: it is no token, file or function.
    """

    __slots__ = ("_given",)

    def __init__(self, given: Credential | None) -> None:
        if isinstance(given, str):
            given = _checked(given, "the token")
        elif not (given is None or callable(given) or isinstance(given, PurePath)):
            raise InvalidConfig(
                f"token must be a text, the path of a file (pathlib.Path), or a function; got {type(given).__name__}. "
                "Nothing was sent.",
                field="token",
            )
        self._given = given

    def __repr__(self) -> str:
        return "Credentials(…)" if self._given is not None else "Credentials(None)"

    @property
    def is_renewable(self) -> bool:
        """Whether the next token may be another."""
        return self._given is not None and not isinstance(self._given, str)

    async def token(self) -> str | None:
        """The token as it is now; None if there is none.

        Raises:
            InvalidConfig: the file cannot be read, or holds no token; or the function returned none.
        """
        given = self._given
        if given is None or isinstance(given, str):
            return given
        if isinstance(given, PurePath):
            return _checked(_read(Path(given)), f"the file {given}")
        found = given()
        text = await found if isawaitable(found) else found
        return _checked(text, "what the function returned as a token")


def from_environment(environment: Mapping[str, str]) -> Credential | None:
    """The token that SHOAL_TOKEN_FILE or SHOAL_TOKEN names."""
    if environment.get("SHOAL_TOKEN_FILE"):
        return Path(environment["SHOAL_TOKEN_FILE"])
    return environment.get("SHOAL_TOKEN") or None


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(_BYTES_MAX).decode("ascii", "replace")
    except OSError as error:
        raise InvalidConfig(f"the token in {file} cannot be read: {error.strerror}. Nothing was sent.", field="token") from None


def _checked(text: object, what: str) -> str:
    """The token in a text, which may end with a line break. What is wrong with it is told without showing it."""
    token = text.strip() if isinstance(text, str) else ""
    if not _TOKEN.fullmatch(token) or len(token) > _BYTES_MAX:
        raise InvalidConfig(
            f"{what} is no token: it must be one line of letters, digits and `._~+/=-`. Nothing was sent. "
            "`shoal token create` makes one.",
            field="token",
        )
    return token
