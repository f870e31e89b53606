"""A node's TLS files as they are now: loaded at the start, and again when they change.

Laws:
- A new connection uses the files that were loaded last; a connection that exists keeps those of its beginning.
- Broken files change nothing: the former ones stay in use, and `trouble` says why.
- No clock is read: `now_s` is an argument.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable
from pathlib import Path

from shoal.config import Config
from shoal.errors import InvalidConfig
from shoal.records import NamedTuple
from shoal.tls import contexts
from shoal.tls.authority import day, read


class _Loaded(NamedTuple):
    accepting: ssl.SSLContext
    dialling: ssl.SSLContext | None  # For peers,
    asking: ssl.SSLContext | None  # and for whoever is where a seed leads.
    ends_s: float
    ends: str


class CurrentTls:
    """The contexts of a node with `tls_cert`. `now_s` is the time in seconds since 1970.

    Raises:
        InvalidConfig: a file is missing or broken, or the files do not belong together.
    """

    def __init__(self, config: Config, *, now_s: Callable[[], float]) -> None:
        self._config = config
        self._now_s = now_s
        self._broken = ""  # Why the files on the disk are not in use.
        self._stamps = self._stamped()
        self._loaded = self._load()
        self.listening = contexts.listening(config)
        """For the listener: it hands each connection to the newest context, when the client has said hello."""
        self.listening.sni_callback = self._choose

    @property
    def dialling(self) -> ssl.SSLContext | None:
        """For a link to a peer that is dialled now; None if the node has no peers."""
        return self._loaded.dialling

    @property
    def asking(self) -> ssl.SSLContext | None:
        """For a node that is asked who it is, at an address that no certificate names; None if the node has no peers."""
        return self._loaded.asking

    @property
    def ends_s(self) -> float:
        """When the certificate in use expires, in seconds since 1970."""
        return self._loaded.ends_s

    @property
    def until(self) -> str:
        """The same, for people."""
        return self._loaded.ends

    @property
    def trouble(self) -> str:
        """For people: what is wrong with the files or the certificate; empty if nothing is."""
        if self._broken:
            return f"the new TLS files are not used: {self._broken}"
        if self._now_s() > self._loaded.ends_s:
            return f"the node's certificate has expired on {self._loaded.ends}; renew it (docs/TLS.md)"
        if self._now_s() > self._loaded.ends_s - _SOON_S:
            return f"the node's certificate expires on {self._loaded.ends}; renew it (docs/TLS.md)"
        return ""

    def has_changed(self) -> bool:
        """Whether a file was written, or given other rights, since it was looked at last."""
        return self._stamped() != self._stamps

    def reload(self) -> None:
        """Load the files again.

        Raises:
            InvalidConfig: one is missing or broken. Nothing has changed.
        """
        self._stamps = self._stamped()
        try:
            self._loaded = self._load()
        except InvalidConfig as error:
            self._broken = re.sub(r"Nothing was (started|changed)\.", "The former ones stay in use.", error.message)
            raise InvalidConfig(self._broken, **error.detail) from None
        self._broken = ""

    def _load(self) -> _Loaded:
        config = self._config
        # First what is told, then what is used: if the file is replaced in between, the end that is told is no later one.
        certificate = read(Path(config.tls_cert))
        accepting = contexts.listening(config)
        dialling = contexts.dialling_peers(config) if config.join else None
        asking = contexts.dialling_peers(config, by_name=False) if config.join else None
        return _Loaded(accepting, dialling, asking, certificate.ends_s, day(certificate.ends))

    def _stamped(self) -> tuple[tuple[int, ...] | None, ...]:
        config = self._config
        return tuple(_stamp(file) for file in (config.tls_cert, config.tls_key, config.tls_ca, config.tls_crl) if file)

    def _choose(self, connection: ssl.SSLSocket | ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        connection.context = self._loaded.accepting


_SOON_S = 30 * 24 * 3600.0
"""A certificate that ends within this time is reported."""


def _stamp(file: str) -> tuple[int, ...] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    # A file that could not be read may be given another owner, or other rights, alone: that changes its ctime only.
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
