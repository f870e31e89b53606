"""The machine and the versions that figures belong to, without names or paths of it."""

from __future__ import annotations

import os
import platform
import sqlite3
import tempfile
from importlib.metadata import version
from pathlib import Path

LOAD = "load before"
LIBRARIES = ("rocksdict", "uvloop", "aiohttp", "msgspec", "msgpack", "pycrdt")


def facts() -> dict[str, str]:
    """To be asked before measuring: the load is that of the others then."""
    libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    return {
        "processor": f"{os.cpu_count()} cores, {_processor()}",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "disk": _disk(),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        LOAD: f"{os.getloadavg()[0]:.1f}",
        "libraries": f"shoal {version('shoal')}, {libraries}, SQLite {sqlite3.sqlite_version}",
    }


def _processor() -> str:
    """What /proc/cpuinfo calls it, where there is one."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _disk() -> str:
    """The file system and the kind of device under temporary files."""
    here = os.stat(tempfile.gettempdir()).st_dev
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    for device, point, kind, *_ in mounts:
        if os.path.exists(point) and os.stat(point).st_dev == here:
            return f"{kind} on {_device(device)}"
    return "unknown"


def _device(device: str) -> str:
    name = Path(device).name
    if name.startswith("vd"):
        return "a virtual disk (virtio)"
    try:
        rotates = Path(f"/sys/block/{name.rstrip('0123456789')}/queue/rotational").read_text().strip()
    except OSError:
        return "a device of unknown kind"
    return "a rotating disk" if rotates == "1" else "a solid-state disk"
