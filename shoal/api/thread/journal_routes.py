"""The routes of a thread's journal, replays, inbox and worklists.

A part of the table in `shoal.api.routes`.
"""

from __future__ import annotations

from shoal.api.http.exchange import ReadQuery, WriteQuery
from shoal.api.route import THREAD, Route
from shoal.api.thread import journals, queues, replay
from shoal.errors import JournalTrimmed, NotFound, Taken

JOURNAL_ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        f"{THREAD}/events",
        journals.events,
        "Events after the cursor `after`; with `wait`, once there are some",
        journals.EventsView,
        query=journals.EventsQuery,
        errors=(JournalTrimmed,),
    ),
    Route(
        "GET",
        f"{THREAD}/replay",
        replay.replay,
        "The latest snapshot of a reducer, and the events since",
        replay.ReplayView,
        query=replay.ReplayQuery,
        errors=(JournalTrimmed,),
    ),
    Route(
        "POST",
        f"{THREAD}/inbox",
        queues.send,
        "Send a message to the thread (200 if its key was sent before)",
        queues.SentView,
        201,
        queues.SendBody,
        WriteQuery,
        repeats=True,
    ),
    Route(
        "GET",
        f"{THREAD}/inbox",
        queues.inbox,
        "Messages that wait, or those that were taken; with `wait`, once there are some",
        queues.QueueView,
        query=queues.InboxQuery,
    ),
    Route(
        "POST",
        f"{THREAD}/inbox:forget",
        queues.forget_messages,
        "Forget messages that were taken before a time, and their keys",
        queues.ForgottenView,
        body=queues.ForgetBody,
        query=WriteQuery,
    ),
    Route(
        "GET",
        f"{THREAD}/inbox/{{message}}",
        queues.message,
        "A message, and its takers",
        queues.QueueEntryView,
        query=ReadQuery,
        errors=(NotFound,),
    ),
    Route(
        "POST",
        f"{THREAD}/inbox/{{message}}/take",
        queues.take,
        "Take a message, so that nobody else gets it",
        queues.TakenView,
        body=queues.TakeBody,
        query=WriteQuery,
        errors=(NotFound, Taken),
    ),
    Route("GET", f"{THREAD}/worklists", queues.worklists, "The worklists", queues.WorklistsView, query=ReadQuery),
    Route(
        "GET",
        f"{THREAD}/worklists/{{worklist}}",
        queues.worklist,
        "Items that are to be done, or those that are done",
        queues.QueueView,
        query=queues.QueueQuery,
        errors=(NotFound,),
    ),
    Route(
        "POST",
        f"{THREAD}/worklists/{{worklist}}",
        queues.add,
        "Add items, each key once",
        queues.ItemsAddedView,
        body=queues.AddItemsBody,
        query=WriteQuery,
    ),
    Route(
        "GET",
        f"{THREAD}/worklists/{{worklist}}/items/{{item}}",
        queues.item,
        "An item by its key, and its result",
        queues.QueueEntryView,
        query=ReadQuery,
        errors=(NotFound,),
    ),
    Route(
        "POST",
        f"{THREAD}/worklists/{{worklist}}/forget",
        queues.forget_items,
        "Forget items that were done before a time; they can be added again",
        queues.ForgottenView,
        body=queues.ForgetBody,
        query=WriteQuery,
    ),
    Route(
        "POST",
        f"{THREAD}/worklists/{{worklist}}/done",
        queues.done,
        "Mark an item as done",
        queues.DoneView,
        body=queues.DoneBody,
        query=WriteQuery,
        errors=(NotFound, Taken),
    ),
)
