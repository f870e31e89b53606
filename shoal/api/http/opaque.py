"""Opaque bytes (cursors, contexts) as text that is safe in a URL, and back."""

from __future__ import annotations

import base64
import binascii

from shoal.errors import InvalidInput


def shown_opaque(token: bytes) -> str:
    """Opaque bytes as text that is safe in a URL."""
    return base64.urlsafe_b64encode(token).rstrip(b"=").decode()


def opaque(text: str, field: str) -> bytes:
    """The bytes behind `shown_opaque`.

    Raises:
        InvalidInput: it is not such text.
    """
    try:
        return base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise InvalidInput(
            f"{field} is not from an earlier answer. Nothing was written. Send the text of the answer unchanged.", field=field
        ) from None
