"""Errors that are raised in place of another one, which would mislead: a request that fails after it has written something, an
engine in Rust that panics (pycrdt, rocksdict), an optional package that is not installed.

Laws:
- Once a request has written anything, its error does not say that nothing was written.
- A panic is a `BaseException`, which `except Exception` does not catch, so it must not leave a seam to an engine. Values
  are checked before an engine sees them; a panic that comes all the same becomes a `ShoalError` at the seam. What the engine
  was working on is then in no known state: it is used no more, and built again.
- A text that was given as a file's name, and may be the secret itself, is not shown: `named`.
- What a plain installation runs (`open`, `connect`, `serve`, the command line) imports no optional package, until a
  feature that needs one is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from shoal.errors import EngineFailed, OutcomeUnknown, ShoalError, Unsupported

UNHARMED = "Nothing that is stored here is lost."
"""How an error of a bucket ends where it stopped no write."""
_NOTHING = re.compile(r"\s*Nothing (of it )?was [a-z]+( now)?[.;]")
_SECRET = re.compile(r"(?=[A-Za-z+]*\d)(?=[\d+]*[A-Za-z])[A-Za-z\d+]{20,}")  # Hexadecimal digits, base64, a token.


def named(file: object) -> str:
    """The name of a file that cannot be read, for an error; without it, if a part of it is long and has letters and digits."""
    text = str(file)
    return "the file named (its name may be the secret itself, so it is not shown)" if _SECRET.search(text) else text


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


EXTRAS: Mapping[str, tuple[str, str]] = {
    "cryptography": ("security", "tokens, TLS, encryption at rest and signed statements"),
    "jwt": ("security", "tokens"),
    "jsonschema_rs": ("schemas", "schemas"),
    "obstore": ("backup", "backups to a bucket or a directory"),
    "re2": ("redaction", "rules of redaction"),
    "yaml": ("yaml", "documents of YAML (`-o yaml`)"),
}
"""By the name that is imported: the extra, and which features need it."""


def told(missing: ModuleNotFoundError) -> Unsupported | None:
    """The error for a package of an extra; None for any other module."""
    name = (missing.name or "").partition(".")[0]
    if name not in EXTRAS:
        return None
    extra, features = EXTRAS[name]
    return Unsupported(
        f"{features} need the package {name}, which is not installed here. Nothing was written. "
        f"Install it in a clone of Shoal: pip install '.[{extra}]'"
    )


@contextmanager
def needed() -> Iterator[None]:
    """Imports in this context may need an extra.

    Raises:
        Unsupported: it is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        if (error := told(missing)) is not None:
            raise error from None
        raise
