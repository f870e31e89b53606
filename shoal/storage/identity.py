"""Tell one copy of a data directory from another.

A directory that was copied, restored from a backup or cloned holds the same bytes as
the original, so nothing in it can tell the two apart. The file system can: a file has
an inode number, which no copy keeps, and a generation number, which differs even if
the inode number is used again. A directory that was only renamed keeps both.

This cannot detect a block device or a virtual machine that was set back as a whole. Peers
detect that (`shoal.cluster.marks`).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_GET_GENERATION = 0x80087601  # FS_IOC_GETVERSION of <linux/fs.h>: ext4, XFS, Btrfs, F2FS.
_LONG_BYTES = 8


def identity_of(file: Path) -> bytes:
    """The identity of a file that is made once with its directory and never replaced.

    Raises:
        OSError: the file cannot be opened.
    """
    descriptor = os.open(file, os.O_RDONLY)
    try:
        return b"%d:%d" % (os.fstat(descriptor).st_ino, _generation(descriptor))
    finally:
        os.close(descriptor)


def _generation(descriptor: int) -> int:
    """0 if the file system or the platform has none. tmpfs has none, but it never uses an inode number again."""
    with suppress(ImportError, OSError):
        import fcntl

        buffer = bytearray(_LONG_BYTES)
        fcntl.ioctl(descriptor, _GET_GENERATION, buffer)
        return int.from_bytes(buffer[:4], "little")
    return 0
