"""The backup of a node's cluster: where it is declared, when this node ships, and what is told of that.

Laws:
- The declaration is a key of the quorum register, so that every member learns it, and a restored directory does not. A member
  that was away when the others voted asks for it.
- A store that was alone and gets other members declares again where it is backed up, unless they have a declaration.
- A bucket that fails is tried again, less and less often. It stops no write, and what is not shipped stays as it is here.
- A node that asks for tokens makes and writes no directory but below those that its operator named, whoever declares it.
- A store that was never declared to be backed up loads nothing of what ships.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote, urlsplit

import msgspec

from shoal.config import Config
from shoal.errors import (
    BackupConflict,
    BackupUnreachable,
    InvalidInput,
    NoQuorum,
    OutcomeUnknown,
    RegisterChanged,
    ShoalError,
    Unsupported,
)
from shoal.logs import events
from shoal.logs.lines import log
from shoal.node.consensus.quorum_register import QuorumRegister
from shoal.node.context import NodeContext
from shoal.node.database import Database
from shoal.node.handler import Answers
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import BackupView, DeclareBackup, ReadBackup
from shoal.raising import UNHARMED

if TYPE_CHECKING:
    from shoal.node.backup.shipper import Shipper

SHIP_S = 2.0  # Between two looks at what is to be shipped.
DECLARED_ASK_S = 60.0  # Between two questions to the register, whatever is known here.
RETRY_S_MAX = 60.0  # Between two attempts while the bucket cannot be reached.
DECLARATION = "backup"  # The key in the register.
CLUSTER_BYTES = 16
TRIED_S = 20.0  # For a bucket to be read and written before it is declared: shorter than a client waits.
KEEP_MS_MIN = 24 * 3600 * 1000  # Mistakes are noticed later than at once.
_URL_CHARS_MAX = 1000
_FORMAT = 1
_SHOWN_CHARS = 200


class Declaration(msgspec.Struct, array_like=True, frozen=True):
    """Where a cluster is backed up."""

    format: int
    url: str  # Empty: nowhere.
    cluster: bytes  # Its identity in all its backups.
    node: bytes  # The node that declared it: of a store that is alone, a copy is another one.
    keep_ms: int = 0  # For how long moments are kept; 0: for ever.


class Backups:
    """The backup, as one node serves and ships it. `fellows` are the nodes that are linked; `is_alone`: it has no peers."""

    def __init__(
        self,
        context: NodeContext,
        database: Database,
        *,
        register: QuorumRegister,
        fellows: Callable[[], Collection[bytes]],
        is_alone: bool,
    ) -> None:
        self._context = context
        self._database = database
        self._register = register
        self._fellows = fellows
        self._is_alone = is_alone
        self._environment = context.environment
        self._incarnation = context.incarnation
        self._task: asyncio.Task[None] | None = None
        self._known = b""  # The declaration as it was read last.
        self._asked_at = context.environment.monotonic()
        self._left = register.left_alone(DECLARATION)  # That of this store while it was alone, until the members have one.
        self._learnt_ms = context.environment.now_ms()
        self.declared: Declaration | None = None
        self.shipper: Shipper | None = None
        """Ships to the place that is declared; None: it has not begun."""
        self._trouble = ""
        self.answers: Answers = {ReadBackup: self._read, DeclareBackup: self._declare}

    def start(self) -> None:
        """Begin to ship, on the running loop."""
        self._task = self._context.upkeep.begin(self._run(), "backup")

    async def stop(self) -> None:
        """End the task. What is under way is shipped again by the next node. Stopping twice is allowed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # ── requests ──────────────────────────────────────────────────────────────

    async def _read(self, _request: ReadBackup, _bookmark: Bookmark) -> BackupView:
        return self.view()

    async def _declare(self, request: DeclareBackup, _bookmark: Bookmark) -> BackupView:
        """
        Raises:
            InvalidInput: it is no address.
            Unsupported: this node is encrypted, or writes to no such directory.
            BackupUnreachable, BackupDamaged: the bucket cannot be read, or not written. Nothing was declared.
            BackupConflict: it holds the backup of another cluster. Nothing was declared.
            NoQuorum, OutcomeUnknown, RegisterChanged: as `QuorumRegister.change`.
        """
        check_place(self._context.config, request.url, "backup")
        if request.keep_ms and request.keep_ms < KEEP_MS_MIN:
            raise InvalidInput(
                f"a backup keeps its moments for a day at least ({KEEP_MS_MIN} ms), or for ever (0); got {request.keep_ms} ms. "
                "Nothing was declared.",
                field="keep_ms",
            )
        found = await self._register.read(DECLARATION)
        before = _decoded(found.content)
        cluster = before.cluster if before is not None else self._environment.entropy(CLUSTER_BYTES)
        if self._is_copy(before):
            cluster = self._environment.entropy(CLUSTER_BYTES)  # The original goes on with its own.
        if request.url:
            from shoal.backup.bucket import Bucket
            from shoal.backup.format import CLUSTERS

            store = self._environment.open_bucket(request.url)
            async with tried(request.url, "declared"):
                await Bucket(store, cluster=cluster, now=self._environment.monotonic).refresh()
                await store.put_new(f"{CLUSTERS}{cluster.hex()}", request.url.encode())  # It can be written.
        keep_ms = request.keep_ms
        if keep_ms is None:
            keep_ms = 0 if before is None else before.keep_ms
        declared = msgspec.msgpack.encode(Declaration(_FORMAT, request.url, cluster, self._incarnation.node, keep_ms))
        if declared != found.content:
            await self._register.change(DECLARATION, found.version, declared)
        self._adopt(declared)
        return self.view()

    def view(self) -> BackupView:
        """The backup, as this node knows it."""
        declared = self.declared
        if (
            declared is None and not self._known
        ):  # The first look is yet to come: what was voted on here is most likely in force.
            declared = _decoded(self._register.value_here(DECLARATION).content)
        if declared is None or not declared.url:
            return BackupView("", "" if declared is None else declared.cluster.hex(), "none")
        state: Literal["failing", "behind"] = "failing" if self._trouble else "behind"
        lag_ms = max(1, self._environment.now_ms() - self._learnt_ms)
        view = BackupView(
            *(declared.url, declared.cluster.hex(), state), trouble=self._trouble, lag_ms=lag_ms, keep_ms=declared.keep_ms
        )
        return view if self.shipper is None else self.shipper.told(view)

    # ── shipping ──────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        failures = 0
        while self._context.commit.failed is None:
            try:
                await self.look()
                failures, self._trouble = 0, ""
            except ShoalError as error:
                failures += 1
                if error.message != self._trouble:
                    log(events.BACKUP_TROUBLE, reason=error.message)
                self._trouble = error.message
            except ValueError as error:
                failures, self._trouble = failures + 1, f"the backup cannot be written: {error}"
            await asyncio.sleep(min(SHIP_S * 2 ** min(failures, 8), RETRY_S_MAX))

    async def look(self) -> None:
        """Ship what is due, if this node has the turn or what it holds is late.

        Raises:
            ShoalError: the bucket or the storage cannot be read or written, or this directory is a copy.
        """
        await self._learn()
        if self.declared is None or not self.declared.url or not self._may_ship():
            return
        if self._is_copy(self.declared):
            raise BackupConflict(
                f"this directory is a copy of the one that declared the backup at {self.declared.url}, which may ship there. "
                "Nothing is shipped. Declare another place for this one: shoal backup init URL",
                cluster=self.declared.cluster.hex(),
            )
        check_place(self._context.config, self.declared.url, "backup")
        if self.shipper is None:
            # Imported here, because most stores have no backup, and start sooner without this.
            from shoal.node.backup.shipper import Shipper

            bucket = self._environment.open_bucket(self.declared.url)
            self.shipper = Shipper(
                *(self._context, self._database, bucket),
                cluster=self.declared.cluster,
                fellows=self._fellows,
                keep_ms=self.declared.keep_ms,
            )
        await self.shipper.look()

    # ── the declaration ───────────────────────────────────────────────────────

    async def _learn(self) -> None:
        """Learn where to ship. The register is asked if this member voted on a declaration that it does not know; or now and
        then: others may have voted while it was away.
        """
        here = self._register.value_here(DECLARATION).content
        if self._left:
            with suppress(NoQuorum, RegisterChanged, OutcomeUnknown):  # The next look goes by what is there then.
                found = await self._register.read(DECLARATION)
                if not found.content:
                    await self._register.change(DECLARATION, found.version, self._left)
                self._adopt(found.content or self._left)
                self._left = b""
            return
        now = self._environment.monotonic()
        is_due = not self._is_alone and now - self._asked_at >= DECLARED_ASK_S and self._register.is_founded
        if (here == self._known or not here) and not is_due:
            return
        self._asked_at = now
        with suppress(NoQuorum):  # What was voted on here is most likely in force; it is asked again later.
            self._adopt((await self._register.read(DECLARATION)).content)
            return
        if self.declared is None:
            self.declared = _decoded(here)

    def _adopt(self, content: bytes) -> None:
        if content != self._known:
            self._known, self.declared, self.shipper, self._trouble = content, _decoded(content), None, ""
            self._learnt_ms = self._environment.now_ms()

    def _is_copy(self, declared: Declaration | None) -> bool:
        return declared is not None and self._is_alone and declared.node != self._incarnation.node

    def _may_ship(self) -> bool:
        """Whether what this node holds is the cluster's: it is a member, and knows what that holds."""
        incarnation = self._incarnation
        learns = incarnation.learner and not self._is_alone
        return not (incarnation.barred or incarnation.unproven or incarnation.fence or learns)


def _decoded(content: bytes) -> Declaration | None:
    if not content:
        return None
    try:
        return msgspec.msgpack.decode(content, type=Declaration)
    except ValueError:
        return None  # Of a newer version: this node ships nothing.


@asynccontextmanager
async def tried(url: str, what: str) -> AsyncIterator[None]:
    """Try a bucket, before an address is recorded: its errors say that nothing was `what`, and come before a client gives up.

    Raises:
        BackupUnreachable: it cannot be reached, or did not answer in `TRIED_S`.
    """
    try:
        async with asyncio.timeout(TRIED_S):
            yield
    except TimeoutError:
        raise BackupUnreachable(
            f"the store of {url} did not answer within {TRIED_S:g} s. Nothing was {what}. Check the address, and from this "
            "node's machine the network."
        ) from None
    except BackupUnreachable as error:
        error.message = error.message.replace(UNHARMED, f"Nothing was {what}.")
        error.args = (error.message,)
        raise


def check_place(config: Config, url: str, what: str) -> None:
    """
    Raises:
        InvalidInput: the address is too long.
        Unsupported: a node that is so configured may write no such directory. `what` would be written, for people.
    """
    if len(url) > _URL_CHARS_MAX:
        raise InvalidInput(f"the address of a {what} has {_URL_CHARS_MAX} characters at most. Nothing was declared.")
    parts = urlsplit(url)
    if parts.scheme != "file" or not (config.token_keys or config.oidc_issuers):
        return  # Whoever reaches a node without tokens may do all that its user may.
    path = PurePosixPath(unquote(parts.path))
    allowed = [each.strip() for each in config.backup_directories.split(",") if each.strip()]
    if ".." in path.parts or not any(path.is_relative_to(each) for each in allowed):
        raise Unsupported(
            f"this node may write no {what} to {url[:_SHOWN_CHARS]}. Nothing was declared or written. A node that asks for "
            f"tokens writes below the directories of its setting backup_directories only ({', '.join(allowed) or 'none'}): "
            "start each node with SHOAL_BACKUP_DIRECTORIES=/mnt/backup, or name a bucket."
        )
