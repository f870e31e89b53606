"""`shoal retention` and `shoal redaction`: standing rules of a space: docs/RETENTION.md, docs/REDACTION.md."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from shoal.cli.arguments import age_of
from shoal.cli.execution import agreed, execute
from shoal.cli.options import PANEL, DryRun, KeepLast, OlderThan, Prefix, Yes
from shoal.cli.output import emit, line, shown_bytes
from shoal.cli.replies import document
from shoal.cli.target import Data, Json, Target, Url, chosen, opened
from shoal.errors import InvalidInput
from shoal.kinds.redaction.flows import PatternToSet
from shoal.kinds.redaction.handle import SpaceRedaction
from shoal.kinds.retention.flows import Retained
from shoal.kinds.retention.handle import SpaceRetention
from shoal.protocol.requests import RedactionRules, RedactionTried, RetentionRule, RetentionRules

Space = Annotated[str, typer.Argument(metavar="SPACE", help="The space.", show_default=False)]
Threads = Annotated[
    str | None,
    typer.Option("--threads-older-than", metavar="AGE", help="Whole threads to which nothing was written for so long."),
]
Events = Annotated[str | None, typer.Option("--events-older-than", metavar="AGE", help="Events of journals older than this.")]
Labelled = Annotated[
    bool,
    typer.Option("--keep-labelled", help="Keep whole threads that have a labelled checkpoint. Those checkpoints stay anyway."),
]

Texts = Annotated[list[str], typer.Argument(metavar="TEXT…", help="Texts to try.", show_default=False)]
Credentials = Annotated[
    bool,
    typer.Option("--credentials", help="Keys and tokens of known services, private keys, passwords in URLs."),
]
Cards = Annotated[bool, typer.Option("--cards", help="Numbers of payment cards, also those that are numbers.")]
Patterns = Annotated[
    list[str] | None,
    typer.Option("--pattern", metavar="NAME=REGEX", help="A regular expression in RE2's syntax; may be given several times."),
]
Numbers = Annotated[
    list[str] | None,
    typer.Option("--numbers", metavar="NAME", help="The pattern of this name looks at numbers, too."),
]
Replace = Annotated[
    list[str] | None,
    typer.Option(
        "--replace",
        metavar="NAME=TEXT",
        help="The text in the place of a pattern's matches; without NAME=, of all patterns. Without it: [NAME].",
    ),
]
Hooks = Annotated[
    list[str] | None,
    typer.Option("--hook", metavar="NAME", help="A hook of the nodes, which sees all texts; may be given several times."),
]
Files = Annotated[bool, typer.Option("--files", help="Take files, which nothing looks into; else they are refused.")]

_SHOWN_MAX = 20  # Threads that a person is shown.


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    group = typer.Typer(no_args_is_help=True, help="Standing rules: which checkpoints, events and threads of a space may go.")
    group.command("set")(set_rule)
    group.command("show")(show_rules)
    group.command("unset")(unset_rule)
    group.command("run")(run_rules)
    app.add_typer(group, name="retention", rich_help_panel=PANEL)
    group = typer.Typer(no_args_is_help=True, help="What is replaced in the writes of a space before they are stored.")
    group.command("set")(set_redaction)
    group.command("show")(show_redaction)
    group.command("unset")(unset_redaction)
    group.command("test")(try_redaction)
    app.add_typer(group, name="redaction", rich_help_panel=PANEL)


def set_rule(
    space: Space,
    prefix: Prefix = "",
    keep_last: KeepLast = None,
    older_than: OlderThan = None,
    threads_older_than: Threads = None,
    events_older_than: Events = None,
    keep_labelled: Labelled = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    data: Data = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Set a rule, in place of the one of the same prefix: from now on the nodes let go what it lets go.

    --keep-last and --older-than are about the checkpoints of each branch. With both, one goes only if neither keeps it.
    With --dry-run it says what that would be now. Heads, labelled checkpoints, those of open steps and forks always stay.

    Example: shoal retention set crew --keep-last 20 --keep-labelled --older-than 30d --dry-run --data ./state
    """
    bounds: dict[str, Any] = {
        "prefix": prefix,
        "keep_last": keep_last,
        "older_than": None if older_than is None else age_of(older_than),
        "threads_older_than": None if threads_older_than is None else age_of(threads_older_than),
        "events_older_than": None if events_older_than is None else age_of(events_older_than),
        "keep_labelled": keep_labelled,
    }

    async def work(retention: SpaceRetention) -> None:
        if dry_run:
            _show_retained(space, await retention.preview(**bounds), json=json)
        else:
            _show(await retention.set(**bounds, yes=yes), json=json)

    _execute(space, work, data, url)


def show_rules(space: Space, data: Data = None, url: Url = None, json: Json = False) -> None:
    """Show the rules of a space, and what the node did by them.

    Example: shoal retention show crew --data ./state
    """

    async def work(retention: SpaceRetention) -> None:
        _show(await retention.get(), json=json)

    _execute(space, work, data, url)


def unset_rule(
    space: Space, prefix: Prefix = "", dry_run: DryRun = False, data: Data = None, url: Url = None, json: Json = False
) -> None:
    """Remove the rule of a prefix; with --dry-run, show the rules that would be left. What went by it stays gone.

    Example: shoal retention unset crew --data ./state
    """

    async def work(retention: SpaceRetention) -> None:
        _show(await retention.unset(prefix, dry_run=dry_run), json=json)

    _execute(space, work, data, url)


def run_rules(
    space: Space, dry_run: DryRun = False, yes: Yes = False, data: Data = None, url: Url = None, json: Json = False
) -> None:
    """Carry the rules of a space out now; with --dry-run, say what would go.

    Example: shoal retention run crew --dry-run --data ./state
    """
    if not dry_run:
        agreed(f"Let go what the rules of space {space} let go, on every node, for good?", yes=yes)

    async def work(retention: SpaceRetention) -> None:
        _show_retained(space, await (retention.preview() if dry_run else retention.run()), json=json)

    _execute(space, work, data, url)


def _execute(space: str, work: Callable[[SpaceRetention], Awaitable[None]], data: Path | None, url: str | None) -> None:
    async def run(target: Target) -> None:
        async with opened(target) as store:
            await work(store.space(space).retention)

    execute(run(chosen(data, url, environment=os.environ)))


def _show(view: RetentionRules, *, json: bool) -> None:
    if json:
        emit(document(view))
        return
    if not view.rules:
        line(f"space {view.space} has no rules: nothing goes by itself")
        return
    for rule in view.rules:
        line(_sentence(rule))
    if not view.is_in_charge:
        line("another node carries them out")
    elif view.waits_for:
        line(f"{view.waits_for}")
    if view.checkpoints or view.threads or view.events or view.due:
        line(
            f"since this node started, by all rules: {view.checkpoints:,} checkpoints, {view.events:,} events and "
            f"{view.threads:,} threads went, {shown_bytes(view.bytes)}; {view.due:,} are due"
        )


def _sentence(rule: RetentionRule) -> str:
    where = f"threads {rule.prefix}*" if rule.prefix else "all threads"
    if rule.trouble:
        return f"{where}: nothing goes, because {rule.trouble}"
    parts: list[str] = []
    if rule.keep_last is not None or rule.older_than_ms is not None:
        last = "" if rule.keep_last is None else f"keep the last {rule.keep_last:,} checkpoints of a branch"
        age = "" if rule.older_than_ms is None else _span(rule.older_than_ms)
        both = f"{last}, and what is younger than {age}" if age else last
        parts.append(both if last else f"checkpoints go that are older than {age}")
    if rule.events_older_than_ms is not None:
        parts.append(f"events go after {_span(rule.events_older_than_ms)}")
    if rule.threads_older_than_ms is not None:
        unless = " unless they have a label" if rule.keep_labelled else ""
        parts.append(f"whole threads go {_span(rule.threads_older_than_ms)} after the last write{unless}")
    others = f" (and what {rule.rivals} other rules keep that were set at the same time)" if rule.rivals else ""
    return f"{where}: {'; '.join(parts)}{others}"


def _show_retained(space: str, found: Retained, *, json: bool) -> None:
    if json:
        emit(msgspec.to_builtins(found))
        return
    goes = "would go" if found.dry_run else "went"
    for each in found.by_thread[:_SHOWN_MAX]:
        whole = "all of it: " if each.deletes else ""
        line(f"{each.thread}  {whole}{each.checkpoints:,} checkpoints, {each.events:,} events, {shown_bytes(each.bytes)}")
    if len(found.by_thread) > _SHOWN_MAX:
        line(f"… and {len(found.by_thread) - _SHOWN_MAX:,} threads more (--json lists them all)")
    line(
        f"of {found.looked_at:,} threads of space {space}, {found.checkpoints:,} checkpoints, {found.events:,} events and "
        f"{found.threads:,} whole threads {goes}: {shown_bytes(found.bytes)}"
    )
    if found.leaves_nothing and found.dry_run:
        line("nothing but heads would be left, or no thread: setting such a rule takes --yes")


def _span(ms: int) -> str:
    """A duration as an option takes it."""
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m")):
        if ms and ms % size == 0:
            return f"{ms // size:,}{unit}"
    return f"{ms / 1000:,g}s"


# ── redaction ────────────────────────────────────────────────────────────


def set_redaction(
    space: Space,
    credentials: Credentials = False,
    cards: Cards = False,
    pattern: Patterns = None,
    replace: Replace = None,
    numbers: Numbers = None,
    hook: Hooks = None,
    files: Files = False,
    data: Data = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Set the rules of a space, in place of those that are there: from now on its writes are stored with replacements.

    Example: shoal redaction set crew --credentials --pattern mail='[a-z.]+@[a-z.]+' --data ./state
    """

    async def work(redaction: SpaceRedaction) -> None:
        patterns = _patterns(pattern, replace, numbers)
        found = await redaction.set(credentials=credentials, cards=cards, patterns=patterns, hooks=hook or (), files=files)
        _show_redaction(found, json=json)

    _redacting(space, work, data, url)


def show_redaction(space: Space, data: Data = None, url: Url = None, json: Json = False) -> None:
    """Show the rules of a space, and how much the node replaced and refused.

    Example: shoal redaction show crew --data ./state
    """

    async def work(redaction: SpaceRedaction) -> None:
        _show_redaction(await redaction.get(), json=json)

    _redacting(space, work, data, url)


def unset_redaction(
    space: Space, dry_run: DryRun = False, yes: Yes = False, data: Data = None, url: Url = None, json: Json = False
) -> None:
    """Take the rules of a space away: from now on its writes are stored as they are. What was replaced stays so.

    Example: shoal redaction unset crew --yes --data ./state
    """
    if not dry_run:
        agreed(f"Store what is written to space {space} as it is, from now on?", yes=yes)

    async def work(redaction: SpaceRedaction) -> None:
        _show_redaction(await (redaction.get() if dry_run else redaction.unset()), json=json)

    _redacting(space, work, data, url)


def try_redaction(
    space: Space,
    texts: Texts,
    credentials: Credentials = False,
    cards: Cards = False,
    pattern: Patterns = None,
    replace: Replace = None,
    data: Data = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Show texts as they would be stored: by these rules, or without any, by those of the space. Nothing is written.

    Example: shoal redaction test crew 'my key is AKIAIOSFODNN7EXAMPLE' --credentials --data ./state
    """

    async def work(redaction: SpaceRedaction) -> None:
        patterns = _patterns(pattern, replace, None)
        _show_tried(await redaction.test(*texts, credentials=credentials, cards=cards, patterns=patterns), json=json)

    _redacting(space, work, data, url)


def _redacting(space: str, work: Callable[[SpaceRedaction], Awaitable[None]], data: Path | None, url: str | None) -> None:
    async def run(target: Target) -> None:
        async with opened(target) as store:
            await work(store.space(space).redaction)

    execute(run(chosen(data, url, environment=os.environ)))


def _patterns(given: list[str] | None, replace: list[str] | None, numbers: list[str] | None) -> list[PatternToSet]:
    """The patterns that options say.

    Raises:
        InvalidInput: one has no name, or another option names a pattern that is not given.
    """
    found: dict[str, PatternToSet] = {}
    for each in given or ():
        name, equals, regex = each.partition("=")
        if not equals or not name or not regex:
            raise InvalidInput(f"--pattern takes NAME=REGEX; got {each[:80]!r}. Nothing was written.")
        found[name] = PatternToSet(name, regex, None, name in (numbers or ()))
    if unknown := [name for name in numbers or () if name not in found]:
        raise InvalidInput(f"--numbers names a pattern that is not given: {unknown[0][:80]!r}. Nothing was written.")
    for each in replace or ():
        name, equals, text = each.partition("=")
        named = [name] if equals and name in found else list(found)
        for one in named:
            found[one] = PatternToSet(one, found[one].regex, text if named == [name] else each, found[one].numbers)
    return list(found.values())


def _show_redaction(view: RedactionRules, *, json: bool) -> None:
    if json:
        emit(document(view))
        return
    if view.trouble:
        line(f"space {view.space}: nothing can be written at this node: {view.trouble}")
    elif not (view.credentials or view.cards or view.patterns or view.hooks):
        line(f"space {view.space} has no rules: what is written is stored as it is")
    else:
        for sentence in _redactions(view):
            line(sentence)
    if view.replaced or view.refused:
        line(f"since this node started, in all spaces: {view.replaced:,} places replaced, {view.refused:,} writes refused")


def _redactions(view: RedactionRules) -> list[str]:
    found = ["credentials: keys, tokens and passwords of known forms"] if view.credentials else []
    found += ["cards: numbers of payment cards"] if view.cards else []
    for each in view.patterns:
        where = ", in numbers too" if each.numbers else ""
        found.append(f"{each.name}: {each.regex} becomes {each.replace!r}{where}")
    found += [f"hook {name}: sees all texts" for name in view.hooks]
    found.append("files are taken, and not looked into" if view.files else "files are refused")
    return found + ([f"{view.rivals} other rules were set at the same time, and hold as well"] if view.rivals else [])


def _show_tried(found: RedactionTried, *, json: bool) -> None:
    if json:
        emit(document(found))
        return
    for text in found.texts:
        line(text)
    for each in found.replaced:
        line(
            f"text {int(each.path) + 1}: {each.count} × {each.rule}" if each.path.isdecimal() else f"{each.count} × {each.rule}"
        )
    if not found.replaced:
        line("nothing is replaced")
