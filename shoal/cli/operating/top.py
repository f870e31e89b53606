"""`shoal top`, a node at a glance, again and again: the requests and how long they take, what grows, when the disk is full. And
`shoal usage`: what the disk holds, by space and within one, what keeps the log, and how it grew.

Laws:
- Rates are of two looks at the node's own counts, over the node's seconds between them; a node that was restarted in between
  shows none.
- What the node does not say is shown as unknown, and never as zero.
- One request of each kind is made for each look, however much the node holds.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from shoal.cli.execution import Data, Json, Target, Url, chosen, execute, opened, tls_ca, token_file
from shoal.cli.output import document, emit, is_terminal, line, moment, note, note_empty, plain, shown_bytes, table
from shoal.config import Config
from shoal.protocol.requests import ClusterView, NodeStatus, SpaceUsageView, UsagePoint, UsageView
from shoal.records import NamedTuple

if TYPE_CHECKING:
    from shoal.client.store import Store

_EVERY_S = 2.0
_ROWS = 10
_ANSWER_S = 10.0
_NAME_CHARS_MAX = 32  # Of a space: the table has to fit a terminal.
_CLEAR = "\x1b[H\x1b[2J"


class Look(NamedTuple):
    """The node at one moment."""

    at_s: float  # By this machine's clock that never jumps.
    status: NodeStatus
    cluster: ClusterView
    usage: UsageView
    figures: Mapping[str, Any] | None  # As `GET /v1/cluster/figures`; None: it did not say.


class Asked(NamedTuple):
    """The requests of one kind, since the look before."""

    kind: str
    a_second: float
    errors_a_second: float
    p50_ms: float
    p99_ms: float


def top(
    url: Url = None,
    every: Annotated[float, typer.Option("--every", metavar="SECONDS", min=0.2, help="Between two looks.")] = _EVERY_S,
    once: Annotated[bool, typer.Option("--once", help="Look once, and print it.")] = False,
    json: Json = False,
) -> None:
    """Show a node at a glance, again every two seconds: requests, latencies, the spaces that grow, when the disk is full.

    Example: shoal top --url http://127.0.0.1:7400
    """
    target = chosen(None, url, environment=os.environ)
    if target.url is None:
        raise typer.BadParameter("give the URL of a node with --url.")
    with suppress(KeyboardInterrupt):
        execute(_watched(target, min(every, 1.0) if once else every, is_once=once, json=json))


async def _watched(target: Target, every_s: float, *, is_once: bool, json: bool) -> None:
    async with opened(target) as store:
        before = await _looked(store, target)
        while True:
            await asyncio.sleep(every_s)
            now = await _looked(store, target)
            if json:
                emit(told(before, now))
            else:
                _show(before, now, is_cleared=not is_once)
            if is_once:
                return
            before = now


async def _looked(store: Store, target: Target) -> Look:
    return Look(
        asyncio.get_running_loop().time(),
        await store.status(),
        await store.cluster(),
        await store.usage(limit=_ROWS),
        await _figures(target),
    )


async def _figures(target: Target) -> Mapping[str, Any] | None:
    """The node's latencies and outcomes; None if it cannot be asked for them."""
    # Imported here, because no other command speaks HTTP by itself.
    import aiohttp

    from shoal.tls.contexts import dialling_nodes
    from shoal.transport.keyring import Credentials, from_environment

    assert target.url is not None
    url = target.url.split(",")[0].strip().rstrip("/")
    token = await Credentials(token_file.get() or from_environment(os.environ)).token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    trusted = dialling_nodes(Config(tls_ca=tls_ca.get() or "")) if url.startswith("https") else True
    timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as http,
            http.get(f"{url}/v1/cluster/figures", ssl=trusted) as answer,
        ):
            found: dict[str, Any] = await answer.json()
            return found if answer.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None


def asked(before: Look, now: Look) -> list[Asked] | None:
    """The kinds of requests that were asked most since the look before; None: that is not known."""
    if before.figures is None or now.figures is None or before.status.started_ms != now.status.started_ms:
        return None
    seconds = max(now.at_s - before.at_s, 1e-3)
    earlier = {each["kind"]: each["outcomes"] for each in before.figures["kinds"]}
    rows = []
    for each in now.figures["kinds"]:
        more = {name: count - earlier.get(each["kind"], {}).get(name, 0) for name, count in each["outcomes"].items()}
        total = sum(more.values())
        if total > 0:
            errors = total - more.get("ok", 0)
            rows.append(Asked(each["kind"], total / seconds, errors / seconds, each["ms"]["p50"], each["ms"]["p99"]))
    return sorted(rows, key=lambda row: (-row.a_second, row.kind))[:_ROWS]


def by_space(before: Look, now: Look) -> dict[str, float] | None:
    """Requests a second, by space, since the look before; None: that is not known."""
    if before.figures is None or now.figures is None or before.status.started_ms != now.status.started_ms:
        return None
    seconds, earlier = max(now.at_s - before.at_s, 1e-3), before.figures["spaces"]
    return {name: (count - earlier.get(name, 0)) / seconds for name, count in now.figures["spaces"].items()}


def full_at(usage: UsageView) -> int | None:
    """When the node's disk will be full, in milliseconds since 1970; None: that cannot be said, or is far away."""
    from shoal.node.spaces.growth import full_at_ms  # The node's own; most commands need none of it.

    points = [(point.at_ms, point.free_bytes) for point in usage.points]
    return full_at_ms([*points, (usage.now_ms, usage.free_bytes)], usage.now_ms)


def forecast(usage: UsageView) -> str:
    """When the disk will be full, for people; empty if nothing can be said."""
    at_ms = full_at(usage)
    return "" if at_ms is None else f"full at {moment(at_ms, later=True)} at the rate of the last days"


def told(before: Look, now: Look) -> dict[str, Any]:
    """A look, for machines."""
    rows, spaces = asked(before, now), by_space(before, now)
    return {
        "node": now.cluster.members[0].name,
        "state": now.status.state,
        "members": {member.name: member.state for member in now.cluster.members[1:]},
        "requests": None if rows is None else [row._asdict() for row in rows],
        "requests_by_space": spaces,
        "late_ms": None if now.figures is None else now.figures["late_ms"],
        "disk_bytes": now.usage.disk_bytes,
        "free_bytes": now.usage.free_bytes if now.usage.free_bytes >= 0 else None,
        "full_at_ms": full_at(now.usage),
        "log_bytes": now.usage.log_bytes,
        "spaces": [{"name": space.name, "bytes": space.bytes, "objects": space.objects} for space in now.usage.spaces],
    }


def _show(before: Look, now: Look, *, is_cleared: bool) -> None:
    if is_cleared and is_terminal():
        typer.echo(_CLEAR, nl=False)
    for text in heads(now):
        line(text)
    _rows("asked", asked(before, now))
    shares = by_space(before, now) or {}
    if now.usage.spaces:
        spaces = [
            (
                cut(plain(space.name or "(all others)")),
                _rate(shares.get(space.name)),
                shown_bytes(space.bytes),
                f"{space.objects:,}",
            )
            for space in now.usage.spaces
        ]
        table([("space", "asked/s", "bytes", "objects"), *spaces])


def heads(now: Look) -> list[str]:
    """The node, its members and its disk, in a line each."""
    own, *others = now.cluster.members
    away = [f"{member.name} {member.state}" for member in others if member.state != "linked"]
    because = f": {now.status.reason}" if now.status.reason else ""
    members = f"; away: {', '.join(away)}" if away else f"; all {len(others)} others are linked" if others else ""
    late = "unknown" if now.figures is None else f"{now.figures['late_ms']['p99']:g} ms"
    pending = "unknown" if now.figures is None else f"{now.figures['writes_pending']}"
    free = "unknown" if now.usage.free_bytes < 0 else shown_bytes(now.usage.free_bytes)
    full = forecast(now.usage)
    register = [f"register: {now.status.register}"] if now.status.register else []
    return [
        f"{own.name} {now.status.state}{because}{members}; {now.status.connections} connections",
        *register,
        f"the loop is late by {late} (p99); {pending} writes wait for the disk",
        f"disk {shown_bytes(now.usage.disk_bytes)}, of these the log {shown_bytes(now.usage.log_bytes)}; free {free}"
        + (f"; {full}" if full else ""),
    ]


def _rows(title: str, rows: Sequence[Asked] | None) -> None:
    if rows is None:
        line(f"{title}: unknown")
    elif rows:
        shown = [
            (row.kind, _rate(row.a_second), f"{row.p50_ms:g}", f"{row.p99_ms:g}", _rate(row.errors_a_second)) for row in rows
        ]
        table([(title, "a second", "p50 ms", "p99 ms", "errors/s"), *shown])


def _rate(number: float | None) -> str:
    return "unknown" if number is None else f"{number:.1f}"


def cut(name: str) -> str:
    """A name that leaves room for what stands beside it; `shoal usage` has it whole."""
    return name if len(name) <= _NAME_CHARS_MAX else f"{name[: _NAME_CHARS_MAX - 1]}…"


_LOOK_S, _LOOKS_MAX = 0.5, 60  # Until the rows are counted for the first time.
_DAY_MS = 86_400_000

_View = TypeVar("_View", UsageView, SpaceUsageView)


def usage(
    space: Annotated[
        str | None, typer.Argument(metavar="[SPACE]", help="What is in this space; else all spaces.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=50, help="At most so many rows of each kind.")] = 10,
    data: Data = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Show what a node's disk holds: the largest spaces, or a space's prefixes and objects; what keeps its log; the growth.

    Example: shoal usage --url http://127.0.0.1:7400
    """
    execute(_usage(chosen(data, url, environment=os.environ), space, limit, json=json))


async def _usage(target: Target, space: str | None, limit: int, *, json: bool) -> None:
    async with opened(target) as store:
        if space is None:
            whole = await _counted(lambda: store.usage(limit=limit))
            emit(document(whole) | {"full_at_ms": full_at(whole)}) if json else _show_usage(whole)
        else:
            of_one = await _counted(lambda: store.space(space).usage(limit=limit))
            emit(document(of_one)) if json else _show_space(of_one)


async def _counted(ask: Callable[[], Awaitable[_View]]) -> _View:
    """The answer, once the rows are counted, or the wait was too long."""
    for _ in range(_LOOKS_MAX):
        view = await ask()
        if view.counted_ms or not view.is_counting:
            return view
        await asyncio.sleep(_LOOK_S)
    return view


def _show_usage(view: UsageView) -> None:
    free = "" if view.free_bytes < 0 else f", {shown_bytes(view.free_bytes)} are free"
    line(
        f"disk: {shown_bytes(view.disk_bytes)}{free}{_grown([(point.at_ms, point.disk_bytes) for point in view.points], view)}"
    )
    if full := forecast(view):
        line(full)
    line(
        f"before compression: objects {shown_bytes(view.stored_bytes)}, log {shown_bytes(view.log_bytes)}, indexes "
        f"{shown_bytes(view.index_bytes)}, keys of requests {shown_bytes(view.key_bytes)}"
    )
    for holder in view.log_holders:
        line(
            f"the log waits for {holder.name}, which {'is linked' if holder.linked else 'is not reached'}: at most "
            f"{shown_bytes(holder.bytes)}"
        )
    if view.log_bytes and not view.log_holders:
        line(f"the log waits for no member: operations stay for {view.log_keep_ms / 60_000:,g} min (log_keep_s)")
    _told(view.counted_ms, view.trouble)
    _usage_rows(
        "space",
        [
            (space.name or "(all others)", space.bytes, space.objects, _grown(_paired(view.points, space.history), view))
            for space in view.spaces
        ],
    )
    if len(view.spaces) < view.spaces_in_all:
        line(f"… and {view.spaces_in_all - len(view.spaces):,} spaces more (--limit)")


def _show_space(view: SpaceUsageView) -> None:
    if view.is_empty:
        note_empty(view.space)
    grown = _grown(list(zip(view.times_ms, view.history, strict=True)), view)
    line(f"space {view.space}: {shown_bytes(view.bytes)} in {view.objects:,} objects{grown}")
    _told(view.counted_ms, view.trouble)
    _usage_rows("kind", [(use.kind, use.bytes, use.objects, "") for use in view.kinds])
    _usage_rows(
        "names from",
        [
            (
                use.prefix or "(others)",
                use.bytes,
                use.objects,
                _grown(list(zip(view.times_ms, use.history, strict=False)), view),
            )
            for use in view.prefixes
        ],
    )
    if len(view.prefixes) < view.prefixes_in_all:
        line(f"… and {view.prefixes_in_all - len(view.prefixes):,} beginnings of names more (--limit)")
    if view.largest:
        table([("object", "name", "bytes"), *((each.kind, plain(each.name), shown_bytes(each.bytes)) for each in view.largest)])


def _usage_rows(what: str, rows: Sequence[tuple[str, int, int, str]]) -> None:
    if rows:
        shown = [(plain(name), shown_bytes(size), f"{objects:,}", grown.lstrip("; ")) for name, size, objects, grown in rows]
        table([(what, "bytes", "objects", "growth"), *shown])


def _paired(points: Sequence[UsagePoint], history: Sequence[int]) -> list[tuple[int, int]]:
    return [(point.at_ms, size) for point, size in zip(points, history, strict=False)]


def _grown(history: Sequence[tuple[int, int]], view: UsageView | SpaceUsageView) -> str:
    """The growth of the last day, or of as much of it as is known; else empty."""
    known = [(at_ms, size) for at_ms, size in history if size >= 0 and at_ms >= view.now_ms - _DAY_MS]
    if len(known) < 2:
        return ""
    (since_ms, first), (_, last) = known[0], known[-1]
    hours = (view.now_ms - since_ms) / 3_600_000
    sign = "+" if last >= first else "-"
    return f"; {sign}{shown_bytes(abs(last - first))} in {hours:.1f} h"


def _told(counted_ms: int, trouble: str) -> None:
    if trouble:
        note(f"the rows could not be counted: {trouble}")
    elif not counted_ms:
        note("the rows are still being counted; ask again in some seconds.")
    else:
        line(f"counted at {moment(counted_ms)}")
