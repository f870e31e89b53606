"""Checks that several facets share."""

from __future__ import annotations

from shoal.config import Config
from shoal.errors import TooLarge


def check_size(config: Config, size: int, what: str) -> None:
    """
    Raises:
        TooLarge: it has more than `request_bytes_max` bytes.
    """
    if size > config.request_bytes_max:
        raise TooLarge(f"{what} may have at most {config.request_bytes_max} bytes; this one has {size}. Nothing was written.")
