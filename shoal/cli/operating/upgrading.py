"""`shoal cluster wait` and `shoal cluster upgrade-check`: when the next node may be stopped, and whether this version may
join: of all members that one URL leads to.

Laws:
- `wait` succeeds only if each other member has told, since it was linked, that it holds what the node held when the command
  began, and the quorum register has begun: one that is away, or has not told, is waited for.
- `upgrade-check` agrees only if each member has answered by itself, and can work with this version. A member that was not
  asked, did not answer, or does not say what it has is a reason against it. One URL leads to all members.
- Neither changes anything.

The members of a cluster from the URLs of some: each is asked, also those that only another one knows.

Laws:
- Each member is asked once: one that answered is known by its id, and one that did not by its address.
- The last of them is reached in `HOPS_MAX` rounds: from a node that waits to be added to a member, and from that to all.
- Beside those that were given, at most as many are asked as a cluster may have members, whatever a node names.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Protocol, TypeVar
from urllib.parse import urlsplit

import typer

from shoal import __version__
from shoal.cli.execution import Json, Target, Url, chosen, execute, failure, opened
from shoal.cli.output import emit, line, table
from shoal.errors import ShoalError
from shoal.protocol.requests import ClusterView, Member, NodeStatus
from shoal.records import NamedTuple

_LOOK_S = 0.25
_ANSWER_S = 10.0  # For one node.
_Within = Annotated[float, typer.Option("--within", metavar="SECONDS", min=0, help="How long to wait.")]


class Seat(NamedTuple):
    """One address, and the answers there."""

    url: str
    status: NodeStatus | None  # None: it did not answer.
    view: ClusterView | None
    trouble: str  # Why it did not answer.

    @property
    def name(self) -> str:
        """The member's own address, if it is known."""
        return asked_at(self.url) if self.view is None else self.view.members[0].name

    @property
    def node(self) -> str:
        """The id of its directory; empty: it did not answer."""
        return "" if self.status is None else self.status.node

    @property
    def members(self) -> Sequence[tuple[str, str]]:
        """The members that it knows: their addresses and ids."""
        found = [] if self.view is None else self.view.members
        return [(member.name, member.node) for member in found if member.part != "removed"]


def wait(url: Url = None, within: _Within = 60.0) -> None:
    """Wait until all members are linked and hold what the node holds now, so that one of them may be stopped.

    Writes may go on: only what the node held when the command began is waited for. It says so when they do, and fails with
    what is missing.

    Example: shoal cluster wait --within 120 --url http://n1:7400
    """
    target = chosen(None, url, environment=os.environ)
    view, missing = execute(_waited(target, within))
    if missing:
        raise failure(f"after {within:g} s: {'; '.join(missing)}. Nothing was changed. Do not stop another node yet.")
    line(together(view))


def together(view: ClusterView) -> str:
    """A sentence for people who wait before they stop the next node."""
    own, *others = view.members
    if not others:
        return f"{own.name} has no other members: nothing is to be waited for"
    return f"all {len(view.members)} members hold what {own.name} held: one of them may be stopped"


async def _waited(target: Target, within_s: float) -> tuple[ClusterView, list[str]]:
    loop = asyncio.get_running_loop()
    ends_at, goal, missing = loop.time() + within_s, None, list[str]()
    async with opened(target) as store:
        while True:
            status, view = await store.status(), await store.cluster()
            goal = goal or view.members[0].vector
            missing = lacking(status, view, goal)
            if not missing or loop.time() >= ends_at:
                return view, missing
            await asyncio.sleep(_LOOK_S)


def lacking(status: NodeStatus, view: ClusterView, goal: Mapping[str, int]) -> list[str]:
    """Why no member may be stopped yet, as this node sees it. `goal`: operations, by origin, that all members shall hold."""
    own = [] if _is_well(status, view) else [f"this node is {status.state}: {status.reason or 'it is catching up'}"]
    register = [f"the quorum register has no quorum: {status.register}"] if status.register else []
    if not status.register_founded and len(view.members) > 1:
        register += ["the quorum register has not begun: it does once all members have been linked for some seconds"]
    change = [f"a change of the members is under way: {view.change}"] if view.change else []
    return [*own, *register, *change, *filter(None, (_lacking(member, goal) for member in view.members[1:]))]


def _is_well(status: NodeStatus, view: ClusterView) -> bool:
    return status.state in ("ready", "stopping") and status.serves and not view.learning


def _lacking(member: Member, goal: Mapping[str, int]) -> str:
    if member.state != "linked":
        return f"{member.name} is not linked{f' ({member.reason})' if member.reason else ''}"
    if not member.told:
        return f"{member.name} has not told what it holds"
    away = sum(max(count - member.vector.get(origin, 0), 0) for origin, count in goal.items())
    return f"{member.name} lacks {away} operations" if away else ""


def upgrade_check(url: Url = None, json: Json = False) -> None:
    """Say whether a node of this version may join a cluster, or take the place of one of its nodes.

    Run the new version's command, with the URL of any member. It asks each member, at the address by which its peers reach it,
    for its version, and the protocols and formats that it has, and fails if one does not fit or does not answer. It changes
    nothing. Give all URLs if you reach the members at other addresses than they each other.

    Example: shoal cluster upgrade-check --url http://n1:7400
    """
    target = chosen(None, url, environment=os.environ)
    urls = named(target.url or "")
    if not urls:
        raise typer.BadParameter("give the URL of a member with --url.")
    against, seats = execute(_judged(urls))
    _show(seats, against, json=json)
    if against:
        more = f" (and {len(against) - 1} more)" if len(against) > 1 else ""
        raise failure(f"this version may not join now: {against[0]}{more}. Nothing was changed.")


async def _judged(urls: Sequence[str]) -> tuple[list[str], list[Seat]]:
    from shoal.node.reads.cluster import (  # It names the engine and the storage, which no other command needs.
        hindrances,
        speaks,
    )

    seats = await followed(await asyncio.gather(*map(_asked, urls)), _asked, urlsplit(urls[0]).scheme or "http")
    against = [f"{seat.name} does not answer: {seat.trouble}" for seat in seats if seat.status is None]
    for seat in seats:
        if seat.status is not None and seat.view is not None:
            against += [f"{seat.name}: {each}" for each in hindrances(speaks(), seat.status.speaks)]
            against += [f"{seat.name}: {each}" for each in lacking(seat.status, seat.view, {})]
    return against + unasked(seats), seats


def unasked(seats: Sequence[Seat]) -> list[str]:
    """The members that nobody asked, by what the others say of them."""
    ids, names = {seat.node for seat in seats}, {seat.name for seat in seats}
    members = {name: node for seat in seats for name, node in seat.members}
    left = [name for name, node in members.items() if node not in ids and name not in names]
    return [f"{name} was not asked: give its URL, too" for name in left]


async def _asked(url: str) -> Seat:
    try:
        async with asyncio.timeout(_ANSWER_S), opened(Target(None, url)) as store:
            return Seat(url, await store.status(), await store.cluster(), "")
    except ShoalError as error:
        return Seat(url, None, None, error.message)
    except TimeoutError:
        return Seat(url, None, None, f"no answer within {_ANSWER_S:g} s")


def _show(seats: Sequence[Seat], against: Sequence[str], *, json: bool) -> None:
    if json:
        nodes = [
            {"name": seat.name, "version": seat.status and seat.status.version, "speaks": seat.status and seat.status.speaks}
            for seat in seats
        ]
        emit({"version": __version__, "may_join": not against, "against": list(against), "members": nodes})
        return
    rows = [("member", "version", "state", "protocol", "of that used")]
    for seat in seats:
        if seat.status is not None:
            spoken = str(seat.status.speaks.get("peers", "unknown"))
            rows.append((seat.name, seat.status.version, seat.status.state, spoken, str(seat.status.together or "unknown")))
    table(rows)
    for reason in against:
        line(f"against it: {reason}")
    for waiting in waiting_features(seats):
        line(waiting)
    if not against:
        line(f"{__version__} may join: upgrade one node, then `shoal cluster wait`, then the next.")


def waiting_features(seats: Sequence[Seat]) -> list[str]:
    """Features that are not switched on yet, because some member is older."""
    newest = max((seat.status.speaks.get("peers", 0) for seat in seats if seat.status is not None), default=0)
    used = min((seat.status.together for seat in seats if seat.status is not None and seat.status.together), default=newest)
    return [f"features of protocol {newest} wait until all members have it; {used} is used"] if used < newest else []


HOPS_MAX = 3
ASKED_MAX = 64  # As many members as a cluster may have.


class Seen(Protocol):
    """A node that was asked, whether or not it answered."""

    @property
    def name(self) -> str:
        """Its own address; of one that did not answer: where it was asked."""

    @property
    def node(self) -> str:
        """The id of its directory; empty: it did not answer."""

    @property
    def members(self) -> Sequence[tuple[str, str]]:
        """The members that it knows: their addresses and ids."""


A = TypeVar("A", bound=Seen)


def asked_at(url: str) -> str:
    """HOST:PORT of a URL, to name a node that did not answer."""
    return urlsplit(url).netloc or url


def named(urls: str) -> list[str]:
    """The URLs of an option."""
    return [url.strip().rstrip("/") for url in urls.split(",") if url.strip()]


async def followed(answers: Sequence[A], ask: Callable[[str], Awaitable[A]], scheme: str) -> list[A]:
    """These answers, and those of the members that they name and that were not asked. `ask` takes a URL, and raises nothing."""
    found, most = list(answers), len(answers) + ASKED_MAX
    for _ in range(HOPS_MAX):
        ids = {each.node for each in found}
        names = {each.name for each in found}
        others = {name for each in found for name, node in each.members if node not in ids and name not in names}
        found += await asyncio.gather(*(ask(f"{scheme}://{name}") for name in sorted(others)[: most - len(found)]))
    return found
