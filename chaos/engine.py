"""A container engine of its own for a trial, on a machine where nothing is prepared for one.

    async with running(say=print) as engine:
        shop = engine.lay(Path("."), "shoal")                    # A copy that the engine sees: WORKDIR/shoal.
        await engine.run("docker", "compose", "up", "--detach", cwd=shop)
        pid = await engine.pid("shoal-n1-1")                     # As the engine counts it.
        await engine.run(*entering(pid, ["net"], ["ss", "-tn"])) # In that container's network, with the engine's programs.
        with engine.network():                                   # What this thread opens now is in the engine's network:
            ...                                                  # https://127.0.0.1:7400 is the published port.

Laws:
- The machine stays as it is, but for two packages that make the engine (`debootstrap`, `slirp4netns`): mounts, interfaces,
  firewall, ports and processes are the engine's own, in namespaces that end with it. It reaches what the machine reaches.
- Whatever ends the trial ends the engine, its containers and every command that runs in it: they are one namespace of
  processes, whose first is killed with the process that asked for it. Each trial begins without containers, networks and
  volumes of another; images, and what builds have kept, stay in WORKDIR.
- No image is pulled. `python:3.13-slim` is a stand-in: Debian trixie, whose Python is 3.13, with pip's own wheel.
- Where no engine can be, `Skipped` says why; nothing else raises it. An engine that did start is no reason to skip anything.
- What is in WORKDIR is made once and used again. To begin anew, remove it. One trial uses it at a time.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import platform
import re
import shutil
import subprocess
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

WORKDIR = Path(os.environ.get("SHOAL_COMPOSE_WORKDIR", "/tmp/shoal-compose"))
BASE_IMAGE = "python:3.13-slim"
"""The image that the Dockerfile starts from, and that the stand-in is named after."""

MADE_S_MAX = 3600.0
"""For both root file systems, which come from the machine's own mirror of Debian."""
START_S_MAX = 60.0
STOP_S_MAX = 60.0
COMMAND_S_MAX = 900.0
"""For a command of which nothing else is said; building the image takes minutes."""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_POLL_S = 0.2
_CLONE_NEWNET = 0x40000000
_WORDS = 2000  # Of a failed command's output.

PARTS = (
    "Dockerfile",
    ".dockerignore",
    "docker-compose.yml",
    "deploy",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "clients/js/src",
    "shoal",
)
"""Of a checkout: what the image is built of and compose reads."""

_ENGINE = ("docker.io", "docker-cli", "docker-compose", "docker-buildx", "iptables", "iproute2", "curl")

# pip comes from its wheel: Debian's package brings a `packaging` that pip cannot replace, since it has no RECORD.
_PYTHON = """
set -e
apt-get update -qq && apt-get install -y -qq --no-install-recommends python3 python3-venv python-is-python3
rm -f /usr/lib/python3*/EXTERNALLY-MANAGED
wheel=$(ls /usr/share/python-wheels/pip-*.whl)
python3 "$wheel/pip" install --quiet --root-user-action ignore --no-index --find-links /usr/share/python-wheels pip
rm -rf /var/lib/apt/lists/* /var/cache/apt/* /root/.cache
python --version && pip --version
"""

# The first process of the engine: makes the engine's root its own, since runc cannot pivot_root out of a chroot.
_INNER = """
set -eu
root=$1 work=$2
ip link set lo up
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
for each in sys dev; do mount --rbind "/$each" "$root/$each"; done
mkdir -p "$root$work" && mount --bind "$work" "$root$work"
mount -t tmpfs tmpfs "$root/run"
echo "nameserver 10.0.2.3" >"$root/etc/resolv.conf"  # slirp4netns's own, which asks this machine's.
mkdir -p "$root/.old" && cd "$root" && pivot_root . .old && cd / && umount -l /.old
exec dockerd --host "unix://$work/docker.sock"
"""


class Skipped(Exception):
    """No engine can be here; the message is the reason."""


class CommandFailed(Exception):
    """A command within the engine ended with another code than 0, or not in time; the message holds the end of its output."""


class Machine(NamedTuple):
    """What decides whether an engine can be here."""

    system: str
    uid: int
    has_namespaces: bool
    file_systems: str  # /proc/filesystems.
    has_tun: bool

    @property
    def lacks(self) -> str:
        """Why no engine can be here; empty if nothing is known against it."""
        if self.system != "Linux" or self.uid != 0:
            return "not root on Linux"
        if not self.has_namespaces:
            return "no namespaces of one's own here"
        if "overlay" not in self.file_systems.split():
            return "the kernel has no overlay file system"
        return "" if self.has_tun else "no /dev/net/tun"


def seen() -> Machine:
    """This machine."""
    tried = ["unshare", "--net", "--mount", "--pid", "--fork", "true"]
    known = Path("/proc/filesystems")
    return Machine(
        platform.system(),
        os.getuid(),
        shutil.which(tried[0]) is not None and subprocess.run(tried, capture_output=True, check=False).returncode == 0,
        known.read_text() if known.exists() else "",
        Path("/dev/net/tun").is_char_device(),
    )


def mirror_in(sources: str) -> str:
    """The first address in apt's sources, in either format; empty if there is none."""
    found = re.search(r"^(?:URIs:|deb(?: +\[[^]]*\])?) +(\S+)", sources, re.MULTILINE)
    return "" if found is None else found[1]


def entering(pid: int, kinds: Sequence[str], command: Sequence[str]) -> list[str]:
    """The command line that runs a command in namespaces of a process."""
    return ["nsenter", f"--target={pid}", *(f"--{kind}" for kind in kinds), "--", *command]


def outliving_nobody(command: Sequence[str]) -> list[str]:
    """The command line of a process that is killed when the one that started it ends, however it does.

    It is the command itself where there is no `setpriv`, as on macOS.
    """
    return [*command] if shutil.which("setpriv") is None else ["setpriv", "--pdeathsig", "KILL", *command]


class Engine:
    """One that runs: see `running`."""

    def __init__(self, workdir: Path, *, host: int, first: int) -> None:
        self.workdir = workdir
        self._host = host  # This machine's process that holds the namespaces of network and mounts.
        self._first = first  # The first of the engine's processes, as this machine counts it.

    def lay(self, checkout: Path, name: str) -> Path:
        """Copy the parts of a checkout to WORKDIR/name, instead of what was there; its name is compose's project name."""
        laid = self.workdir / name
        shutil.rmtree(laid, ignore_errors=True)
        for part in PARTS:
            source = checkout / part
            (laid / part).parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, laid / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, laid / part)
        return laid

    async def begin(
        self, *command: str, cwd: Path | None = None, env: Mapping[str, str] | None = None, log: Path | None = None
    ) -> Process:
        """Start a command as a user of the engine's machine; what it says goes to `log`, or is the process's `stdout`."""
        variables = {"HOME": "/root", "PATH": _PATH, "DOCKER_HOST": f"unix://{self.workdir}/docker.sock", **(env or {})}
        placed = ["sh", "-c", 'cd "$0" && exec "$@"', str(cwd or self.workdir), *command]
        clean = ["env", "-i", *(f"{name}={value}" for name, value in variables.items()), *placed]
        line = outliving_nobody(entering(self._first, ("mount", "net", "pid"), outliving_nobody(clean)))
        if log is None:
            return await asyncio.create_subprocess_exec(*line, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT)
        with log.open("ab") as out:
            return await asyncio.create_subprocess_exec(*line, stdin=DEVNULL, stdout=out, stderr=out)

    async def run(
        self,
        *command: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        within_s: float = COMMAND_S_MAX,
    ) -> str:
        """Run a command as a user of the engine's machine, and return what it said, errors included.

        Raises:
            CommandFailed: it ended with another code than 0, or not in time.
        """
        process = await self.begin(*command, cwd=cwd, env=env)
        try:
            async with asyncio.timeout(within_s):
                said, _ = await process.communicate()
        except TimeoutError:
            raise CommandFailed(f"{' '.join(command)} did not end within {within_s:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        text = said.decode(errors="replace")
        if process.returncode:
            raise CommandFailed(f"{' '.join(command)} ended with {process.returncode}: {text.strip()[-_WORDS:]}")
        return text

    async def pid(self, container: str) -> int:
        """A container's first process, as the engine counts it; 0 if the container does not run.

        Raises:
            CommandFailed: there is no such container.
        """
        return int(await self.run("docker", "inspect", "--format", "{{.State.Pid}}", container))

    @contextmanager
    def network(self) -> Iterator[None]:
        """This thread, and what it starts meanwhile, are in the engine's network, with this machine's files.

        A socket stays in the network in which it was made.
        """
        with _entered(f"/proc/{self._host}/ns/net"):
            yield


@contextmanager
def _entered(namespace: str) -> Iterator[None]:
    """This thread is in another network. (`os.setns` came with Python 3.12.)"""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(descriptor: int) -> None:
        if libc.setns(descriptor, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")

    own, other = os.open("/proc/thread-self/ns/net", os.O_RDONLY), os.open(namespace, os.O_RDONLY)
    try:
        enter(other)
        try:
            yield
        finally:
            enter(own)
    finally:
        os.close(own)
        os.close(other)


# ── starting and stopping ─────────────────────────────────────────────────────


@asynccontextmanager
async def running(workdir: Path = WORKDIR, *, say: Callable[[str], None]) -> AsyncIterator[Engine]:
    """An engine, with no container and no volume; what is in it ends with the context.

    The first time two root file systems are made in `workdir`, which `say` is told.

    Raises:
        Skipped: no engine can be here.
    """
    if reason := seen().lacks:
        raise Skipped(reason)
    with _alone(workdir) as workdir:
        await _make(workdir, say)
        async with _started(workdir) as engine:
            await _emptied(engine)
            await _import_base(engine)
            try:
                yield engine
            finally:
                with suppress(CommandFailed):
                    await _emptied(engine)


@contextmanager
def _alone(workdir: Path) -> Iterator[Path]:
    workdir.mkdir(parents=True, exist_ok=True)
    with (workdir / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Skipped(f"another trial uses {workdir}") from None
        yield workdir.resolve()


async def _emptied(engine: Engine) -> None:
    """What a killed trial left would start again with the engine, or be found by the next one."""
    containers = "docker ps --all --quiet | xargs --no-run-if-empty docker rm --force --volumes"
    await engine.run("sh", "-c", f"{containers} && docker volume prune --all --force && docker network prune --force")


async def _import_base(engine: Engine) -> None:
    with suppress(CommandFailed):
        await engine.run("docker", "image", "inspect", BASE_IMAGE)
        return
    changes = f"--change 'ENV PATH={_PATH}' --change 'CMD [\"python3\"]'"
    await engine.run("sh", "-c", f"tar -C {engine.workdir}/python -c . | docker import {changes} - {BASE_IMAGE}")


@asynccontextmanager
async def _started(workdir: Path) -> AsyncIterator[Engine]:
    unshared = ["unshare", "--net", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child"]
    line = [*unshared, "bash", "-c", _INNER, "engine", str(workdir / "engine"), str(workdir)]
    with (workdir / "dockerd.log").open("wb") as log:
        host = await asyncio.create_subprocess_exec(
            *outliving_nobody(line), stdin=DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    wired = None
    try:
        first = await _first_of(host)
        with (workdir / "slirp.log").open("wb") as log:
            wire = ["slirp4netns", "--configure", "--mtu=1400", "--disable-host-loopback", str(host.pid), "tap0"]
            wired = await asyncio.create_subprocess_exec(
                *outliving_nobody(wire), stdin=DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        engine = Engine(workdir, host=host.pid, first=first)
        await _answers(engine, host)
        try:
            yield engine
        finally:
            await _ended(host, first)
    finally:
        for process in (host, wired):  # With the host, the first of the engine's processes is killed, and all others with it.
            if process is not None and process.returncode is None:
                process.kill()
                await process.wait()


async def _first_of(host: Process) -> int:
    """The one child of the process that made the namespaces."""
    ends_at = time.monotonic() + START_S_MAX
    while time.monotonic() < ends_at and host.returncode is None:
        if children := _children(host.pid):
            return children[0]
        await asyncio.sleep(_POLL_S)
    raise Skipped("no namespaces of one's own here, or no /proc/…/children")


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


async def _answers(engine: Engine, host: Process) -> None:
    ends_at, why = time.monotonic() + START_S_MAX, ""
    while time.monotonic() < ends_at and host.returncode is None:
        try:
            await engine.run("docker", "version", within_s=START_S_MAX)
        except CommandFailed as failed:
            why = str(failed)
            await asyncio.sleep(_POLL_S)
        else:
            return
    said = (engine.workdir / "dockerd.log").read_text(errors="replace").strip().splitlines()
    raise Skipped(f"dockerd does not start: {said[-1] if said else why}")


async def _ended(host: Process, first: int) -> None:
    """Let the engine write what it must."""
    with suppress(ProcessLookupError):
        os.kill(first, 15)
    with suppress(TimeoutError):
        async with asyncio.timeout(STOP_S_MAX):
            await host.wait()


# ── two root file systems ─────────────────────────────────────────────────────


async def _make(workdir: Path, say: Callable[[str], None]) -> None:
    """The engine's, and the stand-in's."""
    made = workdir / "made"
    if made.exists():
        return
    say(f"{workdir} is made: an engine and a base image, from this machine's mirror of Debian (3 to 15 minutes, once; 1.5 GB)")
    began_s = time.monotonic()
    if not (shutil.which("debootstrap") and shutil.which("slirp4netns")):
        install = "apt-get update -qq && apt-get install -y -qq --no-install-recommends debootstrap slirp4netns"
        await _step(["sh", "-c", install], workdir / "apt.log", "debootstrap and slirp4netns cannot be installed")
    engine, python = workdir / "engine", workdir / "python"
    for root in (engine, python):
        shutil.rmtree(root, ignore_errors=True)
    bootstrap = ["debootstrap", "--variant=minbase", "--include=ca-certificates", "trixie", str(engine), mirror_in(_sources())]
    await _step(bootstrap, workdir / "debootstrap.log", "no Debian trixie from this machine's mirror")
    _carry(engine)
    await _step(["cp", "-a", str(engine), str(python)], workdir / "python.log", "no copy")
    packages = f"apt-get update -qq && apt-get install -y -qq --no-install-recommends {' '.join(_ENGINE)}"
    await _step(_inside(engine, packages), workdir / "engine.log", "no engine")
    await _step(_inside(python, _PYTHON), workdir / "python.log", f"no stand-in for {BASE_IMAGE}")
    made.touch()
    say(f"{workdir} is made, after {time.monotonic() - began_s:.0f} s")


async def _step(command: Sequence[str], log: Path, why: str) -> None:
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *outliving_nobody(command),
            stdin=DEVNULL,
            stdout=out,
            stderr=out,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        )
    try:
        async with asyncio.timeout(MADE_S_MAX):
            await process.wait()
    except TimeoutError:
        raise Skipped(f"{why} within {MADE_S_MAX:g} s ({log})") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise Skipped(f"{why} ({log})")


def _inside(root: Path, script: str) -> list[str]:
    entered = 'mount -t proc proc "$0/proc" && exec chroot "$0" sh -c "$1"'
    return ["unshare", "--mount", "--propagation=private", "sh", "-c", entered, str(root), script]


def _sources() -> str:
    apt = Path("/etc/apt")
    listed = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*.sources"))]
    listed += sorted((apt / "sources.list.d").glob("*.list"))
    return "\n".join(file.read_text() for file in listed if file.exists())


def _carry(root: Path) -> None:
    """What this machine's apt and pip need to reach what they reach."""
    for name in ("resolv.conf", "hosts", "pip.conf", "ssl/certs/ca-certificates.crt"):
        file = Path("/etc") / name
        if file.exists():
            shutil.copy(file, root / "etc" / name)
    for file in Path("/etc/apt/apt.conf.d").iterdir():
        if "Acquire" in file.read_text(errors="replace"):
            shutil.copy(file, root / "etc/apt/apt.conf.d")
