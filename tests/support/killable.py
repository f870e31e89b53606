"""`shoal serve` on an address of its own, which can be killed and started again there."""

from __future__ import annotations

import signal
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.cli.conftest import served


def free_ports(count: int) -> list[int]:
    """So many ports that nothing listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class Killable:
    """One node, on one directory and one address."""

    def __init__(self, data: Path, *arguments: str, port: int | None = None, config: dict[str, str] | None = None) -> None:
        self.port = free_ports(1)[0] if port is None else port
        self.url = f"http://127.0.0.1:{self.port}"
        self._data = data
        self._arguments = arguments
        self._config = config
        self._serving: Any = None
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._serving = served(self._data, "--listen", f"127.0.0.1:{self.port}", *self._arguments, config=self._config)
        self._process, url = self._serving.__enter__()
        assert url == self.url

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._serving.__exit__(None, None, None)
        self._process = None

    def stop(self) -> None:
        """Kill it, unless it was."""
        if self._process is not None:
            self.kill()
