"""Panics of the engines that are written in Rust: pycrdt for documents, rocksdict for storage.

Law: a panic is a `BaseException`, which `except Exception` does not catch, so it must not leave a seam to an engine. Values
are checked before an engine sees them; a panic that comes all the same becomes a `ShoalError` at the seam. What the engine
was working on is then in no known state: it is used no more, and built again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shoal.errors import EngineFailed

_SHOWN_MAX = 200  # Of an engine's own text, which may repeat the value that it was given.


def is_panic(error: BaseException | None) -> bool:
    """Whether an error is a panic. Each engine has a class of its own for them, which cannot be imported."""
    return type(error).__module__ == "pyo3_runtime"


@contextmanager
def held(what: str, then: str) -> Iterator[None]:
    """Turn a panic into an EngineFailed that says what failed, and what the caller can do."""
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        raise engine_failed(what, error, then) from None


def engine_failed(what: str, reason: BaseException | str, then: str) -> EngineFailed:
    """The error of an engine's panic: what failed, and what the caller can do."""
    return EngineFailed(f"{what} ({str(reason)[:_SHOWN_MAX]}). {then}")
