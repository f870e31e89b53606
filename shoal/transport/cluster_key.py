"""The keys of a node for its peers, as they are now: from its settings, or from a file that is read again when it changes.

Laws:
- A handshake uses the keys that were loaded last.
- A broken file changes nothing: the former keys stay in use, and `trouble` says why.
- A file that every user of the machine may read is refused.
"""

from __future__ import annotations

import os
from pathlib import Path

from shoal.config import Config
from shoal.errors import InvalidConfig
from shoal.transport.keyring import Keyring, parsed

_BYTES_MAX = 16 * 1024
_EVERYBODY = 0o007


class ClusterKey:
    """The keys of one node.

    Raises:
        InvalidConfig: the file cannot be used.
    """

    def __init__(self, config: Config) -> None:
        self._file = Path(config.cluster_key_file) if config.cluster_key_file else None
        self._stamp = self._stamped()
        self.ring = Keyring(config.cluster_key) if self._file is None else read(self._file)
        self.trouble = ""
        """Why the file on the disk is not in use; empty if it is."""

    @property
    def is_file(self) -> bool:
        """Whether the keys can change without a restart."""
        return self._file is not None

    def has_changed(self) -> bool:
        """Whether the file was written, or given other rights, since it was looked at last."""
        return self._stamped() != self._stamp

    def reload(self) -> None:
        """Load the file again, if there is one.

        Raises:
            InvalidConfig: it cannot be used. Nothing has changed.
        """
        if self._file is None:
            return
        self._stamp = self._stamped()
        try:
            self.ring = read(self._file)
        except InvalidConfig as error:
            self.trouble = error.message.replace(" Nothing was changed.", "") + " The former keys stay in use."
            raise
        self.trouble = ""

    def _stamped(self) -> tuple[int, ...] | None:
        try:
            status = None if self._file is None else os.stat(self._file)
        except OSError:
            return None
        if status is None:
            return None
        # A file that was refused for its rights or its owner may be given others alone: that changes its ctime only.
        return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def read(file: Path) -> Keyring:
    """The keys in a file.

    Raises:
        InvalidConfig: it cannot be read, everybody may read it, or it is no such file.
    """
    try:
        if os.stat(file).st_mode & _EVERYBODY:
            raise InvalidConfig(
                f"every user of this machine may read or change the cluster's key in {file}. Nothing was changed. "
                f"Make it private: chmod 600 {file}",
                field="cluster_key_file",
            )
        with file.open("rb") as opened:
            text = opened.read(_BYTES_MAX).decode()
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "it is no text"
        raise InvalidConfig(
            f"the cluster's key cannot be read from {file}: {why}. Nothing was changed.", field="cluster_key_file"
        ) from None
    return parsed(text)
