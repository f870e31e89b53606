"""A rebuild: the survivors of a lost majority found the register and the epoch of the members anew.

    look      asks all linked members what they hold, and shows what would be kept, given up, and maybe lost
    rebuild   halts them all, and founds what they then hold

Laws:
- Nothing is decided in the new epoch before every survivor that was shown has halted: what they told does not change
  until they begin with the foundation. If one has changed meanwhile, nothing is founded.
- The record of the new epoch and the votes of a directory are written together.
- A member that is halted adopts no record of that epoch or an earlier one but with the foundation, until its halt is over.
- A member that sees that the register has a quorum is not halted by the word of another one, and takes no founding that
  contradicts what it holds (`rebuilds.why_refused`).
- Copies of all members found the register without an operator, if they are whole (`why_not_whole`) and none of them has met
  a directory of which one is a copy: it may still vote somewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress

from shoal.cluster.consensus.ballots import ID_BYTES, Value
from shoal.cluster.consensus.recovery import why_not_whole
from shoal.cluster.membership import epochs
from shoal.cluster.membership import notices as rebuilds
from shoal.cluster.membership.epochs import Record
from shoal.cluster.membership.notices import MET_MAX, Founded, Founding, Inquiry, RebuildNotice, Report
from shoal.errors import InvalidInput, NotAMember, OutcomeUnknown, ShoalError, Unavailable
from shoal.logs import events
from shoal.logs.lines import log
from shoal.node.consensus.condition import foundation_of
from shoal.node.consensus.quorum_register import QuorumRegister
from shoal.node.context import NodeContext
from shoal.node.membership.changes import Sight
from shoal.node.membership.roster import Roster
from shoal.records import NamedTuple

_HALTED = 4  # How long a member stays halted, in times of `quorum_timeout_s`: longer than its rebuild takes.


class Survey(NamedTuple):
    """The findings: the members that would be kept, and the record in which they are members."""

    record: Record
    kept: dict[str, Report]
    gone: dict[bytes, str]  # The directories that are known to be nobody's here, and their addresses.
    silent: list[str]  # Members that have a link, and did not answer.

    @property
    def plan(self) -> str:
        """Names what was found."""
        return rebuilds.plan_of(self.record, self.kept)

    @property
    def given_up(self) -> list[str]:
        """The members that did not answer."""
        return [member for member in self.record.electorate.members if member not in self.kept]

    @property
    def why_not(self) -> str:
        """Why there is nothing to rebuild, or not yet, for people; empty if there is."""
        if self.silent:
            return f"{', '.join(self.silent)} can be reached and does not answer: update or restart it, and look again"
        return (
            "the register has a quorum, so there is nothing to rebuild" if rebuilds.has_quorum(self.record, self.kept) else ""
        )

    @property
    def whole(self) -> str:
        """Why these are not whole copies of all members that nobody uses; empty if they are."""
        if self.record.change is not None:
            return f"`shoal cluster {self.record.change.told}` was under way"
        remains = {address: report.remains for address, report in self.kept.items()}
        met = {node for report in self.kept.values() for node in report.met}
        alive = [address for address, each in remains.items() if each.voter in met]
        if alive:
            return f"the directory of which that of {alive[0]} is a copy is in use"
        return why_not_whole(remains, self.record.members)


class Rebuilding:
    """Rebuilds, as one node takes part in them. `heard`, `refused` and `tick` are called by the node's replicator."""

    def __init__(self, context: NodeContext, roster: Roster, register: QuorumRegister, sight: Sight) -> None:
        self._roster = roster
        self._register = register
        self._sight = sight
        self._environment = context.environment
        self._config = context.config
        self._asked = b""  # The id of the inquiry whose answers are awaited.
        self._reports: dict[str, Report] = {}
        self._founded: dict[str, str] = {}  # By address: empty, or why it does not take the founding.
        self._stirred = asyncio.Event()
        self._halted: tuple[int, bytes, float] | None = None  # The epoch, the inquiry, and until when.
        self._met: dict[bytes, None] = {}
        self._away: dict[str, float] = {}  # By address: since when there is no link.
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._next_look: float | None = None
        self.trouble = ""
        """Why copies of all members do not found the register by themselves, for people."""

    # ── what operators ask for ────────────────────────────────────────────────

    async def look(self) -> Survey:
        """The remains of the register, and of the members.

        Raises:
            NotAMember: this node is none.
        """
        async with self._turn:
            return await self._look(epoch=0)

    async def rebuild(self, plan: str, *, unseen_ms: int) -> Record:
        """Found the register and the epoch anew, if what is left is still what the plan names.

        Leases that only lost members know of may last for another `unseen_ms`.

        Raises:
            InvalidInput: the register has a quorum, or what is left has changed; nothing was written.
            Unavailable: a member that has a link did not answer; nothing was founded. Look again.
            OutcomeUnknown: not all survivors said that they have the founding on disk.
            NotAMember: this node is no member.
        """
        async with self._turn:
            found = await self._look(epoch=0)
            check_needed(found)
            if plan != found.plan:
                raise InvalidInput(
                    f"what is left has changed: it is {found.plan} now, and not {plan[:32]}. Nothing was written. Look at it "
                    "again with `shoal cluster rebuild`."
                )
            return await self._found(found, unseen_ms=unseen_ms, is_whole=False)

    # ── finding and founding ──────────────────────────────────────────────────

    async def _look(self, *, epoch: int) -> Survey:
        if outside := self._roster.outside:
            raise NotAMember(
                f"{self._roster.own} cannot tell what is left of the cluster: {outside}. Nothing was written. Ask a member."
            )
        self._asked, self._reports = self._environment.entropy(ID_BYTES), {}
        inquiry = Inquiry(self._asked, epoch)
        awaited = dict(self._sight.linked())
        for node in awaited.values():
            self._sight.send(node, inquiry)
        own = await self._answer(inquiry)
        await self._until(lambda: set(awaited) <= set(self._reports))
        reports = {self._roster.own: own, **self._reports}
        record = rebuilds.newest(reports, own=self._roster.own)
        kept = rebuilds.survivors(record, reports)
        if self._roster.own not in kept or not self._roster.is_member:
            raise NotAMember(f"{self._roster.own} is no member of the cluster. Nothing was written. Ask a member.")
        silent = [address for address in awaited if address not in reports and address in record.electorate.members]
        return Survey(record, kept, self._gone(record, kept), silent)

    async def _found(self, found: Survey, *, unseen_ms: int, is_whole: bool) -> Record:
        directories = {address: report.remains.directory for address, report in found.kept.items()}
        drawn = int.from_bytes(self._environment.entropy(4), "big")
        after = max(report.epoch for report in found.kept.values())  # A rebuild that was given up has halted them.
        record = epochs.rebuilt(found.record, directories, gone=found.gone, after=after, drawn=drawn)
        halted = await self._look(epoch=record.epoch)
        told = {address: report for address, report in halted.kept.items() if report.epoch == record.epoch}
        same = {address: report.remains.directory for address, report in told.items()} == directories
        if not same or halted.record != found.record or (is_whole and halted.whole):
            self._give_up(record)
            raise Unavailable(
                "what is left has changed while it was halted, or a survivor did not answer. Nothing was founded. Look at it "
                "again with `shoal cluster rebuild`."
            )
        foundation = foundation_of(
            {address: report.remains for address, report in told.items()},
            id=self._asked,
            shards=self._config.lease_shards,
            own={epochs.KEY: Value(record.epoch, epochs.encode(record), ())},
            unseen_ms=unseen_ms,
        )
        founding = Founding(self._asked, record, foundation)
        self._founded = {}
        linked = self._sight.linked()
        for address in directories.keys() - {self._roster.own}:
            if address in linked:
                self._sight.send(linked[address], founding)
        others = directories.keys() - {self._roster.own}
        await self._until(lambda: others <= self._founded.keys())
        if others and not any(not self._founded.get(address, "none") for address in others):
            self._give_up(record)
            raise Unavailable(
                "no survivor has taken the founding. Nothing was founded. Look again with `shoal cluster rebuild`."
            )
        await self._begin(founding)
        if missing := sorted(address for address in others if self._founded.get(address, "no answer")):
            raise OutcomeUnknown(
                f"epoch {record.epoch} is founded, but {', '.join(missing)} did not say that it has it. If the register stays "
                "without a quorum (`shoal status`), run `shoal cluster rebuild` again."
            )
        log(events.REGISTER_REBUILT, epoch=record.epoch, members=record.members)
        return record

    def _gone(self, record: Record, kept: Mapping[str, Report]) -> dict[bytes, str]:
        """The directories that the survivors go on without, and their addresses."""
        gone: dict[bytes, str] = dict(self._sight.lost())
        for address in record.everyone:
            for node in (record.directories.get(address, b""), self._sight.directory_of(address)):
                gone[node] = address
        for address, report in kept.items():
            gone |= {node: at for at, node in report.record.directories.items()}
            if report.remains.is_copy:
                gone[report.remains.voter] = address
        present = {b"", *(report.remains.directory for report in kept.values())}
        return {node: address for node, address in gone.items() if node not in present}

    async def _begin(self, founding: Founding) -> None:
        """Go on from the founding, once it is durable.

        Raises:
            ReadOnly, StorageFull: storage failed.
            Unavailable: this node was not halted for it, or not any more.
        """
        if self._halted is None or self._halted[:2] != (founding.record.epoch, founding.id):
            raise Unavailable("this node was not halted for this founding, or is not any more. Nothing was written.")

        def entered() -> None:
            self._halted = None
            self._register.rebuilt(founding.foundation)

        self._roster.rebuilt(founding.record, self._register.rows_of(founding.foundation), then=entered)
        try:
            async with asyncio.timeout(self._config.quorum_timeout_s):
                await self._roster.reach(founding.record.epoch)
        except TimeoutError:
            raise OutcomeUnknown("the disk has not taken the founding in time. It may be there after a restart.") from None

    async def _until(self, is_so: Callable[[], bool]) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.quorum_timeout_s):
                while not is_so():
                    self._stirred.clear()
                    await self._stirred.wait()

    # ── what other nodes ask ──────────────────────────────────────────────────

    def heard(self, address: str, node: bytes, notice: RebuildNotice) -> None:
        """Take a message of a member."""
        match notice:
            case Inquiry():
                self._carry_out(self._report(node, notice))
            case Report(id=id) if id == self._asked:
                self._reports[address] = notice
            case Founding():
                self._carry_out(self._take(node, notice))
            case Founded(id=id, refusal=refusal) if id == self._asked:
                self._founded[address] = refusal
        self._stirred.set()

    def defers(self, record: Record) -> bool:
        """Whether this record comes with a founding, or is older than the one for which this node is halted."""
        return self._halted is not None and record.epoch <= self._halted[0]

    def refused(self, node: bytes) -> None:
        """This node took no link of a directory, because another one has its place."""
        self._met.pop(node, None)
        self._met[node] = None
        if len(self._met) > MET_MAX:
            del self._met[next(iter(self._met))]

    async def _report(self, node: bytes, inquiry: Inquiry) -> None:
        with suppress(ShoalError):  # No answer is one that does not count.
            self._sight.send(node, await self._answer(inquiry))

    async def _answer(self, inquiry: Inquiry) -> Report:
        is_later = inquiry.epoch > max(self._roster.epoch, 0 if self._halted is None else self._halted[0])
        if is_later and not self._register.can_decide:
            until = self._environment.monotonic() + _HALTED * self._config.quorum_timeout_s
            self._halted = inquiry.epoch, inquiry.id, until
            await self._register.halt()
        now, view = self._environment.monotonic(), self._sight.view()
        return Report(
            inquiry.id,
            0 if self._halted is None else self._halted[0],
            self._roster.record,
            self._register.remains,
            bool(view.learning),
            view.members[0].operations,
            {member.name: member.ahead for member in view.members[1:] if member.ahead > 0},
            {address: int((now - since) * 1000) for address, since in self._away.items()},
            list(self._met),
        )

    async def _take(self, node: bytes, founding: Founding) -> None:
        refusal = ""
        try:
            members = set(self._roster.record.electorate.members)
            reached = members.intersection(self._sight.linked())
            why = rebuilds.why_refused(founding, self._roster.own, self._register.remains, reached)
            if why:
                raise Unavailable(f"this founding is refused: {why}. Nothing was written. Look again.")
            await self._begin(founding)
        except ShoalError as error:
            log(events.REBUILD_DECLINED, reason=error.message)
            refusal = error.message
        self._sight.send(node, Founded(founding.id, refusal))

    def _carry_out(self, coroutine: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ── by itself ─────────────────────────────────────────────────────────────

    def tick(self, now: float) -> None:
        """Note which members are away, end a halt that is over, and found the register if copies of all members may."""
        linked = self._sight.linked()
        others = [member for member in self._roster.record.electorate.members if member != self._roster.own]
        self._away = {member: self._away.get(member, now) for member in others if member not in linked}
        if self._halted is not None and now >= self._halted[2]:
            self._resume()
        is_first = not others or self._roster.own < min(others)
        if self._away or not is_first or not self._register.remains.is_copy or self._halted is not None:
            self._next_look = None
        elif self._next_look is None:
            self._next_look = now + self._config.quorum_register_found_s
        elif now >= self._next_look and not self._turn.locked():
            self._next_look = now + self._config.quorum_register_found_s
            self._carry_out(self._recover())

    async def _recover(self) -> None:
        """Found the register with the copies of all members, if they are whole."""
        async with self._turn:
            try:
                found = await self._look(epoch=0)
                self.trouble = found.whole
                if not self.trouble:
                    log(events.COPIES_FOUND)
                    await self._found(found, unseen_ms=0, is_whole=True)
            except ShoalError as error:
                self.trouble = error.message
                log(events.COPIES_WAIT, reason=error.message)

    async def stop(self) -> None:
        """Take part in no rebuild any more. Stopping twice is allowed."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _give_up(self, record: Record) -> None:
        """Vote again, unless another member's rebuild has halted this one meanwhile, and counts on it."""
        if self._halted is not None and self._halted[0] == record.epoch:
            self._resume()

    def _resume(self) -> None:
        self._halted = None
        self._register.resume()


def check_needed(found: Survey) -> None:
    """Check that the register has no quorum, and that everybody who is there has answered.

    Raises:
        Unavailable: a member did not answer.
        InvalidInput: the register has a quorum.
    """
    if found.silent:
        raise Unavailable(f"{found.why_not}. Nothing was written.")
    if rebuilds.has_quorum(found.record, found.kept):
        raise InvalidInput(
            "the register has a quorum, so there is nothing to rebuild. Nothing was written. To remove a node that is gone for "
            "good, use `shoal cluster forget` or `shoal cluster replace`."
        )
