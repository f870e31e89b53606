"""`shoal usage`: what the disk of a node holds, by space and within one, what keeps its log, and how it grew."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, TypeVar

import typer

from shoal.cli.execution import execute
from shoal.cli.operating.top import forecast, full_at
from shoal.cli.output import document, emit, line, moment, note, note_empty, plain, shown_bytes, table
from shoal.cli.target import Data, Json, Target, Url, chosen, opened
from shoal.protocol.requests import SpaceUsageView, UsagePoint, UsageView

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
            emit(document(whole) | {"full_at_ms": full_at(whole)}) if json else _show(whole)
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


def _show(view: UsageView) -> None:
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
    _rows(
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
    _rows("kind", [(use.kind, use.bytes, use.objects, "") for use in view.kinds])
    _rows(
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


def _rows(what: str, rows: Sequence[tuple[str, int, int, str]]) -> None:
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
