"""Access to one node, from start to stop: its gate, what keeps the gate's keys current, and the tokens that are revoked.

Laws:
- The keys are looked at every `TOKEN_LOOK_S`. Broken files change nothing: the former keys stay in use, and the log says why.
- Revocations are known before the first request is answered. They are read again after each change, and every `TOKEN_LOOK_S`.
- While a node reaches too few others for a quorum it may miss revocations. If that lasts longer than `revocations_age_s_max`
  (0: never), no token counts until it reaches them again. A node that is alone misses none.
- No clock is read: `now_s` is an argument, in seconds since 1970; how long a node is cut off, the event loop's time says.

The tokens that are revoked are a map in the store, so that it is replicated, durable and asked for like everything else.

Laws:
- The map `REVOKED` of the space `RESERVED` holds, for each id of a token, when it expires; 0 means never.
- A node reads it before it listens, and again after each change; until a change has arrived, the token counts there.
- An entry is removed a day after its token has expired. Any node may do it, and twice is no harm.
- At most `revocations_max` are read. If there are more, the node says so and accepts no token at all, because any could be one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress

from shoal import values
from shoal.access import keys
from shoal.access.gate import Gate
from shoal.access.grants import REVOKED
from shoal.access.guard import ReadLog
from shoal.access.keys import Issuers
from shoal.config import Config
from shoal.errors import ShoalError
from shoal.logs import events
from shoal.logs.lines import log
from shoal.names import RESERVED
from shoal.protocol.requests import Cluster, ClusterView, MapEntry, ReadMap, RemoveEntry, Watch
from shoal.protocol.session import Session

_FORGOTTEN_S = 24 * 3600.0  # After its end; clocks differ by less.
_AGAIN_S = 1.0  # Before a watch that failed begins again.


class Revocations:
    """The revoked tokens, as one node knows them. `session` is the node's own; `now_s` its clock, in seconds since 1970."""

    def __init__(self, session: Session, gate: Gate, *, config: Config, now_s: Callable[[], float]) -> None:
        self._session = session
        self._gate = gate
        self._config = config
        self._now_s = now_s

    async def load(self) -> None:
        """Read the map, and let the gate know it.

        Raises:
            ShoalError: it cannot be read.
        """
        found = await self._read()
        if len(found) > self._config.revocations_max:
            log(events.REVOCATIONS_MANY, bound="revocations_max", accepted="no token")
            self._gate.close()
            return
        now_s = self._now_s()
        over = [id for id, ends_s in found.items() if ends_s and now_s > ends_s + _FORGOTTEN_S]
        self._gate.revoke(found.keys() - set(over))
        for id in over:
            with suppress(ShoalError):  # Another time, or another node.
                await self._session.call(RemoveEntry(RESERVED, REVOKED, id))

    async def follow(self) -> None:
        """Read the map again after each change, until cancelled."""
        told = ""
        while True:
            try:
                async with self._session.subscribe(Watch(RESERVED, "map", REVOKED)) as changes:
                    await self.load()
                    async for _ in changes:
                        await self.load()
            except ShoalError as error:
                if error.message != told:  # A node that waits for its peers says so once.
                    told = error.message
                    log(events.REVOCATIONS_TROUBLE, reason=told)
            await asyncio.sleep(_AGAIN_S)

    async def _read(self) -> Mapping[str, float]:
        found: dict[str, float] = {}
        after: str | None = None
        while len(found) <= self._config.revocations_max:
            page = await self._session.call(ReadMap(RESERVED, REVOKED, after=after), stale=True)
            for entry in page.entries:
                found[entry.key] = _ends_s(entry)
            if not page.more:
                break
            after = page.entries[-1].key
        return found


def _ends_s(entry: MapEntry) -> float:
    """When a revoked token expires; 0 if that is not known."""
    ends = []
    for sibling in entry.siblings:
        try:
            ends.append(values.decode(sibling.value))
        except ShoalError:
            return 0.0
    known = all(isinstance(each, int | float) and not isinstance(each, bool) for each in ends)
    return float(max(ends)) if ends and known and min(ends) > 0 else 0.0


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
