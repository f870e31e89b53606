"""Access to one node, from start to stop: its gate, and what keeps the gate's keys and revocations current.

Laws:
- The keys are looked at every `TOKEN_LOOK_S`. Broken files change nothing: the former keys stay in use, and the log says why.
- Revocations are known before the first request is answered. They are read again after each change, and every `TOKEN_LOOK_S`.
- While a node reaches too few others for a quorum it may miss revocations. If that lasts longer than `revocations_age_s_max`
  (0: never), no token counts until it reaches them again. A node that is alone misses none.
- No clock is read: `now_s` is an argument, in seconds since 1970; how long a node is cut off, the event loop's time says.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress

from shoal.access import keys
from shoal.access.gate import Gate
from shoal.access.guard import ReadLog
from shoal.access.keys import Issuers
from shoal.access.revocations import Revocations
from shoal.config import Config
from shoal.errors import ShoalError
from shoal.logs import events
from shoal.logs.lines import log
from shoal.protocol.requests import Cluster, ClusterView
from shoal.protocol.session import Session

TOKEN_LOOK_S = 10.0  # Between two looks at whether the file with the public keys has changed.

_LINKS_LOOK_S = 5.0  # How often links are looked at.


class Access:
    """The access to a node with `token_keys` or `oidc_issuers`.

    Raises:
        InvalidConfig: the keys or the issuers cannot be used.
    """

    def __init__(self, config: Config, *, now_s: Callable[[], float], entropy: Callable[[int], bytes]) -> None:
        self._config = config
        self._now_s = now_s
        self._stamp = _stamp(config.token_keys)
        mine = [keys.load(config.token_keys, cluster=config.cluster)] if config.token_keys else []
        self.gate = Gate({each.issuer: each for each in mine}, config=config, now_s=now_s, entropy=entropy)
        self.issuers = Issuers(self.gate, config)
        self._revocations: Revocations | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, session: Session) -> None:
        """Read the revocations, through the node's own session, and keep all of it current.

        Raises:
            ShoalError: they cannot be read.
        """
        revocations = self._revocations = Revocations(session, self.gate, config=self._config, now_s=self._now_s)
        await revocations.load()
        if self._config.audit_reads:
            self.gate.reads = ReadLog(session, config=self._config)
        works = [revocations.follow(), self._look(), self.issuers.follow()]
        if self._config.revocations_age_s_max:
            works.append(self._watch_links(session))
        self._tasks = [asyncio.create_task(work) for work in works]

    async def stop(self) -> None:
        """Keep nothing current any more. Calling it twice is allowed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def reload(self) -> None:
        """Load the keys again if their file has changed.

        Raises:
            InvalidConfig: it is broken. Nothing has changed.
        """
        stamp = _stamp(self._config.token_keys)
        if self._config.token_keys and stamp != self._stamp:
            self._stamp = stamp
            self.gate.trust(keys.load(self._config.token_keys, cluster=self._config.cluster))
            log(events.TOKEN_KEYS_LOADED, file=self._config.token_keys)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(TOKEN_LOOK_S)
            try:
                self.reload()
                # A partition that came as a whole, from a peer, told of no single change.
                if self._revocations is not None:
                    await self._revocations.load()
            except ShoalError as error:
                told = error.message.replace("Nothing was started.", "The former keys stay in use.")
                log(events.TOKEN_KEYS_TROUBLE, reason=told)

    async def _watch_links(self, session: Session) -> None:
        age_s_max = self._config.revocations_age_s_max
        now_s = asyncio.get_running_loop().time
        heard_s = now_s()
        while True:
            with suppress(ShoalError):  # A node that is stopping, or that cannot tell: then it has not heard.
                if reaches_quorum(await session.call(Cluster())):
                    heard_s = now_s()
            is_cut_off = now_s() - heard_s > age_s_max
            if is_cut_off != self.gate.is_cut_off:
                self.gate.is_cut_off = is_cut_off
                log(events.TOKENS_REFUSED if is_cut_off else events.TOKENS_ACCEPTED, bound="revocations_age_s_max")
            await asyncio.sleep(min(_LINKS_LOOK_S, age_s_max / 4))


def reaches_quorum(view: ClusterView) -> bool:
    """Whether a node reaches enough members for a quorum, itself counted."""
    return sum(member.state != "unreachable" and member.part == "member" for member in view.members) >= view.quorum


def _stamp(file: str) -> tuple[int, ...] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    # A file that could not be read may be given another owner, or other rights, alone: that changes its ctime only.
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
