"""`shoal redaction`: what is replaced in the writes of a space before they are stored: docs/REDACTION.md."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.arguments import PANEL, DryRun, Yes
from shoal.cli.execution import Data, Json, Target, Url, agreed, chosen, execute, opened
from shoal.cli.output import document, emit, line, note, note_empty
from shoal.errors import InvalidInput
from shoal.kinds.redaction.flows import PatternToSet
from shoal.kinds.redaction.handle import SpaceRedaction
from shoal.protocol.requests import RedactionRules, RedactionTried

Space = Annotated[str, typer.Argument(metavar="SPACE", help="The space.", show_default=False)]
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


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    group = typer.Typer(no_args_is_help=True, help="What is replaced in the writes of a space before they are stored.")
    group.command("set")(set_rules)
    group.command("show")(show_rules)
    group.command("unset")(unset_rules)
    group.command("test")(try_rules)
    app.add_typer(group, name="redaction", rich_help_panel=PANEL)


def set_rules(
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
        _show_rules(found, json=json)

    _execute(space, work, data, url)


def show_rules(space: Space, data: Data = None, url: Url = None, json: Json = False) -> None:
    """Show the rules of a space, and how much the node replaced and refused.

    Example: shoal redaction show crew --data ./state
    """

    async def work(redaction: SpaceRedaction) -> None:
        _show_rules(await redaction.get(), json=json)

    _execute(space, work, data, url)


def unset_rules(
    space: Space, dry_run: DryRun = False, yes: Yes = False, data: Data = None, url: Url = None, json: Json = False
) -> None:
    """Take the rules of a space away: from now on its writes are stored as they are. What was replaced stays so.

    Example: shoal redaction unset crew --yes --data ./state
    """
    if not dry_run:
        agreed(f"Store what is written to space {space} as it is, from now on?", yes=yes)

    async def work(redaction: SpaceRedaction) -> None:
        _show_rules(await (redaction.get() if dry_run else redaction.unset()), json=json)

    _execute(space, work, data, url)


def try_rules(
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

    Hooks are not asked.

    Example: shoal redaction test crew 'my key is AKIAIOSFODNN7EXAMPLE' --credentials --data ./state
    """

    async def work(redaction: SpaceRedaction) -> None:
        patterns = _patterns(pattern, replace, None)
        _show_tried(await redaction.test(*texts, credentials=credentials, cards=cards, patterns=patterns), json=json)
        is_own = credentials or cards or patterns
        if not is_own and (hooks := (await redaction.get()).hooks):
            note(f"a test asks no hook, and the rules of space {space!r} have some, which see each write: {', '.join(hooks)}")

    _execute(space, work, data, url)


def _execute(space: str, work: Callable[[SpaceRedaction], Awaitable[None]], data: Path | None, url: str | None) -> None:
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
        if equals and name not in found:
            raise InvalidInput(
                f"--replace names a pattern that is not given: {name[:80]!r}. Nothing was written. Give NAME=TEXT; a text for "
                "all patterns has no =."
            )
        if not found:
            raise InvalidInput("--replace is for a --pattern, and none is given. Nothing was written.")
        named = [name] if equals and name in found else list(found)
        for one in named:
            found[one] = PatternToSet(one, found[one].regex, text if named == [name] else each, found[one].numbers)
    return list(found.values())


def _show_rules(view: RedactionRules, *, json: bool) -> None:
    if json:
        emit(document(view))
        return
    if view.is_empty:
        note_empty(view.space)
    if view.trouble:
        line(f"space {view.space}: nothing can be written at this node: {view.trouble}")
    elif not (view.credentials or view.cards or view.patterns or view.hooks):
        line(f"space {view.space} has no rules: what is written is stored as it is")
    else:
        for sentence in _sentences(view):
            line(sentence)
    if view.replaced or view.refused:
        line(f"since this node started, in all spaces: {view.replaced:,} places replaced, {view.refused:,} writes refused")


def _sentences(view: RedactionRules) -> list[str]:
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
