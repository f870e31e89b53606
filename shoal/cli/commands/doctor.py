"""`shoal doctor`: what is wrong with a server, a cluster or a directory, and the command that mends it.

Laws:
- Every member is asked, once and all at once, and none is waited for longer than `ASK_S`, unless nobody answers: a node that is
  busy answers within `BUSY_S`. One URL leads to all members.
- "Nothing is wrong" is said only if every member answered and knew each condition of the table. What could not be asked, or is
  not known, is named otherwise.
- What several members say in the same words is told once, with their names.
- A command goes to a node that answered and is a member: the first that told of it, or another one.
- It changes nothing. A directory is opened for it, as by any command with --data.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import urlsplit

import msgspec
import typer

from shoal.cli.arguments import PANEL
from shoal.cli.execution import FAILED, Data, Json, Target, Url, chosen, execute, failure, opened
from shoal.cli.operating.upgrading import asked_at, followed, named
from shoal.cli.output import ago, emit, line
from shoal.errors import ShoalError
from shoal.protocol.requests import ConditionsView, StandingCondition
from shoal.records import NamedTuple

ASK_S = 1.2  # For one member.
BUSY_S = 10.0  # If none has answered by then.
UNSURE = 3
"""The exit code if nothing was found, and not everything could be looked at, or nothing at all."""


class Asked(NamedTuple):
    """One member's answer."""

    name: str  # Its address; of a directory its path.
    url: str = ""  # Where it was asked; of a directory nothing.
    view: ConditionsView | None = None
    members: Sequence[tuple[str, str]] = ()  # Those that it knows: their addresses and ids.
    why: str = ""  # Why it did not answer.
    is_silent: bool = False  # It may still answer.

    @property
    def node(self) -> str:
        """The id of its directory; empty: it did not answer."""
        return "" if self.view is None else self.view.node

    @property
    def is_member(self) -> bool:
        """It answered, and is no node that its cluster does not have, which can mend nothing."""
        return self.view is not None and all(each.name != "no-member" for each in self.view.standing)


class Told(NamedTuple):
    """A finding, and the members that told it."""

    each: StandingCondition
    by: tuple[str, ...]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(rich_help_panel=PANEL)(doctor)


def doctor(data: Data = None, url: Url = None, json: Json = False) -> None:
    """Say what is wrong with a server, all members of its cluster, or a directory, and the command that mends it.

    The exit code is 0 if nothing is, 1 if something needs care, and 3 if not everything, or nothing, could be looked at.

    Example: shoal doctor --url http://127.0.0.1:7400
    """
    execute(_doctor(chosen(data, url, environment=os.environ), json=json))


async def _doctor(target: Target, *, json: bool) -> None:
    try:
        answers = await (_of_directory(target) if target.url is None else _of_cluster(target.url))
    except ShoalError as error:
        raise failure(error.message, code=UNSURE) from None
    told = [Told(_placed(each, _where(target, by, answers)), by) for each, by in _gathered(answers)]
    unsure = _unsure(answers)
    if json:
        emit(_document(answers, told, unsure))
    else:
        _show(answers, told, unsure)
    if any(each.severity != "note" for each, _ in told):
        raise typer.Exit(FAILED)
    if unsure:
        raise typer.Exit(UNSURE)


# ── asking ────────────────────────────────────────────────────────────────────


async def _of_directory(target: Target) -> list[Asked]:
    async with opened(target) as store:
        return [Asked(str(target.data), view=await store.conditions())]


async def _of_cluster(target_urls: str) -> list[Asked]:
    """Ask the nodes that are named, and then the members that these know and that were not among them."""
    urls = named(target_urls)
    answers = await asyncio.gather(*(_ask(url, ASK_S) for url in urls))
    if all(each.is_silent for each in answers):
        answers = await asyncio.gather(*(_ask(url, BUSY_S) for url in urls))
    if all(each.view is None for each in answers):
        raise _unreachable(answers)
    return await followed(answers, lambda url: _ask(url, ASK_S), urlsplit(urls[0]).scheme or "http")


async def _ask(url: str, within_s: float) -> Asked:
    name = asked_at(url)
    try:
        async with asyncio.timeout(within_s), opened(Target(None, url)) as store:
            view, cluster = await asyncio.gather(store.conditions(), store.cluster())
    except TimeoutError:
        return Asked(name, url, why=f"it did not answer within {within_s:g} s", is_silent=True)
    except ShoalError as error:
        return Asked(name, url, why=error.message)
    members = [(member.name, member.node) for member in cluster.members if member.part != "removed"]
    return Asked(view.name or name, url, view, members)


def _unreachable(answers: Sequence[Asked]) -> ShoalError:
    return ShoalError("nobody could be asked: " + "; ".join(f"{each.name}: {each.why}" for each in answers))


# ── what it comes to ──────────────────────────────────────────────────────────


def _gathered(answers: Sequence[Asked]) -> list[tuple[StandingCondition, tuple[str, ...]]]:
    found: dict[tuple[str, str], tuple[StandingCondition, list[str]]] = {}
    for answer in answers:
        for each in answer.view.standing if answer.view is not None else ():
            # About a member, or in the same words: the same thing. Else each node's own.
            place = (each.name, each.about or each.says)
            found.setdefault(place, (each, []))[1].append(answer.name)
    order = {"page": 0, "ticket": 1, "note": 2}
    return sorted(((each, tuple(by)) for each, by in found.values()), key=lambda told: order[told[0].severity])


def _where(target: Target, by: Sequence[str], answers: Sequence[Asked]) -> str:
    """The option with which a command reaches a node that can mend what `by` told."""
    if target.url is None:
        return f"--data {target.data}"
    members = [each for each in answers if each.is_member]
    tellers = [each for each in members if each.name in by]
    return next((f"--url {each.url}" for each in [*tellers, *members]), "--url URL")


def _placed(each: StandingCondition, where: str) -> StandingCondition:
    """With the address of a node, or the store's own directory, in the command."""
    option, _, place = where.partition(" ")
    scheme = urlsplit(place).scheme or "http"
    mends = each.mends.replace("--url URL", where).replace("--url http://", f"--url {scheme}://")
    return msgspec.structs.replace(each, mends=mends.replace("DIR", place) if option == "--data" else mends)


def _unsure(answers: Sequence[Asked]) -> list[tuple[str, str]]:
    """The members that could not be asked, and the conditions that are not known, each with the reason."""
    found = [(answer.name, answer.why) for answer in answers if answer.view is None]
    for answer in answers:
        for name, why in (answer.view.unknown if answer.view is not None else {}).items():
            found.append((f"{name} at {answer.name}", why))
    return found


def _unsure_lines(unsure: Sequence[tuple[str, str]]) -> list[str]:
    """A line for each reason: a directory that was opened alone has one for nearly all conditions."""
    found: dict[str, list[str]] = {}
    for what, why in unsure:
        found.setdefault(why, []).append(what)
    return [f"not known: {', '.join(whats)}: {why}" for why, whats in found.items()]


def _document(answers: Sequence[Asked], told: Sequence[Told], unsure: Sequence[tuple[str, str]]) -> dict[str, object]:
    return {
        "well": not unsure and all(each.severity == "note" for each, _ in told),
        "asked": [answer.name for answer in answers if answer.view is not None],
        "looked": sorted({name for answer in answers if answer.view is not None for name in answer.view.looked}),
        "conditions": [{**msgspec.structs.asdict(each), "by": list(by)} for each, by in told],
        "unknown": [{"what": what, "why": why} for what, why in unsure],
    }


def _show(answers: Sequence[Asked], told: Sequence[Told], unsure: Sequence[tuple[str, str]]) -> None:
    asked = [answer for answer in answers if answer.view is not None]
    for each, by in told:
        since = ago(
            min(datetime.fromtimestamp(each.since_ms / 1000, UTC), datetime.now(UTC))
        )  # That node's clock may be ahead.
        line(f"{each.severity}: {each.says}")
        tellers = f", told by {', '.join(by)}" if len(answers) > 1 else ""
        line(f"  {each.name}, since {since}{tellers}")
        line(f"  it means: {each.means}")
        line(f"  mend it:  {each.mends}")
        line(f"  read:     docs/{each.page}")
    for text in _unsure_lines(unsure):
        line(text)
    names = ", ".join(answer.name for answer in asked)
    looked = min((len(answer.view.looked) for answer in asked if answer.view is not None), default=0)
    if not told and not unsure:
        line(f"nothing is wrong: {looked} conditions were looked at, at {names}")
    elif not told:
        line(f"nothing was found, but not everything could be looked at: {looked} conditions were, at {names}")
    elif all(each.severity == "note" for each, _ in told) and not unsure:
        line(f"nothing is wrong; {looked} conditions were looked at, at {names}")
