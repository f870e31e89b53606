"""Optional packages: which extra of this distribution installs each, and the error if one is absent.

Law: what a plain installation runs (`open`, `connect`, `serve`, the command line) imports none of these packages, until a
feature that needs one is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from shoal.errors import Unsupported

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
