"""`shoal audit thread`: who did what, and what was known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from shoal.cli.command import Run, Work, in_store
from shoal.cli.finding import SHORT, check_thread
from shoal.cli.options import ThreadName
from shoal.cli.output import Listing, ago, to_text

if TYPE_CHECKING:
    from shoal.client.store import Store


@in_store
def timeline(run: Run, thread: ThreadName) -> Work:
    """Show checkpoints, steps, events and moves in one time line, with the newest checkpoint at each.

    Example: shoal audit thread support-1 --url http://n1:7400
    """

    async def work(store: Store) -> None:
        await check_thread(store, run.space, thread)
        headings = ("age", "what", "by", "knowing", "data")
        with Listing(*headings, json=run.json, none=f"nothing happened to thread {thread!r}.") as rows:
            for entry in await store.space(run.space).thread(thread).audit():
                by = f"  by {entry.by}" if entry.by else ""
                known = f"  knowing {entry.known[:SHORT]}" if entry.known else ""
                shown = entry.id if entry.kind == "checkpoint" else f"[{entry.id}]" if entry.kind == "step" else ""
                data = f"{to_text(entry.data)}" if entry.data or entry.kind != "checkpoint" else ""
                told = f"{entry.text} {shown}{by}{known}{f'  {data}' if data else ''}"
                what = f"{entry.text} {shown[:SHORT] if entry.kind == 'checkpoint' else shown}"
                rows.add(
                    {**structs.asdict(entry), "time": entry.time.isoformat()},
                    f"{entry.time:%Y-%m-%d %H:%M:%S}Z  {told}".rstrip(),
                    *(ago(entry.time), what, entry.by, entry.known[:SHORT] if entry.known else "", data),
                )

    return work
