"""Retention of a space: a rule is set, tried and carried out.

Laws:
- A rule that would leave nothing but heads, or no thread, is set only by a caller that says so.
- A trial looks at one thread after the other, and holds the report of one page.
- Of a rule about checkpoints that can let none go, because those of the first threads all have labels, it is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, ClassVar

from msgspec import Struct, field, structs

from shoal.errors import InvalidInput, TooLarge, Unavailable
from shoal.kinds.retention import state
from shoal.kinds.retention.state import Rule
from shoal.names import RESERVED, check_name
from shoal.protocol.base import Http, Named, Positive, Seconds
from shoal.protocol.requests import Durability, PutEntry, ReadRules, RemoveEntry, RetainThread, RetentionRules
from shoal.raising import partly
from shoal.workflows.connection import Connection, Flow
from shoal.workflows.spaces import names

RETENTION_RULES_MAX = 256  # Of one space.
RETENTION_THREADS_MAX = 1000  # Threads that one request looks at; then it answers `more`.
LABELLED_THREADS_MAX = 8  # Threads that say whether a rule about checkpoints can let any go.


class RetainedThread(Struct, frozen=True):
    """One thread under a rule, and the part of it that goes, or went."""

    thread: str
    deletes: bool  # The whole thread.
    checkpoints: int
    events: int
    bytes: int
    stays: dict[str, int]  # Checkpoints, by the reason for which they stay.
    finished: int = 0  # Done items of worklists.


class Retained(Struct, frozen=True):
    """The parts of a space that go by its rules, or went."""

    dry_run: bool
    looked_at: int  # Threads.
    threads: int  # That go whole.
    checkpoints: int  # Those of whole threads included, as for the next two.
    events: int
    bytes: int  # As stored; freed on each node once it is stable.
    leaves_nothing: bool  # Whether no thread of these keeps more than its heads.
    by_thread: list[RetainedThread]  # Threads of which nothing goes are left out.
    more: bool = False  # Ask again with `after`.
    after: str = ""  # The last thread that was looked at.
    finished: int = 0  # Done items of worklists.
    stays: dict[str, int] = field(default_factory=dict)  # Checkpoints of all threads that were looked at, by the reason.


def checked(rule: Rule) -> Rule:
    """A rule that can be recorded.

    Raises:
        InvalidInput: it lets nothing go, or a bound is out of range. Nothing was written.
    """
    check_name("space", rule.space)
    if rule.prefix:
        check_name("thread", rule.prefix)
    if rule.space == RESERVED:
        raise InvalidInput(f"{RESERVED!r} is the space of the nodes themselves, which has no rules. Nothing was written.")
    bounds = {"keep_last": rule.keep_last, "older_than": rule.older_than_ms}
    bounds |= {"threads_older_than": rule.threads_older_than_ms, "events_older_than": rule.events_older_than_ms}
    bounds |= {"finished_older_than": rule.finished_older_than_ms}
    if all(bound is None for bound in bounds.values()):
        raise InvalidInput(f"a rule needs one of {', '.join(bounds)}. Nothing was written. `unset` removes a rule.")
    for name, bound in bounds.items():
        least = 0 if name == "older_than" else 1
        if bound is not None and not least <= bound < state.AGE_MS_MAX:
            raise InvalidInput(f"{name} must be at least {least}; got {bound}. Nothing was written.", field=name)
    return rule


async def set_rule(
    connection: Connection, rule: Rule, *, leave_nothing: bool = False, durability: Durability | None = None
) -> RetentionRules:
    """Set the rule of a space and a prefix, in place of the one that is there. Returns the rules that the node knows then.

    Raises:
        InvalidInput: it lets nothing go; or it would leave nothing but heads, or no thread, and `leave_nothing` is not set.
        TooLarge: the space has `RETENTION_RULES_MAX` rules.
    """
    checked(rule)
    known = await connection.read(ReadRules(rule.space))
    others = [each for each in _rules(known) if each.prefix != rule.prefix]
    if len(others) >= RETENTION_RULES_MAX:
        raise TooLarge(f"a space has at most {RETENTION_RULES_MAX} rules. Nothing was written. Unset one first.")
    if not leave_nothing and await _leaves_nothing(connection, rule, [*others, rule]):
        raise InvalidInput(
            f"this rule would leave nothing but the heads, or no thread at all, of the threads of space {rule.space!r} that it "
            "is about. Nothing was written. Look at it with a dry run; if that is wanted, say so: yes=True, or --yes.",
            field="yes",
        )
    all_labelled = rule.prunes and await _all_labelled(connection, rule, [*others, rule])
    entry = PutEntry(RESERVED, state.RULES, state.key_of(rule.space, rule.prefix), state.packed(rule))
    await connection.write(entry, key=None, durability=durability)
    return structs.replace(await connection.read(ReadRules(rule.space)), all_labelled=all_labelled)


async def unset_rule(
    connection: Connection, space: str, prefix: str = "", *, durability: Durability | None = None
) -> RetentionRules:
    """Remove a rule. One that is set concurrently stays. Returns the rules that are left."""
    check_name("space", space)
    entry = RemoveEntry(RESERVED, state.RULES, state.key_of(space, prefix))
    await connection.write(entry, key=None, durability=durability)
    return await connection.read(ReadRules(space))


async def left_without(connection: Connection, space: str, prefix: str) -> RetentionRules:
    """The rules that would be left if that of a prefix were removed. Nothing is written."""
    known = await connection.read(ReadRules(check_name("space", space)))
    return structs.replace(known, rules=[rule for rule in known.rules if rule.prefix != prefix])


async def carry_out(
    connection: Connection,
    space: str,
    *,
    tried: Rule | None = None,
    dry_run: bool = True,
    after: str = "",
    threads_max: int | None = None,
) -> Retained:
    """Say what goes by the rules of a space, and with `dry_run` off let it go now, at the serving node.

    `tried`: a rule that is to be tried as if it were set; only the threads that it is about are looked at.

    Raises:
        Unavailable: the serving node does not believe its clock. Nothing goes.
        OutcomeUnknown: a part is done. Ask again to do the rest.
    """
    known = await connection.read(ReadRules(check_name("space", space)))
    rules = _rules(known)
    if tried is not None:
        rules = [*(each for each in rules if each.prefix != tried.prefix), checked(tried)]
    elif known.waits_for and not dry_run:
        raise Unavailable(f"{known.waits_for}. Nothing was written.")
    looked_at, found, keeps, stays = 0, list[RetainedThread](), False, Counter[str]()
    async for thread, rule in _threads(connection, space, rules, tried, after):
        if looked_at == threads_max:
            return _summed(found, looked_at, stays, keeps=keeps, dry_run=dry_run, more=True, after=after)
        with partly(found and not dry_run, f"the rules are carried out for {looked_at} threads", "Ask again to do the rest."):
            report = await connection.write(_request(rule, thread, dry_run=dry_run), key=None, durability=None)
        looked_at, after = looked_at + 1, thread
        stays.update(report.stays)
        keeps = keeps or (not report.deletes and bool(report.stays.keys() - {"head"}))
        if report.deletes or report.checkpoints or report.events or report.finished:
            figures = report.checkpoints, report.events, report.bytes
            found.append(RetainedThread(thread, report.deletes, *figures, report.stays, report.finished))
    return _summed(found, looked_at, stays, keeps=keeps, dry_run=dry_run)


def _summed(
    found: list[RetainedThread],
    looked_at: int,
    stays: Mapping[str, int],
    *,
    keeps: bool,
    dry_run: bool,
    more: bool = False,
    after: str = "",
) -> Retained:
    return Retained(
        dry_run,
        looked_at,
        sum(each.deletes for each in found),
        sum(each.checkpoints for each in found),
        sum(each.events for each in found),
        sum(each.bytes for each in found),
        not keeps and any(each.deletes or each.checkpoints for each in found),
        found,
        more,
        after if more else "",
        sum(each.finished for each in found),
        dict(stays),
    )


async def _leaves_nothing(connection: Connection, rule: Rule, rules: list[Rule]) -> bool:
    """Whether a rule would leave nothing but heads, of the threads that are looked at. One that keeps more ends it."""
    if not rule.prunes and rule.threads_older_than_ms is None:
        return False  # It is about events or done items alone.
    goes, looked_at = False, 0
    async for thread, _ in _threads(connection, rule.space, rules, rule, ""):
        if looked_at == RETENTION_THREADS_MAX:
            break
        looked_at += 1
        report = await connection.write(_request(rule, thread, dry_run=True), key=None, durability=None)
        if not report.deletes and report.stays.keys() - {"head"}:
            return False
        goes = goes or report.deletes or report.checkpoints > 0
    return goes


async def _all_labelled(connection: Connection, rule: Rule, rules: list[Rule]) -> bool:
    """Whether no checkpoint of the first threads can ever go by such a rule: each is a head or has a label."""
    stays, looked_at = Counter[str](), 0
    async for thread, _ in _threads(connection, rule.space, rules, rule, ""):
        if looked_at == LABELLED_THREADS_MAX:
            break
        looked_at += 1
        trial = RetainThread(rule.space, thread, keep_last=1, dry_run=True)
        report = await connection.write(trial, key=None, durability=None)
        stays.update(report.stays)
        if report.checkpoints or stays.keys() - {"head", "labelled"}:
            return False
    return stays["labelled"] > 0


async def _threads(
    connection: Connection, space: str, rules: list[Rule], tried: Rule | None, after: str
) -> AsyncIterator[tuple[str, Rule]]:
    """The threads of a space above `after` that have a rule, or have this one."""
    if rules:
        async for thread in names(connection, space, "thread", tried.prefix if tried is not None else "", after=after or None):
            rule = state.rule_of(rules, thread)
            if rule is not None and not rule.trouble and (tried is None or rule.prefix == tried.prefix):
                yield thread, rule


def _request(rule: Rule, thread: str, *, dry_run: bool) -> RetainThread:
    ages = rule.older_than_ms, rule.threads_older_than_ms, rule.events_older_than_ms
    finished_ms = rule.finished_older_than_ms
    return RetainThread(rule.space, thread, rule.keep_last, *ages, rule.keep_labelled, dry_run, finished_ms)


def _rules(view: RetentionRules) -> list[Rule]:
    return [Rule(view.space, **structs.asdict(rule)) for rule in view.rules]


class SetRetentionRule(Flow[RetentionRules], frozen=True):
    """Set a rule of retention, on all nodes, in place of the one of the same prefix."""

    http: ClassVar = (
        Http("PUT", "/retention", "Set a rule of retention of a space", example={"keep_last": 20, "older_than_s": 2_592_000}),
    )

    space: str
    prefix: str = ""  # Of the threads' names.
    keep_last: Positive | None = None  # Checkpoints of each branch.
    older_than_ms: Annotated[Seconds | None, Named("older_than_s")] = None  # Checkpoints; with `keep_last` both must allow it.
    threads_older_than_ms: Annotated[Seconds | None, Named("threads_older_than_s")] = None  # Since the last activity.
    events_older_than_ms: Annotated[Seconds | None, Named("events_older_than_s")] = None  # Of the journals.
    finished_older_than_ms: Annotated[Seconds | None, Named("finished_older_than_s")] = None  # Done items of worklists.
    keep_labelled: bool = False  # Whether a labelled checkpoint keeps its whole thread.
    yes: bool = False  # Set it although it would leave nothing but heads, or no thread.

    async def run(self, connection: Connection, *, key: str | None, durability: Durability) -> RetentionRules:
        """Set it, and read the rules as the serving node knows them then."""
        return await set_rule(connection, _rule(self), leave_nothing=self.yes, durability=durability)


class UnsetRetentionRule(Flow[RetentionRules], frozen=True):
    """Remove a rule of retention, on all nodes."""

    http: ClassVar = (
        Http("DELETE", "/retention", "Remove a rule of retention of a space, or with `dry_run` show which would be left"),
    )

    space: str
    prefix: str = ""  # Of the threads' names.
    dry_run: bool = False  # Only show the rules that would be left.

    async def run(self, connection: Connection, *, key: str | None, durability: Durability) -> RetentionRules:
        """Remove it, and read the rules that are left."""
        if self.dry_run:
            return await left_without(connection, self.space, self.prefix)
        return await unset_rule(connection, self.space, self.prefix, durability=durability)


class CarryOutRetention(Flow[Retained], frozen=True):
    """Let go now what the rules of a space let go, or say what that is; of a bounded number of threads."""

    http: ClassVar = (Http("POST", "/retention/run", "Carry out a space's rules of retention now", example={"dry_run": True}),)

    space: str
    dry_run: bool = False
    after: str = ""  # Go on after this thread.

    async def run(self, connection: Connection, *, key: str | None, durability: Durability) -> Retained:
        """Carry out the rules, thread by thread."""
        return await carry_out(
            connection, self.space, dry_run=self.dry_run, after=self.after, threads_max=RETENTION_THREADS_MAX
        )


class PreviewRetention(Flow[Retained], frozen=True):
    """Say what a rule would let go, if it were set; of a bounded number of threads."""

    http: ClassVar = (Http("POST", "/retention/preview", "What a rule of retention would let go", example={"keep_last": 20}),)

    space: str
    prefix: str = ""  # Of the threads' names.
    keep_last: Positive | None = None  # Checkpoints of each branch.
    older_than_ms: Annotated[Seconds | None, Named("older_than_s")] = None  # Checkpoints; with `keep_last` both must allow it.
    threads_older_than_ms: Annotated[Seconds | None, Named("threads_older_than_s")] = None  # Since the last activity.
    events_older_than_ms: Annotated[Seconds | None, Named("events_older_than_s")] = None  # Of the journals.
    finished_older_than_ms: Annotated[Seconds | None, Named("finished_older_than_s")] = None  # Done items of worklists.
    keep_labelled: bool = False  # Whether a labelled checkpoint keeps its whole thread.
    after: str = ""  # Go on after this thread.

    async def run(self, connection: Connection, *, key: str | None, durability: Durability) -> Retained:
        """Look at the threads that it would be about. Nothing is written."""
        return await carry_out(connection, self.space, tried=_rule(self), after=self.after, threads_max=RETENTION_THREADS_MAX)


def _rule(asked: SetRetentionRule | PreviewRetention) -> Rule:
    bounds = {name: getattr(asked, name) for name in Rule._fields if name in asked.__struct_fields__}
    return Rule(**bounds)
