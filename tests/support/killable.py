"""`shoal serve` on an address of its own, which can be killed and started again there."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

from chaos.ports import free_ports
from tests.cli.conftest import served


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
