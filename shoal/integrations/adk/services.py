"""`ShoalServices`: the three services of the Agent Development Kit on one store, and `shoal://` for its command line.

Law: of one URI there is one store in a process, on a loop of its own. So the three services that `adk web` makes of a
directory do not lock each other out. The ADK closes no service; the store ends with the process, as if that was killed:
what was acknowledged is on disk.
"""

from __future__ import annotations

import os
import threading
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from google.adk.cli.service_registry import get_service_registry

from shoal.client.store import Store
from shoal.errors import InvalidInput
from shoal.integrations.adk.artifacts import ShoalArtifactService
from shoal.integrations.adk.memories import ShoalMemoryService
from shoal.integrations.adk.sessions import ShoalSessionService
from shoal.integrations.base import OnStore, Opening

_WAIT_S = 30.0  # A node that starts together with `adk web` has this long.
_OPTIONS = {"space", "durability", "tls_ca"}


class ShoalServices(OnStore):
    """The `sessions`, `memories` and `artifacts` of one space, for a `Runner`."""

    SPACE = "adk"

    def __init__(self, store: Store, *, space: str | None = None) -> None:
        """Services on a store that is open on the running loop, and that the caller closes.

        Raises:
            InvalidInput: `store` is not an open store. With a path, use `ShoalServices.open`.
        """
        name = space or self.SPACE
        self.sessions = ShoalSessionService(store, space=name)
        self.memories = ShoalMemoryService(store, space=name)
        self.artifacts = ShoalArtifactService(store, space=name)


def register() -> None:
    """Have the ADK's command line make services of `shoal://` and `shoals://` (TLS).

    Call it in the `services.py` of the folder of agents. `shoal://n1:7400,n2:7400` is one of two nodes, `shoal:./state` a
    directory. `?space=…&durability=quorum&tls_ca=ca.pem` are those of `ShoalServices`; the token is that of SHOAL_TOKEN_FILE.
    """
    registry = get_service_registry()
    for scheme in ("shoal", "shoals"):
        registry.register_session_service(scheme, lambda uri, **_: shared(uri).sessions)
        registry.register_memory_service(scheme, lambda uri, **_: shared(uri).memories)
        registry.register_artifact_service(scheme, lambda uri, **_: shared(uri).artifacts)


_guard = threading.Lock()
_shared: dict[tuple[int, str], tuple[Opening[ShoalServices], ShoalServices]] = {}  # By process: a forked one opens its own.


def shared(uri: str) -> ShoalServices:
    """The services of a URI, which are opened once in a process, and end with it.

    Raises:
        InvalidInput: the URI names neither a node nor a directory, or has an unknown option; nothing was opened.
    """
    with _guard:
        mine = os.getpid(), uri
        if mine not in _shared:
            opened = opening_of(uri)
            _shared[mine] = opened, opened.begin()
        return _shared[mine][1]


def opening_of(uri: str) -> Opening[ShoalServices]:
    """The opening of the services of a URI. Raises as `shared`."""
    parts = urlsplit(uri)
    given = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    directory = unquote(parts.path)
    if given.keys() - _OPTIONS or bool(parts.netloc) == bool(directory.strip("/")):
        raise InvalidInput(
            f"{uri!r} is no URI of Shoal. Nothing was opened. Write `shoal://n1:7400,n2:7400` for nodes (`shoals://` with TLS) "
            "or `shoal:./state` for a directory; after a question mark space=, durability= or tls_ca=."
        )
    options: dict[str, Any] = {"space": given.get("space", "adk"), "durability": given.get("durability", "local")}
    if not parts.netloc:
        return ShoalServices.open(directory, **options)
    scheme = "https" if parts.scheme == "shoals" else "http"
    urls = [f"{scheme}://{address}" for address in parts.netloc.split(",")]
    return ShoalServices.connect(urls, tls_ca=given.get("tls_ca"), wait=_WAIT_S, **options)
